"""Publish and find the online descriptions of agents (ANP-07, ANP-08, A2A). See docs/specification/discovery.md.

documents  write the documents of this agent
client     find agents by a domain, a DID or a URL, and order the candidates for a Hello
cache      remember the answers for a time
"""
