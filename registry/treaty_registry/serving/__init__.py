"""How answers are made and go out: views with their proofs, what of them is kept in memory, and the fast path."""
