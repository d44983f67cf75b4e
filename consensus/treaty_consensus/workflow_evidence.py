"""Define the evidence of a validated account: what a token of its workflow said, without the token.

A workflow of GitHub Actions proves to a registry with a token of its platform (OpenID Connect) for which account it runs. The
token is a bearer secret until it ends, so the log never has it. The `document` of the `Validation` is JCS of

    {"claims": {…}, "key": {"e", "kid", "kty", "n"}, "token": HEX}

`claims`: those of `Claims` that the token had. `key`: the JWK of the issuer under which the token verified. `token`: SHA-256 of
the token. The audience of the token names the log and the key that it proves, so a token that was caught on its way is of no use:

    treaty:registry.example:z6Mk…

`check_evidence` compares all of this with the statement. That the token verified is the operator's word alone. Whoever kept the
token can show later that it did: its digest is logged, and the key is one that the issuer published.

Specification: `docs/specification/protocols.md`.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec

from . import canonical
from .codes import TokenCode
from .did import encode_multikey, parse_did
from .errors import Malformed, Unauthorized
from .kinds import MAX_DID_DOCUMENT, Blob, Key, Validation

ISSUERS: Final = {"github.com": "https://token.actions.githubusercontent.com"}
"""The issuer of the tokens of each forge. Pinned: a token says itself who issued it."""
EVENTS: Final = frozenset({"push", "release", "schedule", "workflow_dispatch"})
"""Those that need the right to write to the repository. With `pull_request_target` a stranger's change can run as the owner."""
SKEW = 30
"""Seconds by which the clocks of issuer and registry may differ."""
MAX_LIFETIME = 900
"""Seconds that a token may live. Its use is remembered for as long."""

_K = TypeVar("_K")
_Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_Seconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=canonical.MAX_INTEGER)]
_WORKFLOW = re.compile(r"([A-Za-z0-9_-]+/[A-Za-z0-9._-]+)/\.github/workflows/[!-?A-~]+@[!-?A-~]+")


class Claims(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claims of a token that are evidence. Others are dropped, such as the name of the person who pushed.

    Source: GitHub, "OpenID Connect reference".
    """

    iss: _Text
    sub: _Text
    aud: _Text
    jti: _Text
    iat: _Seconds
    nbf: _Seconds
    exp: _Seconds
    event_name: _Text
    ref: _Text
    sha: _Text
    repository: _Text
    repository_id: _Text
    repository_owner: _Text
    repository_owner_id: Annotated[str, msgspec.Meta(pattern=r"\A[1-9][0-9]{0,19}\Z")]
    workflow_ref: _Text
    job_workflow_ref: _Text
    workflow_sha: _Text | None = None
    job_workflow_sha: _Text | None = None
    environment: _Text | None = None
    ref_type: _Text | None = None
    ref_protected: _Text | None = None
    repository_visibility: _Text | None = None
    runner_environment: _Text | None = None
    run_id: _Text | None = None
    run_attempt: _Text | None = None

    @property
    def did(self) -> str:
        """Return the DID of the account whose workflow it is. Names of accounts have no case."""
        return f"did:treaty:github.com:{self.repository_owner.lower()}"


class IssuerKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An RSA key of an issuer, as its JWK set has it."""

    e: _Text
    kid: _Text
    kty: Annotated[str, msgspec.Meta(pattern=r"\ARSA\Z")]
    n: Annotated[str, msgspec.Meta(min_length=340, max_length=1400)]


class WorkflowEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a token said. `token`: SHA-256 of its text."""

    claims: Claims
    key: IssuerKey
    token: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        return canonical.dumps(msgspec.to_builtins(self))

    def validation(self, key: bytes, *, earlier: tuple[Key, ...], tenure: int, previous: str | None) -> Validation:
        """Return the statement of `key` (Ed25519) that this is the evidence of. `earlier`: other keys that still sign."""
        data, did, multikey = self.encode(), self.claims.did, encode_multikey(key)
        return Validation(
            did=did,
            document=Blob(canonical.hex_digest(data), len(data)),
            keys=(Key(f"{did}#{multikey}", multikey), *earlier),
            tenure=tenure,
            previous=previous,
            method="oidc",
            account=self.claims.repository_owner_id,
            workflow=self.claims.job_workflow_ref,
        )


def audience(origin: str, multikey: str) -> str:
    """Return the audience of a token that proves this key to the log `origin`."""
    return f"treaty:{origin}:{multikey}"


def read_evidence(data: bytes) -> WorkflowEvidence:
    """Parse evidence strictly. Raises `Malformed` or `TooLarge` (`token.invalid`, `canonical.*`)."""
    value = canonical.loads(data, limit=MAX_DID_DOCUMENT, name="evidence")
    evidence = convert(value, WorkflowEvidence)
    # An unknown claim would be a second spelling of the same evidence.
    if evidence.encode() != data:
        raise Malformed(TokenCode.INVALID, "The evidence has claims that this release does not know.")
    return evidence


def convert(value: object, kind: type[_K]) -> _K:
    """Read claims, a key or evidence. Raises `Malformed` (`token.invalid`)."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Malformed(TokenCode.INVALID, f"The token of a workflow is not valid: {error}.") from error


def check_claims(claims: Claims, *, origin: str, multikey: str, now: int) -> None:
    """Check that a workflow of the account proves this key to this log now.

    Raises `Unauthorized` (`token.invalid`) or `Malformed` (`did.syntax`).
    """
    did = parse_did(claims.did)
    if claims.iss != ISSUERS[did.host or ""]:
        raise _refused(f"it is issued by {claims.iss[:80]!r}, and accounts of {did.host} are proved by {ISSUERS[did.host or '']}")
    if claims.aud != audience(origin, multikey):
        raise _refused(
            "it is meant for another registry or another key", fix=f"Ask for the audience {audience(origin, multikey)}"
        )
    # `nbf` too: a token that is valid later was made to be kept.
    if not max(claims.iat, claims.nbf) - SKEW <= now <= claims.exp + SKEW or not 0 < claims.exp - claims.iat <= MAX_LIFETIME:
        raise _refused("it is not valid now", fix="Ask for a new token, and compare the clocks.")
    if claims.event_name not in EVENTS:
        raise _refused(
            f"the event {claims.event_name[:40]!r} may run a stranger's change in the name of the owner",
            fix=f"Publish on one of the events {', '.join(sorted(EVENTS))}.",
        )
    owner, separator, _ = claims.repository.partition("/")
    started, steps = _WORKFLOW.fullmatch(claims.workflow_ref), _WORKFLOW.fullmatch(claims.job_workflow_ref)
    # The workflow that began is the owner's. Its steps may be in a reusable workflow of others, which the statement names.
    if not separator or owner.lower() != claims.repository_owner.lower() or started is None or steps is None:
        raise _refused("its repository, owner and workflow do not belong together")
    if started[1].lower() != claims.repository.lower():
        raise _refused("its workflow is of another repository")


def check_evidence(data: bytes, stated: Validation, *, log: str, issued: int) -> WorkflowEvidence:
    """Check everything in a validation that follows from its evidence, and return that. Raises as `read_evidence` and
    `check_claims`.

    What it cannot check, the operator attests: that the token verified under the key, and that the issuer had that key.
    """
    evidence = read_evidence(data)
    check_claims(evidence.claims, origin=log, multikey=stated.keys[0].multikey, now=issued)
    claims = evidence.claims
    if (claims.did, claims.repository_owner_id, claims.job_workflow_ref) != (stated.did, stated.account, stated.workflow):
        raise _refused("the statement names another account or workflow")
    return evidence


def _refused(why: str, *, fix: str = "") -> Unauthorized:
    return Unauthorized(TokenCode.INVALID, f"The token of the workflow is refused: {why}.", fix=fix)
