"""Store the registry's data: PostgreSQL (`postgres`; `embedded` starts it when no server is named), migrations, and blobs."""
