"""Open a session with an agent by the name that an application uses, within a bounded time.

A name is a URL, or the name of an agent to discover. The documents of discovery are cached. If an address of such an agent fails,
its documents are read again, and a new address is tried. The DID that answered first under a name is pinned;
another one is refused, unless the application accepts it.

The pins are in HOME/peers.json (docs/specification/home-caches.md):

    {"peers": [{"name": "wss://shop.example", "did": "did:wba:shop.example", "proved": true}, …]}

The name is the one that the application used: a URL, a domain or a DID. The first agent that answers there is kept, with whether
it proved its DID; a proof replaces a claim of the same DID. Another DID is refused later, unless the application accepts it. So
is a mere claim of a DID that was proved, where the policy encrypts. A plain Hello only claims its DID, so a pinned claim notices
a moved name or another operator, and no impostor.

A pin counts in this process at once, and is on the disk, durably, a moment later (`afterwards`). After a crash in between the
name has the pin that it had before, or none, as at a first contact.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from treaty_consensus import canonical
from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Malformed, Refused, TreatyError, Unavailable
from treaty_io import durable, tracing
from treaty_io.afterwards import Afterwards
from treaty_io.awake_timeout import AwakeTimeout
from treaty_io.codes import ClientStatusCode, ConnectionCode, FlowCode, HelloCode, PeerCode, SessionCode
from treaty_io.errors import PeerUnavailable
from treaty_io.identity import UNNAMED, ClaimedPeer, PeerIdentity, ProvedPeer
from treaty_io.network.hosts import Network
from treaty_io.places import Places

from ..discovery.cache import CachedDiscoverer
from ..discovery.client import candidates
from ..transport.connection import Backoff, Connection
from .context import AgentContext
from .endpoint import AgentEndpoint
from .lifecycle import OpenSession, open_session
from .roles import SessionRequest

MAX_MOVES = 3
"""Addresses that are tried for one session: a description that changes with each look must not be followed for ever."""
_BUSY = Backoff(attempts=100, most=2.0, within=math.inf)
"""The pauses before a busy agent is asked again."""
_OTHER_AGENT = frozenset((HelloCode.DESTINATION, FlowCode.PEER))
"""The codes of an answer by another DID than the expected one."""
_OUTDATED = frozenset((SessionCode.NO_COMMON_PROTOCOL, ClientStatusCode.YANKED, ClientStatusCode.REVOKED))
"""The codes of failures that the newest protocols of a topic may avoid."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChangedPeer:
    """Another agent answers under a name. `pinned`: the one that answered before. `found`: the one that answers now: of another
    DID, or one that only claims the DID that `pinned` proved."""

    name: str
    pinned: ProvedPeer | ClaimedPeer
    found: ProvedPeer | ClaimedPeer


OnChangedPeer = Callable[[ChangedPeer], Awaitable[bool]]
"""Decide whether a changed peer is accepted and pinned from now on."""


@dataclass(frozen=True)
class PeerName:
    """A URL, or the name of an agent to discover: a domain, a DID, or the URL of an agent description."""

    text: str
    is_url: bool

    @classmethod
    def parse(cls, text: str) -> PeerName:
        """Take an address of an agent as a URL, and everything else as the name of an agent to discover. An https URL with a file
        `….json` is an agent description."""
        is_url = text.startswith(("ws://", "wss://", "http://")) or (text.startswith("https://") and not text.endswith(".json"))
        return cls(text, is_url)

    @property
    def key(self) -> str:
        """The name in the form that is pinned."""
        return self.text.rstrip("/")


class SessionOpener:
    """Open the sessions of one agent. For one event loop."""

    def __init__(
        self, context: AgentContext, endpoint: AgentEndpoint, network: Network, on_changed_peer: OnChangedPeer | None
    ) -> None:
        """Open nothing yet. `on_changed_peer`: decides about changed peers; without it they are refused."""
        self._context, self._endpoint, self._on_changed = context, endpoint, on_changed_peer
        self._discoverer, self._pins = CachedDiscoverer(network), PeerPins(context.home)
        self._openings: dict[str, Places] = {}

    @property
    def waiting(self) -> int:
        """How many sessions wait to be opened."""
        return sum(places.waiting for places in self._openings.values())

    def time_limit(self, request: SessionRequest) -> float | None:
        """Return the seconds that opening may take by default; None where a person or a negotiation decides how long it takes."""
        unbounded = self._context.on_escalation is not None or request.requirement is not None
        return None if unbounded else self._context.timeouts.connect

    async def open(self, name: PeerName, request: SessionRequest, *, within: float | None) -> OpenSession:
        """Open a session in `within` seconds; None for the default. An attempt that is given up closes in the background.

        Raises `PeerUnavailable` (`connection.failed`), `Refused` (`peer.changed`), the errors of discovery and those of
        `lifecycle.open_session`.
        """
        limit = within if within is not None else self.time_limit(request)
        # The report of the session is made in a task that it starts, so it belongs to the same trace.
        with tracing.span("open session", "client"):
            return await self._open_within(name, request, limit)

    async def _open_within(self, name: PeerName, request: SessionRequest, limit: float | None) -> OpenSession:
        # A task of its own: closing a connection to a peer that hangs takes seconds, and the caller has no time left.
        opening = self._context.work.spawn(self._open(name, request))
        try:
            async with AwakeTimeout(limit) if limit is not None else nullcontext():
                await asyncio.shield(opening)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self._give_up(opening)
            raise
        if opening.done():
            return opening.result()
        waiting = self.waiting
        self._give_up(opening)
        raise PeerUnavailable(
            ConnectionCode.FAILED,
            f"No session with {name.text[:120]} was open within {limit:.3g} seconds.",
            fix=f"{waiting} sessions of this agent wait for their turn. Open fewer at once, or allow more time."
            if waiting
            else "See whether the agent there answers, or allow more time.",
        )

    def _give_up(self, opening: asyncio.Task[OpenSession]) -> None:
        opening.cancel()
        opening.add_done_callback(self._discard)

    def _discard(self, opening: asyncio.Task[OpenSession]) -> None:
        """Close a session that opened while its caller gave up."""
        if not opening.cancelled() and opening.exception() is None:
            self._context.work.spawn(opening.result().end())

    async def _open(self, name: PeerName, request: SessionRequest) -> OpenSession:
        pinned = UNNAMED if request.did else await self._get_pin(name)
        # Now, beside the handshake: the report of a short session must not wait for a registry.
        self._context.prepare_report(peer=request.did or pinned.did)
        if self._context.policy.report:
            # Also for an agent that never listens: reports of an earlier process wait in its outbox.
            self._context.reports.reporter.resume()
        opened, pinned = await self._when_room(name, request, pinned)
        try:
            await self._check_pin(name, pinned, opened)
        except BaseException:
            await opened.end()
            raise
        return opened

    async def _when_room(self, name: PeerName, request: SessionRequest, pinned: PeerIdentity) -> tuple[OpenSession, PeerIdentity]:
        """Open a session as `_with_newest` does, again while one side has no room. `open` bounds the time."""
        failures = 0
        while True:
            try:
                # A busy agent may still refuse a session that began at once by a remembered agreement.
                return await self._with_newest(name, request, pinned, waits=failures > 0 or self._wants_proof(pinned))
            except Unavailable as error:
                failures += 1
                if error.code != SessionCode.BUSY or not await _BUSY.pause(failures):
                    raise

    async def _with_newest(
        self, name: PeerName, request: SessionRequest, pinned: PeerIdentity, *, waits: bool
    ) -> tuple[OpenSession, PeerIdentity]:
        """Open a session as `_with_moves` does; `waits`: until both sides are ready. If the stored protocols of the topic, or
        those of a remembered agreement, lead nowhere, ask the registries for newer ones, and try once more: the other side may
        speak only a version that was published since, and a stored one may have been taken back."""
        try:
            opened, pin = await self._with_moves(name, request, pinned)
            if waits:
                await _until_ready(opened)
            return opened, pin
        except TreatyError as error:
            if not request.topic or error.code not in _OUTDATED:
                raise
            try:
                await self._context.ports.protocols.candidates(request.topic, fresh=True)
            except TreatyError:
                raise error from None
        return await self._with_moves(name, request, pinned)

    async def _with_moves(
        self, name: PeerName, request: SessionRequest, pinned: PeerIdentity
    ) -> tuple[OpenSession, PeerIdentity]:
        """Open a session at the address of the name, and at its new addresses. Return it with the agent to compare its
        peer with, `UNNAMED` if none is pinned."""
        failure: TreatyError | None = None
        tried = dict[str, SessionRequest]()
        for _ in range(MAX_MOVES):
            try:
                address, located_request = await self._locate(name, request, fresh=failure is not None)
            except TreatyError:
                if failure is None:
                    raise
                break  # the first failure says more
            if address in tried:
                break
            described = located_request.described.did if located_request.described else ""
            if pinned.did and described and described != pinned.did:
                # The description itself names another agent, which need not be asked.
                await self._judge(ChangedPeer(name.key, pinned, ClaimedPeer(described)))
                pinned = UNNAMED
            tried[address] = replace(located_request, did=request.did or pinned.did or described)
            try:
                return await self._attempt(name, address, tried[address]), pinned
            except TreatyError as error:
                failure = error
                if name.is_url or not _may_have_moved(error):
                    break
        assert failure is not None
        if not (pinned.did and _is_other_agent(failure)):
            raise failure
        if self._on_changed is None:
            raise _changed(name.key, pinned, "another agent") from failure
        # Without the pin: the application decides, and must know who is there. A remembered agreement would begin with early
        # data, before the other side has named itself.
        address, located_request = next(reversed(tried.items()))
        self._context.memory.agreements.forget(address, request.key)
        return await self._attempt(name, address, replace(located_request, did=request.did)), pinned

    async def _attempt(self, name: PeerName, address: str, request: SessionRequest) -> OpenSession:
        async def dial(for_hello: bool) -> Connection:
            # A message of the flow profile counts once, so a retry signs new ones (`lifecycle`).
            connection = await self._endpoint.dial(address, untrusted=not name.is_url, repeat=for_hello)
            return self._endpoint.sealed(connection) if for_hello else connection

        # A burst is opened in turns: all at once, the last ones would not be ready before the other side gives them up.
        places = self._openings.setdefault(address, Places(self._context.capacity.openings))
        in_burst = places.taken == places.size
        asker = await places.take()

        def end_opening(_: object = None) -> None:
            places.give_back(asker)
            if places.is_unused:
                self._openings.pop(address, None)

        try:
            opened = await open_session(self._context, self._endpoint.flow, dial, address, request, again=True)
        except BaseException:
            end_opening()
            raise
        opened.ready.add_done_callback(end_opening)
        if in_burst:
            await _until_ready(opened)
        return opened

    async def _locate(self, name: PeerName, request: SessionRequest, *, fresh: bool) -> tuple[str, SessionRequest]:
        """Return the address of an agent, and the request for it. Its description is trusted for no more than that."""
        if name.is_url:
            return name.text, request
        described = (await self._discoverer.discover(name.text, fresh=fresh)).agents[0]
        located_request = request
        if request.protocols or not (request.topic or request.requirement or request.natural):
            located_request = replace(request, protocols=candidates(described, request.protocols, role=request.role))
        return described.address, replace(located_request, described=described)

    async def _check_pin(self, name: PeerName, pinned: PeerIdentity, opened: OpenSession) -> None:
        """Compare the agent that answered with the pinned one, and pin it. A session that begins with early data was opened to
        the DID of its agreement, and may not know its peer yet."""
        wants_proof = self._wants_proof(pinned)
        answering = opened.session.peer
        if not answering.did:
            return
        is_claim = isinstance(answering, ClaimedPeer)
        if pinned.did and (answering.did != pinned.did or (wants_proof and is_claim)):
            await self._judge(ChangedPeer(name.key, pinned, answering))
        elif is_claim and await self._get_pin(name) == ProvedPeer(answering.did):
            return  # no claim takes the place of a proof
        if answering != (pinned if pinned.did else self._pins.get_known(name.key)):
            self._pins.pin_later(name.key, answering, self._context.afterwards)

    def _wants_proof(self, pinned: PeerIdentity) -> bool:
        """Return whether a pinned agent must prove its DID before anything is said to it: an attacker in between may have taken
        the encryption away. Where encryption is off, the Hello proves no DID, and the owner of this agent wants it so."""
        return isinstance(pinned, ProvedPeer) and self._context.policy.encryption != "off"

    async def _get_pin(self, name: PeerName) -> PeerIdentity:
        pin = self._pins.get_known(name.key)
        return await asyncio.to_thread(self._pins.get, name.key) if pin is None else pin

    async def _judge(self, changed: ChangedPeer) -> None:
        """Ask the application about a changed peer. Raises `Refused` (`peer.changed`) unless it accepts."""
        accepted = False
        if self._on_changed is not None:
            # The application's function may raise anything; a failure accepts nothing.
            with suppress(Exception):
                accepted = await self._on_changed(changed)
        if accepted is not True:
            if changed.found.did == changed.pinned.did:
                raise Refused(
                    PeerCode.CHANGED,
                    f"An agent only claims to be {changed.found} at {changed.name[:120]}, which was proved there before.",
                    fix="Let the agent there encrypt, as before. If this change is right, accept it in on_changed_peer.",
                )
            raise _changed(changed.name, changed.pinned, str(changed.found))


async def _until_ready(opened: OpenSession) -> None:
    """Wait until both sides are ready, although a remembered agreement would let the session begin at once: a busy agent may
    still refuse it, and then it is opened again."""
    try:
        await asyncio.shield(opened.ready)
    except BaseException:
        await opened.end()
        raise


def _may_have_moved(error: TreatyError) -> bool:
    refusals = (ConnectionCode.REFUSED, SessionCode.PEER_REFUSED)
    return isinstance(error, Unavailable) or error.code in refusals or _is_other_agent(error)


def _is_other_agent(error: TreatyError) -> bool:
    return error.code in _OTHER_AGENT or error.peer_code in _OTHER_AGENT


def _changed(name: str, pinned: PeerIdentity, identity: str) -> Refused:
    return Refused(
        PeerCode.CHANGED,
        f"{identity} answers at {name[:120]}, where {pinned} answered before.",
        fix="If this change is right, connect once with did= and the new DID, or accept it in on_changed_peer.",
    )


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
        """Return the agent that is pinned to a name, or `UNNAMED`. Raises `Malformed` (`system.state`) for a damaged file."""
        pins = self._read()  # first, so that a damaged file is never passed over
        return self._owed.get(name) or pins.get(name, UNNAMED)

    def pin_later(self, name: str, peer: PeerIdentity, afterwards: Afterwards) -> None:
        """Pin an agent to a name for this process, and owe the pin to the disk. Raises nothing."""
        self._owed[name] = peer
        afterwards.add(lambda: self._pay(name, peer))

    def pin(self, name: str, peer: PeerIdentity) -> None:
        """Pin an agent to a name, in place of another one. Raises `Malformed` (`system.state`)."""
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
                SystemCode.STATE, f"{self._path} is damaged.", fix="Move the file away; the peers are then known anew."
            ) from error


def _pin(name: str, peer: PeerIdentity) -> _Pin:
    return _Pin(name, peer.did, isinstance(peer, ProvedPeer))


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_size
