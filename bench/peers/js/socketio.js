// Socket.IO under Node: `node socketio.js PORT`. WebSocket transport alone, no compression, events as text.
//
// "p" from a client goes to everybody as "m"; "e" comes back to its sender as "m".
import { createServer } from "node:http";
import { Server } from "socket.io";

const port = Number(process.argv[2]);
if (!port) {
  console.error("usage: node socketio.js PORT");
  process.exit(2);
}

const http = createServer();
const io = new Server(http, { transports: ["websocket"], perMessageDeflate: false, httpCompression: false, serveClient: false });

io.on("connection", (socket) => {
  socket.join("t");
  socket.on("p", (text) => io.to("t").emit("m", text));
  socket.on("e", (text) => socket.emit("m", text));
});
http.listen({ host: "127.0.0.1", port, backlog: 4096 });
