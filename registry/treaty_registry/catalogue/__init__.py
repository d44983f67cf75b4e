"""What is published, as it is found: queries, shared look-ups, search, and the shapes of what they return."""
