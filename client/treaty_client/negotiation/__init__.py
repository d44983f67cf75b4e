"""Deciding what to say in a negotiation: the port `Negotiator`, and the one that asks a language model.

`negotiator`: the port, and what goes through it. Whoever implements it decides; what may be said when is the machine's
(`meta.machine`), and nothing here touches a connection.

`model_negotiator` → `questions` (what the model is asked, how its answers are read) → `writer` (until a handler passes) →
`package` (a project and its wheel) and `trial` (in the sandbox, by `test_cases` and `ids`). `documents`: a text and its base.
`capabilities`: what the destination's functions demand.
"""
