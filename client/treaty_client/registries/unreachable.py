"""The errors of a registry that cannot be reached, told apart by their cause, and of one whose mirrors do not answer either."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import httpx

from treaty_consensus.errors import NotFound, TreatyError
from treaty_io.codes import ClientRegistryCode, NetworkCode
from treaty_io.errors import RegistryUnavailable

_BROKEN = (httpx.ReadError, httpx.WriteError, httpx.ReadTimeout, httpx.WriteTimeout, httpx.RemoteProtocolError)
# A status without a reason may be of a proxy that did not wait.
_UNANSWERED = (NetworkCode.DEADLINE, ClientRegistryCode.BROKEN)
# HTTP libraries wrap an error of the system in a few of their own.
_MAX_CAUSES = 32


def unreachable(base_url: str, error: BaseException) -> RegistryUnavailable:
    """Return the error for a failed exchange with the registry at `base_url`: `registry.broken` after it was reached, else
    `registry.unreachable`."""
    host = urlsplit(base_url).hostname or base_url
    for cause in _causes(error):
        match cause:
            case ssl.SSLError():
                why = getattr(cause, "verify_message", "") or cause.reason or type(cause).__name__
                return RegistryUnavailable(
                    ClientRegistryCode.UNREACHABLE,
                    f"{host} does not prove its name over TLS: {why}.",
                    fix="If the registry has a certificate authority of its own, name it: --ca FILE.",
                )
            case socket.gaierror():
                return RegistryUnavailable(
                    ClientRegistryCode.UNREACHABLE,
                    f"No name server knows {host}.",
                    fix=f"Check the name, and your connection. To reach it at a known address: --resolve {host}=IP:PORT",
                )
            case ConnectionRefusedError():
                return RegistryUnavailable(
                    ClientRegistryCode.UNREACHABLE,
                    f"{base_url} refuses the connection: no program listens there.",
                    fix="Check the port. If the registry is yours, start it.",
                )
    # The registry was reached, so its address is right.
    if isinstance(error, _BROKEN):
        return RegistryUnavailable(
            ClientRegistryCode.BROKEN,
            f"The connection to {base_url} broke before the answer was complete: {type(error).__name__}.",
            fix="Try again.",
        )
    return RegistryUnavailable(
        ClientRegistryCode.UNREACHABLE,
        f"The registry at {base_url} could not be reached: {type(error).__name__}.",
        fix="Check its URL and your connection, then try again.",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those behind it, at most `_MAX_CAUSES`."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _MAX_CAUSES:
        cause = waiting.pop(0)
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        # One attempt for each address of a host.
        waiting += cause.exceptions if isinstance(cause, BaseExceptionGroup) else ()
        waiting += filter(None, (cause.__cause__, cause.__context__))


def uncertain(error: RegistryUnavailable, ids: Sequence[str]) -> RegistryUnavailable:
    """Return the error for statements with these ids that were sent, and whose answer did not come; `error` if they were not
    sent, or if it is an answer."""
    if error.code not in _UNANSWERED:
        return error
    many = len(ids) > 1
    return RegistryUnavailable(
        ClientRegistryCode.UNCERTAIN,
        f"{error.message} The {f'{len(ids)} statements' if many else 'statement'} may be logged or not.",
        fix=f"Send the same {'statements' if many else 'statement'} again: one that is logged gets its receipt, and is "
        f"not logged twice. To look only: GET /proofs/{ids[0]}",
    )


def unanswered(failed: Sequence[tuple[str, TreatyError]]) -> TreatyError:
    """Return the error for a read that neither the registry nor a mirror answered: it names each of them, with the reason."""
    unknown = [error for _, error in failed if isinstance(error, NotFound)]
    reasons = "; ".join(f"{url}: {error.message.rstrip('.')} ({error.code})" for url, error in failed)
    # The mirrors that answered agree that they do not have it.
    if unknown:
        return NotFound(unknown[0].code, f"No mirror has it, and the registry does not answer. {reasons}.")
    return RegistryUnavailable(
        ClientRegistryCode.UNREACHABLE,
        f"Neither the registry nor its mirrors answer. {reasons}.",
        fix="Check your connection, or name another mirror in policy.toml.",
    )
