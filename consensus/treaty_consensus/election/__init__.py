"""Compute how the agents of a network agree on a protocol: from logged reports, vouches and ballots to one decision per topic
and epoch.

- Statements: `evidence` collects them; `report` selects the negotiations that count, `vouch` the vouches, `principals` maps
  each DID to its principal.
- Electorate: `trust` flows from anchors along vouches, `reputation` turns it into weight, `provenance` groups principals into
  clusters, and `electorate` combines these for an epoch.
- Lines: `line` groups the versions of a document, `versions` chooses the one to speak and finds what was taken back.
- Count: `ballot` counts weak orders pairwise, `schulze` ranks the choices, `rule` has the thresholds and document states,
  `earlier` those of the rule before.
- Result: `decision` writes the transcript, `credit` computes the standing of reporters, `roll` lists the electorate, and
  `closing` combines them at the end of an epoch.

`arithmetic` has the fractions, `defaults` the constants. All modules are pure and use integers only. The specification is
`docs/specification/election.md`.
"""
