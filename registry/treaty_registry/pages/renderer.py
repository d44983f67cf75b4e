"""Render templates. All text in them is escaped unless it is `Markup`, which only `prose` and `charts` make, and templates.

Rendering costs more than reading. So a page, or a part of one, is kept under the digest of the data that it shows. Where the same
data was read again, as after a leaf or a period that changed none of it, the same text is served. So nothing of this has to be
dropped when the log grows: other data has another digest. The cache of answers bounds it in bytes, and a withdrawal empties it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar.plugins.jinja import JinjaTemplateEngine
from markupsafe import Markup

from treaty_consensus.canonical import hex_digest

from ..problems import REFUSAL_HEADERS
from ..serving.representation import HTML, PackedRepresentation, Representation
from . import filters

if TYPE_CHECKING:
    from ..serving.cache import ResponseCache
    from .assets import Assets

TEMPLATES = Path(__file__).parent / "templates"
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""What a page may do. It loads nothing from elsewhere, and runs no script or style that stands in the page itself."""
HEADERS = (
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Vary", "Accept, Accept-Encoding"),
    ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)
PAGE_REFUSAL_HEADERS = {"Content-Type": HTML, **dict(HEADERS), **REFUSAL_HEADERS}
"""The headers of a page about a refusal."""


@dataclass(frozen=True)
class Gathered:
    """All data that a page shows. `context`: makes the values of its template, from the `data` and from nothing else."""

    data: object
    context: Callable[[], Mapping[str, object]]

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the data."""
        return digest(self.data)


class Renderer:
    """Renders the templates of one registry. Safe for concurrent use.

    `origin`: the name of the registry's log, and `contact`: where abuse is reported; each page shows both. `memory`: keeps the
    parts of pages.
    """

    def __init__(self, origin: str, assets: Assets, memory: ResponseCache, contact: str | None = None) -> None:
        self._memory = memory
        # A name that a template misspells is an error, and no empty text.
        environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,  # templates do not change while this runs, so their files are read once
        )
        environment.filters.update(filters.FILTERS)
        environment.globals.update(origin=origin, contact=contact, asset=assets.path)
        self.engine = JinjaTemplateEngine(engine_instance=environment)

    def text(self, template: str, context: Mapping[str, object]) -> bytes:
        """Return a template's text."""
        return self.engine.get_template(template).render(context).encode("utf-8")

    def part(self, template: str, key: str, context: Callable[[], Mapping[str, object]]) -> Markup:
        """Return a template's text as a part of a page.

        `key`: names everything that the text depends on, such as the hash of its content. `context`: called when it is not known.
        """
        name = f"part {template} {key}"
        cached = self._memory.get(name)
        if cached is None:
            cached = Representation(self.text(template, context()), HTML)
            self._memory.keep(name, cached)
        return Markup(cached.body.decode("utf-8"))  # noqa: S704 (a template of ours escaped all text in it)

    def page(self, template: str, context: Mapping[str, object]) -> Representation:
        """Return a page, as it is and compressed."""
        return PackedRepresentation(self.text(template, context), HTML, *HEADERS)

    def gathered(self, template: str, page_data: Gathered) -> Representation:
        """Return the page of gathered data."""
        name = f"page {template} {page_data.digest}"
        cached = self._memory.get(name)
        if cached is None:
            cached = self.page(template, page_data.context())
            self._memory.keep(name, cached)
        return cached


def digest(data: object) -> str:
    """Return the SHA-256 of data of which there is a JSON form."""
    return hex_digest(msgspec.json.encode(data))
