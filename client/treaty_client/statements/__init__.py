"""Make the statements that an agent signs and sends to a log.

    publish         publish a protocol and its handler
    vote            ballots and vouches
    status          yank, revoke and deprecate a protocol or a handler
    grant           let others publish in a namespace
    report          co-signed reports: both halves of the signature, and the submission
    report_rules    the checks before a report is signed
    report_ledger   the reports that an agent stores
    key_rotation    confirm a new key with the old one

All statements are signed with the key of an `Identity`.
"""
