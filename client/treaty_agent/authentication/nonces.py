"""Remember accepted signatures across restarts, so that none is accepted twice.

The file is text:

    treaty-nonces 1 BOOT FLOOR
    CREATED HEX
    …

BOOT is the id of the kernel's current run ("-" if it has none). FLOOR and CREATED are Unix seconds in decimal. HEX is the SHA-256
of the DID, a zero byte and the nonce. It is not of the key, because the older form does not sign the name of the key. One line is
appended, in one write, before a request is accepted. For example, with the floor 1767225600 a signature that was created at or
before that second is refused, remembered or not. Beyond `capacity` signatures the oldest is forgotten, and the floor rises to its
time.

After a crash:

- The process is killed. Nothing is lost: written lines are in the kernel's memory, and a cut line was not accepted.
- The machine loses power. The newest lines may be lost, and BOOT differs afterwards. Then, and for a damaged file, the floor is
  set above all times that can have been accepted. Honest senders are refused for a minute, and nothing can be replayed.
- The file is deleted. The floor is the second before the start, so signatures of senders whose clocks were ahead can be replayed.
"""

from __future__ import annotations

import heapq
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from treaty_consensus import canonical
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Malformed, Unauthorized, Unavailable
from treaty_io import durable
from treaty_io.codes import AuthenticationCode

LIFETIME = 300
"""Seconds for which a signature is valid after its creation."""
# Clocks of machines without time synchronisation differ by seconds; the SDK allows the same minute.
FUTURE = 60
"""Seconds by which a sender's clock may be ahead."""
# Some 330 requests a second for the lifetime of a signature, in about 10 MiB.
CAPACITY = 100_000
_MAX_FILE = 64 * 1024 * 1024
_MIN_LINES = 1024
_HEAD = re.compile(r"treaty-nonces 1 (-|[0-9a-f-]{36}) ([0-9]{1,12})")
_LINE = re.compile(r"([0-9]{1,12}) ([0-9a-f]{64})")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Content(NamedTuple):
    boot: str
    floor: int
    accepted: list[tuple[int, str]]


class NonceMemory:
    """The accepted signatures of one listener. For one event loop. No other process can open its file until `close`."""

    def __init__(
        self, path: Path, *, clock: Callable[[], float] = time.time, capacity: int = CAPACITY, boot: str | None = None
    ) -> None:
        """Read the file, or begin a new one.

        `clock`: Unix seconds. `capacity`: the most remembered signatures. `boot`: the id of the kernel's run; default the
        system's. Raises `Unavailable` (`system.file`) if another process has the file open or the disk fails.
        """
        self._path, self._clock, self._capacity = path, clock, capacity
        self._boot = _boot_id() if boot is None else boot
        self._floor = 0
        self._known: set[str] = set()
        self._oldest: list[tuple[int, str]] = []
        self._lock = self._journal = -1
        try:
            self._lock = _locked(path)
            self._load()
            self._compact()
        except OSError as error:
            self.close()
            raise _failed(path, error) from error

    def close(self) -> None:
        """Release the file. No signature can be accepted afterwards. May be called again."""
        for descriptor in (self._journal, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._journal = self._lock = -1

    def accept(self, did: str, nonce: str, created: int) -> None:
        """Accept a verified signature, and remember it. `created`: Unix seconds.

        Raises `Unauthorized` (`authentication.replayed`) if it was accepted before, and `authentication.time` if it is not
        newer than the floor. Raises `Unavailable` (`system.file`) if the disk fails; then it is not accepted.
        """
        # Before the comparison: the floor must be as high as the clock demands.
        self._forget()
        if created <= self._floor:
            wait = self._floor + 1 - int(self._clock())
            raise Unauthorized(
                AuthenticationCode.TIME,
                "This signature is older than this listener's record of accepted requests.",
                fix="Sign the request anew." if wait <= 0 else f"Sign the request anew in {wait} seconds.",
            )
        digest = canonical.hex_digest(f"{did}\0{nonce}".encode())
        if digest in self._known:
            raise Unauthorized(AuthenticationCode.REPLAYED, "This signature was used before.", fix="Sign each request anew.")
        try:
            # On disk before in memory: a signature is accepted only if a restart will remember it.
            self._append(created, digest)
        except OSError as error:
            raise _failed(self._path, error) from error
        self._remember(created, digest)

    def _remember(self, created: int, digest: str) -> None:
        self._known.add(digest)
        # A heap by time: clocks of senders differ, so signatures do not arrive in the order of their times.
        heapq.heappush(self._oldest, (created, digest))
        if len(self._known) > self._capacity:
            oldest, forgotten = heapq.heappop(self._oldest)
            self._known.remove(forgotten)
            self._floor = max(self._floor, oldest)

    def _forget(self) -> None:
        """Forget expired signatures. Raise the floor with them, because the clock may be set back later."""
        until = int(self._clock()) - LIFETIME
        self._floor = max(self._floor, until - 1)
        while self._oldest and self._oldest[0][0] < until:
            self._known.remove(heapq.heappop(self._oldest)[1])

    def _append(self, created: int, digest: str) -> None:
        if self._lines >= max(_MIN_LINES, 2 * len(self._known)):
            self._compact()
        line = f"{created} {digest}\n".encode()
        if (written := os.write(self._journal, line)) != len(line):
            # A full disk: remove the partial line, or the next line would continue it and damage the file.
            os.ftruncate(self._journal, self._size)
            raise OSError(f"only {written} bytes were written")
        self._size += len(line)
        self._lines += 1

    def _compact(self) -> None:
        """Rewrite the file with the remembered signatures only. There is no sync: after a power failure it is not used."""
        lines = [f"treaty-nonces 1 {self._boot} {self._floor}", *(f"{created} {digest}" for created, digest in self._oldest)]
        data = "".join(f"{line}\n" for line in lines).encode()
        # Before the rename, because Windows replaces no open file. After an error the next signature is the next try.
        if self._journal >= 0:
            os.close(self._journal)
            self._journal = -1
        # The new file replaces the old one whole; a crash leaves one of the two.
        durable.write_unsynced(self._path, data, mode=0o600)
        journal = os.open(self._path, os.O_WRONLY | os.O_APPEND | durable.BINARY)
        self._journal, self._size, self._lines = journal, len(data), len(lines)

    def _load(self) -> None:
        now = int(self._clock())
        try:
            content = _read(self._path)
        except FileNotFoundError:
            self._floor = now - 1
            return
        if content is None or content.boot != self._boot or self._boot == "-":
            self._floor = now + FUTURE
            return
        self._floor = content.floor
        for created, digest in content.accepted:
            if created > self._floor and digest not in self._known:
                self._remember(created, digest)
        self._forget()


def _read(path: Path) -> _Content | None:
    """Read the file; None if it is damaged. Skip a last line that was cut off."""
    with path.open("rb") as file:
        data = file.read(_MAX_FILE + 1)
    try:
        head, *lines = data[: data.rfind(b"\n") + 1].decode("ascii").splitlines()
    except (UnicodeDecodeError, ValueError):
        return None
    heading, matches = _HEAD.fullmatch(head), [_LINE.fullmatch(line) for line in lines]
    if len(data) > _MAX_FILE or heading is None or None in matches:
        return None
    try:
        floor = canonical.parse_decimal(heading[2], limit=canonical.MAX_INTEGER)
        accepted = [(canonical.parse_decimal(match[1], limit=canonical.MAX_INTEGER), match[2]) for match in matches if match]
    except Malformed:
        return None
    return _Content(heading[1], floor, accepted)


def _locked(path: Path) -> int:
    """Take the advisory lock in a file beside `path`, and return its descriptor. Raises OSError, and `Unavailable`
    (`system.file`) if another process holds the lock."""
    try:
        return durable.open_locked(path.with_name(f"{path.name}.lock"), wait=False)
    except BlockingIOError as error:
        message = f"Another process remembers requests in {path}."
        raise Unavailable(SystemCode.FILE, message, fix="Give each listener a file of its own.") from error


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return "-"


def _failed(path: Path, error: OSError) -> Unavailable:
    return Unavailable(SystemCode.FILE, f"Accepted requests cannot be remembered in {path}: {error}.")
