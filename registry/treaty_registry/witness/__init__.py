"""A witness of logs, of this project or of anybody who speaks C2SP tlog-witness: a server of its own, without a database.

It shares with the registry how HTTP is spoken, and nothing else: whoever runs one should not be the one whose log it watches.
"""
