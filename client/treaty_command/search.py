"""`treaty search`: find protocols in a registry's list. Nothing in the list is verified."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from treaty_consensus.codes import ProtocolCode
from treaty_consensus.errors import NotFound
from treaty_consensus.printable import printable

from .context import Options, run
from .output import escape
from .values import Topic

if TYPE_CHECKING:
    from treaty_client.registries.replies import SearchResult, Summary

_MAX_SHOWN = 512


@Parameter(name="*")
@dataclass(frozen=True)
class SearchFilters:
    """The filters of a search.

    Parameters
    ----------
    topic
        Only this topic, such as commerce/product-info, and those below it.
    state
        The state that its publisher gave it, or the network.
    origin
        How the protocol came about.
    namespace
        Only this namespace, such as example.com.
    signed
        The signer that the handler's bundle names.
    coverage
        How many operations the handler's vectors reach.
    code_free
        Only protocols whose handler needs no code.
    """

    topic: Topic = ""
    state: Literal["active", "deprecated", "yanked", "revoked", "consensus", "provisional", "candidate", "former"] | None = None
    origin: Literal["negotiated", "standard"] | None = None
    namespace: str = ""
    signed: Literal["did", "sigstore", "github-actions", "gitlab", "google", "github", "microsoft", "other"] | None = None
    coverage: Literal["none", "some", "all"] | None = None
    code_free: Annotated[bool, Parameter()] = False


def search(
    *words: str,
    filters: SearchFilters = SearchFilters(),
    sort: Literal["use", "newest", "name"] | None = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=100))] = 20,
    uri: bool = False,
    options: Options = Options(),
) -> None:
    """Find protocols by a sentence or words in any language, best first, and by filters, which all must match.

    Parameters
    ----------
    words
        Each word counts; all protocols when there are none.
    sort
        The order: by proved use, the newest first, or by name. Without it, the best match first.
    limit
        The maximum number of results, from 1 to 100.
    uri
        Print only the URIs, one a line. The exit status is 5 if nothing is found.
    """
    from treaty_client.registries.api import RegistryClient  # an HTTP client, which `--help` does not need

    filter_values = {name: value or "" for name, value in dataclasses.asdict(filters).items() if name != "code_free"}
    filter_values["handler"] = "code-free" if filters.code_free else ""

    async def work() -> tuple[SearchResult, ...]:
        async with RegistryClient(options.sources(), options.network) as client:
            return (await client.search(" ".join(words), **filter_values, sort=sort or "", limit=limit)).protocols

    page = run(work())
    if uri and not page:
        raise NotFound(ProtocolCode.UNKNOWN, "Nothing is found.")
    lines = [
        f"[bold]{_line(p.uri)}[/]\n  {_line(p.title)}  [dim]{_line(p.topic)}, {_line(_states(p))}{_score(p)}[/]" for p in page
    ]
    lines = [_line(p.uri) for p in page] if uri else lines
    value = {"protocols": [{name: getattr(p, name) for name in p.__struct_fields__} for p in page]}
    options.output.result(value, *(lines or ["Nothing found."]))


def _states(summary: Summary) -> str:
    """Return the state in the election, the status that the publisher gave, and the proved use, as far as they say something."""
    use = f"{summary.pairs} {'pair' if summary.pairs == 1 else 'pairs'} proved its use" if summary.pairs else None
    states = [summary.election, summary.status if summary.status != "active" else None, use]
    return ", ".join(filter(None, states)) or summary.status


def _score(found: SearchResult) -> str:
    return f", score {found.score}" if found.score is not None else ""


def _line(text: str) -> str:
    """Escape text of a registry's list; nothing in the list is verified."""
    return escape(printable(text, _MAX_SHOWN))
