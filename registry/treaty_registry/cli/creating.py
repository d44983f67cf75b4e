"""Define the commands that make a log and its tables: `init`, `migrate`. They import no server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from rich.markup import escape

from ..data_directory import check_log, running_database
from ..registry import Registry
from ..storage.postgres import connect
from ..storage.postgres import migrate as migrate_database
from .options import Options, run
from .variables import Variable


def init(
    *,
    origin: Annotated[str, Variable("ORIGIN")],
    parameters: Annotated[Path | None, Variable("PARAMETERS")] = None,
    options: Options = Options(),
) -> None:
    """Make a new log: its keys, its database, its first two leaves.

    Parameters
    ----------
    origin
        The log's permanent name: a host.
    parameters
        A TOML file with the constants of its election. Default: a development electorate.
    """

    async def make() -> dict[str, object]:
        async with Registry.open(replace(options.settings, new=True, origin=origin, parameters=parameters)) as registry:
            return description(registry)

    operator = run(make())
    options.show(
        operator,
        f"[green]✓[/] The log [bold]{escape(origin)}[/] is in {escape(str(options.data))}; keep that directory safe and secret.",
        f"  key: {escape(str(operator['key']))}",
        f"  Serve it: treaty-registry serve --data {escape(str(options.data))}",
    )


def migrate(*, options: Options = Options()) -> None:
    """Update the database's tables to this release. `serve` does so too."""

    async def apply() -> list[str]:
        check_log(options.settings)
        async with running_database(options.settings) as url, connect(url) as connection:
            return await migrate_database(connection)

    applied = run(apply())
    options.show({"applied": applied}, f"[green]✓[/] {escape(', '.join(applied)) or 'Nothing to do.'}")


def description(registry: Registry) -> dict[str, object]:
    """Return what a command says of a log: its names, its key and its size."""
    return {
        "origin": registry.origin,
        "base_url": registry.base_url,
        "name": f"{registry.base_url}#{registry.log_key}",
        "key": str(registry.log_key),
        "size": registry.head.size,
    }
