"""The envelope of docs/PROTOCOL.md, sections 2 to 4, by means of the PyPI package flatbuffers."""
import struct

import flatbuffers
from flatbuffers import number_types as N
from flatbuffers.table import Table

# Slots in order. Types: i int64, d double, b bool, s string, S, D, T vectors of strings, doubles, int32 enums; a name in
# brackets is a vector of that table, a bare name a table.
TABLES = {
    "hello": "version:i caps:S lastSeq:i",
    "welcome": "clientId:s groups:S",
    "subscribe": "topic:s",
    "ping": "ts:i",
    "pong": "ts:i",
    "resume": "lastSeq:i",
    "resumed": "ok:b from:i",
    "rpcCall": "id:s name:s payloadB64:s",
    "rpcResult": "id:s ok:b err:s payloadB64:s",
    "quote": "symbol:s bid:d ask:d bidSize:i askSize:i ts:i",
    "order": "orderId:s customer:customer lines:[line] notes:S discounts:D active:b createdAt:i billing:customer",
    "customer": "id:s name:s vip:b loyaltyPoints:i rating:d",
    "line": "sku:s qty:i unitPrice:d tags:T",
}
EVENTS = ("quote", "order")


def slots(table):
    return [s.split(":") for s in TABLES[table].split()]


def name_id(name):
    h = 0x811C9DC5
    for byte in name.encode():
        h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    return h


NAMES = {name_id(name): name for name in TABLES}


def _vector(b, size, values, add):
    b.StartVector(size, len(values), size)
    for v in reversed(values):
        add(v)
    return b.EndVector()


def _write(b, table, fields):
    rows = [(slot, kind, fields.get(name)) for slot, (name, kind) in enumerate(slots(table))]
    at = {}
    for slot, kind, value in rows:
        if value is None or kind in "idb":
            continue
        if kind == "s":
            at[slot] = b.CreateString(value)
        elif kind == "S":
            at[slot] = _vector(b, 4, [b.CreateString(v) for v in value], b.PrependUOffsetTRelative)
        elif kind == "D":
            at[slot] = _vector(b, 8, value, b.PrependFloat64)
        elif kind == "T":
            at[slot] = _vector(b, 4, value, b.PrependInt32)
        elif kind.startswith("["):
            at[slot] = _vector(b, 4, [_write(b, kind[1:-1], v) for v in value], b.PrependUOffsetTRelative)
        else:
            at[slot] = _write(b, kind, value)
    b.StartObject(len(rows))
    for slot, kind, value in rows:
        if slot in at:
            b.PrependUOffsetTRelativeSlot(slot, at[slot], 0)
        elif kind == "i":
            b.PrependInt64Slot(slot, value or 0, 0)
        elif kind == "d":
            b.PrependFloat64Slot(slot, value or 0.0, 0.0)
        elif kind == "b":
            b.PrependBoolSlot(slot, bool(value), False)
    return b.EndObject()


def encode(name, fields):
    b = flatbuffers.Builder(1024)
    b.FinishSizePrefixed(_write(b, name, fields))
    return struct.pack("<BIBQ", 2, name_id(name), 0, 0) + bytes(b.Output())


def _read(t, table):
    out = {}
    for slot, (name, kind) in enumerate(slots(table)):
        offset = t.Offset(4 + 2 * slot)
        place = t.Pos + offset

        def each(size, get):
            first = t.Vector(offset)
            return [get(first + size * i) for i in range(t.VectorLen(offset))]

        if kind in "idb":
            flags = {"i": N.Int64Flags, "d": N.Float64Flags, "b": N.BoolFlags}[kind]
            out[name] = t.Get(flags, place) if offset else {"i": 0, "d": 0.0, "b": False}[kind]
        elif kind == "s":
            out[name] = t.String(place).decode() if offset else ""
        elif not offset:
            out[name] = None if kind in TABLES else []
        elif kind == "S":
            out[name] = each(4, lambda p: t.String(p).decode())
        elif kind == "D":
            out[name] = each(8, lambda p: t.Get(N.Float64Flags, p))
        elif kind == "T":
            out[name] = each(4, lambda p: t.Get(N.Int32Flags, p))
        elif kind.startswith("["):
            out[name] = each(4, lambda p: _read(Table(t.Bytes, t.Indirect(p)), kind[1:-1]))
        else:
            out[name] = _read(Table(t.Bytes, t.Indirect(place)), kind)
    return out


class Message:
    """One message of the server."""

    def __init__(self, raw):
        version, event_id, flags, seq = struct.unpack_from("<BIBQ", raw)
        if version != 2 or event_id not in NAMES:
            raise ValueError(f"not an envelope: {raw[:20].hex()}")
        self.raw, self.name, self.seq = raw, NAMES[event_id], seq if flags & 1 else 0
        payload = raw[18:]
        self.fields = _read(Table(payload, struct.unpack_from("<I", payload)[0]), self.name)
