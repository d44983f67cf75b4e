"""Write the document of a protocol from a class: the flow, the forms of its messages, and each method with its schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .described_method import DescribedMethod

_FLOW = """\
## Flow

1. The requester sends a request: an id that none of its open requests has, an operation and its arguments.
2. The provider answers with the same `id`: one response, or an error.

A request without an answer after {seconds} seconds has failed. Further requests may be sent meanwhile.

## Messages

Messages are JSON objects in UTF-8. `$name` stands for a value; members that are not shown are ignored.
"""
_STREAMS = """\
A stream has one `item` after the other, and then `end` or an error. Its request asks for 16 items, and `more` for `count` further
ones. The provider sends none that was not asked for. `cancel` gives the stream up.
"""
_ERRORS = """\
## Errors

The code is an HTTP status code, or one of the operation's own. The message is a sentence for people.
"""


def write_document(title: str, about: str, manifest: Mapping[str, Any], methods: Sequence[DescribedMethod]) -> str:
    """Return the text, for an author to go on with. `about`: what the class is for."""
    seconds = max(operation["timeout"] for operation in manifest["operations"].values())
    forms = "\n".join(json.dumps(form, ensure_ascii=False) for form in manifest["messages"]["*"].values())
    parts = [f"# {title}\n\n{about}\n", _FLOW.format(seconds=seconds), _block(forms)]
    parts += [_STREAMS] if any(method.is_stream for method in methods) else []
    parts += ["## Operations\n"]
    for method in methods:
        parts += _operation(method, manifest["operations"][method.name]["errors"])
    return "\n".join([*parts, _ERRORS])


def _operation(method: DescribedMethod, errors: Mapping[str, str]) -> Iterator[str]:
    yield f"### {method.name}\n\n{method.text or f'Call {method.name}.'}\n"
    yield f"Arguments:\n\n{_block(_pretty(method.arguments))}"
    yield f"{'Each item of the stream' if method.is_stream else 'Result'}:\n\n{_block(_pretty(method.result))}"
    yield "Errors:\n\n" + "".join(f"- {code}: {meaning}\n" for code, meaning in errors.items())


def _block(text: str) -> str:
    return f"```json\n{text}\n```\n"


def _pretty(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False, indent=2)
