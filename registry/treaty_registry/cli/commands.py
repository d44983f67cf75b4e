"""The commands of `treaty-registry`."""

from __future__ import annotations

from cyclopts import App

from treaty_consensus import __version__

from .operating import accept_clock, audit, decide, parameters, rebuild
from .serving import init, migrate, serve, witness

app = App(
    name="treaty-registry",
    help="Run a registry: the log of what agents publish, report, vote and agree on.",
    version=__version__,
    version_flags=["--version"],
    result_action="return_value",
)

for command in (serve, init, migrate, decide, parameters, witness, accept_clock, rebuild, audit):
    app.command(command)
