"""Write the prose for the document of an imported protocol: its source, its flow, its operations, and all that it lacks.

Texts of the description stand in quotation marks on one line, and are escaped: they make no heading, mark, block, link or tag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from treaty_consensus.protocol import PART_BEGIN, PART_END

from ..authoring.class_document import ERRORS, FLOW
from .description import ImportedDescription, ImportedOperation, Omission
from .schema_import import one_line

MAX_ABOUT = 1_000
MAX_TEXT = 600
MAX_OMISSIONS = 40
"""Lines about parts that the protocol lacks. The command tells all."""
_MARKDOWN = re.compile(r"([\\`*<>\[\]|&])")


def imported_prose(
    title: str,
    description: ImportedDescription,
    origin: str,
    seconds: int,
    operations: Mapping[str, ImportedOperation],
    omissions: Sequence[Omission],
) -> str:
    """Return the text; `treaty document` adds the rest. `origin`: a sentence about the bytes that were read. `seconds`: for an
    answer."""
    about = quoted(description.about, MAX_ABOUT)
    parts = [f"# {escaped_markdown(title)}\n", *([f"> {about}\n"] if about else []), f"{origin}\n", FLOW.format(seconds=seconds)]
    parts += ["## Operations\n"]
    for name, operation in operations.items():
        text = quoted(operation.text, MAX_TEXT)
        parts.append(f"### {name}\n\n{escaped_markdown(operation.place)}{f': {text}' if text else ''}\n")
    parts += [f"{PART_BEGIN}\n{PART_END}\n", ERRORS]
    if omissions:
        lines = [f"- {escaped_markdown(str(omission))}" for omission in omissions[:MAX_OMISSIONS]]
        lines += [f"- and {len(omissions) - MAX_OMISSIONS} more"] if len(omissions) > MAX_OMISSIONS else []
        parts += ["## Differences\n\nThe description has these parts, and the protocol does not:\n", "\n".join(lines) + "\n"]
    return "\n".join(parts)


def quoted(text: str, limit: int) -> str:
    """Return a foreign text in quotation marks on one line, or nothing for an empty one."""
    line = one_line(text, limit)
    return f"“{escaped_markdown(line)}”" if line else ""


def escaped_markdown(text: str) -> str:
    """Return a text of one line that Markdown shows as it is."""
    return _MARKDOWN.sub(r"\\\1", text)
