"""Implement the two profiles of the ANP meta-protocol and its encryption, without I/O, clock or randomness.

frame          the frames after the Hellos
hello_profile  agree on a protocol by two Hellos and meta messages
flow_profile   agree on a protocol by the negotiation flow
e2ee           sign the Hellos and encrypt all later messages
transitions    the state tables that both machines follow
recording      record the calls of a machine
transcript     the file of recorded calls, and their replay
"""
