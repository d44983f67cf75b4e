"""A language model: the port, one adapter for endpoints that speak OpenAI's chat completions, and the reviewed prompts."""
