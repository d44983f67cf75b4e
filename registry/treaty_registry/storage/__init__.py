"""Where the registry keeps things: PostgreSQL (`postgres`, started by `embedded` when no server is named), its tables
(`migrations/`, and `log_tables` for those of the log)."""
