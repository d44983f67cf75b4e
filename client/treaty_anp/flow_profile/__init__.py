"""Agree on a protocol in seven phases of signed JSON messages. See docs/specification/flow-profile.md.

    messages, payloads, errors         the signed messages                          (message processor)
    processor                          check and remember received messages         (message processor)
    capabilities                       this agent's protocols, and the peer's       (protocol registry, capability manager)
    strategy, parameters, adaptation   scores, terms, and changes while running     (strategy engine)
    states, machine                    the state tables, and the engine             (negotiation engine)
    initiator, responder               the engine's two sides                       (negotiation engine)
    track                              one protocol that is negotiated              (negotiation engine)
    actions, commands                  its requests to the driver, and the answers  (negotiation engine)
    sessions, transfer                 the agreed sessions, and their messages      (session manager)

The names in parentheses are those of the source specification; the classes have the same names. No module does I/O.
`treaty_agent.sessions.flow_manager` (the meta-protocol manager) runs the machine over connections.
"""
