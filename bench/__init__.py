"""The figures that the docs quote, each a ratio against a baseline that ran beside it: `python -m bench`. See README.md."""

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
"""The folder of the results of runs. They are not in version control; README.md has the ratios that the docs quote."""
