"""Read foreign blobs for pages: wheels, Sigstore bundles, and two documents to compare.

The bytes are parsed in a separate process with limits (`Intake.read`). A result is kept like an answer, under the digests
of its blobs. So a page that is made again reads nothing again, and a withdrawal drops the result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from treaty_consensus.codes import RegistryCode
from treaty_consensus.errors import Gone, Malformed, NotFound, Refused, TooLarge, TreatyError, Unavailable

from ..admission.contents import check_digests
from ..admission.fair_queue import FairQueue
from ..catalogue.comparison import Comparison
from ..catalogue.packages import PackageView
from ..catalogue.signatures import SignatureView
from ..networks import sender
from ..serving.representation import OCTETS, Representation
from . import prose

if TYPE_CHECKING:
    from ..catalogue.readers import ReaderKind
    from ..catalogue.resources import HandlerView
    from ..serving.views import Made, Views

# The turns of pages that wait for such results are others (`Pages`), so a page never waits for a turn that it has itself.
_WIDTH, _WAITING = 4, 128
_UNKNOWN = "::"

Make: TypeAlias = Callable[[], Awaitable[bytes]]
_T = TypeVar("_T", bound=msgspec.Struct)


class Unreadable(msgspec.Struct, frozen=True):
    """A blob that is not shown, and the reason as a sentence. `is_withdrawn`: its bytes are no longer here."""

    reason: str
    is_withdrawn: bool = False


class _Answer(msgspec.Struct, frozen=True):
    """A result as it is kept: the encoded struct of a reader, or the reason why there is none."""

    value: bytes = b""
    fault: Unreadable | None = None


class Inspection:
    """Reads blobs for the pages of one registry. For one event loop."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._queue = FairQueue(time.monotonic, width=_WIDTH, waiting=_WAITING, code=RegistryCode.BUSY)
        # One at a time: each thread more that computes takes the interpreter from the loop, which answers all others.
        self._rendering = FairQueue(time.monotonic, width=1, waiting=_WAITING, code=RegistryCode.BUSY)

    async def document(self, digest: str) -> prose.Prose | Unreadable:
        """Return a document as HTML."""

        async def make() -> bytes:
            data = await self._views.registry.blob(digest)
            # The page says that the text has this hash.
            check_digests({digest: data})
            # In a thread: rendering takes up to a third of a second, in which other requests are answered.
            return prose.encode(await asyncio.to_thread(prose.render, data))

        answer = await self._kept(f"prose {digest}", make, self._rendering)
        if answer.fault is not None:
            return answer.fault
        return prose.restore(answer.value)

    async def package(self, handler: HandlerView) -> PackageView | Unreadable:
        """Return the contents of a handler's wheel."""
        return await self._read("package", handler.filename, (handler.wheel,), PackageView)

    async def signature(self, bundle: str) -> SignatureView | Unreadable:
        """Return the claims of a Sigstore bundle about its signing. They are not verified."""
        return await self._read("signature", "", (bundle,), SignatureView)

    async def comparison(self, old: str, new: str) -> Comparison | Unreadable:
        """Return the difference of two documents."""
        return await self._read("comparison", "", (old, new), Comparison)

    async def _read(self, kind: ReaderKind, name: str, digests: tuple[str, ...], type_: type[_T]) -> _T | Unreadable:
        async def make() -> bytes:
            return await self._views.registry.read_blobs(kind, name, digests, sender.get() or _UNKNOWN)

        answer = await self._kept(" ".join((kind, *digests, name)), make, self._queue)
        if answer.fault is not None:
            return answer.fault
        try:
            return msgspec.msgpack.decode(answer.value, type=type_)
        except msgspec.DecodeError:  # the process was taken over, or is of another release
            return Unreadable("It could not be read.")

    async def _kept(self, key: str, make: Make, queue: FairQueue) -> _Answer:
        """Return a result by its key, which is no target of a request. Busy readers are a reason too, but not a kept one."""

        async def view() -> Made:
            try:
                answer = _Answer(await make())
            except Gone:
                answer = _Answer(fault=Unreadable("The operator of this registry withdrew its bytes.", is_withdrawn=True))
            except NotFound:
                answer = _Answer(fault=Unreadable("Its bytes are not here."))
            except (Malformed, TooLarge, Refused) as error:
                answer = _Answer(fault=Unreadable(_sentence(error)))
            return Representation(msgspec.msgpack.encode(answer), OCTETS), ()

        try:
            represented = await self._views.made(key, view, queue)
        except Unavailable:
            return _Answer(fault=Unreadable("It could not be read just now. Load the page again in a moment."))
        return msgspec.msgpack.decode(represented.body, type=_Answer)


def _sentence(error: TreatyError) -> str:
    return f"It cannot be read here: {error.message}"
