"""What an attack on an election costs, by our rule and by what people would otherwise use: `python -m bench.attacks`.

- Worlds: `graphs` draws the honest one, `adversaries` what is done to it, `ours` and `baselines` who then weighs how much.
- Measuring: `campaigns` runs the rule over the epochs of an attack, `search` finds the least that flips a decision,
  `laboratory` holds a world and what was found out in it, `trials` lists what is measured.
- Families of their own: `flooding`, `timing`, `truncation`, `capture`, `bribery` and `farming`.
- Ordinary events, in a `topic` that the product itself decides: `moved`, `lapsing`, `thin`, `deprecation`, `versions` and
  `flipflop`; what an operator can do: `censorship` and `parameters`.
- In logs with real signatures (`signed`): `litter`, `tenure` and `parameters`.
- Results: `lines` has the medians and the gates; `report`, `sections`, `events`, `prices` and `plots` show them.
"""
