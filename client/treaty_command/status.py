"""`treaty yank`, `deprecate`, `revoke`, `activate`: set the status of an own protocol or handler."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from treaty_client.protocols.fetch import Fetcher
from treaty_client.statements.status import LoggedStatus, ProtocolStatus, set_status

from .context import Options, run
from .values import Oidc, Uri, uris

Own = Annotated[Uri, Parameter(help="The protocol's URI.")]
Wheel = Annotated[
    str | None,
    Parameter(help="The SHA-256 of a handler of yours. The protocol and its other handlers keep their status."),
]
Successor = Annotated[str | None, Parameter(help="The protocol to use instead.", completer=uris)]


def yank(
    uri: Own, /, *, wheel: Wheel = None, successor: Successor = None, oidc: Oidc = False, options: Options = Options()
) -> None:
    """Take back a protocol of yours, or a handler: agents no longer fetch it. `treaty activate` undoes it."""
    _set(uri, "yanked", wheel, successor, oidc, options)


def deprecate(
    uri: Own, /, *, successor: Successor = None, wheel: Wheel = None, oidc: Oidc = False, options: Options = Options()
) -> None:
    """Warn of a protocol of yours, or of a handler. Agents still fetch it, with the warning."""
    _set(uri, "deprecated", wheel, successor, oidc, options)


def revoke(
    uri: Own, /, *, wheel: Wheel = None, successor: Successor = None, oidc: Oidc = False, options: Options = Options()
) -> None:
    """Declare a protocol of yours, or a handler, harmful: agents no longer fetch it."""
    _set(uri, "revoked", wheel, successor, oidc, options)


def activate(uri: Own, /, *, wheel: Wheel = None, oidc: Oidc = False, options: Options = Options()) -> None:
    """Undo `yank`, `deprecate` or `revoke` of a protocol of yours, or of a handler."""
    _set(uri, "active", wheel, None, oidc, options)


def _set(uri: str, state: ProtocolStatus, wheel: str | None, successor: str | None, oidc: bool, options: Options) -> None:
    async def work() -> LoggedStatus:
        async with Fetcher(options.home, options.policy(), options.network) as fetcher:
            origin = options.trusted().name.origin
            named = {"wheel": wheel, "successor": successor}
            client, head, now = fetcher.client(origin), fetcher.head(origin), int(time.time())
            identity = await options.signer(client, origin, oidc=oidc)
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
