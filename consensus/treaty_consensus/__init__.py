"""Define a Treaty log and its verification: statements, admission, Merkle proofs, elections and audit.

A pure package: no network, disk, clock or randomness. A server, a client and an auditor run this code and compute the same
bytes from the same log.
"""

__version__ = "0.1.0"
