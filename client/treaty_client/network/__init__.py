"""Reaching hosts: explicit addresses and authorities, the egress guard, DID documents."""
