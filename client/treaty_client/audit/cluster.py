"""Spread the work of a replay over a Dask cluster: signatures ahead, and the counts of topics when an epoch closes.

The workers run the same release as this process, with its extra `cluster`. Their results are believed, like those of processes
of this machine: who controls a worker can pass off a wrong signature as right. So scheduler and workers belong to the one who
replays, on a network of their own or with TLS (`tls://`, configured as Dask says).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from treaty_consensus.errors import Unavailable
from treaty_consensus.facts import Facts
from treaty_consensus.statement import Verified
from treaty_io.codes import ClientAuditCode
from treaty_io.extras import naming_extras

from .parallel_verification import Checked, check_all, keys_for

_PATIENCE = 10  # seconds to reach the scheduler
_BUNDLES_PER_WORKER = 4  # keeps every worker busy while results travel
_MOST_AHEAD = 256  # bundles, which bounds memory

_T = TypeVar("_T")
_R = TypeVar("_R")


class WorkerCluster:
    """The workers at a scheduler's address, as a context manager. Safe for threads.

    Every method raises `Unavailable` (`audit.failed`) when the scheduler or too many workers fail.
    """

    def __init__(self, address: str) -> None:
        """`address`: as Dask writes it, such as tcp://10.0.0.7:8786."""
        self._address = address
        self._client: Any = None
        self.ahead = _BUNDLES_PER_WORKER
        """Bundles to check ahead."""

    def __enter__(self) -> WorkerCluster:
        with naming_extras("cluster"):
            import distributed
        connect: Any = distributed.Client  # it has no types
        with _failing(self._address):
            # Not this process's default: other code of it may use Dask too.
            self._client = connect(self._address, timeout=_PATIENCE, set_as_default=False)
            workers = len(self._client.scheduler_info(n_workers=-1)["workers"])
            if not workers:
                raise OSError("it has no workers")
            self.ahead = min(_BUNDLES_PER_WORKER * workers, _MOST_AHEAD)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._client is not None:
            # What is not computed yet is dropped by the scheduler with its client.
            self._client.close(timeout=_PATIENCE)

    def check(self, leaves: Sequence[bytes], facts: Facts) -> Checked:
        """Verify leaves under the keys in `facts`, as `ParallelVerifier.check` does."""
        with _failing(self._address):
            # Not pure: Dask would hash the arguments, which takes longer than to send them.
            return _Result(self._client.submit(check_all, leaves, keys_for(leaves, facts), pure=False), self._address)

    def each(self, function: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Return the results of `function` for the items, in their order. The function is sent once to each worker."""
        if len(items) < 2:
            return [*map(function, items)]
        with _failing(self._address):
            sent = self._client.scatter(function, broadcast=True, hash=False)
            results: list[_R] = self._client.gather(self._client.map(_call, [sent] * len(items), items, pure=False))
            return results


class _Result:
    """A result that a worker computes."""

    def __init__(self, future: Any, address: str) -> None:
        self._future = future
        self._address = address

    def result(self) -> list[Verified | None]:
        """Wait for the result."""
        with _failing(self._address):
            verified: list[Verified | None] = self._future.result()
            return verified


def _call(function: Callable[[_T], _R], item: _T) -> _R:
    return function(item)


@contextmanager
def _failing(address: str) -> Iterator[None]:
    try:
        yield
    # Dask has errors of many packages: its own, those of its transport, and those of the pickles of other releases.
    except Exception as error:
        raise Unavailable(
            ClientAuditCode.FAILED,
            f"The Dask cluster at {address[:200]} failed: {type(error).__name__}: {str(error)[:300]}.",
            fix="See that its scheduler and workers run, in this release with its extra `cluster`. Or go on without --dask.",
        ) from error
