"""`treaty yank`, `deprecate`, `revoke`, `activate`: set the status of an own protocol or handler."""

from __future__ import annotations

import time

from rich.markup import escape

from treaty_client.protocols.fetch import Fetcher
from treaty_client.statements.status import LoggedStatus, ProtocolStatus, set_status

from .context import Options, run


def yank(uri: str, /, *, wheel: str | None = None, successor: str | None = None, options: Options = Options()) -> None:
    """Take back a protocol of yours, or a handler: agents no longer fetch it. `treaty activate` undoes it.

    Parameters
    ----------
    uri
        The protocol.
    wheel
        The SHA-256 of a handler that you attached. The protocol and its other handlers keep their status.
    successor
        The protocol to use instead.
    """
    _set(uri, "yanked", wheel, successor, options)


def deprecate(uri: str, /, *, successor: str | None = None, wheel: str | None = None, options: Options = Options()) -> None:
    """Warn of a protocol of yours, or of a handler. Agents still fetch it, with the warning.

    Parameters
    ----------
    uri
        The protocol.
    successor
        The protocol to use instead.
    wheel
        The SHA-256 of a handler that you attached. The protocol and its other handlers keep their status.
    """
    _set(uri, "deprecated", wheel, successor, options)


def revoke(uri: str, /, *, wheel: str | None = None, successor: str | None = None, options: Options = Options()) -> None:
    """Declare a protocol of yours, or a handler, harmful: agents no longer fetch it.

    Parameters
    ----------
    uri
        The protocol.
    wheel
        The SHA-256 of a handler that you attached. The protocol and its other handlers keep their status.
    successor
        The protocol to use instead.
    """
    _set(uri, "revoked", wheel, successor, options)


def activate(uri: str, /, *, wheel: str | None = None, options: Options = Options()) -> None:
    """Undo `yank`, `deprecate` or `revoke` of a protocol of yours, or of a handler.

    Parameters
    ----------
    uri
        The protocol.
    wheel
        The SHA-256 of a handler that you attached.
    """
    _set(uri, "active", wheel, None, options)


def _set(uri: str, state: ProtocolStatus, wheel: str | None, successor: str | None, options: Options) -> None:
    async def work() -> LoggedStatus:
        identity = options.identity()
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            origin = options.trusted().name.origin
            named = {"wheel": wheel, "successor": successor}
            client, head, now = fetcher.client(origin), fetcher.head(origin), int(time.time())
            return await set_status(client, head, identity, uri, state, origin=origin, now=now, **named)

    done = run(work())
    value = {
        "uri": uri,
        "state": state,
        "wheel": wheel,
        "successor": successor,
        "statement": done.statement.id,
        "index": done.receipt.index,
    }
    subject = f"The handler {wheel} of {uri}" if wheel else uri
    instead = f" Its successor is {successor}." if successor else ""
    options.output.result(
        value, f"[green]✓[/] {escape(subject)} is [bold]{state}[/].{escape(instead)}", f"leaf {done.receipt.index}"
    )
