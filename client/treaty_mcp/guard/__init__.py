"""Stand between a host of MCP and a server, and let no tool pass that its owner has not accepted.

tool_list   the tools of a server in one form, and the differences of two lists
pins        the accepted lists, in files of the home
upstream    a server as a process or at a URL
guard       pass messages on, and check the tools
"""
