module treaty/peers/message-routing

go 1.25.0

require github.com/coder/websocket v1.8.14
