"""The agent that an application uses, assembled from all other rooms of the client."""

from __future__ import annotations

from .agent import Agent

__all__ = ["Agent"]
