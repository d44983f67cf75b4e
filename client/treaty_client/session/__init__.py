"""One session of an agent, from the connection to the business function.

    doors         the ways in and out: transports, encryption, which profile        opening        what is said first
    meeting       a session from its beginning to its end, escalation included      sides          the agent on either side
    driver        the state machine, and what does as it says:
      wire          the connection              code          the protocol and its handler    negotiating    the negotiator
      calls         the application's calls     testing       agreed test cases; trial        requests       questions, complaints
      hosting       a handler's events and effects; operations, store                         conversation   natural language
    publishing    what follows a session that went well

`household` is what all sessions of an agent share: `business` it offers, `agreements` it remembers, protocols it `negotiated`,
`acquaintances` whose DID documents it fetches, a person to ask in an `escalation`. `runtime` is where handlers run, `ports` what
all this needs of others, `timing` how long all may take, `session` what an application sees.
"""
