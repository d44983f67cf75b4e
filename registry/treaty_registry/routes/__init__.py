"""Define the HTTP API, one file per resource.

A route reads the request, makes one call to the registry and encodes the answer. Limits and refusals are the same for all routes
(`requests`, `problems`).
"""
