"""What an agent's owner allows: whose code runs here, on whose word, how fresh, how isolated.

An election elects document bytes, never somebody's code: handlers run only when their publisher is named here. HOME/policy.toml

    publishers = ["did:wba:example.com"]      # whose handlers may run, in order of preference
    registries = ["registry.example"]         # origins; absent: every registry that is trusted
    max_age = 3600                            # seconds that a checkpoint may be old
    resolve_publishers = false                # also compare a publisher's keys with the DID document at its own host
    report = false                            # tell the log, with the peer, that a negotiation happened: public for ever
    report_delay = 3600                       # seconds within which a report is submitted, at a random time
    publish = false                           # publish what this agent negotiated, in its own namespace
    accept_didwba = false                     # take requests with the older DIDWba header, which whoever gets hold of it can
                                              # put on any other request to this host
    send_didwba = false                       # send that header, instead of RFC 9421 signatures, to every peer over HTTP
    encryption = "off"                        # end-to-end: "preferred" takes plain peers too, "required" does not
    isolation = "bubblewrap"                  # or "none": the publishers above run unconfined, as you

    [tenures]                                 # a DID whose domain changed hands is another publisher
    "did:wba:example.com" = 1

    [witnesses]                               # a checkpoint needs `quorum` of their cosignatures, each no older than max_age
    quorum = 2
    keys = [
      "w1.example+11c8f4c8+BEtCePP28bkSi/ZxLF65+cydHDRh+AhwUc5Okowfb9iu",
      "w2.example+f4cdfafa+BPG7LsTqzdoCg6bxHCtaGB6aiE6H29oo6MK8jL61umPv",
      "w3.example+8ec7334c+BNN3mXXtxmksQZESfVAyd+dQJgv0jd6rDW1/bQn754bK",
    ]

    [[signers]]                               # who may attest handlers besides the publisher's own DID: OIDC identities of the
    identity = "https://github.com/o/r/.github/workflows/release.yml@refs/heads/main"     # public-good Sigstore instance
    issuer = "https://token.actions.githubusercontent.com"

Every field may be absent. A policy that names no publisher runs nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import msgspec

from treaty_consensus.did import parse_did
from treaty_consensus.errors import Malformed
from treaty_consensus.log.witness import Quorum
from treaty_consensus.protocol import is_origin

Isolation = Literal["bubblewrap", "none"]
Encryption = Literal["off", "preferred", "required"]
DEFAULT_MAX_AGE = 3600
DEFAULT_REPORT_DELAY = 3600


@dataclass(frozen=True)
class Policy:
    """Immutable; any sequence may be given for a tuple. Raises `Malformed` (`policy.*`, `did.*`) on impossible values.

    `signers`: (identity, issuer) pairs. `registries`: None for all that are trusted. `tenures`: the one tenure accepted of a DID.
    `resolve_publishers`: before a handler is kept, the keys that the log has for its publisher, unless that is a did:key, are
    compared with the DID document at its own host. `witnesses`: who must have cosigned the checkpoint of whatever is used, of
    every registry; None for nobody.
    """

    publishers: Sequence[str] = ()
    signers: Sequence[tuple[str, str]] = ()
    registries: Sequence[str] | None = None
    tenures: Mapping[str, int] = field(default_factory=dict)
    report: bool = False
    report_delay: int = DEFAULT_REPORT_DELAY
    publish: bool = False
    accept_didwba: bool = False
    send_didwba: bool = False
    encryption: Encryption = "off"
    isolation: Isolation = "bubblewrap"
    max_age: int = DEFAULT_MAX_AGE
    resolve_publishers: bool = False
    witnesses: Quorum | None = None

    def __post_init__(self) -> None:
        for name in ("publishers", "signers", "registries"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise Malformed("policy.list", f"`{name}` of a policy is a list, not one string.")
            object.__setattr__(self, name, None if value is None else tuple(value))
        for did in (*self.publishers, *self.tenures):
            parse_did(did)
        for origin in self.registries or ():
            if not is_origin(origin):
                raise Malformed(
                    "policy.registries", f"A registry in a policy is an origin such as registry.example: {origin[:80]!r}."
                )
        if self.max_age <= 0 or self.report_delay < 0 or self.isolation not in get_args(Isolation):
            raise Malformed(
                "policy.value", "`max_age` and `report_delay` are numbers of seconds, `isolation` is bubblewrap or none."
            )
        if self.encryption not in get_args(Encryption):
            raise Malformed("policy.value", "`encryption` is off, preferred or required.")

    def admits_registry(self, origin: str) -> bool:
        """Whether protocols of this origin may be used; that it is also trusted by key is for `trust` to say."""
        return self.registries is None or origin in self.registries

    def admits_publisher(self, did: str, tenure: int) -> bool:
        """Whether handlers of this DID, in this tenure, may run."""
        return did in self.publishers and self.tenures.get(did, tenure) == tenure


class _Witnesses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[str, ...]
    quorum: int


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
    send_didwba: bool = False
    encryption: Encryption = "off"
    isolation: Isolation = "bubblewrap"
    max_age: int = DEFAULT_MAX_AGE
    resolve_publishers: bool = False
    witnesses: _Witnesses | None = None


def load_policy(path: Path) -> Policy:
    """Read a policy file; an absent one is the policy that runs nothing. Raises `Malformed` (`policy.file`, …)."""
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8"))
        parsed = msgspec.convert(value, _File)
    except FileNotFoundError:
        return Policy()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise Malformed(
            "policy.file", f"{path} is not a policy: {error}.", fix="See the example in the documentation."
        ) from error
    fields = {name: getattr(parsed, name) for name in parsed.__struct_fields__}
    fields["signers"] = tuple((signer.identity, signer.issuer) for signer in parsed.signers)
    if parsed.witnesses is not None:
        fields["witnesses"] = Quorum.parse(parsed.witnesses.keys, parsed.witnesses.quorum)
    return Policy(**fields)
