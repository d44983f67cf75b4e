"""Run the E2EE profile of one session as a state machine, between the machine of the Hello profile and the wire.

    state      source                                        destination
    BEGUN      this side's Hello is next                     the peer's Hello is next
    HEARD      –                                             this side's Hello is next
    ASKED      the peer's Hello is next                      –
    PROVING    the document of the peer's DID is next
    KEYED      the keys exist; the peer's `finished` is next; the destination may send
    OPEN       both `finished` are verified; messages pass in both directions
    PLAIN      the peer speaks the plain profile, and this is allowed; all messages pass unchanged
    CLOSED     the peer has closed
    BROKEN     a message was refused; every further call raises the error again

The channel returns the messages that the Hello machine would get without encryption: the peer's Hello with all its fields, then
frames. A destination gets the sourceHello after its signature and DID are verified, because it has to answer. A source gets the
destinationHello only after the peer's `finished`. No frame is returned before OPEN.

The driver passes in messages, the time (Unix seconds) and random bytes. It performs the returned actions in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from cryptography.hazmat.primitives.asymmetric import ec

from treaty_consensus.errors import Malformed, Refused, TreatyError, Unauthorized
from treaty_io.codes import HelloCode, SecureCode

from . import hello, key_schedule, keys
from .accepted_hellos import AcceptedHellos
from .handshake import Handshake
from .hello import BOUND, DestinationHello, KeyShare, Opening, SourceHello, is_secure_hello
from .key_schedule import SessionKeys
from .keys import HelloSigner, PublicKey
from .records import Close, Direction, Opener, ReceivedMessage, Sealer, expired

# A day bounds how much a stolen key reveals; the cap on records bounds its use (NIST SP 800-38D).
LIFETIME = 24 * 3600
"""Seconds for which this side uses the keys of one session; the peer's offer may shorten it."""


class ChannelState(StrEnum):
    """The state of a channel."""

    BEGUN = "begun"
    HEARD = "heard"
    ASKED = "asked"
    PROVING = "proving"
    KEYED = "keyed"
    OPEN = "open"
    PLAIN = "plain"
    CLOSED = "closed"
    BROKEN = "broken"


class SendRecord(NamedTuple):
    """Send this text message."""

    text: str


class Resolve(NamedTuple):
    """Fetch the document of this DID, then call `resolved`. Receive no message meanwhile.

    A cached document without the key `key_id` may be older than a rotation; fetch it again.
    """

    did: str
    key_id: str


Action: TypeAlias = SendRecord | Resolve | ReceivedMessage | Close


class SecureChannel:
    """The encryption of one session. Not for concurrent use. `peer`: the DID that the peer proved, or "".

    `receive` and `resolved` raise `TreatyError` for a message or document that the profile refuses; then the channel is BROKEN.
    `send` raises `TreatyError` for a message that this side may not send, and changes nothing. Codes: `secure.*`, `canonical.*`,
    `did.*`, `frame.too-large`.
    """

    def __init__(
        self,
        signer: HelloSigner,
        *,
        is_initiator: bool,
        draw: Callable[[int], bytes],
        required: bool = True,
        versions: tuple[str, ...] = (BOUND,),
        lifetime: int = LIFETIME,
        accepted: AcceptedHellos | None = None,
    ) -> None:
        """Start in BEGUN.

        `draw`: returns that many random bytes. `required`: whether to refuse a peer of the plain profile. `versions`: the
        accepted versions of this profile, best first. `lifetime`: seconds for which this side uses the keys. `accepted`: the
        Hellos that this agent accepted as a destination; None remembers none.
        """
        self.state = ChannelState.BEGUN
        self.peer = ""
        self._signer, self._is_initiator, self._draw = signer, is_initiator, draw
        self._required, self._versions, self._lifetime = required, versions, lifetime
        self._accepted = accepted
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
        """Return whether this side's Hello is next."""
        return self.state is (ChannelState.BEGUN if self._is_initiator else ChannelState.HEARD)

    @property
    def may_send(self) -> bool:
        """Return whether messages after the Hello can be sent."""
        return self.state in (ChannelState.OPEN, ChannelState.PLAIN) or (
            self.state is ChannelState.KEYED and not self._is_initiator
        )

    @property
    def expects_close(self) -> bool:
        """Return whether the peer must still send `close`. Without it, a lost connection is a truncation."""
        return self.state is ChannelState.OPEN and self._handshake is not None and self._handshake.bound

    def fail(self, error: TreatyError) -> None:
        """Break the channel. All later calls raise this error."""
        # The first fault is the cause; later ones follow from it.
        self._fault = self._fault or error
        self.state = ChannelState.BROKEN

    def check_whole(self) -> None:
        """Raise the error that broke the channel, if there is one."""
        if self._fault is not None:
            raise self._fault

    def send(self, message: str | bytes, now: float) -> list[str | bytes]:
        """Encrypt this side's Hello (if `may_say_hello`) or a message (if `may_send`). Return the messages for the wire."""
        self.check_whole()
        if self.state is ChannelState.PLAIN:
            return [message]
        if self.may_say_hello and isinstance(message, str):
            return list(self._ask(message, now) if self._is_initiator else self._answer(message, now))
        if not self.may_send or self._sealer is None:
            raise Refused(SecureCode.KEY, "Nothing can be sent before the keys of this session exist.")
        self._check_expiry(now)
        # After the expiry check: a message under an expired key could not be opened by the peer.
        return list(self._sealer.seal(message, now))

    def close(self, reason: str, now: float) -> list[str]:
        """Return this side's last record; nothing without usable keys."""
        # Taken, so that nothing can follow the authenticated end: a later record would look like an attack.
        sealer, self._sealer = self._sealer, None
        ended = sealer is None or self.state is ChannelState.CLOSED or now >= self._expires
        return [] if sealer is None or ended else sealer.close(reason, now)

    def receive(self, message: str | bytes, now: float) -> list[Action]:
        """Process a message from the wire, and return the actions."""
        self.check_whole()
        try:
            if self.state is ChannelState.PLAIN:
                return [ReceivedMessage(message)]
            if self.state is ChannelState.BEGUN and not self._is_initiator:
                return self._asked(message, now)
            if self.state is ChannelState.ASKED:
                return self._answered(message, now)
            if not isinstance(message, str):
                # A binary frame here would be unauthenticated text of an attacker in between.
                raise Malformed(SecureCode.RECORD, "Every message of the E2EE profile is text.")
            if self.state is ChannelState.KEYED:
                return self._finished(message)
            if self.state is ChannelState.OPEN:
                return self._open(message, now)
            raise Refused(SecureCode.RECORD, "The other side may not send a message now.")
        except TreatyError as error:
            self.fail(error)
            raise

    def resolved(self, document: Mapping[str, Any], now: float) -> list[Action]:
        """Process the document for `Resolve`, as parsed JSON, and return the actions."""
        self.check_whole()
        if self.state is not ChannelState.PROVING:
            return []
        try:
            fields = self._peers.fields
            return self._prove(keys.listed_key(document, fields.source_did, fields.verification_method.id), now)
        except TreatyError as error:
            self.fail(error)
            raise

    # Hellos of this side

    def _ask(self, plain: str, now: float) -> list[str]:
        self._ephemeral = key_schedule.ephemeral(self._draw(key_schedule.SEED_SIZE))
        added = {
            "supportedVersions": list(self._versions),
            "cipherSuites": [key_schedule.CIPHER_SUITE],
            "supportedGroups": [key_schedule.GROUP],
            "keyShares": [self._share(self._ephemeral)],
        }
        self._source = hello.sign(plain, added, self._signer, now)
        self.state = ChannelState.ASKED
        return [self._source.text]

    def _answer(self, plain: str, now: float) -> list[str]:
        source = self._peers.fields
        assert isinstance(source, SourceHello)
        self._ephemeral = key_schedule.ephemeral(self._draw(key_schedule.SEED_SIZE))
        added = {
            "selectedVersion": self._common_version(source),
            "cipherSuite": key_schedule.CIPHER_SUITE,
            "keyShare": self._share(self._ephemeral),
        }
        self._destination = hello.sign(plain, added, self._signer, now)
        return [self._destination.text, self._derive(hello.usable_share(source.key_shares), now)]

    def _share(self, private_key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
        return {"group": key_schedule.GROUP, "expires": self._lifetime, "keyExchange": key_schedule.share(private_key)}

    # Hellos of the peer

    def _asked(self, message: str | bytes, now: float) -> list[Action]:
        if not self._is_secure(message):
            return [ReceivedMessage(message)]
        assert isinstance(message, str)
        # The signature first: everything below is then the statement of the key's holder, but not yet of the DID.
        self._source, self._claimed = hello.read(message, "sourceHello", now)
        source = self._source.fields
        assert isinstance(source, SourceHello)
        if source.destination_did not in ("", self._signer.did):
            raise Refused(
                HelloCode.DESTINATION, f"The Hello is for {source.destination_did}, but this agent is {self._signer.did}."
            )
        if key_schedule.CIPHER_SUITE not in source.cipher_suites:
            raise Refused(SecureCode.NO_COMMON, f"The only cipher suite here is {key_schedule.CIPHER_SUITE}.")
        if key_schedule.GROUP not in source.supported_groups:
            raise Refused(SecureCode.NO_COMMON, f"The only group here is {key_schedule.GROUP}.")
        hello.usable_share(source.key_shares)
        self._common_version(source)
        return self._identify(now)

    def _answered(self, message: str | bytes, now: float) -> list[Action]:
        if not self._is_secure(message):
            return [ReceivedMessage(message)]
        assert isinstance(message, str)
        assert self._source is not None
        self._destination, self._claimed = hello.read(message, "destinationHello", now)
        ours, theirs = self._source.fields, self._destination.fields
        assert isinstance(theirs, DestinationHello)
        if (theirs.session_id, theirs.destination_did) != (ours.session_id, ours.source_did):
            raise Refused(SecureCode.RECORD, "This destinationHello answers another sourceHello.")
        if ours.destination_did not in ("", theirs.source_did):
            raise Refused(HelloCode.DESTINATION, f"{theirs.source_did} answered, not {ours.destination_did}.")
        if theirs.selected_version not in self._versions:
            raise Refused(
                SecureCode.NO_COMMON, f"The other side chose version {theirs.selected_version[:8]!r}, which was not offered."
            )
        if theirs.cipher_suite != key_schedule.CIPHER_SUITE:
            raise Refused(SecureCode.NO_COMMON, f"The only cipher suite here is {key_schedule.CIPHER_SUITE}.")
        hello.usable_share((theirs.key_share,))
        return self._identify(now)

    def _is_secure(self, message: str | bytes) -> bool:
        """Return whether the peer's Hello is one of this profile. Raises `Refused` for a plain one if encryption is required."""
        if is_secure_hello(message):
            # Not taken for a plain one: the peer expects an encrypted answer.
            if not isinstance(message, str):
                raise Malformed(SecureCode.RECORD, "A Hello of the E2EE profile is text.")
            return True
        if self._required:
            raise Refused(
                SecureCode.REQUIRED,
                "The other side does not encrypt, which this side requires.",
                fix="Have the other side use the E2EE profile, or allow the plain one.",
            )
        self.state = ChannelState.PLAIN
        return False

    def _identify(self, now: float) -> list[Action]:
        """Find out whether the key of the verified signature belongs to the sender's DID."""
        fields = self._peers.fields
        # The DID comes last, because resolving it may cost a request to a stranger's host.
        key_id = fields.verification_method.id
        if key_id.partition("#")[0] != fields.source_did:
            raise _not_theirs(fields.source_did)
        self.state = ChannelState.PROVING
        own = keys.own_key(key_id)
        return [Resolve(fields.source_did, key_id)] if own is None else self._prove(own, now)

    def _prove(self, listed: PublicKey, now: float) -> list[Action]:
        fields = self._peers.fields
        if listed != self._claimed:
            raise _not_theirs(fields.source_did)
        self.peer = fields.source_did
        if isinstance(fields, DestinationHello):
            return [SendRecord(self._derive(fields.key_share, now))]
        # A destination hands the Hello on before `finished`, because it has to answer. A replayed one would open a session.
        if self._accepted is not None:
            self._accepted.accept(fields.source_did, fields.random, hello.seconds(fields.timestamp), now)
        self.state = ChannelState.HEARD
        return [ReceivedMessage(self._peers.text)]

    def _common_version(self, source: SourceHello) -> str:
        for version in self._versions:
            if version in source.supported_versions:
                return version
        raise Refused(SecureCode.NO_COMMON, f"No common version of the E2EE profile; {', '.join(self._versions)} here.")

    # Keys

    def _derive(self, theirs: KeyShare, now: float) -> str:
        """Derive the keys, drop this side's private key share, and return this side's `finished`."""
        assert self._ephemeral is not None
        assert self._source is not None
        assert self._destination is not None
        destination = self._destination.fields
        assert isinstance(destination, DestinationHello)
        randoms = self._source.fields.random, destination.random
        self._keys = key_schedule.derive(self._ephemeral, theirs.key_exchange, *randoms)
        self._ephemeral = None
        # The private share was dropped above: later theft of this process reveals no earlier session (forward secrecy).
        bound = destination.selected_version == BOUND
        self._handshake = Handshake(destination.session_id, self._source.text, self._destination.text, self._keys.key_id, bound)
        own = self._keys.source if self._is_initiator else self._keys.destination
        way = Direction(own, self._keys.key_id, self._signer.did, self.peer, bound)
        self._sealer = Sealer(way)
        # The peer's wish may only shorten the lifetime; a longer one would weaken this side's choice.
        self._expires = now + min(self._lifetime, theirs.expires)
        self.state = ChannelState.KEYED
        return self._handshake.finish(own, way.sender, way.receiver, self._draw(16).hex(), now)

    def _finished(self, text: str) -> list[Action]:
        assert self._handshake is not None
        assert self._keys is not None
        key = self._keys.destination if self._is_initiator else self._keys.source
        spent = self._handshake.check(text, key, self.peer, self._signer.did)
        way = Direction(key, self._keys.key_id, self.peer, self._signer.did, self._handshake.bound)
        # The iv of `finished` is spent, so it cannot come again as a record.
        self._opener = Opener(way, {spent})
        self.state = ChannelState.OPEN
        # Only now may a source believe the destinationHello: `finished` covers both Hellos.
        return [ReceivedMessage(self._peers.text)] if self._is_initiator else []

    def _open(self, text: str, now: float) -> list[Action]:
        assert self._opener is not None
        self._check_expiry(now)
        opened = self._opener.open(text)
        if isinstance(opened, Close):
            self.state = ChannelState.CLOSED
        return [] if opened is None else [opened]

    @property
    def _peers(self) -> Opening:
        """Return the peer's Hello."""
        opening = self._destination if self._is_initiator else self._source
        assert opening is not None
        return opening

    def _check_expiry(self, now: float) -> None:
        if now >= self._expires:
            raise expired()


def _not_theirs(did: str) -> Unauthorized:
    return Unauthorized(SecureCode.IDENTITY, f"The key that signed this Hello does not belong to {did[:120]}.")
