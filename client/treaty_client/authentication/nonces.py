"""Which signatures were accepted already, remembered across restarts.

The file is text:

    treaty-nonces 1 BOOT FLOOR
    CREATED HEX
    …

BOOT names the run of the machine's kernel ("-" where it has no name), FLOOR and CREATED are Unix seconds in decimal, HEX is the
SHA-256 of the DID, a zero byte and the nonce: of the DID, for the older form does not sign which of its keys it names. One line
is appended, in one write, before a request is accepted.
Whatever was created at or before the floor is refused, remembered or not. So at most `capacity` signatures are remembered:
beyond it the oldest is forgotten, and the floor rises to it.

What a crash leaves behind. The process is killed: nothing is lost, for what was written is in the kernel's memory, and a line
that was cut off was not accepted. The machine loses power: the newest lines may be gone, and the file is of another boot; then,
or when the file is damaged, the floor is above everything that can have been accepted, so honest senders wait a minute and
nothing is replayed. Without a file it is the second before this one: whoever deletes it forgets senders whose clocks were ahead.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, Unauthorized, Unavailable

from .. import durable

LIFETIME = 300
"""Seconds after its creation for which a signature may be used."""
FUTURE = 60
"""Seconds that a sender's clock may be ahead."""
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
    """One listener's memory, in one process; for one event loop. No other process can open its file until `close`."""

    def __init__(
        self, path: Path, *, clock: Callable[[], float] = time.time, capacity: int = CAPACITY, boot: str | None = None
    ) -> None:
        """Read the file, or begin a new one. `clock`: Unix seconds. `boot`: the name of the kernel's run, if not the system's.

        Raises `Unavailable` (`authentication.memory`) when another process has it open or the disk fails.
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
        """Release the file; nothing can be accepted any more. May be called again."""
        for descriptor in (self._journal, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._journal = self._lock = -1

    def accept(self, did: str, nonce: str, created: int) -> None:
        """Remember a signature that verified, once and for all.

        Raises `Unauthorized`: `authentication.replayed` when it was accepted before, `authentication.expired` when it is older
        than what is remembered; `Unavailable` (`authentication.memory`) when the disk fails, and then it was not accepted.
        """
        self._forget()
        if created <= self._floor:
            wait = self._floor + 1 - int(self._clock())
            raise Unauthorized(
                "authentication.expired",
                "This signature is older than what is remembered here of requests.",
                fix="Sign the request anew." if wait <= 0 else f"Sign the request anew in {wait} seconds.",
            )
        digest = canonical.hex_digest(f"{did}\0{nonce}".encode())
        if digest in self._known:
            raise Unauthorized("authentication.replayed", "This signature was used before.", fix="Sign each request anew.")
        try:
            self._append(created, digest)
        except OSError as error:
            raise _failed(self._path, error) from error
        self._remember(created, digest)

    def _remember(self, created: int, digest: str) -> None:
        self._known.add(digest)
        heapq.heappush(self._oldest, (created, digest))
        if len(self._known) > self._capacity:
            oldest, forgotten = heapq.heappop(self._oldest)
            self._known.remove(forgotten)
            self._floor = max(self._floor, oldest)

    def _forget(self) -> None:
        """What may not be used any more need not be remembered; the floor rises with it, for the clock may be set back."""
        until = int(self._clock()) - LIFETIME
        self._floor = max(self._floor, until - 1)
        while self._oldest and self._oldest[0][0] < until:
            self._known.remove(heapq.heappop(self._oldest)[1])

    def _append(self, created: int, digest: str) -> None:
        if self._lines >= max(_MIN_LINES, 2 * len(self._known)):
            self._compact()
        line = f"{created} {digest}\n".encode()
        if (written := os.write(self._journal, line)) != len(line):
            os.ftruncate(self._journal, self._size)
            raise OSError(f"only {written} bytes were written")
        self._size += len(line)
        self._lines += 1

    def _compact(self) -> None:
        """Write the file anew, with what is remembered alone. Nothing waits for the disk: a power failure voids it."""
        lines = [f"treaty-nonces 1 {self._boot} {self._floor}", *(f"{created} {digest}" for created, digest in self._oldest)]
        data = "".join(f"{line}\n" for line in lines).encode()
        durable.write_unsynced(self._path, data)
        journal = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if self._journal >= 0:
            os.close(self._journal)
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
    """What the file says; None when it is damaged. A last line that was cut off is passed over."""
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
    """Hold the advisory lock beside `path`, which is never deleted. Raises OSError, and `Unavailable` when it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        message = f"Another process remembers requests in {path}."
        raise Unavailable("authentication.memory", message, fix="Give each listener a file of its own.") from error
    return descriptor


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return "-"


def _failed(path: Path, error: OSError) -> Unavailable:
    return Unavailable("authentication.memory", f"What was accepted cannot be remembered in {path}: {error}.")
