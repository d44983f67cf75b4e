"""Reach other hosts over HTTP, with bounds on every exchange.

hosts             explicit addresses and certificate authorities (`--resolve`, `--ca`)
exchange          HTTP exchanges with a deadline and a size limit
requests_adapter  the same for libraries that use `requests`
addresses         the IP addresses that strangers may send this process to
egress, turns     fetch URLs named by strangers, at a bounded rate for each host
did_documents     fetch and cache DID documents
"""
