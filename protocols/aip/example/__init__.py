"""Three agents, two tools and one gateway: text, an image and a sound through AIP."""
