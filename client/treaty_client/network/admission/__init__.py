"""Bound what strangers take of a server: registry, witness, agent, AIP gateway and handoff endpoint use the same bounds.

connections  TCP connections: of an address, of a port, and those that do nothing (Linux)
rounds       turns in the event loop, shared between networks
repeats      lines of the log that a stranger can repeat
line_limit   the same for the lines of libraries

Places that are held for longer, such as sessions and threads, are shared by `treaty_client.places`.
"""
