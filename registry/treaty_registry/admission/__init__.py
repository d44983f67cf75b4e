"""Check submissions before they reach the sequencer: limits, quotas, uploads, identities and signatures."""
