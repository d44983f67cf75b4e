"""Make a protocol without code from a description that exists: OpenAPI, OpenRPC, the tools of an MCP server, or an A2A card.

imported_project                        the project: choose the operations, make vectors, write
openapi, openrpc, mcp, agent_card       the readers: bytes in, operations out
schema_import                           a schema of a description as a schema of a manifest
schema_example                          a value that fits a schema
operation_names, imported_prose         names and words of the protocol
source                                  a file, standard input or an https URL
description, decoding                   the parts of a description; JSON or YAML within bounds
"""
