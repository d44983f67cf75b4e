"""Bound what strangers take of a server: registry, witness, agent, AIP gateway and handoff endpoint use the same bounds.

connections    TCP connections: of an address, of a port, and those that do nothing (Linux)
accepting      the set-up of accepted connections, in turns
rounds         turns in the event loop, shared between networks
message_turns  the same for the messages of a connection
in_turns       the same for the requests of an ASGI application
byte_room      memory for bodies and answers, shared between networks

Places that are held for longer, such as sessions and threads, are shared by `treaty_io.places`. Lines that strangers cause in the
server's log are limited by `treaty_io.line_limit`.
"""
