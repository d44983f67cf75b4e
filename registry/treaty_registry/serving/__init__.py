"""Make and send answers: views with their proofs, the cache of answers, and the fast path."""
