"""Decode the leaves of the log for people: the kind of each, its author, and every member with its meaning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
from cryptography import x509

from treaty_consensus import statement
from treaty_consensus.canonical import b64encode
from treaty_consensus.errors import Malformed, TooLarge
from treaty_consensus.kinds import Blob
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.sigstore_leaf import CertificateLeaf, parse_sigstore_leaf
from treaty_consensus.statement import Statement

from . import meanings
from .meanings import Link

MAX_VALUES = 24
"""The values of one member that are shown. The JSON below them has all."""
MAX_JSON = 24 * 1024
"""The characters of a statement's JSON that are shown."""


@dataclass(frozen=True)
class Member:
    """A member of an entry: its name, its meaning in a sentence, its first values, and the number of the others."""

    name: str
    meaning: str
    values: tuple[Link, ...]
    more: int = 0


@dataclass(frozen=True)
class EntrySignature:
    """A signature of an entry: the id of the key, and the signature in base64."""

    keyid: str
    sig: str


@dataclass(frozen=True)
class EntryView:
    """One leaf for people.

    `id`: of the statement; None for a leaf of the Sigstore services, which has none. `about`: the subject, with a link to it.
    """

    index: int
    hash: str
    size: int
    kind: str
    says: str
    id: str | None = None
    about: Link | None = None
    authors: tuple[str, ...] = ()
    issued: int | None = None
    members: tuple[Member, ...] = ()
    signatures: tuple[EntrySignature, ...] = ()
    json: str = ""
    is_cut: bool = False
    checks: tuple[str, ...] = ("treaty audit",)


def decode(index: int, leaf: bytes, origin: str) -> EntryView:
    """Return a leaf of the log `origin` for people. A leaf of an unknown form is shown as such. Never raises."""
    view = outline(index, leaf, origin)
    if view.id is None:
        return view
    made = statement.parse(leaf)
    text = _indented(made.payload)
    return replace(
        view,
        members=tuple(_members(made, origin)),
        signatures=tuple(EntrySignature(one["keyid"], one["sig"]) for one in msgspec.json.decode(leaf)["signatures"]),
        json=text[:MAX_JSON],
        is_cut=len(text) > MAX_JSON,
        checks=meanings.checks(made.body),
    )


def outline(index: int, leaf: bytes, origin: str) -> EntryView:
    """Return a leaf as lists show it: as `decode`, but a statement without its members, signatures and JSON."""
    try:
        made = statement.parse(leaf)
    except (Malformed, TooLarge):
        return _other(index, leaf)
    return EntryView(
        index=index,
        hash=leaf_hash(leaf).hex(),
        size=len(leaf),
        kind=made.type,
        says=meanings.SAYS[made.type],
        id=made.id,
        about=meanings.about(made.body, origin),
        authors=tuple(dict.fromkeys(did.text for did in made.authors)),
        issued=made.issued,
    )


def _members(made: Statement, origin: str) -> Iterator[Member]:
    for name, value in msgspec.to_builtins(made.body).items():
        typed = getattr(made.body, name)
        # Structs within a body are shown member by member.
        nested = value.items() if isinstance(value, dict) and not isinstance(typed, Blob) else ((None, value),)
        for part, one in nested:
            label = name if part is None else f"{name}.{part}"
            links = list(meanings.links(made.type, label, one, origin))
            yield Member(label, meanings.meaning(made.type, label), tuple(links[:MAX_VALUES]), max(0, len(links) - MAX_VALUES))


def _other(index: int, leaf: bytes) -> EntryView:
    """Return a leaf that is no statement."""
    view = EntryView(index, leaf_hash(leaf).hex(), len(leaf), "unknown", meanings.SAYS["unknown"])
    try:
        found = parse_sigstore_leaf(leaf)
    except (Malformed, TooLarge):
        return view
    text = _indented(leaf)
    view = replace(view, json=text[:MAX_JSON], is_cut=len(text) > MAX_JSON)
    if isinstance(found, CertificateLeaf):
        return replace(view, kind="certificate", says=meanings.SAYS["certificate"], members=tuple(_certificate(found.der)))
    record = (
        Member("digest", meanings.SIGSTORE["digest"], (Link(found.digest.hex()),)),
        Member("signature", meanings.SIGSTORE["signature"], (Link(b64encode(found.signature)),)),
    )
    members = (*record, *_certificate(found.certificate))
    return replace(view, kind="hashedrekord", says=meanings.SAYS["hashedrekord"], members=members)


def _certificate(der: bytes) -> Iterator[Member]:
    """Yield what an X.509 certificate says. Bytes that are none yield nothing: a leaf does not prove that they are one."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        from_, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        serial = certificate.serial_number
    except (ValueError, x509.ExtensionNotFound):
        return
    yield Member("subject", meanings.SIGSTORE["subject"], tuple(meanings.agent(uri) for uri in uris[:MAX_VALUES]))
    span = f"{from_:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC"
    yield Member("valid", meanings.SIGSTORE["valid"], (Link(span),))
    yield Member("serial", meanings.SIGSTORE["serial"], (Link(f"{serial:x}"),))


def _indented(data: bytes) -> str:
    return msgspec.json.format(data, indent=2).decode("utf-8")
