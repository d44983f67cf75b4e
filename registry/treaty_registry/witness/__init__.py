"""Provide a witness of logs, of any log that speaks C2SP tlog-witness: a separate server without a database.

It shares only the HTTP code with the registry. The operator of a witness should not be the operator of the log it watches.
"""
