"""What agents agreed on, and the proof of it.

A pure package: no network, disk, clock or randomness. Everything that decides is here, so that a server, a client and an
auditor who runs neither compute the same bytes from the same log.
"""
