"""Read the documents by which agents describe themselves (ANP-07, ANP-08, A2A). See docs/specification/discovery.md.

parsing     pages, agent descriptions, A2A cards and the services of DID documents
interfaces  the interfaces that an agent description lists
"""
