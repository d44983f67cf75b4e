"""Make the statements that a person or an agent signs and sends to a log.

    publish         publish a protocol and its handler
    vote            ballots and vouches
    status          yank, revoke and deprecate a protocol or a handler
    grant           let others publish in a namespace
    key_rotation    confirm a new key with the old one

All statements are signed with the key of an `Identity`. Reports need a session: `treaty_agent.reports`.
"""
