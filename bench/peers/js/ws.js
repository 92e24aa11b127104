// The npm package ws under Node: `node ws.js PORT`. A loop over the open subscribers, as its documentation shows it.
import { WebSocketServer, WebSocket } from "ws";

const port = Number(process.argv[2]);
if (!port) {
  console.error("usage: node ws.js PORT");
  process.exit(2);
}

const subscribers = new Set();
const server = new WebSocketServer({ host: "127.0.0.1", port, backlog: 4096, perMessageDeflate: false, maxPayload: 1 << 20 });

server.on("connection", (socket, request) => {
  // A client that resets its connection is no reason to end the server.
  socket.on("error", () => {});
  if (request.url === "/sub") {
    subscribers.add(socket);
    socket.on("close", () => subscribers.delete(socket));
  } else if (request.url === "/pub") {
    socket.on("message", (message) => {
      for (const to of subscribers) {
        if (to.readyState === WebSocket.OPEN) to.send(message, { binary: true });
      }
    });
  } else if (request.url === "/echo") {
    socket.on("message", (message) => socket.send(message, { binary: true }));
  } else {
    socket.close(1008);
  }
});
