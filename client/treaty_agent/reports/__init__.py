"""Report a session to a log, signed by both sides.

report          both halves of the signature, and the submission
report_rules    the checks before a report is signed
cosignature     the two halves as messages
"""
