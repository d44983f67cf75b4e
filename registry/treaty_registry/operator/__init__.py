"""Do the operator's work: decisions, maintenance, and the control socket that requests them."""
