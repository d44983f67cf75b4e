"""The Hello profile of the ANP meta-protocol (`anp-meta/1.0`, plain): how two agents agree on a protocol before they speak it.

`frame`: the one-byte header. `hello`: the two Hellos. `messages`: the meta messages that follow them. `machine`: the state
machine of both sides, without I/O, clock or randomness of its own.
"""
