"""Agree on a protocol in seven phases of signed JSON messages. See docs/specification/flow-profile.md.

    messages, payloads, errors         the signed messages                          (message processor)
    lenient                            pass over odd entries of a payload           (message processor)
    processor                          check and remember received messages         (message processor)
    registry                           the protocols of this agent                  (protocol registry)
    capabilities                       describe them to the peer                    (capability manager)
    strategy, parameters, adaptation   scores, terms, and changes while running     (strategy engine)
    terms                              the parameters that a session keeps          (strategy engine)
    states, core, machine              the state tables and the common machine      (negotiation engine)
    proposing, initiator, responder    the machine's two sides                      (negotiation engine)
    actions, commands                  its requests to the driver, and the answers  (negotiation engine)
    sessions, transfer                 the agreed sessions, and their messages      (session manager)

The names in parentheses are those of the source specification; the classes have the same names. No module does I/O.
`sessions.flow_manager` (the meta-protocol manager) runs the machine over connections.
"""
