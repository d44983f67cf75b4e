"""Co-signed reports: two agents tell the log together that they negotiated.

`rules`: what may be signed. `exchange`: its messages over a session. `reporter`: both halves, and the submission. `ledger`:
what is kept of it. `log`: the registry's log, as far as reports need it.
"""
