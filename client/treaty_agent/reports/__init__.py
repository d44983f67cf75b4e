"""Report a session to a log, signed by both sides.

report          both halves of the signature, and the submission
report_rules    the checks before a report is signed
report_facts    the facts of a session that a report states
report_ledger   the reports that an agent stores
cosignature     the two halves as messages
"""
