"""The detail of step 6: the handlers that the log holds for a protocol, and the one that the policy selects."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from packaging.tags import Tag, sys_tags

from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.handler import TAG, parse_filename
from treaty_consensus.kinds import Handler, Status
from treaty_consensus.protocol import ProtocolUri
from treaty_io.codes import PolicyCode

from ...policy import Policy
from .records import Evidence, Logged, OfferedHandler


def offered_handlers(evidence: Evidence, uri: ProtocolUri) -> list[OfferedHandler]:
    """Return all handlers of a protocol, each with its newest status, in the order of the log."""
    return [
        OfferedHandler(
            logged.statement.body,
            logged.statement.author.text,
            logged.tenure,
            logged.index,
            newest_status(evidence, uri, logged),
        )
        for logged in evidence.statements
        if isinstance(logged.statement.body, Handler) and logged.statement.body.uri == str(uri)
    ]


def newest_status(evidence: Evidence, uri: ProtocolUri, handler: Logged | None = None) -> Status | None:
    """Return the newest status of a protocol, or of one of its handlers by the author of that handler statement."""
    wheel = None
    if handler is not None:
        assert isinstance(handler.statement.body, Handler)
        wheel = handler.statement.body.wheel.sha256
    newest = None
    for logged in evidence.statements:
        body = logged.statement.body
        if not isinstance(body, Status) or body.uri != str(uri) or body.wheel != wheel:
            continue
        # Only the author of a handler takes it back. A stranger who attaches the same wheel cannot.
        if handler is None or logged.statement.author == handler.statement.author:
            newest = body
    return newest


def choose(offered: Iterable[OfferedHandler], policy: Policy) -> OfferedHandler:
    """Return the newest handler of the first publisher in the policy that has one for this runtime and did not take it back.

    If all were taken back, return the newest of them: step 9 refuses it. Raises `Refused` (`policy.publisher`).
    """
    admitted = [
        handler
        for handler in offered
        if policy.admits_publisher(handler.publisher, handler.tenure) and _runs_here(handler.body.filename)
    ]
    # In the order of the policy: the owner's preference, not the registry's, selects the code.
    for publisher in policy.publishers:
        usable = [handler for handler in admitted if handler.publisher == publisher and not handler.is_negative]
        if usable:
            return max(usable, key=lambda handler: handler.index)
    if admitted:
        return max(admitted, key=lambda handler: handler.index)  # taken back: step 9 refuses it and names its successor
    found = ", ".join(sorted({handler.publisher for handler in offered})) or "no publisher"
    raise Refused(
        PolicyCode.PUBLISHER,
        f"No publisher that the policy names has a handler for this runtime; {found} has.",
        fix="An election selects documents; you select publishers of code. Allow one that you trust: treaty policy allow DID",
    )


# Listing the tags of this runtime takes about a millisecond, and they do not change.
@cache
def _handlers_run_here() -> bool:
    return Tag(*TAG.split("-")) in sys_tags()


def _runs_here(filename: str) -> bool:
    try:
        parse_filename(filename)
    except TreatyError:  # for another runtime, or not a handler package
        return False
    return _handlers_run_here()
