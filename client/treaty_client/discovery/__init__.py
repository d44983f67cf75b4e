"""The online documents in which agents say what they speak (ANP-07, ANP-08, A2A), and how they are found and read."""
