// The envelope of docs/PROTOCOL.md, sections 2 to 4, by means of the npm package flatbuffers.
import { Builder, ByteBuffer } from "flatbuffers";

// Slots in order, as "name:type". Types: i int64, d double, b bool, s string, and S, D, B, T vectors of strings, doubles,
// bools, int32 enums. A name in brackets is a vector of that table, a bare name a table.
const TABLES = {
  hello: "version:i caps:S lastSeq:i",
  welcome: "clientId:s groups:S",
  subscribe: "topic:s",
  ping: "ts:i",
  pong: "ts:i",
  resume: "lastSeq:i",
  resumed: "ok:b from:i",
  rpcCall: "id:s name:s payloadB64:s",
  rpcResult: "id:s ok:b err:s payloadB64:s",
  quote: "symbol:s bid:d ask:d bidSize:i askSize:i ts:i",
  order: "orderId:s customer:customer lines:[line] notes:S discounts:D active:b createdAt:i billing:customer",
  customer: "id:s name:s vip:b loyaltyPoints:i rating:d",
  line: "sku:s qty:i unitPrice:d tags:T",
};
const EVENTS = ["quote", "order"];
const slots = (table) => TABLES[table].split(" ").map((s) => s.split(":"));

export function id(name) {
  let h = 0x811c9dc5;
  for (const byte of Buffer.from(name)) h = Math.imul(h ^ byte, 0x01000193) >>> 0;
  return h;
}
const NAMES = new Map(Object.keys(TABLES).map((name) => [id(name), name]));

function vector(b, size, align, values, add) {
  b.startVector(size, values.length, align);
  for (const v of [...values].reverse()) add(v);
  return b.endVector();
}

function write(b, table, fields) {
  const rows = slots(table).map(([name, type], slot) => ({ slot, type, value: fields[name] }));
  for (const row of rows.filter((r) => r.value !== undefined)) {
    const { type, value } = row;
    if (type === "s") row.at = b.createString(value);
    else if (type === "S") {
      const at = value.map((v) => b.createString(v));
      row.at = vector(b, 4, 4, at, (v) => b.addOffset(v));
    } else if (type === "D") row.at = vector(b, 8, 8, value, (v) => b.addFloat64(v));
    else if (type === "T") row.at = vector(b, 4, 4, value, (v) => b.addInt32(v));
    else if (type.startsWith("[")) {
      const at = value.map((v) => write(b, type.slice(1, -1), v));
      row.at = vector(b, 4, 4, at, (v) => b.addOffset(v));
    } else if (TABLES[type]) row.at = write(b, type, value);
  }
  b.startObject(rows.length);
  for (const { slot, type, value, at } of rows) {
    if (at !== undefined) b.addFieldOffset(slot, at, 0);
    else if (type === "i") b.addFieldInt64(slot, BigInt(value ?? 0), 0n);
    else if (type === "d") b.addFieldFloat64(slot, value ?? 0, 0);
    else if (type === "b") b.addFieldInt8(slot, +(value ?? false), 0);
  }
  return b.endObject();
}

export function encode(name, fields) {
  const b = new Builder(1024);
  b.finishSizePrefixed(write(b, name, fields));
  const head = Buffer.alloc(14);
  head[0] = 2;
  head.writeUInt32LE(id(name), 1);
  return Buffer.concat([head, b.asUint8Array()]);
}

function read(bb, at, table) {
  const out = {};
  slots(table).forEach(([name, type], slot) => {
    const offset = bb.__offset(at, 4 + 2 * slot);
    const place = at + offset;
    const each = (size, get) => Array.from({ length: bb.__vector_len(place) }, (_, i) => get(bb.__vector(place) + size * i));
    if (type === "i") out[name] = offset ? Number(bb.readInt64(place)) : 0;
    else if (type === "d") out[name] = offset ? bb.readFloat64(place) : 0;
    else if (type === "b") out[name] = offset !== 0 && bb.readInt8(place) !== 0;
    else if (type === "s") out[name] = offset ? bb.__string(place) : "";
    else if (!offset) out[name] = TABLES[type] ? undefined : [];
    else if (type === "S") out[name] = each(4, (p) => bb.__string(p));
    else if (type === "D") out[name] = each(8, (p) => bb.readFloat64(p));
    else if (type === "T") out[name] = each(4, (p) => bb.readInt32(p));
    else if (type.startsWith("[")) out[name] = each(4, (p) => read(bb, bb.__indirect(p), type.slice(1, -1)));
    else out[name] = read(bb, bb.__indirect(place), type);
  });
  return out;
}

export function decode(message) {
  const raw = Buffer.from(message);
  const name = NAMES.get(raw.readUInt32LE(1));
  if (raw.length < 14 || raw[0] !== 2 || !name) throw new Error(`not an envelope: ${raw.subarray(0, 20).toString("hex")}`);
  const bb = new ByteBuffer(new Uint8Array(raw.subarray(18)));
  const seq = raw[5] & 1 ? Number(raw.readBigUInt64LE(6)) : 0;
  return { name, seq, raw, event: EVENTS.includes(name), fields: read(bb, bb.__indirect(0), name) };
}
