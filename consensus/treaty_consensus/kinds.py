"""Define the bodies of statements: one struct per type, in the order in which they first occur in a log.

`statement.KINDS` maps a statement's `type` to its struct; that of `rotation` is in its own module. Writers refuse unknown fields,
readers of a log drop them; an absent optional field is left out, never null. Bodies hold identifiers, digests, keys, enumerations
and numbers; free text and bytes are blobs, named by digest and size.
`check` tests a field beyond its type; `admit` tests it against the log.

Specification: `docs/specification/statements.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec

from . import canonical
from .codes import BallotCode, IdentityCode, ParametersCode, StatementCode
from .did import Did, Validated, decode_multikey, is_host, parse_did, parse_key_id
from .errors import Malformed
from .log.note import KeyType
from .log.witness import MAX_COSIGNERS, Quorum
from .protocol import MAX_CARD, MAX_DOCUMENT, check_aliases, check_topic, is_origin, parse_namespace, parse_protocol_uri

# Caps are checked at admission, so a replay never fetches an unbounded blob.
MAX_BUNDLE = 64 * 1024
MAX_WHEEL = 2 * 1024 * 1024
MAX_DID_DOCUMENT = 64 * 1024
# A transcript lists at most 32 candidates and 256 voters. A roll lists every principal, so it is larger.
MAX_TRANSCRIPT = 4 * 1024 * 1024
MAX_ROLL = 128 * 1024 * 1024
MAX_SUFFIX_LIST = 1024 * 1024
MIN_ANCHORS = 16  # with fewer a small group could decide (docs/specification/election.md, section 10)
MAX_ANCHORS = 512
MAX_ALIASES = 8
MAX_CANDIDATES = 32  # the count is quadratic in it
NONE = "none"  # in a ballot: the choice that no candidate becomes the consensus
# The election rules that this release recomputes. New logs follow the last; the first is there so that old logs stay auditable.
Rule: TypeAlias = Literal["schulze-margins-v2", "schulze-margins-v3"]
RULES: Final[tuple[Rule, ...]] = get_args(Rule)
RULE: Final[Rule] = RULES[-1]

# Fields are short, so that a statement fits its 48,000 bytes. `Note` holds a checkpoint with its cosignatures.
Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Note: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=canonical.MAX_INTEGER)]
# At most 2^16, so that products with weights stay below 2^64.
Factor: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**16)]
Electorate: TypeAlias = Literal["development", "open"]
NEGATIVE_STATES: Final = frozenset({"yanked", "revoked"})
"""The states of a `Status` by which a publisher takes a protocol or a handler back."""
State: TypeAlias = Literal["published", "candidate", "provisional", "consensus", "dormant", "superseded", "repealed"]


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all bodies."""

    def check(self) -> None:
        """Check the fields beyond their types. Raises `Malformed`. The default checks nothing."""


class Blob(Body, frozen=True):
    """Name bytes outside the log by SHA-256 and size."""

    sha256: Digest
    size: Count

    def at_most(self, limit: int, what: str) -> None:
        """Check the size. Raises `Malformed` (`statement.form`) when it exceeds `limit`."""
        if self.size > limit:
            raise Malformed(StatementCode.FORM, f"A {what} has at most {limit} bytes, not {self.size}.")


class Genesis(Body, frozen=True):
    """Leaf 0: identify the log.

    `log_key`, `clock_key`: verifier keys (C2SP signed-note).
    `operator`: a did:key, so that an auditor needs only the log.
    `trusted_root`: SHA-256 of the Sigstore trusted root of the registry's own authority.
    """

    origin: Text
    log_key: Text
    clock_key: Text
    operator: Text
    trusted_root: Digest

    def check(self) -> None:
        if not is_origin(self.origin):
            raise Malformed(StatementCode.FORM, "A log's origin must be a host, with a port if it is not the default.")
        if parse_did(self.operator).method != "key":
            raise Malformed(StatementCode.FORM, "The operator of a log must be a did:key.")


class Key(Body, frozen=True):
    """Hold a key of a DID document: its DID URL and its Ed25519 Multikey."""

    id: Text
    multikey: Text


class Identity(Body, frozen=True):
    """State that the operator fetched this DID document. `previous`: the DID's previous identity statement."""

    did: Text
    document: Blob
    keys: Annotated[tuple[Key, ...], msgspec.Meta(min_length=1, max_length=32)]
    tenure: Annotated[int, msgspec.Meta(ge=1, le=canonical.MAX_INTEGER)]
    previous: Digest | None = None

    def check(self) -> None:
        did = parse_did(self.did)
        self._check_keys(did)
        # A did:key needs no identity statement: the DID contains its key.
        if did.method == "key" or did.validated_by is not None:
            raise Malformed(IdentityCode.FORM, "An identity must list distinct keys of a DID that has a document.")

    def _check_keys(self, did: Did) -> None:
        self.document.at_most(MAX_DID_DOCUMENT, "DID document")
        for key in self.keys:
            if parse_key_id(key.id)[0] != did:
                raise Malformed(IdentityCode.FORM, "Every key of an identity must belong to its DID.")
            decode_multikey(key.multikey)
        if len({key.id for key in self.keys}) != len(self.keys):
            raise Malformed(IdentityCode.FORM, "An identity must list distinct keys of a DID that has a document.")


class Validation(Identity, frozen=True, kw_only=True):
    """State that the operator validated a name without a DID document (did:treaty), and which keys act for it.

    It is an `Identity` whose `document` is what the operator saw (`workflow_evidence`). `keys`: the one that was proved now, then
    earlier ones that still sign. `account`: the forge's number of the account, which a name that was given up and taken anew does
    not keep. `workflow`: the file whose steps ran, with its repository and its ref. Both of `oidc` alone.
    """

    method: Validated
    account: Annotated[str, msgspec.Meta(pattern=r"\A[1-9][0-9]{0,19}\Z")] | None = None
    workflow: Text | None = None

    def check(self) -> None:
        did = parse_did(self.did)
        self._check_keys(did)
        is_complete = (self.method == "oidc") == (self.account is not None) == (self.workflow is not None)
        if did.validated_by != self.method or not is_complete:
            raise Malformed(IdentityCode.FORM, "A validation is of a did:treaty, by its method, with an account if it is one.")
        # One key, one name: a renewed key keeps its end.
        if any(key.id != f"{self.did}#{key.multikey}" for key in self.keys):
            raise Malformed(IdentityCode.FORM, "A key of a did:treaty is named by its Multikey.")


class Grant(Body, frozen=True):
    """Let another DID publish in a namespace and vote for it, or take that back. The newest statement of a pair counts."""

    namespace: Text
    to: Text
    withdrawn: bool = False

    def check(self) -> None:
        parse_namespace(self.namespace)
        parse_did(self.to)


class Base(Body, frozen=True):
    """Name the protocol that a document changes: its URI and its hash."""

    uri: Text
    document: Digest


class Publish(Body, frozen=True):
    """Publish one version of a protocol. `aliases`: foreign canonical URIs that its publisher claims."""

    uri: Text
    topic: Text
    document: Blob
    card: Blob
    origin: Literal["negotiated", "standard"]
    aliases: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_ALIASES)] = ()
    base: Base | None = None

    def check(self) -> None:
        parse_protocol_uri(self.uri)
        check_topic(self.topic)
        self.document.at_most(MAX_DOCUMENT, "protocol document")
        self.card.at_most(MAX_CARD, "card")
        check_aliases(self.aliases)


class Handler(Body, frozen=True):
    """Attach a handler package to a protocol: the wheel, its entry point, and the Sigstore bundle that attests it."""

    uri: Text
    document: Digest
    filename: Text
    wheel: Blob
    entry_point: Text
    bundle: Blob

    def check(self) -> None:
        parse_protocol_uri(self.uri)
        self.wheel.at_most(MAX_WHEEL, "handler wheel")
        self.bundle.at_most(MAX_BUNDLE, "Sigstore bundle")


class Status(Body, frozen=True):
    """State the status of a protocol (`wheel` absent) or of one handler wheel. The newest statement counts."""

    uri: Text
    state: Literal["active", "deprecated", "yanked", "revoked"]
    wheel: Digest | None = None
    successor: Text | None = None

    def check(self) -> None:
        parse_protocol_uri(self.uri)
        if self.successor is not None:
            parse_protocol_uri(self.successor)


class Report(Body, frozen=True):
    """State that two agents negotiated. Signed by both.

    `nid`: SHA-256(JCS[both DIDs, both Hello randoms]).
    `seen_checkpoint`: a signed checkpoint of this log, so that every report spreads one.
    """

    topic: Text
    nid: Digest
    document: Digest
    outcome: Literal["agreed", "failed"]
    epoch: Count
    seen_checkpoint: Note

    def check(self) -> None:
        check_topic(self.topic)


class Ballot(Body, frozen=True):
    """Rank document hashes and `NONE` in a weak order.

    `tiers`: best first. Unranked choices are tied last. Without tiers, the ballot is withdrawn.
    """

    topic: Text
    seq: Count
    tiers: Annotated[tuple[tuple[str, ...], ...], msgspec.Meta(max_length=MAX_CANDIDATES + 1)]
    seen_checkpoint: Note

    def check(self) -> None:
        check_topic(self.topic)
        choices = [choice for tier in self.tiers for choice in tier]
        # Each choice once, so that a ballot has one meaning.
        if len(set(choices)) != len(choices) or len(choices) > MAX_CANDIDATES + 1 or not all(self.tiers):
            raise Malformed(
                BallotCode.TIERS,
                f"A ballot must rank each of at most {MAX_CANDIDATES} hashes once, in tiers that are not empty.",
            )
        for choice in choices:
            if choice != NONE:
                canonical.parse_digest(choice)


class Vouch(Body, frozen=True):
    """Vouch for another principal, or withdraw the vouch. A newer vouch of the same pair replaces the earlier one.

    `to`: a DID of the other principal.
    `seq`: 0, then one more than in the author's last vouch for any DID.
    """

    to: Text
    seq: Count
    withdrawn: bool = False

    def check(self) -> None:
        parse_did(self.to)


class Reputation(Body, frozen=True):
    """Hold the constants of an open electorate. `docs/specification/election.md` lists them with their meaning.

    `election.trust` and `election.reputation` have the formulas.
    """

    anchors: Annotated[tuple[Text, ...], msgspec.Meta(min_length=MIN_ANCHORS, max_length=MAX_ANCHORS)]
    suffix_list: Blob
    rounds: Annotated[int, msgspec.Meta(ge=1, le=64)]
    max_vouches: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    least_vouches: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    cap_share: Annotated[int, msgspec.Meta(ge=2, le=1024)]
    loan_share: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    acquainted_epochs: Factor
    mature_epochs: Factor
    counterparties: Factor
    counterparty_share: Factor

    def check(self) -> None:
        self.suffix_list.at_most(MAX_SUFFIX_LIST, "Public Suffix List")
        # Sorted, so that one set of anchors has one digest.
        if list(self.anchors) != sorted(set(self.anchors)) or not all("." in host and is_host(host) for host in self.anchors):
            raise Malformed(ParametersCode.VALUE, "Anchors must be distinct registrable domains, sorted.")


class Witnesses(Body, frozen=True):
    """Name the cosignatures (C2SP tlog-cosignature) that a decision's input needs: `quorum` of the verifier keys in `keys`."""

    keys: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=MAX_COSIGNERS)]
    quorum: Annotated[int, msgspec.Meta(ge=1, le=MAX_COSIGNERS)]

    def check(self) -> None:
        _ = self.parsed

    @property
    def parsed(self) -> Quorum:
        """Return the parsed keys, which are Ed25519 cosignature keys. Raises `Malformed` (`witness.policy`, `note.form`)."""
        # A decision carries the cosignatures in its leaf, and one of ML-DSA-44 alone would nearly fill it.
        return Quorum.parse(self.keys, self.quorum, (KeyType.COSIGNATURE,))


class Credit(Body, frozen=True):
    """Hold the constants of standing. `election.credit` has the formulas."""

    report_share: Factor
    epochs: Factor
    pairs: Factor


class Parameters(Body, frozen=True):
    """Hold the constants of the election. `docs/specification/election.md` lists them with their meaning.

    The first parameters of a log apply at once, later ones as `amendment` says. An *open* electorate has `reputation` and
    `epoch_seconds`. In a *development* electorate every DID with a domain weighs the same, and the operator closes epochs by
    hand.
    """

    rule: Rule
    electorate: Electorate
    horizon_epochs: Factor
    candidate_pairs: Factor
    candidate_clusters: Factor
    candidate_share: Factor
    max_candidates: Annotated[int, msgspec.Meta(ge=1, le=MAX_CANDIDATES)]
    quorum_share: Factor
    cluster_share: Factor
    provisional_share: Factor
    over_none: tuple[Factor, Factor]
    over_incumbent: tuple[Factor, Factor]
    sustain_epochs: Factor
    dormant_epochs: Factor
    suspect_epochs: Factor
    credit: Credit
    epoch_seconds: Annotated[int, msgspec.Meta(ge=1, le=366 * 24 * 3600)] | None = None
    reputation: Reputation | None = None
    witnesses: Witnesses | None = None
    memory_horizons: Factor | None = None

    @property
    def memory_epochs(self) -> int:
        """Return for how many epochs the newest report of a pair speaks for the use of both."""
        return self.horizon_epochs * (self.memory_horizons or 1)

    @property
    def is_v2(self) -> bool:
        """Tell whether the earlier rule is followed. `election.earlier` has what it does otherwise."""
        return self.rule == "schulze-margins-v2"

    def check(self) -> None:
        is_open = self.electorate == "open"
        # The fields must match the electorate, so that no constant is logged that nothing reads.
        if (self.reputation is not None) != is_open or (self.epoch_seconds is not None) != is_open:
            raise Malformed(
                ParametersCode.VALUE,
                "An open electorate needs `reputation` and `epoch_seconds`; a development one has neither.",
            )
        if (self.memory_horizons is None) != self.is_v2:
            raise Malformed(ParametersCode.VALUE, "`memory_horizons` belongs to the rule schulze-margins-v3, which needs it.")
        if self.quorum_share == 1 and not self.is_v2:
            raise Malformed(ParametersCode.VALUE, "A quorum of all votes is never met. `quorum_share` must be 2 or more.")
        for part in filter(None, (self.reputation, self.witnesses)):
            part.check()


class Input(Body, frozen=True):
    """Name the log prefix that a decision counts: its size and root (hexadecimal).

    `witnessed`: its checkpoint with the cosignatures that the parameters require.
    """

    size: Count
    root: Digest
    witnessed: Note | None = None


class Decision(Body, frozen=True):
    """State an epoch's outcome in a topic. A replay of the log recomputes the transcript to the same bytes.

    `parameters`, `previous`: ids of the parameters in force and of the topic's previous decision.
    `remaining`: how many decisions of this epoch follow. Until they are logged, the log accepts no other statement.
    `roll`: the blob with all principals and weights of the epoch, the same for all its decisions.
    `states`: each candidate in the order of its publication, then the documents that left the field in this epoch.
    """

    topic: Text
    epoch: Count
    rule: Rule
    electorate: Electorate
    parameters: Digest
    input: Input
    remaining: Count
    transcript: Blob
    roll: Blob
    states: Annotated[tuple[tuple[Digest, State], ...], msgspec.Meta(max_length=4 * MAX_CANDIDATES)]
    consensus: Digest | None = None
    previous: Digest | None = None

    def check(self) -> None:
        check_topic(self.topic)
        self.transcript.at_most(MAX_TRANSCRIPT, "decision transcript")
        self.roll.at_most(MAX_ROLL, "electoral roll")


class Withdrawal(Body, frozen=True):
    """State that the operator no longer serves a blob. The leaf that named it remains."""

    sha256: Digest
    reason: Literal["illegal", "personal", "malicious"]


class Newer(Body, frozen=True):
    """Hold what a release reads of a statement that it has no use of (`statement.read`). It is never written.

    A newer release understands it, or it rests on such a statement. `kind`: the type. `critical`: whether its subject is out of
    use, which the other members name as far as the statement has them; else it is passed over. `epoch`: -1 without one.

    Specification: `docs/specification/compatibility.md`.
    """

    kind: str
    critical: bool = True
    topic: str = ""
    epoch: int = -1
    uri: str = ""
    wheel: str | None = None
    did: str = ""
    namespace: str = ""
    to: str = ""

    @classmethod
    def of(cls, kind: str, critical: bool, body: Mapping[str, object]) -> Newer:
        """Read the subject of a statement. Members of another form than this release knows are absent."""
        wheel = body.get("wheel")
        # A handler names its wheel as a blob, a status by digest.
        digest = wheel.get("sha256") if isinstance(wheel, Mapping) else wheel
        names = {name: value for name in ("topic", "uri", "did", "namespace", "to") if isinstance(value := body.get(name), str)}
        epoch = body.get("epoch")
        return cls(
            kind,
            critical,
            wheel=digest if isinstance(digest, str) else None,
            epoch=epoch if isinstance(epoch, int) else -1,
            **names,
        )


def blobs_of(body: Body) -> tuple[Blob, ...]:
    """Return the blobs that a statement names. Its sender uploads each of them first."""
    match body:
        case Publish():
            return body.document, body.card
        case Handler():
            return body.wheel, body.bundle
        case Identity():
            return (body.document,)
        case Parameters(reputation=Reputation() as reputation):
            return (reputation.suffix_list,)
        case Decision():
            return body.transcript, body.roll
    return ()
