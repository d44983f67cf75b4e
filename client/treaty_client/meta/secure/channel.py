"""The state machine of the E2EE profile, between a state machine of the Hello profile and the wire.

    state      source                                        destination
    BEGUN      this side's Hello is due                      the peer's Hello is due
    HEARD      –                                             this side's Hello is due
    ASKED      the peer's Hello is due                       –
    PROVING    the document of the peer's DID is due
    KEYED      the keys exist, the peer's `finished` is due; the destination may send
    OPEN       both `finished` are verified: messages go in both directions
    PLAIN      the peer speaks the plain profile, which was not refused: everything passes as it is
    CLOSED     the peer closed
    BROKEN     something was refused; every further call raises it again

What is handed on is what the machine of the Hello profile would have got without encryption: the peer's Hello with all its
fields, then frames. A destination gets the sourceHello once its signature and DID are verified, as it has to answer; a source
gets the destinationHello only after the peer's `finished`. No frame is handed on before OPEN.

Whoever drives it passes in what happens, the time (Unix seconds) and randomness. What a call returns is to be done in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from cryptography.hazmat.primitives.asymmetric import ec

from treaty_consensus.errors import Malformed, Refused, TreatyError, Unauthorized

from . import hello, keys, schedule
from .finished import Handshake
from .hello import BOUND, DestinationHello, KeyShare, Opening, SourceHello, is_secure_hello
from .keys import PublicKey, Signer
from .records import Close, Direction, Message, Opener, Sealer, expired
from .schedule import SessionKeys

LIFETIME = 24 * 3600
"""Seconds for which this side uses the keys of one session."""


class State(StrEnum):
    """Where a channel stands."""

    BEGUN = "begun"
    HEARD = "heard"
    ASKED = "asked"
    PROVING = "proving"
    KEYED = "keyed"
    OPEN = "open"
    PLAIN = "plain"
    CLOSED = "closed"
    BROKEN = "broken"


class Send(NamedTuple):
    """Put this text message on the wire."""

    text: str


class Resolve(NamedTuple):
    """Get the document of this DID, then call `resolved`; nothing is to be received meanwhile. A document that is remembered and
    lacks the key `key_id` may be older than a rotation."""

    did: str
    key_id: str


Action: TypeAlias = Send | Resolve | Message | Close


class SecureChannel:
    """One session's encryption; not for concurrent use. `peer`: the DID that the peer proved, or "".

    `receive` and `resolved` raise `TreatyError` for what the profile refuses, and then the channel is BROKEN; `send` raises it
    for what this side may not say, and changes nothing. Codes: `secure.*`, `canonical.*`, `did.*`, `frame.too-large`.
    """

    def __init__(
        self,
        signer: Signer,
        *,
        is_source: bool,
        draw: Callable[[int], bytes],
        required: bool = True,
        versions: tuple[str, ...] = (BOUND,),
        lifetime: int = LIFETIME,
    ) -> None:
        """`draw`: that many random bytes. `required`: whether a peer of the plain profile is refused. `versions`: of this
        profile, best first."""
        self.state = State.BEGUN
        self.peer = ""
        self._signer, self._is_source, self._draw = signer, is_source, draw
        self._required, self._versions, self._lifetime = required, versions, lifetime
        self._ephemeral: ec.EllipticCurvePrivateKey | None = None
        self._source: Opening | None = None
        self._destination: Opening | None = None
        self._claimed: PublicKey | None = None
        self._handshake: Handshake | None = None
        self._keys: SessionKeys | None = None
        self._sealer: Sealer | None = None
        self._opener: Opener | None = None
        self._expires = 0.0
        self._fault: TreatyError | None = None

    @property
    def may_say_hello(self) -> bool:
        """Whether this side's Hello is due."""
        return self.state is (State.BEGUN if self._is_source else State.HEARD)

    @property
    def may_send(self) -> bool:
        """Whether messages after the Hello can go out."""
        return self.state in (State.OPEN, State.PLAIN) or (self.state is State.KEYED and not self._is_source)

    @property
    def expects_close(self) -> bool:
        """Whether the peer still has to say that it closes."""
        return self.state is State.OPEN and self._handshake is not None and self._handshake.bound

    def fail(self, error: TreatyError) -> None:
        """This side cannot go on: from now on every call raises this error."""
        self._fault = self._fault or error
        self.state = State.BROKEN

    def check_whole(self) -> None:
        """Raises what broke the channel, if something did."""
        if self._fault is not None:
            raise self._fault

    def send(self, message: str | bytes, now: float) -> list[str | bytes]:
        """What goes on the wire for this side's Hello, when `may_say_hello`, or for a message, when `may_send`."""
        self.check_whole()
        if self.state is State.PLAIN:
            return [message]
        if self.may_say_hello and isinstance(message, str):
            return list(self._ask(message, now) if self._is_source else self._answer(message, now))
        if not self.may_send or self._sealer is None:
            raise Refused("secure.unready", "Nothing can be sent before the keys of this session exist.")
        self._check_expiry(now)
        return list(self._sealer.seal(message, now))

    def close(self, reason: str, now: float) -> list[str]:
        """This side's last record, or nothing where there are no keys to encrypt it."""
        sealer, self._sealer = self._sealer, None
        ended = sealer is None or self.state is State.CLOSED or now >= self._expires
        return [] if sealer is None or ended else sealer.close(reason, now)

    def receive(self, message: str | bytes, now: float) -> list[Action]:
        """A message from the wire."""
        self.check_whole()
        try:
            if self.state is State.PLAIN:
                return [Message(message)]
            if self.state is State.BEGUN and not self._is_source:
                return self._asked(message, now)
            if self.state is State.ASKED:
                return self._answered(message, now)
            if not isinstance(message, str):
                raise Malformed("secure.message", "Every message of the E2EE profile is text.")
            if self.state is State.KEYED:
                return self._finished(message)
            if self.state is State.OPEN:
                return self._open(message, now)
            raise Refused("secure.unexpected", "Nothing may be said now.")
        except TreatyError as error:
            self.fail(error)
            raise

    def resolved(self, document: Mapping[str, Any], now: float) -> list[Action]:
        """The document that `Resolve` asked for, as parsed JSON."""
        self.check_whole()
        if self.state is not State.PROVING:
            return []
        try:
            fields = self._peers.fields
            return self._prove(keys.listed_key(document, fields.source_did, fields.verification_method.id), now)
        except TreatyError as error:
            self.fail(error)
            raise

    # Hellos of this side

    def _ask(self, plain: str, now: float) -> list[str]:
        self._ephemeral = schedule.ephemeral(self._draw(schedule.SEED_SIZE))
        added = {
            "supportedVersions": list(self._versions),
            "cipherSuites": [schedule.CIPHER_SUITE],
            "supportedGroups": [schedule.GROUP],
            "keyShares": [self._share(self._ephemeral)],
        }
        self._source = hello.sign(plain, added, self._signer, now)
        self.state = State.ASKED
        return [self._source.text]

    def _answer(self, plain: str, now: float) -> list[str]:
        source = self._peers.fields
        assert isinstance(source, SourceHello)
        self._ephemeral = schedule.ephemeral(self._draw(schedule.SEED_SIZE))
        added = {
            "selectedVersion": self._common_version(source),
            "cipherSuite": schedule.CIPHER_SUITE,
            "keyShare": self._share(self._ephemeral),
        }
        self._destination = hello.sign(plain, added, self._signer, now)
        return [self._destination.text, self._derive(hello.usable_share(source.key_shares), now)]

    def _share(self, private_key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
        return {"group": schedule.GROUP, "expires": self._lifetime, "keyExchange": schedule.share(private_key)}

    # Hellos of the peer

    def _asked(self, message: str | bytes, now: float) -> list[Action]:
        if not self._is_secure(message):
            return [Message(message)]
        assert isinstance(message, str)
        self._source, self._claimed = hello.read(message, "sourceHello", now)
        source = self._source.fields
        assert isinstance(source, SourceHello)
        if source.destination_did not in ("", self._signer.did):
            raise Refused("secure.destination", f"This is {self._signer.did}, not {source.destination_did}.")
        if schedule.CIPHER_SUITE not in source.cipher_suites:
            raise Refused("secure.cipher-suite", f"The only cipher suite here is {schedule.CIPHER_SUITE}.")
        if schedule.GROUP not in source.supported_groups:
            raise Refused("secure.group", f"The only group here is {schedule.GROUP}.")
        hello.usable_share(source.key_shares)
        self._common_version(source)
        return self._identify(now)

    def _answered(self, message: str | bytes, now: float) -> list[Action]:
        if not self._is_secure(message):
            return [Message(message)]
        assert isinstance(message, str)
        assert self._source is not None
        self._destination, self._claimed = hello.read(message, "destinationHello", now)
        ours, theirs = self._source.fields, self._destination.fields
        assert isinstance(theirs, DestinationHello)
        if (theirs.session_id, theirs.destination_did) != (ours.session_id, ours.source_did):
            raise Refused("secure.session", "This destinationHello answers another sourceHello.")
        if ours.destination_did not in ("", theirs.source_did):
            raise Refused("secure.destination", f"{theirs.source_did} answered, not {ours.destination_did}.")
        if theirs.selected_version not in self._versions:
            raise Refused(
                "secure.version", f"The other side chose version {theirs.selected_version[:8]!r}, which was not offered."
            )
        if theirs.cipher_suite != schedule.CIPHER_SUITE:
            raise Refused("secure.cipher-suite", f"The only cipher suite here is {schedule.CIPHER_SUITE}.")
        hello.usable_share((theirs.key_share,))
        return self._identify(now)

    def _is_secure(self, message: str | bytes) -> bool:
        """Whether the peer's Hello is one of this profile. Raises `Refused` where a plain one is not enough."""
        if isinstance(message, str) and is_secure_hello(message):
            return True
        if self._required:
            raise Refused(
                "secure.required",
                "The other side does not encrypt, which this side requires.",
                fix="Have the other side use the E2EE profile, or allow the plain one.",
            )
        self.state = State.PLAIN
        return False

    def _identify(self, now: float) -> list[Action]:
        """The Hello's signature verifies; now whose key made it."""
        fields = self._peers.fields
        key_id = fields.verification_method.id
        if key_id.partition("#")[0] != fields.source_did:
            raise _not_theirs(fields.source_did)
        self.state = State.PROVING
        own = keys.own_key(key_id)
        return [Resolve(fields.source_did, key_id)] if own is None else self._prove(own, now)

    def _prove(self, listed: PublicKey, now: float) -> list[Action]:
        fields = self._peers.fields
        if listed != self._claimed:
            raise _not_theirs(fields.source_did)
        self.peer = fields.source_did
        if isinstance(fields, DestinationHello):
            return [Send(self._derive(fields.key_share, now))]
        self.state = State.HEARD
        return [Message(self._peers.text)]

    def _common_version(self, source: SourceHello) -> str:
        for version in self._versions:
            if version in source.supported_versions:
                return version
        raise Refused("secure.version", f"No common version of the E2EE profile; {', '.join(self._versions)} here.")

    # Keys

    def _derive(self, theirs: KeyShare, now: float) -> str:
        """Make the keys, and forget what they came from. Returns this side's `finished`."""
        assert self._ephemeral is not None
        assert self._source is not None
        assert self._destination is not None
        chosen = self._destination.fields
        assert isinstance(chosen, DestinationHello)
        randoms = self._source.fields.random, chosen.random
        self._keys = schedule.derive(self._ephemeral, theirs.key_exchange, *randoms)
        self._ephemeral = None
        bound = chosen.selected_version == BOUND
        self._handshake = Handshake(chosen.session_id, self._source.text, self._destination.text, self._keys.key_id, bound)
        own = self._keys.source if self._is_source else self._keys.destination
        way = Direction(own, self._keys.key_id, self._signer.did, self.peer, bound)
        self._sealer = Sealer(way)
        self._expires = now + min(self._lifetime, theirs.expires)
        self.state = State.KEYED
        return self._handshake.finish(own, way.sender, way.receiver, self._draw(16).hex(), now)

    def _finished(self, text: str) -> list[Action]:
        assert self._handshake is not None
        assert self._keys is not None
        key = self._keys.destination if self._is_source else self._keys.source
        spent = self._handshake.check(text, key, self.peer, self._signer.did)
        way = Direction(key, self._keys.key_id, self.peer, self._signer.did, self._handshake.bound)
        self._opener = Opener(way, {spent})
        self.state = State.OPEN
        return [Message(self._peers.text)] if self._is_source else []

    def _open(self, text: str, now: float) -> list[Action]:
        assert self._opener is not None
        self._check_expiry(now)
        opened = self._opener.open(text)
        if isinstance(opened, Close):
            self.state = State.CLOSED
        return [] if opened is None else [opened]

    @property
    def _peers(self) -> Opening:
        """The peer's Hello."""
        opening = self._destination if self._is_source else self._source
        assert opening is not None
        return opening

    def _check_expiry(self, now: float) -> None:
        if now >= self._expires:
            raise expired()


def _not_theirs(did: str) -> Unauthorized:
    return Unauthorized("secure.identity", f"The key that signed this Hello is not one of {did[:120]}.")
