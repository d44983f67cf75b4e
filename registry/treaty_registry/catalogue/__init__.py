"""Read the catalogue of published protocols: queries, shared look-ups, search, and the structs they return."""
