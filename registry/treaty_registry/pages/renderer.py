"""Render templates. All text in them is escaped unless it is `Markup`, which only `prose` and `charts` make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar.plugins.jinja import JinjaTemplateEngine

from ..serving.representation import HTML, NO_STORE, PackedRepresentation, Representation
from . import wording

if TYPE_CHECKING:
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
    ("Vary", "Accept, Accept-Encoding"),
    ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)


class Renderer:
    """Renders the templates of one registry. Safe for concurrent use.

    `origin`: the name of the registry's log, which each page shows. `links`: what the navigation offers beside the catalogue.
    """

    def __init__(self, origin: str, assets: Assets) -> None:
        # A name that a template misspells is an error, and no empty text.
        environment = Environment(
            loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters.update(wording.FILTERS)
        environment.globals.update(origin=origin, asset=assets.path)
        self.engine = JinjaTemplateEngine(engine_instance=environment)

    def text(self, template: str, context: Mapping[str, object]) -> bytes:
        """Return a template's text."""
        return self.engine.get_template(template).render(context).encode("utf-8")

    def page(self, template: str, context: Mapping[str, object]) -> Representation:
        """Return a page, as it is and compressed."""
        return PackedRepresentation(self.text(template, context), HTML, *HEADERS)

    def error_headers(self) -> Mapping[str, str]:
        """Return the headers of a page about an error, which caches must not store."""
        return {**dict(HEADERS), "Cache-Control": NO_STORE, "X-Content-Type-Options": "nosniff"}
