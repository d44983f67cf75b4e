"""What the operator does: decisions, maintenance, and the socket over which they are asked for."""
