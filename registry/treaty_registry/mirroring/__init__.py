"""Mirror a registry: follow its log, check every rule, and serve all reads as the registry does.

A mirror has no keys. It shows the signed checkpoints that it received, once all their leaves are verified and stored.
"""
