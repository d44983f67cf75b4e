"""What comes before the sequencer: caps, quotas, uploads, identities, signatures."""
