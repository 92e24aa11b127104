// Bun's own WebSocket server: `bun bun.js PORT publish|rewrite`.
//
// publish: subscribers join a topic, each message goes out through `server.publish`, the same bytes for everybody.
// rewrite: each subscriber has a number of its own, written big-endian into bytes 6..14 before each send.
const port = Number(process.argv[2]);
const mode = process.argv[3];
if (!port || !["publish", "rewrite"].includes(mode)) {
  console.error("usage: bun bun.js PORT publish|rewrite");
  process.exit(2);
}

const TOPIC = "t";
const subscribers = new Set();

function rewrite(message) {
  const view = new DataView(message.buffer, message.byteOffset, message.byteLength);
  for (const socket of subscribers) {
    const next = (socket.data.sent += 1);
    view.setUint32(6, Math.floor(next / 0x100000000));
    view.setUint32(10, next % 0x100000000);
    socket.send(message, false);
  }
}

const roles = {
  "/sub": {
    open(socket) {
      if (mode === "publish") socket.subscribe(TOPIC);
      else subscribers.add(socket);
    },
  },
  "/pub": {
    message: mode === "publish" ? (_, message) => server.publish(TOPIC, message, false) : (_, message) => rewrite(message),
  },
  "/echo": { message: (socket, message) => socket.send(message, false) },
};

const server = Bun.serve({
  hostname: "127.0.0.1",
  port,
  fetch(request, server) {
    const role = roles[new URL(request.url).pathname];
    if (role && server.upgrade(request, { data: { role, sent: 0 } })) return undefined;
    return new Response("no such path\n", { status: 404 });
  },
  websocket: {
    perMessageDeflate: false,
    idleTimeout: 120,
    maxPayloadLength: 1 << 20,
    // Large enough that nobody is dropped: what is measured has to arrive.
    backpressureLimit: 64 << 20,
    open: (socket) => socket.data.role.open?.(socket),
    message: (socket, message) => socket.data.role.message?.(socket, message),
    close: (socket) => subscribers.delete(socket),
  },
});
