"""Details of step 10: compare an answer and its handler with treaty.lock, and make the lock entry of a verified protocol."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from treaty_consensus.errors import Refused, Unavailable, Untrusted
from treaty_consensus.kinds import NEGATIVE_STATES, Handler, Identity, Publish, Status
from treaty_consensus.protocol import ProtocolUri
from treaty_io.codes import LockCode, MemoryCode

from ...registries.leaves import SeenLeaf
from ..store import LockedIdentity, LockedProtocol, LockedSigner, LockedStatus, LockedVersion, line_of
from .records import Evidence, VerifiedProtocol

Change = Literal["publisher", "signer", "handler"]
"""A change that an owner may accept: another publisher, or tenure of it; another signer; an older handler than was seen."""


def lock_entry(verified: VerifiedProtocol) -> LockedProtocol:
    """Return the lock entry of a verified protocol, without versions."""
    identities, pinned = verified.evidence.identities(verified.publisher), None
    if identities:
        newest = identities[-1]
        assert isinstance(newest.statement.body, Identity)
        keys = tuple(key.multikey for key in newest.statement.body.keys)
        pinned = LockedIdentity(newest.index, keys, newest.statement.id)
    signer = LockedSigner(verified.signer.identity, verified.signer.issuer)
    return LockedProtocol(verified.publisher, verified.tenure, signer, identity=pinned)


def changes_of(locked: LockedProtocol, current: LockedProtocol) -> list[tuple[Change, str, str, str]]:
    """Return what the handlers of a protocol would come from instead: each change, the name of the fact, before and now."""
    facts: tuple[tuple[Change, str, str, str], ...] = (
        ("publisher", "publisher", locked.publisher, current.publisher),
        ("publisher", "tenure", str(locked.tenure), str(current.tenure)),
        ("signer", "signer", locked.signer.identity, current.signer.identity),
        ("signer", "signer", locked.signer.issuer, current.signer.issuer),
    )
    return [fact for fact in facts if fact[2] != fact[3]]


def check_unchanged(locked: LockedProtocol | None, current: LockedProtocol, line: str, accept: Collection[Change] = ()) -> None:
    """Check that publisher, tenure and signer of a protocol's handlers are those of treaty.lock, except for accepted changes.

    `line`: the URI without its version. Raises `Untrusted` (`lock.publisher`).
    """
    accepted = set(accept)
    if "publisher" in accepted and current.signer.identity == current.publisher:
        accepted.add("signer")  # a publisher that signs for itself: another one is another signer
    for change, name, before, now in changes_of(locked, current) if locked is not None else ():
        if change not in accepted:
            raise Untrusted(
                LockCode.PUBLISHER,
                f"The handlers of {line} came from the {name} {before}, this one comes from {now}.",
                fix=f"If you expect this change, fetch it again with --allow-{change}-change.",
            )


def check_not_older(verified: VerifiedProtocol, locked: LockedVersion | None, seen: Iterable[SeenLeaf]) -> None:
    """Check that each newer handler by the same publisher that was seen is among the handlers of the answer.

    `locked`: the version in treaty.lock. `seen`: the leaves about the protocol. A full list may leave a handler out honestly, but
    using the older one is still a step back. Raises `Refused` (`lock.contradicted`).
    """
    locked_handlers = {locked.handler} if locked is not None and locked.handler is not None else set()
    for leaf in seen:
        if isinstance(leaf.statement.body, Handler) and leaf.statement.author.text == verified.publisher:
            locked_handlers.add(leaf.index)
    newer = {index for index in locked_handlers if index > verified.handler_index}
    # A newer handler that is in the answer was passed over for a reason that the answer proves, such as a yank.
    missing = newer - {logged.index for logged in verified.evidence.statements}
    if missing:
        raise Refused(
            LockCode.CONTRADICTED,
            f"The handler of leaf {max(missing)} is newer than that of leaf {verified.handler_index}, and was not shown.",
            fix="If you want the older handler, fetch it again with --allow-older-handler.",
        )


def check_pins(entries: Mapping[str, LockedProtocol], origin: str, evidence: Evidence, *, is_kept: bool = False) -> None:
    """Check the history that the lock pins for a registry: the publishers' identities, and the documents of the versions.

    `is_kept`: the evidence was stored, and may be of an older log than the lock. Raises `Untrusted`
    (`lock.contradicted`) if the log differs now, and `Unavailable` (`memory.behind`) if the answer is of an older log than
    the lock.
    """
    for line, locked in entries.items():
        # Entries of other registries: this log says nothing about them.
        if not line.startswith(f"https://{origin}/"):
            continue
        _check_identity(locked, evidence, is_kept)
        for logged in evidence.statements:
            body = logged.statement.body
            if isinstance(body, Publish) and body.uri.startswith(f"{line}/"):
                _check_version(locked.versions.get(body.uri.removeprefix(f"{line}/")), body, logged.index)


def check_status(entries: Mapping[str, LockedProtocol], uri: ProtocolUri, evidence: Evidence) -> LockedVersion | None:
    """Check that the evidence is as new as the statuses that the lock pins for a protocol and its locked handler.

    Return the locked version with its newest statuses, as far as they take back or follow such ones. Return None if the lock
    lacks the version. Raises `Untrusted` (`lock.contradicted`) if the evidence, of an answer about the protocol, has an older
    status or none. A handler's status counts only while the handler is listed.
    """
    locked = entries.get(line_of(uri))
    version = locked.versions.get(uri.version) if locked is not None else None
    if locked is None or version is None:
        return None
    bodies = [(logged, logged.statement.body) for logged in evidence.statements]
    listed = {(logged.statement.author.text, body.wheel.sha256) for logged, body in bodies if isinstance(body, Handler)}
    newest: dict[str | None, LockedStatus] = {}
    for logged, body in bodies:
        if not isinstance(body, Status) or body.uri != str(uri):
            continue
        # Another author's status about the same wheel is about that author's own handler.
        if body.wheel is None or logged.statement.author.text == locked.publisher:
            newest[body.wheel] = LockedStatus(logged.index, body.state)
    status = _newer_status(version.status, newest.get(None), str(uri))
    handler_status = version.handler_status
    if (locked.publisher, version.wheel) in listed:
        handler_status = _newer_status(handler_status, newest.get(version.wheel), f"the handler {version.filename} of {uri}")
    return msgspec.structs.replace(version, status=status, handler_status=handler_status)


def _newer_status(pinned: LockedStatus | None, current: LockedStatus | None, what: str) -> LockedStatus | None:
    # Only a status that takes back is pinned: a lock under version control must not change with every other status.
    if pinned is None:
        return current if current is not None and current.state in NEGATIVE_STATES else None
    if current is None or current.index < pinned.index:
        raise Untrusted(
            LockCode.CONTRADICTED,
            f"The lock says that leaf {pinned.index} makes {what} {pinned.state}; the registry shows an older status, or none.",
            fix="Do not use it. The registry, or a party on the path to it, hides leaves of the log from you.",
        )
    return current


def _check_identity(locked: LockedProtocol, evidence: Evidence, is_kept: bool) -> None:
    pinned, size = locked.identity, evidence.checkpoint.checkpoint.size
    identities = [(logged.index, logged.statement.id) for logged in evidence.identities(locked.publisher)]
    if pinned is None or not identities or (pinned.index, pinned.statement) in identities:
        return
    # The answer's log does not reach the pinned leaf, so it cannot hold it. This is no proof of another history.
    if pinned.index >= size:
        if is_kept:
            return
        raise Unavailable(
            MemoryCode.BEHIND,
            f"The lock knows an identity of {locked.publisher} at leaf {pinned.index}; the answer is of a log of {size} leaves.",
            fix="Try again. If it stays so, this server of the registry lags behind, or a party on the path hides news from you.",
        )
    raise Untrusted(
        LockCode.CONTRADICTED,
        f"The lock says that leaf {pinned.index} is the identity {pinned.statement} of {locked.publisher}; the "
        "registry shows another history of its keys.",
        fix="Do not use it. A rotation of keys cannot cause this. Ask the publisher for its keys and compare them with the lock.",
    )


def _check_version(version: LockedVersion | None, publication: Publish, index: int) -> None:
    if version is None or (version.document == publication.document.sha256 and version.published in (None, index)):
        return
    raise Untrusted(
        LockCode.CONTRADICTED,
        f"The lock holds {publication.uri} with the document {version.document}; the registry says that it was published with "
        f"{publication.document.sha256}, as leaf {index}.",
        fix="Do not use it. A version is published only once. Remove the version from the lock only if the lock is wrong.",
    )
