"""Serve tools to hosts of MCP, with the official SDK's low-level server.

tool          a tool, its schemas and its result
quoting       foreign text as a model gets it
documents     a page of a document
reads         the arguments and results of reads
consent       ask the user of the host before a tool that changes something
tool_server   the tools of one server, over pipes or HTTP
"""
