"""Parse and verify statements, in threads where that is worth a thread.

Handing a job to a thread and back costs as much as parsing and verifying a short statement. So a request with little work has it
done on the event loop. The work of a larger one is one job for parsing and one for verifying, which releases Python's lock for
most of its time. There are as many threads as processors, because more of them would only wait for the lock.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, TypeVar

from treaty_consensus import statement
from treaty_consensus.errors import TreatyError
from treaty_consensus.statement import Statement, Verified

_PARSED_HERE = 16 * 1024  # bytes of leaves that are parsed on the event loop; the strict reader needs some milliseconds for them
_VERIFIED_HERE = 2  # signatures that are verified on the event loop: about 0.2 ms

Signed: TypeAlias = tuple[Statement, Mapping[str, bytes]]
"""A statement, and the keys of its authors: DID URL → raw Ed25519."""
_Work = TypeVar("_Work")
_Result = TypeVar("_Result")


class Verifier:
    """Parses and verifies. For one event loop; call `close` after the last call."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="verify")

    async def parse(self, leaves: Sequence[bytes]) -> list[Statement | TreatyError]:
        """Parse each leaf as `treaty_consensus.statement.parse` does. Returns the error of a leaf in its place."""
        return await self._run(_parse_all, leaves, here=sum(map(len, leaves)) <= _PARSED_HERE)

    async def verify(self, work: Sequence[Signed]) -> list[Verified | Exception]:
        """Verify each statement as `treaty_consensus.statement.verify` does. Returns the error of a statement in its place."""
        return await self._run(_verify_all, work, here=sum(len(signed.by) for signed, _ in work) <= _VERIFIED_HERE)

    def close(self) -> None:
        """End the threads."""
        # No waiting: a queued verification has no effect once its submission has ended.
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, job: Callable[[Sequence[_Work]], list[_Result]], work: Sequence[_Work], *, here: bool) -> list[_Result]:
        return job(work) if here else await asyncio.get_running_loop().run_in_executor(self._threads, job, work)


def _parse_all(leaves: Sequence[bytes]) -> list[Statement | TreatyError]:
    return [_parse(leaf) for leaf in leaves]


def _parse(leaf: bytes) -> Statement | TreatyError:
    try:
        return statement.parse(leaf)
    except TreatyError as error:
        return error


def _verify_all(work: Sequence[Signed]) -> list[Verified | Exception]:
    results: list[Verified | Exception] = []
    for signed, keys in work:
        try:
            results.append(statement.verify(signed, keys))
        # An internal error too: it must not lose the results of the other statements of the job.
        except Exception as error:
            results.append(error)
    return results
