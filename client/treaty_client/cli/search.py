"""`treaty search`: find protocols in a registry's list. Nothing in the list is verified."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treaty_consensus.codes import ProtocolCode
from treaty_consensus.errors import NotFound
from treaty_consensus.printable import printable

from .context import Options, run
from .output import escape

if TYPE_CHECKING:
    from ..registries.replies import Summary

_MAX_SHOWN = 512


def search(*words: str, topic: str = "", limit: int = 20, uri: bool = False, options: Options = Options()) -> None:
    """Find protocols by words, in English or Chinese, or list the protocols of a topic.

    Parameters
    ----------
    words
        The words to find; all protocols when empty.
    topic
        Only this topic, such as commerce/product-info.
    limit
        The maximum number of results.
    uri
        Print only the URIs, one a line. The exit status is 5 if nothing is found.
    """
    from ..registries.api import RegistryClient  # an HTTP client, which `--help` does not need

    async def work() -> tuple[Summary, ...]:
        async with RegistryClient(options.trusted().name.base_url, options.network) as client:
            return (await client.search(" ".join(words), topic=topic, limit=limit)).protocols

    found = run(work())
    if uri and not found:
        raise NotFound(ProtocolCode.UNKNOWN, "Nothing is found.")
    lines = [f"[bold]{_line(p.uri)}[/]\n  {_line(p.title)}  [dim]{_line(p.topic)}, {_line(_states(p))}[/]" for p in found]
    lines = [_line(p.uri) for p in found] if uri else lines
    value = {"protocols": [{name: getattr(p, name) for name in p.__struct_fields__} for p in found]}
    options.output.result(value, *(lines or ["Nothing found."]))


def _states(found: Summary) -> str:
    """Return the state in the election and the status that the publisher gave, as far as they say something."""
    said = [found.election, found.status if found.status != "active" else None]
    return ", ".join(filter(None, said)) or found.status


def _line(text: str) -> str:
    """Escape text of a registry's list; nothing in the list is verified."""
    return escape(printable(text, _MAX_SHOWN))
