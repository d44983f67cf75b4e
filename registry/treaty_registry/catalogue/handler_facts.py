"""Read from the blobs of a handler what a catalogue shows of it: the kind of its signer, the coverage of its vectors, and what
METADATA says to installers.

All are claims of the package. Nothing is verified here: agents check the signature of the bundle in step 8, and can replay the
vectors. Admission reads them in its process with limits (`admission.content_process`).
`rebuild` reads them again from the blobs, and gets the same: no limit here depends on time.

The bytes are foreign. Their number is bounded before they are parsed, each vector is read once, and no fault of theirs raises.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from packaging.metadata import parse_email
from packaging.specifiers import SpecifierSet

from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import HandlerPackage, Manifest, read_wheel
from treaty_consensus.kinds import Handler
from treaty_consensus.protocol import parse_protocol_uri
from treaty_consensus.sigstore_token import issuer_url

from .signatures import read_signature

DID, SIGSTORE, OTHER = "did", "sigstore", "other"
ISSUERS: Mapping[str, str] = {
    "github-actions": "https://token.actions.githubusercontent.com",
    "gitlab": "https://gitlab.com",
    "google": "https://accounts.google.com",
    "github": "https://github.com/login/oauth",
    "microsoft": "https://login.microsoftonline.com",
}
"""The OIDC issuers of Sigstore's public instance that most signers have, by the names that search gives them."""
COVERAGE = ("none", "some", "all")
MAX_VECTORS = 1024 * 1024
"""Bytes of vectors that are read, in the order of their names. Parsing more would cost a commit too much."""

MAX_REQUIRES = 200
"""Characters of a specifier."""

# What parsers and look-ups raise on foreign values of another form than expected.
_FAULTS = (TreatyError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


class PackageFacts(msgspec.Struct, frozen=True):
    """`metadata`: the SHA-256 of METADATA, in hexadecimal. `requires_python`: a valid specifier that it has, or None."""

    metadata: str
    requires_python: str | None = None


class HandlerFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`signer`: `did`, a name of `ISSUERS`, or `other`. `coverage`: one of `COVERAGE`, of the pairs of role and operation that
    vectors reach. None: the bytes do not say it, or are withdrawn."""

    signer: str | None = None
    coverage: str | None = None
    package: PackageFacts | None = None


def read_facts(body: Handler, wheel: bytes | None, bundle: bytes | None) -> HandlerFacts:
    """Return the facts of a handler whose blobs were admitted. None: they were withdrawn. CPU-bound. Never raises."""
    try:
        package = None if wheel is None else read_wheel(body.filename, wheel)
    except _FAULTS:
        package = None
    return facts_of(body, package, bundle)


def facts_of(body: Handler, package: HandlerPackage | None, bundle: bytes | None) -> HandlerFacts:
    """Do the same for a wheel that was read. Never raises."""
    origin = parse_protocol_uri(body.uri).origin
    return HandlerFacts(
        None if bundle is None else _signer(bundle, issuer_url(origin)),
        None if package is None else _coverage(package),
        None if package is None else PackageFacts(hex_digest(package.metadata), _requires_python(package.metadata)),
    )


def _signer(bundle: bytes, own: str) -> str | None:
    """Return the kind of signer of a Sigstore bundle. `own`: the issuer of the registry's authority, which certifies DIDs."""
    try:
        issuer = read_signature(bundle).issuer
    except TreatyError:
        return None
    if not issuer:
        return None
    if issuer == own:
        return DID
    # Enterprises have issuers below GitHub's.
    return next((name for name, url in ISSUERS.items() if issuer == url or issuer.startswith(f"{url}/")), OTHER)


def _requires_python(metadata: bytes) -> str | None:
    """Return the Pythons that a package wants. An installer may refuse a whole project for one text that it cannot parse."""
    try:
        text = str(parse_email(metadata)[0].get("requires_python", ""))
        return text if text and len(text) <= MAX_REQUIRES and SpecifierSet(text) else None
    except _FAULTS:
        return None


def _coverage(package: HandlerPackage) -> str:
    """Return how many pairs of role and operation the vectors of a package reach: none, some or all of them."""
    # Here, because the registry's process never parses vectors, and starts sooner without these.
    from treaty_client.authoring.coverage import cells_of, is_outcome
    from treaty_sandbox.vectors import parse_vector

    left, reached = MAX_VECTORS, set[tuple[str, str]]()
    pairs = _pairs(package.manifest)
    for name, data in sorted(package.vectors.items()):
        left -= len(data)
        if left < 0:
            break
        try:
            cells = list(cells_of(parse_vector(name, data)))
            reached.update((c.role, c.operation) for c in cells if is_outcome(package.manifest, c))
        except _FAULTS:
            continue
    none, some, every = COVERAGE
    return none if not reached else every if reached >= pairs else some


def _pairs(manifest: Manifest) -> set[tuple[str, str]]:
    return {(role.name, operation) for role in manifest.roles.values() for operation in (*role.calls, *role.invokes)}
