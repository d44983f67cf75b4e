"""Implement the transparency log as pure arithmetic and bytes; the caller does the I/O.

- `merkle`: RFC 6962 hashing, proofs and their verification.
- `tiles`: C2SP tlog-tiles, and the right edge that a sequencer grows.
- `note`: C2SP signed notes, Ed25519 and cosignature/v1.
- `checkpoint`: the tree head in a signed note.
- `durability`: where the leaves of a checkpoint are, as the log says in it.
- `proof`: the receipt, a C2SP tlog-proof.
- `witness`: requests to a witness and its answers (C2SP tlog-witness), and the quorum of cosignatures.
- `equivocation`: the proof that a log signed two histories.
"""
