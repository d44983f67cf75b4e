"""Describe a leaf of the log in one sentence, and name the subjects that it concerns.

A *subject* is a name that has an owner: a DID, a namespace, a topic, a protocol or a file. A leaf concerns a subject if it is
signed in its name, states something about it, or claims it. Whether a leaf keeps the rules of the log is for `admit`: a forged
leaf concerns its victim too.

    did         a DID: an author, or the object of an identity, a grant, a vouch or a certificate
    namespace   the owner of a protocol's URI; of a DID, the namespace that it owns; of an alias, the host in it
    domain      the host of a namespace with a path; the owner of the host wants to know of these too
    topic       the topic of a publication, a report, a ballot or a decision
    protocol    a protocol's URI, with its version and without it
    file        the SHA-256 of bytes: a handler's wheel, a withdrawn blob, a file that was signed
    constitution    the constants of the elections; its name is `parameters`, as a log has one

>>> event_of(0, b"{}").kind
'unknown'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from . import kinds, statement
from .did import Did, parse_did
from .errors import Malformed, TooLarge, TreatyError
from .log.merkle import leaf_hash
from .printable import short
from .protocol import parse_protocol_uri
from .rotation import Rotation
from .sigstore_leaf import CertificateLeaf, RekordLeaf, parse_sigstore_leaf

# The host of a URL of any scheme, without a user name and a port.
_ALIAS_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#]*@)?([^/?#:@]+)")
_NAMED = 8  # holders of a certificate that a sentence names

SubjectKind: TypeAlias = Literal["did", "namespace", "domain", "topic", "protocol", "file", "constitution"]


class Subject(NamedTuple):
    """A name that has an owner."""

    kind: SubjectKind
    name: str


CONSTITUTION: Final = Subject("constitution", "parameters")


@dataclass(frozen=True)
class LogEvent:
    """What a leaf says.

    `kind`: the type of the statement, `certificate`, `hashedrekord`, or `unknown`. `id`: of the statement; of another leaf its
    hash. `authors`: DIDs. `issued`: Unix seconds by the author; None for a leaf that is no statement. `sentence`: for people; it
    contains foreign text.
    """

    index: int
    kind: str
    id: str
    sentence: str
    subjects: frozenset[Subject]
    authors: tuple[str, ...] = ()
    issued: int | None = None
    body: kinds.Body | None = None


def event_of(index: int, leaf: bytes) -> LogEvent:
    """Describe leaf `index`. A leaf of an unknown form is described as such. Never raises."""
    try:
        parsed = statement.read(leaf)
    except (Malformed, TooLarge):
        return _sigstore_event(index, leaf)
    authors = tuple(dict.fromkeys(did.text for did in parsed.authors))
    subjects = {*_of_body(parsed.body)}
    for did in parsed.authors:
        subjects.update(_of_did(did))
    sentence = _sentence(parsed.body, " and ".join(authors))
    return LogEvent(index, parsed.type, parsed.id, sentence, frozenset(subjects), authors, parsed.issued, parsed.body)


def _sigstore_event(index: int, leaf: bytes) -> LogEvent:
    id_ = leaf_hash(leaf).hex()
    try:
        sigstore_leaf = parse_sigstore_leaf(leaf)
    except (Malformed, TooLarge):
        return LogEvent(index, "unknown", id_, "This leaf is none of a registry's log.", frozenset())
    der = sigstore_leaf.der if isinstance(sigstore_leaf, CertificateLeaf) else sigstore_leaf.certificate
    dids = certified_dids(der)
    if dids is None:
        return LogEvent(index, "unknown", id_, "The certificate in this leaf cannot be read.", frozenset())
    subjects = {subject for did in dids for subject in _of_did(did)}
    names = [did.text for did in dids[:_NAMED]] + ([f"{len(dids) - _NAMED} more"] if len(dids) > _NAMED else [])
    holder = " and ".join(names) or "an unknown holder"
    if isinstance(sigstore_leaf, RekordLeaf):
        digest = sigstore_leaf.digest.hex()
        sentence = f"A key that is certified for {holder} signed {short(digest)}."
        return LogEvent(index, "hashedrekord", id_, sentence, frozenset({*subjects, Subject("file", digest)}))
    sentence = f"The registry certified a signing key for {holder}."
    return LogEvent(index, "certificate", id_, sentence, frozenset(subjects))


def certified_dids(der: bytes) -> tuple[Did, ...] | None:
    """Return the DIDs that an X.509 certificate names as its subject. None: it cannot be read, so it may name any."""
    from cryptography import x509  # here: most readers of a log meet few certificates, and the import is slow

    try:
        certificate = x509.load_der_x509_certificate(der)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        return ()
    except Exception:  # foreign bytes, in a parser whose errors have no common base
        return None
    dids = []
    # All of them: a verifier accepts a certificate by any of its names. A leaf bounds their number.
    for uri in uris:
        try:
            dids.append(parse_did(uri))
        except TreatyError:
            continue
    return tuple(dids)


def _of_did(did: Did) -> Iterator[Subject]:
    yield Subject("did", did.text)
    # Also for a DID with a port, which owns no namespace: it uses the name of the host.
    yield from _of_namespace(did.text if did.host is None else ":".join((did.host, *did.path)))


def _of_namespace(namespace: str) -> Iterator[Subject]:
    yield Subject("namespace", namespace)
    host, _, path = namespace.partition(":")
    if path and host != "did":
        yield Subject("domain", host)


def _of_uri(uri: str) -> Iterator[Subject]:
    yield Subject("protocol", uri)
    try:
        parsed = parse_protocol_uri(uri)
    except TreatyError:
        return
    yield Subject("protocol", uri.rpartition("/")[0])
    yield from _of_namespace(parsed.namespace)


def _of_alias(alias: str) -> Iterator[Subject]:
    """Yield the subjects that an alias claims. An alias is any printable text."""
    yield from _of_uri(alias)
    with suppress(TreatyError):
        yield from _of_did(parse_did(alias))
    if match := _ALIAS_HOST.match(alias):
        yield Subject("namespace", match[1].lower().rstrip("."))


def _of_body(body: kinds.Body) -> Iterator[Subject]:
    match body:
        case kinds.Identity(did=did) | kinds.Vouch(to=did):
            yield from _of_did(parse_did(did))
        case kinds.Grant(namespace=namespace, to=did):
            yield from _of_namespace(namespace)
            yield from _of_did(parse_did(did))
        case kinds.Publish(uri=uri, topic=topic, aliases=aliases):
            yield Subject("topic", topic)
            yield from _of_uri(uri)
            for alias in aliases:
                yield from _of_alias(alias)
        case kinds.Handler(uri=uri, wheel=wheel):
            yield Subject("file", wheel.sha256)
            yield from _of_uri(uri)
        case kinds.Status(uri=uri, wheel=digest, successor=successor):
            yield from _of_uri(uri)
            if digest is not None:
                yield Subject("file", digest)
            if successor is not None:
                yield from _of_uri(successor)
        case kinds.Report(topic=topic) | kinds.Ballot(topic=topic) | kinds.Decision(topic=topic):
            yield Subject("topic", topic)
        case kinds.Withdrawal(sha256=digest):
            yield Subject("file", digest)
        case kinds.Parameters():
            yield CONSTITUTION
        case kinds.Newer(kind="parameters"):
            yield CONSTITUTION
        case kinds.Newer(topic=topic) if topic:
            yield Subject("topic", topic)


def _sentence(body: kinds.Body, author: str) -> str:
    match body:
        case kinds.Validation(did=did, keys=keys, tenure=tenure, method=method, workflow=workflow):
            proof = f"a token of the workflow {workflow}" if workflow else f"a record of its {method.upper()}"
            return f"The operator states that {did} showed it {proof}, for the key {keys[0].id} (tenure {tenure})."
        case kinds.Identity(did=did, keys=keys, tenure=tenure):
            return f"The operator states that {did} has the keys {_listed(key.id for key in keys)} (tenure {tenure})."
        case kinds.Grant(namespace=namespace, to=to, withdrawn=withdrawn):
            verb = "no longer lets" if withdrawn else "lets"
            return f"{author} {verb} {to} publish in {namespace}."
        case kinds.Publish(uri=uri, topic=topic, aliases=aliases):
            claims = f", and claims the names {_listed(aliases)}" if aliases else ""
            return f"{author} publishes {uri} in {topic}{claims}."
        case kinds.Handler(uri=uri, wheel=wheel):
            return f"{author} attaches the handler {short(wheel.sha256)} to {uri}."
        case kinds.Status(uri=uri, state=state, wheel=wheel, successor=successor):
            about = f"the handler {short(wheel)} of {uri}" if wheel else uri
            instead = f", with the successor {successor}" if successor else ""
            return f"{author} declares {about} {state}{instead}."
        case kinds.Report(topic=topic, outcome=outcome):
            return f"{author} report a negotiation in {topic}: {outcome}."
        case kinds.Ballot(topic=topic, tiers=tiers):
            return f"{author} votes in {topic}." if tiers else f"{author} withdraws its vote in {topic}."
        case kinds.Vouch(to=to, withdrawn=withdrawn):
            return f"{author} no longer vouches for {to}." if withdrawn else f"{author} vouches for {to}."
        case kinds.Decision(topic=topic, epoch=epoch, consensus=consensus):
            result = f"the consensus is {short(consensus)}" if consensus else "there is no consensus"
            return f"Epoch {epoch} is decided in {topic}: {result}."
        case kinds.Withdrawal(sha256=digest, reason=reason):
            return f"The operator no longer serves the bytes {short(digest)} ({reason})."
        case Rotation(log_key=log_key, clock_key=clock_key, authority=authority):
            sentence = f"The operator rotates the keys of the log: {log_key} signs, and {clock_key} states the time."
            return f"{sentence} It names the next Sigstore authority." if authority else sentence
        case kinds.Newer(kind=kind):
            return f"{author} makes a {kind} statement that only a newer release understands."
        case kinds.Parameters():
            return "The operator states the constants of the elections."
    return "The log begins."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
