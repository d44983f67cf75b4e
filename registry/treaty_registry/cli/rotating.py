"""Define the commands of a rotation of keys: `prepare-rotation`, `rotate`, `retire-keys`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.markup import escape

from treaty_consensus.log_keys import MAX_OVERLAP

from ..operator.rotations import AUTHORITY, ROLES, Rotated, prepare
from ..registry import Registry
from .options import Options, ask_or, run

_DAY = 24 * 3600


def prepare_rotation(
    *,
    only: Literal["log", "clock", "authority"] | None = None,
    authority: bool = False,
    options: Options = Options(),
) -> None:
    """Make the next keys of the log and its clock, in DATA/keys/next. They sign nothing yet.

    Parameters
    ----------
    only
        Make the key of one of them alone, or those of the Sigstore authority.
    authority
        Make those of the Sigstore authority too.
    """
    settings, roles = options.settings, [only] if only else [*ROLES, *([AUTHORITY] if authority else [])]

    async def alone() -> list[str]:
        return prepare(settings.keys, roles)

    keys = run(ask_or(settings, "prepare-rotation", list[str], alone, roles))
    options.show(
        {"keys": keys, "folder": str(options.settings.keys / "next")},
        "[green]✓[/] The next keys are made. They sign nothing yet:",
        *(f"  {escape(key)}" for key in keys),
        "  Back them up, copy DATA/keys/next to every node, then: treaty-registry rotate",
    )


def rotate(
    *,
    overlap_days: Annotated[int, Parameter(validator=Number(gte=0, lte=MAX_OVERLAP // _DAY))] = 90,
    options: Options = Options(),
) -> None:
    """Log the prepared rotation. From then on the new keys sign, and for some days the old ones too.

    A new Sigstore authority is trusted from then on, and signs after these days.

    Parameters
    ----------
    overlap_days
        The days for which the old keys sign too. Readers who are away longer need the new key from you.
    """

    async def alone() -> Rotated:
        async with Registry.open(options.settings) as registry:
            return await registry.rotate(overlap_days * _DAY)

    done = run(ask_or(options.settings, "rotate", Rotated, alone, overlap_days * _DAY))
    until = f"{datetime.fromtimestamp(done.until, UTC):%Y-%m-%d %H:%M:%S} UTC"
    authority = [f"  authority: {done.authority} signs from {until} on."] if done.authority else []
    options.show(
        msgspec.to_builtins(done),
        f"[green]✓[/] The keys were rotated at leaf {done.index}.",
        f"  log: {escape(done.log_key)}",
        f"  clock: {escape(done.clock_key)}",
        *authority,
        f"  The keys before sign too until {until}. If the key of the log is new, publish it where you published the old one.",
    )


def retire_keys(*, options: Options = Options()) -> None:
    """After the overlap of a rotation, move the old keys to DATA/keys/retired. Nothing reads them there: destroy them."""

    async def alone() -> list[str]:
        async with Registry.open(options.settings) as registry:
            return await registry.retire_keys()

    moved = run(ask_or(options.settings, "retire-keys", list[str], alone))
    options.show({"retired": moved}, "[green]✓[/] The old keys are out of use:", *(f"  {escape(path)}" for path in moved))
