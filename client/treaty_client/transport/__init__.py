"""How messages travel between two agents: the port `Connection`, and what implements it."""
