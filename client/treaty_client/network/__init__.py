"""Reach other hosts over HTTP and WebSocket, with bounds on every exchange.

hosts             explicit addresses and certificate authorities (`--resolve`, `--ca`)
exchange          HTTP exchanges with a deadline and a size limit
requests_adapter  the same for libraries that use `requests`
addresses         the IP addresses that strangers may send this process to
egress, turns     fetch URLs named by strangers, at a bounded rate for each host
did_documents     fetch and cache DID documents
authentication    HTTP requests that prove the DID of their sender
discovery         the published descriptions of agents
transport         messages between two agents
"""
