"""Remember which DID answered at an address: HOME/peers.json (docs/specification/home.md).

    {"peers": [{"name": "wss://shop.example", "did": "did:wba:shop.example", "proved": true}, …]}

The name is the one that the application used: a URL, a domain or a DID. The first agent that answers there is kept, with whether
it proved its DID; a proof replaces a claim of the same DID. Another DID is refused later, unless the application accepts it. So
is a mere claim of a DID that was proved, where the policy encrypts. A plain Hello only claims its DID, so a pinned claim notices
a moved name or another operator, and no impostor.

A pin counts in this process at once, and is on the disk, durably, a moment later (`afterwards`). After a crash in between the
name has the pin that it had before, or none, as at a first contact.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from treaty_consensus import canonical
from treaty_consensus.errors import Malformed, TreatyError
from treaty_io import durable
from treaty_io.afterwards import Afterwards
from treaty_io.codes import PeerCode
from treaty_io.identity import UNNAMED, ClaimedPeer, PeerIdentity, ProvedPeer

MAX_PEERS = 4096
"""As many names as an application uses; the oldest are dropped beyond it."""
MAX_FILE = 4 * 1024 * 1024


class _Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    did: str
    proved: bool = False

    @property
    def peer(self) -> PeerIdentity:
        return ProvedPeer(self.did) if self.proved else ClaimedPeer(self.did)


class _Pins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    peers: tuple[_Pin, ...]


class PeerPins:
    """Read and write HOME/peers.json. Safe among processes of one home. The methods block on the disk and raise OSError."""

    def __init__(self, home: Path) -> None:
        """Read nothing yet."""
        self._path = home / "peers.json"
        self._lock = home / "peers.json.lock"
        self._read_last: tuple[tuple[int, int, int], dict[str, PeerIdentity]] = ((0, 0, 0), {})
        self._owed: dict[str, PeerIdentity] = {}

    def get_known(self, name: str) -> PeerIdentity | None:
        """Return what `get` returns, or None if that would have to parse the file. Takes some microseconds."""
        if name in self._owed:
            return self._owed[name]
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return UNNAMED
        return self._read_last[1].get(name, UNNAMED) if _version(status) == self._read_last[0] else None

    def get(self, name: str) -> PeerIdentity:
        """Return the agent that is pinned to a name, or `UNNAMED`. Raises `Malformed` (`peer.file`) for a damaged file."""
        pins = self._read()  # first, so that a damaged file is never passed over
        return self._owed.get(name) or pins.get(name, UNNAMED)

    def pin_later(self, name: str, peer: PeerIdentity, afterwards: Afterwards) -> None:
        """Pin an agent to a name for this process, and owe the pin to the disk. Raises nothing."""
        self._owed[name] = peer
        afterwards.add(lambda: self._pay(name, peer))

    def pin(self, name: str, peer: PeerIdentity) -> None:
        """Pin an agent to a name, in place of another one. Raises `Malformed` (`peer.file`)."""
        # Read under the lock: a pin that another process makes meanwhile must not be lost.
        with durable.exclusive(self._lock):
            pins = self._read()
            if pins.get(name) == peer:
                return
            newest = [_pin(*each) for each in ({name: peer} | {**pins, name: peer}).items()][:MAX_PEERS]
            durable.write(self._path, canonical.dumps(msgspec.to_builtins(_Pins(tuple(newest)))), mode=0o600)

    def _pay(self, name: str, peer: PeerIdentity) -> None:
        self.pin(name, peer)
        # Only now, and unless it was pinned again meanwhile: until the file has the pin, `get` finds it here.
        if self._owed.get(name) == peer:
            del self._owed[name]

    def _read(self) -> dict[str, PeerIdentity]:
        try:
            with self._path.open("rb") as file:
                version = _version(os.fstat(file.fileno()))
                # Every session asks, and thousands of pins take milliseconds to parse. Each write makes a new file.
                if version != self._read_last[0]:
                    value = canonical.parse_json(file.read(MAX_FILE + 1), limit=MAX_FILE, name="peers.json")
                    self._read_last = version, {pin.name: pin.peer for pin in msgspec.convert(value, _Pins).peers}
            return dict(self._read_last[1])
        except FileNotFoundError:
            return {}
        # Not taken for an empty file: a damaged one would accept every changed peer.
        except (TreatyError, msgspec.ValidationError) as error:
            raise Malformed(
                PeerCode.FILE, f"{self._path} is damaged.", fix="Move the file away; the peers are then known anew."
            ) from error


def _pin(name: str, peer: PeerIdentity) -> _Pin:
    return _Pin(name, peer.did, isinstance(peer, ProvedPeer))


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_size
