"""The registries that this agent uses: their HTTP API, their keys, and the leaves that they have proved."""
