// uWebSockets, C++: `uws-peer PORT publish|rewrite`.
//
// publish: subscribers join a topic, each message goes out through `App::publish`, the same bytes for everybody.
// rewrite: each subscriber has a number of its own, written big-endian into bytes 6..14 before each send.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>
#include <unordered_set>

#include "App.h"

namespace {

constexpr const char *kTopic = "t";
constexpr size_t kNumberAt = 6;

struct Peer {
    uint64_t sent = 0;
};

using Socket = uWS::WebSocket<false, true, Peer>;
using Behavior = uWS::App::WebSocketBehavior<Peer>;

std::unordered_set<Socket *> subscribers;

Behavior behavior() {
    Behavior b;
    b.compression = uWS::DISABLED;
    b.maxPayloadLength = 1 << 20;
    b.idleTimeout = 120;
    // Large enough that nobody is dropped: what is measured has to arrive.
    b.maxBackpressure = 64 << 20;
    return b;
}

void rewrite(std::string_view message) {
    std::string copy(message);
    if (copy.size() < kNumberAt + sizeof(uint64_t)) {
        return;
    }
    for (Socket *to : subscribers) {
        uint64_t number = __builtin_bswap64(++to->getUserData()->sent);
        std::memcpy(copy.data() + kNumberAt, &number, sizeof number);
        to->send(copy, uWS::OpCode::BINARY);
    }
}

}  // namespace

int main(int argc, char **argv) {
    const int port = argc == 3 ? std::atoi(argv[1]) : 0;
    const std::string_view mode = argc == 3 ? argv[2] : "";
    if (port == 0 || (mode != "publish" && mode != "rewrite")) {
        std::cerr << "usage: uws-peer PORT publish|rewrite\n";
        return 2;
    }
    const bool publish = mode == "publish";
    uWS::App app;

    Behavior sub = behavior();
    sub.open = [publish](Socket *socket) {
        if (publish) {
            socket->subscribe(kTopic);
        } else {
            subscribers.insert(socket);
        }
    };
    sub.close = [](Socket *socket, int, std::string_view) { subscribers.erase(socket); };

    Behavior pub = behavior();
    pub.message = [publish, &app](Socket *, std::string_view message, uWS::OpCode) {
        if (publish) {
            app.publish(kTopic, message, uWS::OpCode::BINARY, false);
        } else {
            rewrite(message);
        }
    };

    Behavior echo = behavior();
    echo.message = [](Socket *socket, std::string_view message, uWS::OpCode code) { socket->send(message, code); };

    app.ws<Peer>("/sub", std::move(sub))
        .ws<Peer>("/pub", std::move(pub))
        .ws<Peer>("/echo", std::move(echo))
        .listen("127.0.0.1", port, [port](auto *listening) {
            if (!listening) {
                std::cerr << "uws-peer: port " << port << " cannot be taken\n";
                std::exit(1);
            }
        })
        .run();
    return 1;
}
