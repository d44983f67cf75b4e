"""The transparency log, as arithmetic and bytes; whoever calls brings the I/O.

`merkle`: RFC 6962 hashing, proofs and their verification. `tiles`: C2SP tlog-tiles, and the right edge a
sequencer grows. `note`: C2SP signed notes, Ed25519 and cosignature/v1. `checkpoint`: the tree head in a signed
note. `proof`: the receipt, a C2SP tlog-proof. `witness`: what a witness is asked and answers (C2SP tlog-witness), and how many
have to cosign. `equivocation`: the proof that a log signed two histories.
"""
