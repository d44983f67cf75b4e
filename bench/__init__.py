"""The figures that the docs quote, each a ratio against a baseline that ran beside it: `python -m bench`. See README.md."""
