"""The registries this agent talks to: their HTTP API, their keys, the heads of their logs, and auditing them."""
