// seqcast as the npm package ws sees it. Environment: SEQCAST_URL, SEQCAST_ADMIN. One line a case.
import assert from "node:assert/strict";
import WebSocket from "ws";
import { decode, encode } from "./envelope.mjs";

const { SEQCAST_URL: url, SEQCAST_ADMIN: admin } = process.env;
const TOKEN = "tok-node";
const PATIENCE = 10_000;

const quote = (n) => ({ symbol: "ACME", bid: 9.5, ask: 9.75, bidSize: n, askSize: 2, ts: 1700000000000 });

/** A connection whose messages are taken one by one, in the order in which they came. */
class Client {
  static opened = [];
  static async open(options = {}, protocols = []) {
    const headers = options.headers ?? { Authorization: `Bearer ${TOKEN}` };
    const c = new Client();
    c.inbox = [];
    Client.opened.push(c);
    c.ws = new WebSocket(url, protocols, { ...options, headers });
    c.ws.on("message", (data, isBinary) => c.push(isBinary ? decode(data) : { name: "text" }));
    c.ws.on("close", (code, reason) => c.push({ name: "closed", code, reason: reason.toString() }));
    c.ws.on("error", (error) => c.push({ name: "error", error }));
    await new Promise((resolve, reject) => c.ws.once("open", resolve).once("error", reject));
    return c;
  }
  push(message) {
    this.inbox.push(message);
    this.waiter?.();
  }
  async take(name) {
    const end = Date.now() + PATIENCE;
    for (;;) {
      const at = this.inbox.findIndex((m) => (name === "event" ? m.event : m.name === name));
      if (at >= 0) return this.inbox.splice(at, 1)[0];
      assert.ok(Date.now() < end, `no ${name} in ${PATIENCE} ms; there are ${this.inbox.map((m) => m.name)}`);
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, end - Date.now());
        this.waiter = () => (clearTimeout(timer), resolve());
      });
    }
  }
  async events(n) {
    const out = [];
    while (out.length < n) out.push(await this.take("event"));
    return out;
  }
  send(name, fields) {
    this.ws.send(encode(name, fields));
  }
  /** Everything sent so far has been handled when this returns. */
  async sync() {
    this.send("ping", { ts: ++Client.ts });
    assert.equal((await this.take("pong")).fields.ts, Client.ts);
  }
  static ts = 0;
  async hello(lastSeq, ...topics) {
    this.send("hello", { version: 2, caps: [], lastSeq });
    for (const topic of topics) this.send("subscribe", { topic });
    await this.sync();
  }
  async close() {
    this.ws.close(1000);
    return this.take("closed");
  }
  /** Ends the connection with a reset, as a broken network would. */
  cut() {
    this.ws._socket.resetAndDestroy();
  }
}

async function call(method, path, body) {
  const answer = await fetch(admin + path, { method, body: body && JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}
const publish = (n, topic) => call("POST", "/v1/publish", { event: "quote", data: quote(n), to: { topic } });

async function gone() {
  const end = Date.now() + PATIENCE;
  while (Date.now() < end) {
    if ((await fetch(`${admin}/v1/clients/node`)).status === 404) return;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  throw new Error("the server still lists the client");
}

const bigOrder = () => ({
  orderId: "big", customer: { id: "c", name: "Müller", vip: true, loyaltyPoints: 7, rating: 4.5 },
  lines: Array.from({ length: 50 }, (_, i) => ({ sku: `sku-${i}`, qty: i + 1, unitPrice: 0.25, tags: [i % 3] })),
  notes: Array.from({ length: 300 }, (_, i) => `${i} `.padEnd(1024, "x")), discounts: [0.5], active: true, createdAt: 1,
});

const cases = {
  async "opening: hello, then welcome with the pinned id"() {
    const c = await Client.open();
    const [hello, welcome] = [await c.take("hello"), await c.take("welcome")];
    assert.equal(hello.fields.version, 2);
    assert.equal(welcome.fields.clientId, "node");
    assert.deepEqual([hello.seq, welcome.seq], [0, 0]);
    assert.equal(c.ws.extensions, "");
    const closed = await c.close();
    assert.equal(closed.code, 1000);
  },
  async "published events arrive numbered and in order; a cut; what was missed arrives after the return"() {
    let c = await Client.open();
    await c.hello(0, "cut");
    for (let n = 1; n <= 5; n++) await publish(n, "cut");
    const first = await c.events(5);
    assert.deepEqual(first.map((m) => m.fields), [1, 2, 3, 4, 5].map(quote));
    const last = first[4].seq;
    assert.deepEqual(first.map((m) => m.seq), [4, 3, 2, 1, 0].map((d) => last - d));
    c.cut();
    await gone();
    for (let n = 6; n <= 8; n++) await publish(n, "cut");
    c = await Client.open();
    await c.hello(last);
    const rest = await c.events(3);
    assert.deepEqual(rest.map((m) => [m.fields.bidSize, m.seq]), [[6, last + 1], [7, last + 2], [8, last + 3]]);
    assert.deepEqual((await c.take("resumed")).fields, { ok: true, from: last + 1 });
    await publish(9, "cut");
    assert.deepEqual((await c.events(1)).map((m) => [m.fields.bidSize, m.seq]), [[9, last + 4]]);
    await c.close();
  },
  async "resume on the same connection sends the same bytes again"() {
    const c = await Client.open();
    await c.hello(0, "again");
    for (let n = 1; n <= 3; n++) await publish(n, "again");
    const first = await c.events(3);
    c.send("resume", { lastSeq: first[0].seq });
    const again = await c.events(2);
    assert.deepEqual(again.map((m) => m.raw), first.slice(1).map((m) => m.raw));
    assert.deepEqual((await c.take("resumed")).fields, { ok: true, from: first[1].seq });
    await c.close();
  },
  async "300 KiB sent whole come back"() {
    const c = await Client.open();
    await c.hello(0);
    c.send("order", bigOrder());
    assert.deepEqual((await c.take("event")).fields, { ...bigOrder(), billing: undefined });
    await c.close();
  },
  async "300 KiB sent in fragments come back"() {
    const c = await Client.open();
    await c.hello(0);
    const whole = encode("order", bigOrder());
    const cuts = [0, 1, 5, 14, 4000, 70_000, 70_001, whole.length];
    for (let i = 1; i < cuts.length; i++) {
      c.ws.send(whole.subarray(cuts[i - 1], cuts[i]), { binary: true, fin: i === cuts.length - 1 });
      if (i === 4) c.ws.ping("between");
    }
    const pong = new Promise((resolve) => c.ws.once("pong", (data) => resolve(data.toString())));
    const back = await c.take("event");
    assert.ok(back.raw.subarray(14).equals(whole.subarray(14)), "payload changed");
    assert.equal(await pong, "between");
    await c.close();
  },
  async "300 KiB published arrive whole"() {
    const c = await Client.open();
    await c.hello(0, "big");
    const data = { ...bigOrder(), lines: [] };
    await call("POST", "/v1/publish", { event: "order", data, to: { topic: "big" } });
    assert.deepEqual((await c.take("event")).fields, { ...data, billing: undefined });
    await c.close();
  },
  async "a burst of 2,000 events arrives complete"() {
    const c = await Client.open();
    await c.hello(0, "burst");
    const sent = Array.from({ length: 2000 }, (_, i) => i + 1);
    for (const n of sent) await publish(n, "burst");
    const got = await c.events(sent.length);
    assert.deepEqual(got.map((m) => m.fields.bidSize), sent);
    assert.deepEqual(got.map((m) => m.seq - got[0].seq + 1), sent);
    await c.close();
  },
  async "a request is answered"() {
    const c = await Client.open();
    c.send("rpcCall", { id: "r1", name: "quote", payloadB64: encode("quote", quote(3)).toString("base64") });
    const { id, ok, payloadB64 } = (await c.take("rpcResult")).fields;
    assert.deepEqual([id, ok], ["r1", true]);
    assert.deepEqual(decode(Buffer.from(payloadB64, "base64")).fields, quote(3));
    await c.close();
  },
  async "the token as a subprotocol; the real one is answered"() {
    const bearer = `bearer.${Buffer.from(TOKEN).toString("base64url")}`;
    const c = await Client.open({ headers: {} }, ["seqcast", bearer]);
    assert.equal(c.ws.protocol, "seqcast");
    assert.equal((await c.take("welcome")).fields.clientId, "node");
    await c.close();
  },
  async "without a token: 401"() {
    await assert.rejects(Client.open({ headers: {} }), /401/);
  },
  async "an offer of compression is passed over"() {
    const c = await Client.open({ perMessageDeflate: true });
    assert.equal(c.ws.extensions, "");
    await c.hello(0);
    await c.close();
  },
};

let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  try {
    await run();
    console.log(`ok ws: ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ws: ${name}: ${String(error?.message ?? error).replaceAll(/\s+/g, " ").slice(0, 400)}`);
  }
  for (const c of Client.opened.splice(0)) c.ws.terminate();
  await gone();
}
process.exit(failed ? 1 : 0);
