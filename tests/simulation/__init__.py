"""Deterministic simulation of the write path: the product's own code on virtual time, a simulated PostgreSQL, network, disk
and clock.

One seed is one history. `history.run(seed)` runs it and `oracle` judges it. `python -m simulation SEED` prints the steps of one.
"""
