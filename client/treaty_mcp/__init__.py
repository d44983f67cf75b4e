"""MCP doors: the tools of Treaty for a host of MCP, and a guard before the servers of others.

docs/guides/mcp.md shows both. The library is the official SDK, extra `mcp`; the guard needs the extra `agent` alone.
"""
