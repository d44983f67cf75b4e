"""Divide a page by its headings: the decisions are one file of the repository, and in the site a page for each topic."""

from __future__ import annotations

import re

_HEADING = re.compile(r"^## (.+)\n", re.MULTILINE)


def divided(text: str) -> tuple[str, dict[str, str]]:
    """Return the page that lists the parts, and the text of each part by the last part of its address.

    `text`: a page whose links need no folder, with one title and headings of the second level.
    """
    title = text.splitlines()[0].removeprefix("# ")
    head, *found = _HEADING.split(text)
    parts = {
        address(heading): f"# {title}: {heading}\n\n{body.strip()}\n"
        for heading, body in zip(found[::2], found[1::2], strict=True)
    }
    listed = "\n".join(f"{heading} <{title.lower()}/{address(heading)}>" for heading in found[::2])
    return f"{head.strip()}\n\n```{{toctree}}\n:titlesonly:\n\n{listed}\n```\n", parts


def address(heading: str) -> str:
    """Return the last part of the address of a heading's page, which is the anchor of the heading."""
    return re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))
