"""`treaty open`: show the page of a protocol, a topic or an agent in the browser."""

from __future__ import annotations

import re
import webbrowser
from urllib.parse import quote

from rich.markup import escape

from treaty_consensus.did import parse_did
from treaty_consensus.protocol import is_topic, parse_protocol_uri

from .context import Options
from .values import Name


def open_page(name: Name, /, *, options: Options = Options()) -> None:
    """Open the page of a protocol, a topic or an agent in the browser. Without a browser, and with `--json`, print its address.

    Parameters
    ----------
    name
        A protocol's URI, a document's hash, a topic such as commerce/product-info, or a DID.
    """
    url = _page(name, options)
    is_open = not options.json and webbrowser.open(url)
    options.output.result({"url": url}, f"[green]✓[/] {escape(url)}" if is_open else escape(url))


def _page(name: str, options: Options) -> str:
    if "://" in name:
        uri = parse_protocol_uri(name)
        return options.registries.get(uri.origin).name.base_url + uri.path
    root = options.trusted().name.base_url
    if re.fullmatch(r"[0-9a-f]{64}", name):
        return f"{root}/hashes/{name}"
    return f"{root}/topics/{name}" if is_topic(name) else f"{root}/identities/{quote(parse_did(name).text, safe=':')}"
