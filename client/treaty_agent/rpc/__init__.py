"""Call the methods that other agents describe with OpenRPC or serve by MCP, as JSON-RPC 2.0.

docs/specification/discovery.md, section 5, has the rules.

methods    a method, with checks of arguments and results in bounded time
openrpc    read methods from an OpenRPC document
exchange   bounded and signed requests, and the framing of JSON-RPC
mcp        the tools of an MCP server; its parts are mcp_endpoint, mcp_process, mcp_headers and mcp_eras
client     find and call the methods of an agent
"""
