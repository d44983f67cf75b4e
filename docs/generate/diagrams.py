"""The pictures of the concept: the ten steps, the exchange of two agents, and the packages, each from the tables of the code."""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Sequence
from importlib import import_module

from treaty_anp.hello_profile.states import FINAL, TRANSITIONS, Event, HelloState
from treaty_client.protocols.verification import steps

from . import GENERATORS, ROOT
from .pictures import frame, text

WIDTH, LINE = 760, 17

_STEP = re.compile(r"^ +(\d+) (\w+) +(.+)$", re.MULTILINE)
_WAYS: dict[str, tuple[tuple[Event, str, str], ...]] = {
    "Both know the same hash: the first call follows at once": ((Event.HASH_CONFIRMED, "<", "Hello: this URI, this hash"),),
    "One side lacks the handler: it fetches and verifies it first": (
        (Event.PROTOCOL_SELECTED, "<", "Hello: this URI"),
        (Event.CODES_READY, "-", "both have the handler ready"),
    ),
    "No protocol in common: they negotiate one": (
        (Event.OWN_TURN, "<", "Hello: nothing in common"),
        (Event.PEER_TURN, ">", "protocolNegotiation: a document"),
        (Event.DOCUMENT_AGREED, "<", "protocolNegotiation: accepted"),
        (Event.OWN_TESTS_TURN, ">", "testCasesNegotiation: test cases"),
        (Event.TESTS_DUE, "<", "testCasesNegotiation: accepted"),
        (Event.TESTS_PASSED, "-", "both run the tests in the sandbox"),
    ),
}
"""The ways to a session, on the initiator's side: each event, the direction of its message (`-`: none), and its text."""


def steps_svg() -> str:
    """The ten steps, with the meanings of `Step`'s module."""
    meanings = {int(number): (name, meaning) for number, name, meaning in _STEP.findall(steps.__doc__ or "")}
    parts, y = list[str](), 24
    for step in steps.Step:
        name, meaning = meanings[step]
        if name != step.title:
            raise ValueError(f"step {step} is {step.title} in the enum and {name} in the docstring")
        lines = textwrap.wrap(meaning, 78)
        height = 18 + LINE * len(lines)
        parts += [
            f'<rect x="24" y="{y}" width="{WIDTH - 48}" height="{height}" rx="8" fill="#eef3ff" stroke="#557"/>',
            text(46, y + 22, str(int(step)), weight=700),
            text(66, y + 22, name, anchor="start", weight=600),
            *(text(170, y + 22 + LINE * row, line, anchor="start", size=13) for row, line in enumerate(lines)),
        ]
        y += height + 16
        parts.append(f'<path d="M46 {y - 16}V{y - 1}" fill="none" stroke="#335" stroke-width="1.4" marker-end="url(#tip)"/>')
    parts.append(f'<rect x="24" y="{y}" width="{WIDTH - 48}" height="36" rx="8" fill="#e0f3e6" stroke="#557"/>')
    parts.append(text(46, y + 23, "The handler may run, in the sandbox if it has code", anchor="start", weight=600))
    words = " ".join(f"{number} {name}: {meaning}." for number, (name, meaning) in meanings.items())
    return frame("The ten steps from a name to a handler that may run", words, WIDTH, y + 60, parts)


def handshake_svg() -> str:
    """The exchange of two agents, along three ways through the table of the Hello profile. Raises `KeyError` for another way."""
    parts, y, words = list[str](), 20, list[str]()
    for title, way in _WAYS.items():
        parts.append(text(24, y + 14, title, anchor="start", weight=700, size=15))
        y += 30
        top = y
        rows: list[str] = []
        y = _message(rows, top + 56, ">", "Hello: URIs, hashes")
        state, path = HelloState.HELLO, [HelloState.HELLO]
        for event, direction, label in way:
            state = TRANSITIONS[state, event].target
            if state is not path[-1]:
                path.append(state)
            y = _message(rows, y, direction, f"{label} ({event})" if direction == "-" else label)
        if state is not HelloState.RUNNING or set(path) & FINAL:
            raise KeyError(title)
        y = _message(rows, y, ">", "a call of the application")
        y = _message(rows, y, "<", "its answer")
        for x, name in ((170, "Initiator"), (590, "Responder")):
            parts.append(f'<line x1="{x}" y1="{top + 34}" x2="{x}" y2="{y - 12}" stroke="#ccd" stroke-dasharray="4 4"/>')
            parts.append(f'<rect x="{x - 75}" y="{top}" width="150" height="34" rx="8" fill="#eef3ff" stroke="#557"/>')
            parts.append(text(x, top + 22, name, weight=600))
        parts += rows
        passed = " → ".join(state.upper() for state in path)
        parts.append(text(24, y + 4, f"States: {passed}", anchor="start", size=12))
        words.append(f"{title}. States: {passed}.")
        y += 36
    return frame("The message exchange of two agents", " ".join(words), WIDTH, y, parts)


def _message(parts: list[str], y: int, direction: str, label: str) -> int:
    """Add one row; return the place of the next."""
    if direction == "-":
        parts.append(f'<rect x="150" y="{y - 14}" width="460" height="24" rx="6" fill="#fff7e0" stroke="#c90"/>')
        parts.append(text(380, y + 3, label, size=13))
        return y + 38
    start, end = (176, 584) if direction == ">" else (584, 176)
    parts.append(f'<path d="M{start} {y}H{end}" fill="none" stroke="#335" stroke-width="1.4" marker-end="url(#tip)"/>')
    parts.append(text(380, y - 7, label, size=13))
    return y + 34


def architecture_svg() -> str:
    """The packages in the layers that the import linter holds, each with the first sentence of its docstring, and its rooms."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers: Sequence[str] = contracts[0]["layers"]
    rooms = {contract["containers"][0]: contract["layers"] for contract in contracts if "rooms" in contract["name"]}
    parts, y, words = list[str](), 24, list[str]()
    for number, layer in enumerate(layers):
        names = layer.split(" | ")
        width = (WIDTH - 48 - 16 * (len(names) - 1)) // len(names)
        cells = [_cell(name, rooms.get(name, ()), max(18, width // 8)) for name in names]
        height = 38 + LINE * max(map(len, cells))
        for place, (name, lines) in enumerate(zip(names, cells, strict=True)):
            x = 24 + place * (width + 16)
            parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="#eef3ff" stroke="#557"/>')
            parts.append(text(x + 14, y + 24, name, anchor="start", weight=600))
            parts += [text(x + 14, y + 44 + LINE * row, line, anchor="start", size=13) for row, line in enumerate(lines)]
        words.append(" ".join(f"{name}: {' '.join(cell)}." for name, cell in zip(names, cells, strict=True)))
        y += height
        if number < len(layers) - 1:
            middle = WIDTH // 2
            parts.append(
                f'<path d="M{middle} {y}V{y + 25}" fill="none" stroke="#335" stroke-width="1.4" marker-end="url(#tip)"/>'
            )
            parts.append(text(middle + 12, y + 18, "uses", anchor="start", size=12))
        y += 28
    description = "Each layer uses only the layers below it. From above: " + " ".join(words)
    return frame("The parts of Treaty, and which of them uses which", description, WIDTH, y, parts)


def _cell(package: str, rooms: Sequence[str], width: int) -> list[str]:
    """The lines below the name of a package: its purpose, and its rooms from above."""
    listed = f"Rooms, from above: {', '.join(rooms).replace(' | ', ', ')}" if rooms else ""
    return [*textwrap.wrap(_sentence(package), width), *textwrap.wrap(listed, width)]


def _sentence(package: str) -> str:
    """The first sentence of a package's docstring."""
    first = (import_module(package).__doc__ or "").partition("\n\n")[0]
    return re.split(r"(?<=[.:]) |: `| \(", " ".join(first.split()).replace("`", ""))[0].rstrip(":.")


GENERATORS.update({"steps-svg": steps_svg, "handshake-svg": handshake_svg, "architecture-svg": architecture_svg})
