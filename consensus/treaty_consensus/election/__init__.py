"""How an agent network agrees on a protocol: from reports and ballots in the log to one decision per topic and epoch.

`evidence`: what the log has said so far that an election counts. `weight`: whose word weighs how much, and who belongs together.
`report`: which negotiations count, and whose do not. `ballot`: weak orders, counted pairwise. `schulze`: the ranking. `rule`: the
thresholds and the states of a candidate. `decision`: all of it in one transcript, to the byte.

Everything is integers and pure; the specification is `docs/specification/election.md`.
"""
