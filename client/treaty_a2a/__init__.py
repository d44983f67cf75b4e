"""Serve an agent's protocols by A2A: `agent.listen(host, port, doors=[A2A(agent)])`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treaty_io.extras import lazy_names

if TYPE_CHECKING:
    from .door import A2A as A2A

__all__, __getattr__, __dir__ = lazy_names(__name__, {".door": "A2A"})
