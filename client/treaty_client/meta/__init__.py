"""The Hello profile of the ANP meta-protocol (`anp-meta/1.0`): how two agents agree on a protocol before they speak it.

On the wire: `frame` (the one-byte header), `hello` (the two Hellos), `messages` (the meta messages that follow them), `documents`
(what a proposed protocol says of itself). `machine`: the state machine of both sides, without I/O, clock or randomness of its
own; its parts are `handshake`, `negotiation`, `generation`, `testing`, `repair`, `questions` and `reception`, what it asks for
is in `actions`, and `limits` says how long and how much. `secure`: the same, signed and encrypted.
"""
