"""Read from the blobs of a handler what a catalogue shows of it: the kind of its signer, and the coverage of its vectors.

Both are claims of the package. Nothing is verified here: agents check the signature of the bundle in step 8, and can replay the
vectors. Admission reads them in its process with limits (`admission.content_process`).
`rebuild` reads them again from the blobs, and gets the same: no limit here depends on time.

The bytes are foreign. Their number is bounded before they are parsed, each vector is read once, and no fault of theirs raises.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from cryptography import x509
from cryptography.x509.oid import ObjectIdentifier

from treaty_consensus import canonical
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import HandlerPackage, Manifest, read_wheel
from treaty_consensus.kinds import MAX_BUNDLE, Handler
from treaty_consensus.protocol import parse_protocol_uri
from treaty_consensus.sigstore_leaf import MAX_CERTIFICATE
from treaty_consensus.sigstore_token import issuer_url

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

_ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_ISSUER_V2 = ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
_UTF8_STRING, _SHORT = 0x0C, 0x80  # DER: the tag, and the first length that needs more than one byte
# What parsers and look-ups raise on foreign values of another form than expected.
_FAULTS = (TreatyError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


class HandlerFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`signer`: `did`, a name of `ISSUERS`, or `other`. `coverage`: one of `COVERAGE`, of the pairs of role and operation that
    vectors reach. None: the bytes do not say it, or are withdrawn."""

    signer: str | None = None
    coverage: str | None = None


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
        None if bundle is None else _signer(bundle, issuer_url(origin)), None if package is None else _coverage(package)
    )


def _signer(bundle: bytes, own: str) -> str | None:
    """Return the kind of signer of a Sigstore bundle. `own`: the issuer of the registry's authority, which certifies DIDs."""
    try:
        material = canonical.parse_json(bundle, limit=MAX_BUNDLE, name="Sigstore bundle")["verificationMaterial"]
        # The one certificate of a bundle v0.3, or the first of the chain of an older one.
        held = material["certificate"] if "certificate" in material else material["x509CertificateChain"]["certificates"][0]
        certificate = x509.load_der_x509_certificate(canonical.b64decode(held["rawBytes"], limit=MAX_CERTIFICATE))
        issuer = _issuer(certificate)
    except _FAULTS:
        return None
    if issuer == own:
        return DID
    # Enterprises have issuers below GitHub's.
    return next((name for name, url in ISSUERS.items() if issuer == url or issuer.startswith(f"{url}/")), OTHER)


def _issuer(certificate: x509.Certificate) -> str:
    """Return the OIDC issuer of a Fulcio certificate. Raises `LookupError` when it has none, and `ValueError`."""
    values = {extension.oid: extension.value for extension in certificate.extensions}
    value = values.get(_ISSUER_V2) or values[_ISSUER]
    raw = value.value if isinstance(value, x509.UnrecognizedExtension) else b""
    # A DER string of less than 128 bytes has a head of two; no known issuer is longer.
    if _ISSUER_V2 in values and raw[:1] == bytes((_UTF8_STRING,)) and raw[1] < _SHORT:
        raw = raw[2:]
    return raw.decode("utf-8")


def _coverage(package: HandlerPackage) -> str:
    """Return how many pairs of role and operation the vectors of a package reach: none, some or all of them."""
    # Here, because the registry's process never parses vectors, and starts sooner without these.
    from treaty_client.authoring.coverage import cells_of, is_outcome
    from treaty_client.sandbox.vectors import parse_vector

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
