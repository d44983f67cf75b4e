"""`make game-day`: provoke each alert on real processes, and see it fire and end."""
