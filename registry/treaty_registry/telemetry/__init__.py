"""Tell an operator what this process does: its log, its metrics, and the spans of its traces.

No line, label or attribute has a secret or personal data: no keys, tokens, DIDs, names of agents or network addresses. Ids of
statements are allowed, because the log publishes them.
"""
