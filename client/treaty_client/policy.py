"""The policy of an agent's owner: the publishers whose code may run, and the proofs that are needed.

An election elects the bytes of a document. It elects no code: a handler runs only when the policy names its publisher.

    publishers = ["did:wba:example.com"]
    max_age = 3600
    isolation = "process"

docs/specification/home.md has all fields of HOME/policy.toml. All are optional. A policy without publishers runs nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from treaty_consensus.canonical import parse_digest
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Malformed, Unavailable
from treaty_consensus.log.durability import MAX_PLACES
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.policy import MAX_POLICY, WitnessPolicy, WitnessRule
from treaty_consensus.log.witness import MAX_COSIGNERS, Quorum
from treaty_consensus.protocol import is_origin
from treaty_io.base_url import parse_base_url
from treaty_io.codes import PolicyCode
from treaty_sandbox.isolation import DEFAULT_ISOLATION, Isolation

Encryption = Literal["off", "preferred", "required"]
LostMemory = Literal["warn", "refuse"]
MinimalState = Literal["published", "candidate", "provisional", "consensus"]
DEFAULT_MAX_AGE = 3600
# A registry signs its newest checkpoint again about every 60 seconds, so an honest proof may be that old when it arrives.
MIN_MAX_AGE = 120
DEFAULT_REPORT_DELAY = 3600
MAX_MIRRORS = 8


@dataclass(frozen=True)
class Policy:
    """The fields of policy.toml. Immutable; any sequence may be given for a tuple.

    `signers`: pairs (identity, issuer) of those who may attest handlers beside the publisher. `registries`: origins; None for
    all trusted registries. `tenures`: the one accepted tenure of a DID; a domain that changed hands has another tenure.
    `resolve_publishers`: before a handler is kept, the publisher's keys in the log are compared with the DID document at its
    own host, except for a did:key. `accept_didwba`: take the older DIDWba header; an attacker who captures one can put it on
    any request to this host. `accept_secp256k1`: authenticate peers by keys of this curve, which older ANP agents have.
    `isolation`: the weakest level of the sandbox that is accepted; the strongest that this machine has is used. With "none"
    handlers may run unconfined, as this user. `witnesses`: the quorum that must have cosigned every
    checkpoint in use, of every registry; None for no witnesses. `mirrors`: by origin, the URLs that answer reads when the
    registry does not, in this order, at most 8 each. `copies`: a statement of this home is sent only to a registry that
    promises to have it in so many places besides the disk of its database, before its receipt. `constitutions`: by origin, the
    digest of the parameters under which decisions count (`treaty_consensus.amendment.constitution_of`). `via`: by origin, the
    witnesses (URL#KEY) that stamp ballots, reports and vouches of this home before the registry gets them, at most 16 each.
    `max_age`: seconds that a checkpoint may be old, at least 120. A running agent verifies its protocols again when half of them
    have passed, and so learns of revocations. `lost_memory`: whether answers are refused when facts that registries proved were
    lost with seen.db, or a warning is logged. `minimal_state`: the lowest state in its topic that a document must have.
    `frozen`: only protocols that treaty.lock pins run, each by the handler that it names, and nothing new is pinned.

    Raises `Malformed` (`policy.file`, `did.*`, `canonical.text`) for
    impossible values.
    """

    publishers: Sequence[str] = ()
    signers: Sequence[tuple[str, str]] = ()
    registries: Sequence[str] | None = None
    tenures: Mapping[str, int] = field(default_factory=dict)
    report: bool = False
    report_delay: int = DEFAULT_REPORT_DELAY
    publish: bool = False
    accept_didwba: bool = False
    accept_secp256k1: bool = False
    send_didwba: bool = False
    encryption: Encryption = "off"
    isolation: Isolation = DEFAULT_ISOLATION
    max_age: int = DEFAULT_MAX_AGE
    resolve_publishers: bool = False
    lost_memory: LostMemory = "warn"
    minimal_state: MinimalState = "published"
    frozen: bool = False
    witnesses: WitnessRule | None = None
    mirrors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    copies: int = 0
    via: Mapping[str, Sequence[str]] = field(default_factory=dict)
    constitutions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("publishers", "signers", "registries"):
            value = getattr(self, name)
            # A string is a sequence too: each of its letters would be a publisher.
            if isinstance(value, str):
                raise Malformed(PolicyCode.FILE, f"`{name}` of a policy is a list, not one string.")
            object.__setattr__(self, name, None if value is None else tuple(value))
        for did in (*self.publishers, *self.tenures):
            # A misspelt DID admits no publisher. It fails here, where its owner reads the message.
            parse_did(did)
        for origin in (*(self.registries or ()), *self.mirrors, *self.via, *self.constitutions):
            if not is_origin(origin):
                raise Malformed(
                    PolicyCode.FILE, f"A registry in a policy is an origin such as registry.example: {origin[:80]!r}."
                )
        if any(isinstance(urls, str) or len(urls) > MAX_MIRRORS for urls in self.mirrors.values()):
            raise Malformed(PolicyCode.FILE, f"The mirrors of an origin are a list of at most {MAX_MIRRORS} URLs.")
        mirrors = {origin: tuple(map(parse_base_url, urls)) for origin, urls in self.mirrors.items()}
        object.__setattr__(self, "mirrors", mirrors)
        via = {origin: tuple(names) for origin, names in self.via.items() if not isinstance(names, str)}
        if len(via) < len(self.via) or any(len(names) > MAX_COSIGNERS for names in via.values()):
            raise Malformed(
                PolicyCode.FILE, f"The witnesses by which statements go are a list of at most {MAX_COSIGNERS} URL#KEY."
            )
        for url, _, vkey in (name.partition("#") for names in via.values() for name in names):
            # Here, where its owner reads the message, and not at the first report of an agent.
            parse_base_url(url)
            VerifierKey.parse(vkey)
        object.__setattr__(self, "via", via)
        for digest in self.constitutions.values():
            # A pin that no constitution has would refuse every decision without a hint.
            parse_digest(digest)
        if 0 < self.max_age < MIN_MAX_AGE:
            raise Malformed(
                PolicyCode.FILE,
                f"`max_age` is {self.max_age}. Registries sign a checkpoint again about every 60 seconds, so honest proofs would"
                " be refused at random.",
                fix=f"Choose at least {MIN_MAX_AGE} seconds.",
            )
        if self.max_age <= 0 or self.report_delay < 0 or self.isolation not in get_args(Isolation):
            raise Malformed(
                PolicyCode.FILE,
                "`max_age` and `report_delay` are numbers of seconds, `isolation` is bubblewrap, process or none.",
            )
        if not 0 <= self.copies <= 2 * MAX_PLACES:
            raise Malformed(PolicyCode.FILE, f"`copies` is a number of places, at most {2 * MAX_PLACES}.")
        if self.encryption not in get_args(Encryption):
            raise Malformed(PolicyCode.FILE, "`encryption` is off, preferred or required.")
        if self.lost_memory not in get_args(LostMemory):
            raise Malformed(PolicyCode.FILE, "`lost_memory` is warn or refuse.")
        if self.minimal_state not in get_args(MinimalState):
            raise Malformed(PolicyCode.FILE, f"`minimal_state` is one of {', '.join(get_args(MinimalState))}.")

    def admits_registry(self, origin: str) -> bool:
        """Return whether protocols of this origin may be used. The trust in its key is another matter (`registries.trust`)."""
        return self.registries is None or origin in self.registries

    def admits_publisher(self, did: str, tenure: int) -> bool:
        """Return whether handlers of this DID, in this tenure, may run."""
        # A DID without a pinned tenure is admitted in each. Pin it where a domain could change hands.
        return did in self.publishers and self.tenures.get(did, tenure) == tenure

    def admits_state(self, state: str | None) -> bool:
        """Return whether documents of this state in their topic may be used. `state`: None if no decision names the document."""
        order = get_args(MinimalState)
        # Dormant and superseded documents are not elected: they count as those that are only published.
        return order.index(self.minimal_state) <= (order.index(state) if state in order else 0)


class _Witnesses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[str, ...]
    quorum: int


class _PolicyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policy: str


class _Signer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    identity: str
    issuer: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    publishers: tuple[str, ...] = ()
    signers: tuple[_Signer, ...] = ()
    registries: tuple[str, ...] | None = None
    tenures: dict[str, int] = {}
    report: bool = False
    report_delay: int = DEFAULT_REPORT_DELAY
    publish: bool = False
    accept_didwba: bool = False
    accept_secp256k1: bool = False
    send_didwba: bool = False
    encryption: Encryption = "off"
    isolation: Isolation = DEFAULT_ISOLATION
    max_age: int = DEFAULT_MAX_AGE
    resolve_publishers: bool = False
    lost_memory: LostMemory = "warn"
    minimal_state: MinimalState = "published"
    frozen: bool = False
    witnesses: dict[str, Any] | None = None
    mirrors: dict[str, tuple[str, ...]] = {}
    copies: int = 0
    via: dict[str, tuple[str, ...]] = {}
    constitutions: dict[str, str] = {}


def load_policy(path: Path) -> Policy:
    """Read a policy file; an absent file is the policy that runs nothing.

    Raises `Malformed` (`policy.file`, and as `Policy`), and `Unavailable` (`policy.file`) if the file cannot be read.
    """
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8"))
        parsed = msgspec.convert(value, _File)
    except FileNotFoundError:
        return Policy()
    except OSError as error:
        raise Unavailable(PolicyCode.FILE, f"{path} cannot be read: {error.strerror}.") from error
    # RecursionError: nested brackets exhaust the parser's stack.
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, msgspec.ValidationError) as error:
        raise Malformed(PolicyCode.FILE, f"{path} is not a policy: {error}.", fix="See docs/specification/home.md.") from error
    fields = {name: getattr(parsed, name) for name in parsed.__struct_fields__}
    fields["signers"] = tuple((signer.identity, signer.issuer) for signer in parsed.signers)
    if parsed.witnesses is not None:
        fields["witnesses"] = _witnesses(parsed.witnesses, path)
    return Policy(**fields)


def _witnesses(value: Mapping[str, object], path: Path) -> WitnessRule:
    """Return the witnesses of a policy file: keys and their quorum, or a C2SP tlog-policy file beside it."""
    try:
        if "policy" not in value:
            named = msgspec.convert(value, _Witnesses)
            return Quorum.parse(named.keys, named.quorum)
        return read_policy(path.parent / msgspec.convert(value, _PolicyFile).policy)
    except msgspec.ValidationError as error:
        raise Malformed(PolicyCode.FILE, f"{path} is not a policy: {error}.", fix="See docs/specification/home.md.") from error


def read_policy(path: Path) -> WitnessPolicy:
    """Read a C2SP tlog-policy file. Raises `Malformed`, `TooLarge` (`witness.policy`), and `Unavailable` (`policy.file`)."""
    try:
        with path.open("rb") as file:
            # One byte more shows that the file is too large.
            return WitnessPolicy.parse(file.read(MAX_POLICY + 1))
    except OSError as error:
        raise Unavailable(PolicyCode.FILE, f"{path} cannot be read: {error.strerror}.") from error
