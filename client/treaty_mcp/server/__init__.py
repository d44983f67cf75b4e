"""`treaty mcp`: the tools of a home for a host of MCP.

reading   search, resolve, read, verify and topic of a registry
calling   discover, operations and call
native    the operations of a protocol at an agent, each a tool of its own
writing   vote and publish, where the owner names them
home      the tools of a home, and their server
hosts     the configuration of hosts
"""
