"""Define the state of a session of a shared role, from which another process goes on."""

from __future__ import annotations

import msgspec


class KeptSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A session between two events.

    `seed`: of its parameters. `snapshot`: of its handler. `peers`: its members. `calls`, `invokes`: those without an answer,
    id → operation. `timers`: name → when it is due, in milliseconds since 1970. The runtime has no clock: its caller sets them.
    """

    seed: str
    snapshot: bytes
    peers: list[str]
    calls: dict[str, str]
    invokes: dict[str, str]
    timers: dict[str, int] = {}
