"""Write the prose for the document of a protocol from a class: the flow, and the docstrings of its methods."""

from __future__ import annotations

from collections.abc import Sequence

from treaty_consensus.protocol import PART_BEGIN, PART_END

from .described_method import DescribedMethod

FLOW = """\
## Flow

1. The requester sends a request: an id that none of its open requests has, an operation and its arguments.
2. The provider answers with the same `id`: one response, or an error.

A request without an answer after {seconds} seconds has failed. Further requests may be sent meanwhile.
"""
_STREAMS = """\
A stream has one `item` after the other, and then `end` or an error. Its request asks for 16 items, and `more` for `count` further
ones. The provider sends none that was not asked for. `cancel` gives the stream up.
"""
ERRORS = """\
## Errors

The code is an HTTP status code, or one of the operation's own. The message is a sentence for people.
"""


def class_prose(title: str, about: str, seconds: int, methods: Sequence[DescribedMethod]) -> str:
    """Return the text, for an author to go on with; `treaty document` adds the rest. `about`: the purpose of the class.
    `seconds`: for an answer."""
    parts = [f"# {title}\n\n{about}\n", FLOW.format(seconds=seconds)]
    parts += [_STREAMS] if any(method.is_stream for method in methods) else []
    parts += ["## Operations\n"]
    parts += [f"### {method.name}\n\n{method.text or f'Call {method.name}.'}\n" for method in methods]
    return "\n".join([*parts, f"{PART_BEGIN}\n{PART_END}\n", ERRORS])
