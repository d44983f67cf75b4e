"""Upload the log's entries to mirrors, which keep, cosign and serve a copy (C2SP tlog-mirror, `treaty_consensus.log.upload`).

A mirror is one of the log's witnesses, at the same URL: a copy is of a checkpoint that the witness has cosigned. The leader
uploads. Each mirror is sent what it lacks, a few seconds after it has cosigned a head; heads in between are skipped. Writers do
not wait for mirrors. A mirror that fails is asked again with doubled pauses, up to five minutes; a failure is logged when it
starts or changes its kind. After a crash the mirror itself tells where its copy continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import httpx
import structlog

from treaty_consensus.codes import WitnessCode
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_consensus.log.tiles import TILE_WIDTH
from treaty_consensus.log.upload import Upload, decode_info, encode_package
from treaty_io.network.hosts import Network

from .checkpoints import Head
from .leader import Leader
from .reader import LogReader
from .witnesses import WitnessClient, post

_PERIOD = 5.0  # seconds between two uploads: partial bundles of heads in between are not sent
_LONGEST_PAUSE = 300.0  # seconds between two attempts while a mirror fails
_PATIENCE = 60.0  # seconds for one step of a request; a request has at most 32 packages
_REQUEST = 600.0  # seconds for a request: an answer that arrives byte by byte must not last for ever
_CONFLICTS = 8  # answers in a row that name another place to continue at: a mirror that only does that is broken

_log = structlog.get_logger(__name__)


class MirrorUploads:
    """All mirrors of one log. For one event loop; call `run` once."""

    def __init__(
        self,
        urls: Sequence[str],
        origin: str,
        network: Network,
        leader: Leader,
        witnesses: WitnessClient,
        reader: LogReader,
    ) -> None:
        """`urls`: of mirrors, each the URL of one of the witnesses. `origin`: of the log."""
        self._urls = urls
        self._origin = origin
        self._network = network
        self._leader = leader
        self._witnesses = witnesses
        self._reader = reader

    async def run(self) -> None:
        """Upload every head that a mirror has cosigned while this process leads, until cancelled."""
        if self._urls:
            async with self._network.client(timeout=_PATIENCE) as http:
                mirrors = [_Mirror(url, self._origin, http, self._leader, self._reader) for url in self._urls]
                await asyncio.gather(*map(self._follow, mirrors))

    async def _follow(self, mirror: _Mirror) -> None:
        pause, failure = _PERIOD, ""
        while True:
            await asyncio.sleep(pause)
            head, size = self._leader.head, self._witnesses.cosigned_size(mirror.url)
            # A size beyond the head is of another process, which leads the log.
            if head is None or not self._leader.leads or not mirror.size < size <= head.size:
                continue
            try:
                await mirror.upload(size, head)
                if failure:
                    _log.info("uploaded again", mirror=mirror.url, size=mirror.size)
                pause, failure = _PERIOD, ""
            # No failure of a mirror or of the database may stop the log.
            except Exception as error:
                pause = min(2 * pause, _LONGEST_PAUSE)
                code = str(error.code) if isinstance(error, TreatyError) else type(error).__name__
                if code != failure:
                    is_expected = isinstance(error, (TreatyError, httpx.HTTPError, TimeoutError))
                    _log.warning("not uploaded", mirror=mirror.url, code=code, error=str(error), exc_info=not is_expected)
                failure = code


class _Mirror:
    """One mirror. `size`: of the copy that it cosigned last; 0 before the first upload of this process."""

    def __init__(self, url: str, origin: str, http: httpx.AsyncClient, leader: Leader, reader: LogReader) -> None:
        self.url = url
        self.size = 0
        self._origin = origin
        self._http = http
        self._leader = leader
        self._reader = reader

    async def upload(self, size: int, head: Head) -> None:
        """Upload the entries that the mirror lacks up to `size`, or to another head that it names. `head`: not before them.

        Raises `Unavailable` (`witness.unreachable`), `Malformed` (`witness.request`) and `httpx.HTTPError`.
        """
        # At first nothing is sent: only the mirror knows how much of the copy it has.
        start, ticket, conflicts, reached = self.size or size, b"", 0, 0
        while True:
            upload = Upload(self._origin, start, size, ticket)
            content = self._content(upload, head)
            async with asyncio.timeout(_REQUEST):
                status, _, body = await post(self._http, f"{self.url}/add-entries", content, "application/octet-stream")
            if status == httpx.codes.OK:
                self.size = size
                return
            if status not in (httpx.codes.ACCEPTED, httpx.codes.CONFLICT):
                raise Unavailable(WitnessCode.UNREACHABLE, f"The mirror answered with status {status}.")
            pending, following, ticket = decode_info(body)
            conflicts = conflicts + 1 if status == httpx.codes.CONFLICT else 0
            # Only the newest heads may be uploaded. While entries were sent, the log has grown and the witness has cosigned more.
            head = self._leader.head or head
            if status == httpx.codes.CONFLICT and size < pending <= head.size:
                size = pending
            # Never back: a mirror that forgets what it took would be sent the log for ever. The next attempt may begin earlier.
            stuck = following < reached or (not conflicts and following <= start)
            if stuck or conflicts > _CONFLICTS or following > size:
                raise Unavailable(
                    WitnessCode.UNREACHABLE, f"The mirror wants entry {following} of {pending}, and gets no further."
                )
            start = reached = following

    async def _content(self, upload: Upload, head: Head) -> AsyncIterator[bytes]:
        yield upload.format()
        # A package at a time, so that a request of 32 needs the memory of one.
        for begin, end in upload.packages():
            entries = await self._reader.entries(begin, end, head)
            proof = await self._reader.subtree_proof(begin - begin % TILE_WIDTH, end, upload.end, head)
            yield encode_package(entries, proof)
