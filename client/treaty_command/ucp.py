"""`treaty ucp`: names of the Universal Commerce Protocol, proved by a log."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from treaty_client.authoring.ucp_profile import parse_capability, parse_extension, parse_service, ucp_profile
from treaty_client.protocols.fetch import Fetcher
from treaty_client.protocols.verification.ten_steps import check_current, newest_status
from treaty_consensus.did import parse_did
from treaty_consensus.errors import NotFound
from treaty_consensus.kinds import Publish
from treaty_consensus.protocol import is_verified_alias, parse_protocol_uri
from treaty_io import durable
from treaty_io.codes import ResolveCode

from .context import Options, run
from .info import read_published
from .values import Uri

app = App(name="ucp", help="Offer protocols by names of UCP.", result_action="return_value")


@app.command
def profile(
    *uris: Uri,
    capability: tuple[str, ...],
    extends: tuple[str, ...] = (),
    service: tuple[str, ...] = (),
    output: Path | None = None,
    options: Options = Options(),
) -> None:
    """Write the profile that a business serves at /.well-known/ucp. Each capability is a name that the log has as an alias of one
    of the protocols, and that the domain of its publisher owns. Its proof is checked.

    Parameters
    ----------
    uris
        The protocols' URIs.
    capability
        NAME@DATE=SCHEMA: a name, its version for UCP, and the URL of its schema at the domain that owns the name. May be
        repeated.
    extends
        NAME=PARENT: one of these capabilities, and one that it extends. May be repeated.
    service
        NAME@DATE=TRANSPORT:ENDPOINT: a service at an endpoint, with rest, mcp or a2a. May be repeated.
    output
        The file to write, instead of standard output.
    """
    extensions, services = [parse_extension(text) for text in extends], [parse_service(text) for text in service]
    capabilities = [
        each._replace(extends=tuple(parent for name, parent in extensions if name == each.name))
        for each in map(parse_capability, capability)
    ]
    names = run(_names(uris, options))
    unproved = sorted({*(each.name for each in capabilities), *(name for name, _ in extensions)} - names.keys())
    if unproved:
        raise NotFound(
            ResolveCode.UNKNOWN,
            f"None of these protocols has the verified alias {unproved[0]}.",
            fix="Name the protocol whose publisher owns the domain, or publish it with this alias.",
        )
    written = ucp_profile([(each, names[each.name]) for each in capabilities], services)
    if output is not None:
        durable.write(output, written)
    value = {"capabilities": {each.name: names[each.name] for each in capabilities}, "file": output and str(output)}
    said = written.decode().rstrip() if output is None else f"✓ {output}"
    options.output.plain({**value, "profile": written.decode()}, said)


async def _names(uris: tuple[str, ...], options: Options) -> dict[str, str]:
    """Return the protocols by their verified aliases. Of two with one alias the first one counts. Raises as `read_published`,
    and for a protocol that was taken back."""
    found: dict[str, str] = {}
    async with Fetcher(options.home, options.policy(), options.network) as fetcher:
        for uri in uris:
            parsed = parse_protocol_uri(uri)
            answer, _ = await read_published(fetcher, parsed, options)
            check_current(newest_status(answer.evidence, parsed), uri)
            statement = answer.evidence.published(uri).statement
            assert isinstance(statement.body, Publish), "it publishes the protocol"
            for alias in statement.body.aliases:
                if is_verified_alias(alias, parse_did(statement.author.text)):
                    found.setdefault(alias, uri)
    return found
