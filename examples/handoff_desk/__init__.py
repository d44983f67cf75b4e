"""A customer's problem moves from a terse desk to a thorough technician, to an expert, and to a person who decides."""
