"""Verify form and signatures of the next leaves of an audit ahead, in separate processes.

This takes longer than the rest of a replay, and needs only the keys of earlier leaves. The processes use the keys that the log
has at that moment. Admission later checks that these are still the author's keys. A leaf that does not verify ahead, for example
because its author's identity was logged just before it, is verified again in its turn.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from threading import Thread
from types import TracebackType
from typing import Protocol, TypeVar

import msgspec

from treaty_consensus import statement
from treaty_consensus.did import parse_key_id
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.facts import Facts, keys_of
from treaty_consensus.statement import Verified
from treaty_io.codes import ClientAuditCode

PROCESSES = 2
"""As many keep up with the one that replays."""

_T = TypeVar("_T")
_R = TypeVar("_R")


class Checked(Protocol):
    """Leaves that are being verified."""

    def result(self) -> list[Verified | None]:
        """Wait for the statements; None for a leaf that does not parse or verify."""


class Workers(Protocol):
    """What verifies and counts ahead, as a context manager: processes of this machine, or a cluster. `ahead`: bundles."""

    ahead: int

    def __enter__(self) -> Workers: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def check(self, leaves: Sequence[bytes], facts: Facts) -> Checked:
        """Verify leaves under the keys in `facts`."""

    def each(self, function: Callable[[_T], _R], items: Sequence[_T]) -> Iterable[_R]:
        """Return the results of `function` for the items, in their order."""


class ParallelVerifier:
    """The processes, as a context manager. They start with the first leaves and end with this process, even if it is killed.

    Raises `Unavailable` (`audit.failed`) if one of them was killed.
    """

    ahead = 8
    """It bounds memory."""

    def __init__(self) -> None:
        # spawn and not fork, because this process has threads and open databases.
        self._pool = ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn"), _begin)

    def __enter__(self) -> ParallelVerifier:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # Bundles that were not begun are dropped: an audit that failed needs none of them.
        self._pool.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise Unavailable(ClientAuditCode.FAILED, "A process of this audit was killed.", fix="Run it again.") from error

    def check(self, leaves: Sequence[bytes], facts: Facts) -> Future[list[Verified | None]]:
        """Verify leaves under the keys in `facts`; return for each a statement, or None if it does not parse or verify."""
        return self._pool.submit(check_all, leaves, keys_for(leaves, facts))

    def each(self, function: Callable[[_T], _R], items: Sequence[_T]) -> Iterable[_R]:
        """Return the results of `function`, made one after the other: to copy what it counts would take longer here."""
        return map(function, items)


class _Signature(msgspec.Struct):
    keyid: str


class _Envelope(msgspec.Struct):
    signatures: list[_Signature]


_envelope = msgspec.json.Decoder(_Envelope)


def keys_for(leaves: Sequence[bytes], facts: Facts) -> dict[str, bytes]:
    """Return the keys that the leaves claim to be signed with, as far as the facts have them."""
    return {key_id: key for leaf in leaves for key_id, key in _keys(leaf, facts).items()}


def _keys(leaf: bytes, facts: Facts) -> dict[str, bytes]:
    """Return the keys that a leaf claims to be signed with, as far as the facts have them."""
    try:
        dids = {parse_key_id(signature.keyid)[0] for signature in _envelope.decode(leaf).signatures}
        return {key_id: key for did in dids for key_id, key in keys_of(facts, did).items()}
    except (msgspec.DecodeError, TreatyError):
        return {}  # ignored here: the replay reports the error in the leaf's turn


def check_all(leaves: Sequence[bytes], keys: Mapping[str, bytes]) -> list[Verified | None]:
    """Verify leaves, in another process."""
    return [_check(leaf, keys) for leaf in leaves]


def _check(leaf: bytes, keys: Mapping[str, bytes]) -> Verified | None:
    try:
        verified = statement.verify(statement.understand(leaf), keys)
        assert verified.statement.id  # the id is cached, so that this process computes it
    except TreatyError:
        return None
    return verified


def _begin() -> None:
    """Prepare a process of the pool: it ignores Ctrl-C, which its parent handles, and ends with its parent."""
    # Ctrl-C reaches the whole process group; the parent stops the pool.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        # The sentinel becomes ready when the parent ends, also when it is killed.
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=follow, daemon=True).start()
