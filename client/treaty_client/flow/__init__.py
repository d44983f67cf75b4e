"""The negotiation flow profile of the ANP meta-protocol: seven phases of signed JSON messages, from `initialize` to the first
message of the agreed protocol.

    manager          one agent's negotiations, in both directions            (meta-protocol manager)
    registry         what this side speaks, under which ids                  (protocol registry)
    engine, track    the state machine, without I/O                          (negotiation engine)
    sessions         what was agreed on, until when, and what may be said    (session manager)
    capabilities     what is told of it, whole or in steps                   (capability manager)
    messages, payloads, processor, signatures      the envelopes             (message processor)
    strategy, parameters, history, adaptation      scores, terms, experience (strategy engine)

`driver` joins a connection, an engine and the handlers; `names` turns ids into verified protocols, and DIDs into keys.
"""
