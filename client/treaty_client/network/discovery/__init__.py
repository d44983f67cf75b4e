"""Publish, find and read the online descriptions of agents (ANP-07, ANP-08, A2A). See docs/specification/discovery.md.

documents  write the documents of this agent
parsing    read the documents of others
client     find agents by a domain, a DID or a URL, and order the candidates for a Hello
"""
