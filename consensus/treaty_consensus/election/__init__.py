"""How an agent network agrees on a protocol: from reports, vouches and ballots in the log to one decision per topic and epoch.

What was said: `evidence`, of which `report` knows which negotiations count, `vouch` who stands for whom, `principals` who speaks
for whom. Who counts: `trust` flows from anchors along vouches, `reputation` makes weight of it, `provenance` finds who owes it
to the same side, and `electorate` is all of that for an epoch. What they want: `ballot`, weak orders counted pairwise, `schulze`,
the ranking, `rule`, the thresholds and the states of a document. What comes of it: `decision`, all of it in one transcript,
`credit`, the standing of those who report, `roll`, the electorate as a blob, and `closing`, which makes an epoch of it.

`arithmetic` has the fractions, `defaults` the constants. Everything is integers and pure; the specification is
`docs/specification/election.md`.
"""
