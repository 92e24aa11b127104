#!/usr/bin/env python3
"""seqcast as the PyPI package websockets sees it. Environment: SEQCAST_URL, SEQCAST_ADMIN. One line a case."""
import base64
import itertools
import json
import os
import re
import socket
import struct
import sys
import time
import urllib.error
import urllib.request

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from envelope import EVENTS, Message, encode

URL, ADMIN, TOKEN, PATIENCE = os.environ["SEQCAST_URL"], os.environ["SEQCAST_ADMIN"], "tok-python", 10.0
CASES = []
_ts = itertools.count(1)


def quote(n):
    return {"symbol": "ACME", "bid": 9.5, "ask": 9.75, "bidSize": n, "askSize": 2, "ts": 1700000000000}


def big_order():
    return {"orderId": "big", "customer": {"id": "c", "name": "Müller", "vip": True, "loyaltyPoints": 7, "rating": 4.5},
            "lines": [{"sku": f"sku-{i}", "qty": i + 1, "unitPrice": 0.25, "tags": [i % 3]} for i in range(50)],
            "notes": [f"{i} ".ljust(1024, "x") for i in range(300)], "discounts": [0.5], "active": True, "createdAt": 1,
            "billing": None}


class Client:
    opened = []

    def __init__(self, token=TOKEN, **options):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection = connect(URL, additional_headers=headers, max_size=2 ** 20, open_timeout=PATIENCE, **options)
        self.ws = connection.__enter__()        # it ends with the case, not with a block
        self.inbox = []
        Client.opened.append(self)

    def take(self, *names):
        for i, m in enumerate(self.inbox):
            if m.name in names:
                return self.inbox.pop(i)
        end = time.monotonic() + PATIENCE
        while True:
            m = Message(self.ws.recv(timeout=max(0.01, end - time.monotonic())))
            if m.name in names:
                return m
            self.inbox.append(m)

    def events(self, n):
        return [self.take(*EVENTS) for _ in range(n)]

    def send(self, name, /, **fields):
        self.ws.send(encode(name, fields))

    def hello(self, last_seq, *topics):
        self.send("hello", version=2, lastSeq=last_seq)
        for topic in topics:
            self.send("subscribe", topic=topic)
        ts = next(_ts)
        self.send("ping", ts=ts)
        same(self.take("pong").fields["ts"], ts)

    def cut(self):
        """Ends the connection with a reset, as a broken network would."""
        if self.ws.socket.fileno() >= 0:
            self.ws.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.ws.socket.shutdown(socket.SHUT_RDWR)
            self.ws.socket.close()


def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(ADMIN + path, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


def publish(n, topic):
    call("POST", "/v1/publish", {"event": "quote", "data": quote(n), "to": {"topic": topic}})


def gone():
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            call("GET", "/v1/clients/python")
        except urllib.error.HTTPError as e:
            if e.code == 404:
                return
        time.sleep(0.01)
    raise AssertionError("the server still lists the client")


def same(got, want):
    assert got == want, f"expected {want!r:.200}, got {got!r:.200}"


def case(name):
    return lambda fn: CASES.append((name, fn))


@case("opening: hello, then welcome with the pinned id; a clean close")
def opening():
    c = Client()
    same(c.take("hello", "welcome").name, "hello")
    same(c.take("welcome").fields["clientId"], "python")
    c.ws.close()
    same((c.ws.close_code, c.ws.protocol.extensions), (1000, []))


@case("published events arrive numbered and in order; a cut; what was missed arrives after the return")
def cut_and_return():
    c = Client()
    c.hello(0, "cut")
    for n in range(1, 6):
        publish(n, "cut")
    first = c.events(5)
    same([m.fields for m in first], [quote(n) for n in range(1, 6)])
    last = first[-1].seq
    same([m.seq for m in first], list(range(last - 4, last + 1)))
    c.cut()
    gone()
    for n in range(6, 9):
        publish(n, "cut")
    c = Client()
    c.hello(last)
    same([(m.fields["bidSize"], m.seq) for m in c.events(3)], [(6, last + 1), (7, last + 2), (8, last + 3)])
    same(c.take("resumed").fields, {"ok": True, "from": last + 1})
    publish(9, "cut")
    same([(m.fields["bidSize"], m.seq) for m in c.events(1)], [(9, last + 4)])


@case("resume on the same connection sends the same bytes again")
def resume():
    c = Client()
    c.hello(0, "again")
    for n in range(3):
        publish(n, "again")
    first = c.events(3)
    c.send("resume", lastSeq=first[0].seq)
    same([m.raw for m in c.events(2)], [m.raw for m in first[1:]])
    same(c.take("resumed").fields, {"ok": True, "from": first[1].seq})


@case("300 KiB sent whole come back")
def whole():
    c = Client()
    c.hello(0)
    c.send("order", **big_order())
    same(c.take("order").fields, big_order())


@case("300 KiB sent in fragments come back")
def fragments():
    c = Client()
    c.hello(0)
    message = encode("order", big_order())
    cuts = [0, 1, 5, 14, 4000, 70_000, 70_001, len(message)]
    c.ws.send(message[a:b] for a, b in zip(cuts, cuts[1:]))
    same(c.take("order").raw[14:], message[14:])


@case("300 KiB published arrive whole")
def published():
    c = Client()
    c.hello(0, "big")
    data = {k: v for k, v in {**big_order(), "lines": []}.items() if v is not None}
    call("POST", "/v1/publish", {"event": "order", "data": data, "to": {"topic": "big"}})
    same(c.take("order").fields, {**data, "billing": None})


@case("a burst of 2,000 events arrives complete")
def burst():
    c = Client()
    c.hello(0, "burst")
    for n in range(2000):
        publish(n, "burst")
    got = c.events(2000)
    same([m.fields["bidSize"] for m in got], list(range(2000)))
    same([m.seq - got[0].seq for m in got], list(range(2000)))


@case("a request is answered")
def request():
    c = Client()
    c.send("rpcCall", id="r1", name="quote", payloadB64=base64.b64encode(encode("quote", quote(3))).decode())
    answer = c.take("rpcResult").fields
    same((answer["id"], answer["ok"]), ("r1", True))
    same(Message(base64.b64decode(answer["payloadB64"])).fields, quote(3))


@case("the token as a subprotocol; the real one is answered")
def subprotocol():
    bearer = "bearer." + base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip("=")
    c = Client(None, subprotocols=["seqcast", bearer])
    same(c.ws.subprotocol, "seqcast")
    same(c.take("welcome").fields["clientId"], "python")


@case("without a token: 401")
def refused():
    try:
        Client(None)
    except InvalidStatus as e:
        same(e.response.status_code, 401)
    else:
        raise AssertionError("was let in")


@case("pings in both directions; a message over the limit closes 1009")
def limits():
    c = Client()
    c.hello(0)
    assert c.ws.ping().wait(PATIENCE), "no pong"
    try:
        c.ws.send(bytes(2 ** 20 + 1))
        while True:
            c.ws.recv(timeout=PATIENCE)
    except ConnectionClosed as e:
        same((e.rcvd.code, e.rcvd.reason), (1009, "message too big"))


def main():
    failed = 0
    for name, run in CASES:
        try:
            run()
            print("ok websockets:", name, flush=True)
        except Exception as e:
            failed += 1
            print(f"FAIL websockets: {name}:", re.sub(r"\s+", " ", f"{type(e).__name__}: {e}")[:400], flush=True)
        while Client.opened:
            Client.opened.pop().cut()
        gone()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
