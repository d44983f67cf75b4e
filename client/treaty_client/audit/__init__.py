"""Replay the log of a registry and check every decision in it."""
