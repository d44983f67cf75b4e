"""Carry messages between two agents. See docs/specification/transports.md.

connection   the interface `Connection`, its errors and `Backoff`
memory       two agents in one process
websocket    both ends of a WebSocket
http         the HTTP binding: its messages, and the end of the source
http_server  the HTTP binding: the end of the destination
application  an agent as an ASGI application
listener     serve the application on a port
reconnect    connect by any address, with retries
secure       the E2EE profile over another connection
outbox       a bounded queue of messages to send
foreign_session  a session without a handler, with a peer under test (`treaty conform`)
"""
