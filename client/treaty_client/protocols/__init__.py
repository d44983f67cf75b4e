"""A protocol and its handler: resolve, verify in ten steps, store, lock, attest, export."""
