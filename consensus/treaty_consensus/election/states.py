"""The states of a document in a topic. `TRANSITIONS` has all of them; `rule` decides which event an epoch brings.

The picture and the table in `docs/specification/election.md` are generated from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ..kinds import State

FORMER: tuple[State, ...] = ("dormant", "superseded", "repealed")
"""The states of a document that was the consensus."""


class DocumentEvent(StrEnum):
    """The outcome of an epoch for one document. `CONDITIONS` says when."""

    ENTERED = "enters the field"
    LEFT = "leaves the field"
    ACCEPTABLE = "is acceptable"
    UNACCEPTABLE = "is not acceptable"
    ELECTED = "is elected"
    KEPT = "is kept"
    REPLACED = "is replaced"
    REJECTED = "is rejected"
    NEGLECTED = "is neglected"
    TAKEN_BACK = "is taken back"


CONDITIONS: Mapping[DocumentEvent, str] = {
    DocumentEvent.ENTERED: "it is in the field",
    DocumentEvent.LEFT: "it is no longer in the field",
    DocumentEvent.ACCEPTABLE: "S > 0; (`quorum_share` − 1) · S ≥ W − w; V[c][N] beats V[N][c] by `over_none`",
    DocumentEvent.UNACCEPTABLE: "one of these fails",
    DocumentEvent.ELECTED: (
        "they held for `sustain_epochs`; first in the order; m[c][x] ≥ 0 for all x, and > 0 for those published earlier; with an "
        "incumbent i, V[c][i] beats V[i][c] by `over_incumbent`, for `sustain_epochs`"
    ),
    DocumentEvent.REPLACED: "another document becomes the consensus",
    DocumentEvent.REJECTED: (
        "V[N][i] beats V[i][N] by `over_none`, S'(i) > 0, and (`quorum_share` − 1) · S'(i) ≥ W − w'(i), for `sustain_epochs`"
    ),
    DocumentEvent.NEGLECTED: (
        "V[i][N] < V[N][i], or `provisional_share` · S(i) < ⌈(W − w(i)) / (`quorum_share` − 1)⌉, for `dormant_epochs`"
    ),
    DocumentEvent.TAKEN_BACK: "its publishers yanked or revoked all its documents",
    DocumentEvent.KEPT: "none of these",
}

# No row leads from candidate to consensus: one transition an epoch, so that readers can follow each document.
TRANSITIONS: Mapping[tuple[State, DocumentEvent], State] = {
    ("published", DocumentEvent.LEFT): "published",
    ("published", DocumentEvent.ENTERED): "candidate",
    ("candidate", DocumentEvent.LEFT): "published",
    ("candidate", DocumentEvent.UNACCEPTABLE): "candidate",
    ("candidate", DocumentEvent.ACCEPTABLE): "provisional",
    ("provisional", DocumentEvent.LEFT): "published",
    ("provisional", DocumentEvent.UNACCEPTABLE): "candidate",
    ("provisional", DocumentEvent.ACCEPTABLE): "provisional",
    ("provisional", DocumentEvent.ELECTED): "consensus",
    ("consensus", DocumentEvent.REPLACED): "superseded",
    ("consensus", DocumentEvent.REJECTED): "repealed",
    ("consensus", DocumentEvent.NEGLECTED): "dormant",
    ("consensus", DocumentEvent.KEPT): "consensus",
    **{(state, DocumentEvent.TAKEN_BACK): "published" for state in ("candidate", "provisional")},
    ("consensus", DocumentEvent.TAKEN_BACK): "repealed",
    **{(state, DocumentEvent.TAKEN_BACK): state for state in FORMER},
    # A former consensus keeps its state until it is acceptable and first in the order.
    **{(state, DocumentEvent.LEFT): state for state in FORMER},
    **{(state, DocumentEvent.UNACCEPTABLE): state for state in FORMER},
    **{(state, DocumentEvent.ACCEPTABLE): "provisional" for state in FORMER},
}


def follow(state: State, event: DocumentEvent) -> State:
    """Return the state after an epoch. Raises `KeyError` for an event that cannot happen in this state."""
    return TRANSITIONS[state, event]
