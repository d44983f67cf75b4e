"""The server of a registry: it admits signed statements, keeps the log, decides elections and serves protocols."""
