"""MCP doors: the tools of Treaty for a host of MCP, a guard before the servers of others, and an agent as a server.

docs/guides/mcp.md shows each. The library is the official SDK, extra `mcp`; the guard needs the extra `agent` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treaty_io.extras import lazy_names

if TYPE_CHECKING:
    from .door import MCP as MCP

__all__, __getattr__, __dir__ = lazy_names(__name__, {".door": "MCP"})
