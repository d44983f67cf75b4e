"""Checking ahead: the form and the signatures of the leaves that an audit comes to next, in processes of their own.

They take longer than all else together, and of the leaves before them they need nothing but keys. So processes check them under
the keys that the log knows so far. Whether those are still the author's when it is a leaf's turn, admission says; and what does
not hold ahead, as of an author whose identity has only just been logged, is checked again then.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from threading import Thread
from types import TracebackType

import msgspec

from treaty_consensus import statement
from treaty_consensus.admit import keys_of
from treaty_consensus.did import parse_key_id
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.facts import Facts
from treaty_consensus.statement import Verified

PROCESSES = 2
"""As many keep up with the one that replays."""


class Ahead:
    """The processes. A context manager; they start with the first leaves and end with this process, however it ends. Raises
    `Unavailable` (`audit.process`) when one of them was killed."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn"), _begin)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise Unavailable("audit.process", "A process of this audit was killed.", fix="Run it again.") from error

    def check(self, leaves: Sequence[bytes], facts: Facts) -> Future[list[Verified | None]]:
        """For each leaf the statement that it is, verified under keys of these facts; None where there is none, or none that
        verifies."""
        return self._pool.submit(_check_all, leaves, {k: v for leaf in leaves for k, v in _keys(leaf, facts).items()})


class _Signature(msgspec.Struct):
    keyid: str


class _Envelope(msgspec.Struct):
    signatures: list[_Signature]


_envelope = msgspec.json.Decoder(_Envelope)


def _keys(leaf: bytes, facts: Facts) -> dict[str, bytes]:
    """The keys by which a leaf says that it is signed, as far as the facts have them."""
    try:
        dids = {parse_key_id(signature.keyid)[0] for signature in _envelope.decode(leaf).signatures}
        return {key_id: key for did in dids for key_id, key in keys_of(facts, did).items()}
    except (msgspec.DecodeError, TreatyError):
        return {}  # what is wrong with it is said when it is its turn


def _check_all(leaves: Sequence[bytes], keys: Mapping[str, bytes]) -> list[Verified | None]:
    return [_check(leaf, keys) for leaf in leaves]


def _check(leaf: bytes, keys: Mapping[str, bytes]) -> Verified | None:
    try:
        verified = statement.verify(statement.parse(leaf), keys)
        assert verified.statement.id  # computed here, and kept with it
    except TreatyError:
        return None
    return verified


def _begin() -> None:
    """How a process of the pool begins: it leaves Ctrl-C to its parent, and does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=follow, daemon=True).start()
