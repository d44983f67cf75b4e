"""What an attack on an election costs, by our rule and by what people would otherwise use: `python -m bench.attacks`.

`graphs` draws the honest world, `adversaries` what is done to it, `ours` and `baselines` who then weighs how much, `campaigns`
runs the rule over the epochs of an attack, `search` finds the least that flips a decision, `trials` lists what is measured,
`report` and `plots` keep it.
"""
