"""The picture of the whole: the messages and their two ends, from the first publication to a session without a negotiation.

Its words come from the tables of the code: the types of statements, the events of a Hello, the number of the steps, and the
states of a document on the shortest way to the consensus. A row that the tables do not have fails the generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treaty_anp.hello_profile.states import TRANSITIONS, Event, HelloState
from treaty_client.protocols.verification.steps import Step
from treaty_consensus import kinds, statement
from treaty_consensus.election.states import DocumentEvent, follow

from . import GENERATORS
from .pictures import frame, text

PUBLISHER, REGISTRY, RESPONDER, INITIATOR = PLACES = (90, 330, 600, 850)
"""The middles of the lanes, from the left."""
_NAMES = ("Publisher", "Registry + log", "Agent: shop", "Agent: buyer")
_WIDTH, _TOP, _ROW = 940, 50, 36
_PURPLE = ("#426", "#f6eaff", "#86a")
_DIGITS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


class SentMessage(NamedTuple):
    """A message from one lane to another. `is_call`: of the application."""

    source: int
    target: int
    words: str
    is_call: bool = False


class Box(NamedTuple):
    """An event inside one lane or more: its middle, its width, and the colours of text, ground and edge."""

    middle: float
    width: int
    words: str
    colours: tuple[str, str, str] = ("#640", "#fff7e0", "#c90")


class Part(NamedTuple):
    """A part of the story with its heading and the colour of it."""

    title: str
    colour: str
    rows: Sequence[SentMessage | Box]


def overview_svg() -> str:
    """The story of two agents in five parts."""
    parts, words, y = list[str](), list[str](), _TOP + 30
    for number, part in enumerate(_story(), 1):
        heading = f"{number}  {part.title}"
        # The ground of a heading hides the lane that it crosses.
        parts.append(f'<rect x="10" y="{y - 15}" width="{9 * len(heading)}" height="20" fill="#fff"/>')
        parts.append(text(14, y, heading, anchor="start", weight=700, fill=part.colour))
        words.append(f"{number} {part.title}:")
        for row in part.rows:
            y += _ROW
            parts += _arrow(row, y) if isinstance(row, SentMessage) else _box(row, y)
            words.append(f"{_said(row)}.")
        y += _ROW
    height = y - 6
    lanes = [line for x, name in zip(PLACES, _NAMES, strict=True) for line in _lane(x, name, height - 14)]
    return frame("How two agents agree with Treaty", " ".join(words), _WIDTH, height, [*lanes, *parts])


def _story() -> Sequence[Part]:
    """The parts. Raises `KeyError` or `ValueError` when the code has no such statement, transition or step."""
    publish, handler, report, ballot, decision = (
        statement.TYPE_OF[kind] for kind in (kinds.Publish, kinds.Handler, kinds.Report, kinds.Ballot, kinds.Decision)
    )
    for event, target in ((Event.PROTOCOL_SELECTED, HelloState.AGREED), (Event.HASH_CONFIRMED, HelloState.RUNNING)):
        if TRANSITIONS[HelloState.HELLO, event].target is not target:
            raise ValueError(f"{event} does not lead from the Hello to {target}")
    if TRANSITIONS[HelloState.AGREED, Event.CODES_READY].target is not HelloState.RUNNING:
        raise ValueError("two ready codes do not run")
    state: kinds.State = "published"
    way = [state]
    for happened in (DocumentEvent.ENTERED, DocumentEvent.ACCEPTABLE, DocumentEvent.ELECTED):
        state = follow(state, happened)
        way.append(state)
    return (
        Part("Publish, once", "#1b6e3c", [SentMessage(PUBLISHER, REGISTRY, f"{publish}, {handler}: signed")]),
        Part(
            "Meet",
            "#1b4f9c",
            [
                SentMessage(INITIATOR, RESPONDER, "Hello: candidate URIs"),
                SentMessage(RESPONDER, INITIATOR, "Hello: this URI"),
                SentMessage(REGISTRY, INITIATOR, "one bundle: document, handler, all proofs"),
                SentMessage(REGISTRY, RESPONDER, "the same bundle"),
                Box((RESPONDER + INITIATOR) / 2, 400, f"each side: {_DIGITS[len(Step)]} steps, then the handler may run"),
                SentMessage(INITIATOR, RESPONDER, "calls of the application", is_call=True),
            ],
        ),
        Part("Tell", "#8a4b00", [SentMessage(INITIATOR, REGISTRY, f"{report}, signed by both; {ballot}, signed by each")]),
        Part(
            "Agree",
            "#7a1f6b",
            [
                Box(REGISTRY, 430, f"{decision} of each epoch, which everyone can recompute", _PURPLE),
                Box(REGISTRY, 430, " → ".join(way), _PURPLE),
            ],
        ),
        Part("Meet again", "#1b4f9c", [SentMessage(INITIATOR, RESPONDER, "Hello: known hash + first call", is_call=True)]),
    )


def _lane(x: int, name: str, bottom: int) -> list[str]:
    return [
        f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{bottom}" stroke="#ccd" stroke-dasharray="4 4"/>',
        f'<rect x="{x - 75}" y="{_TOP - 34}" width="150" height="34" rx="8" fill="#eef3ff" stroke="#557"/>',
        text(x, _TOP - 12, name, weight=600),
    ]


def _arrow(row: SentMessage, y: int) -> list[str]:
    gap = 6 if row.target > row.source else -6
    middle, width = (row.source + row.target) / 2, 7.2 * len(row.words) + 8
    return [
        f'<path d="M{row.source + gap} {y}H{row.target - gap}" fill="none" stroke="#335" '
        f'stroke-width="{2 if row.is_call else 1.4}" marker-end="url(#tip)"/>',
        # The ground of the words hides the lane that they cross.
        f'<rect x="{middle - width / 2:.0f}" y="{y - 21}" width="{width:.0f}" height="15" fill="#fff"/>',
        text(middle, y - 8, row.words),
    ]


def _box(row: Box, y: int) -> list[str]:
    ink, ground, edge = row.colours
    left = row.middle - row.width / 2
    return [
        f'<rect x="{left:.0f}" y="{y - 22}" width="{row.width}" height="28" rx="6" fill="{ground}" stroke="{edge}"/>',
        text(row.middle, y - 3, row.words, fill=ink),
    ]


def _said(row: SentMessage | Box) -> str:
    names = dict(zip(PLACES, _NAMES, strict=True))
    return f"{names[row.source]} → {names[row.target]}: {row.words}" if isinstance(row, SentMessage) else row.words


GENERATORS["overview-svg"] = overview_svg
