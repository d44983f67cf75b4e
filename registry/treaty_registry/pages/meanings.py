"""Explain the entries of the log: a sentence for each kind and for each member, and links to the resources they name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote

from treaty_consensus import kinds
from treaty_consensus.errors import TreatyError
from treaty_consensus.protocol import parse_protocol_uri


class LinkedText(NamedTuple):
    """A value, and the path of the page about it, if there is one. `is_block`: a text of several lines."""

    text: str
    href: str | None = None
    is_block: bool = False


SAYS: Mapping[str, str] = {
    "genesis": "The log begins: it names itself, its keys and its operator.",
    "identity": "The registry read the keys of an agent's domain.",
    "validation": "The registry checked who holds a name that has no DID document, such as an account of GitHub.",
    "grant": "An agent lets another one publish in its namespace, or takes that back.",
    "publish": "A version of a protocol is published.",
    "handler": "Code for a protocol is attached.",
    "status": "A publisher changes the status of a protocol or of a handler.",
    "report": "Two agents report whether they agreed on a protocol.",
    "ballot": "An agent votes in a topic.",
    "vouch": "An agent vouches for another one, or takes that back.",
    "parameters": "The operator states the constants of the elections.",
    "decision": "An epoch closed: this is the result of a topic.",
    "withdrawal": "The operator no longer serves some bytes. Their hash stays in the log.",
    "rotation": "The operator changes the keys of the log.",
    "certificate": "The registry issued a signing certificate to an agent.",
    "hashedrekord": "An agent's signature of a file was recorded.",
    "unknown": "This page cannot decode the leaf.",
}
SIGSTORE: Mapping[str, str] = {
    "digest": "The SHA-256 of what was signed.",
    "signature": "The signature, in base64. The certificate below has its key.",
    "subject": "The agent that proved its DID to get the certificate.",
    "valid": "The certificate's key may sign only in this short time.",
    "serial": "The number of the certificate.",
}
_ANYWHERE: Mapping[str, str] = {
    "topic": "The topic that this is about.",
    "uri": "The protocol's URI.",
    "document": "The protocol's text, by its SHA-256.",
    "seq": "A counter. Each new ballot or vouch of the same author has the next number, so none can be repeated.",
    "seen_checkpoint": "The newest state of the log that the author had seen. So each author also witnesses the log.",
    "epoch": "The epoch, counted from 0.",
    "rule": "The name of the election rule.",
    "electorate": "Who counts: open means weights from trust, development means one vote a domain.",
    "to": "The other agent.",
    "withdrawn": "Whether this takes an earlier statement back.",
    "sha256": "The SHA-256 of the bytes.",
    "wheel": "The handler's package, by its SHA-256.",
}
_MEMBERS: Mapping[str, Mapping[str, str]] = {
    "genesis": {
        "origin": "The name of the log, which every statement repeats.",
        "log_key": "The key that signs the log's checkpoints.",
        "clock_key": "The key that states the time of a checkpoint.",
        "operator": "The DID of the operator.",
        "trusted_root": "The SHA-256 of the certificates that handlers' signatures lead to.",
    },
    "identity": {
        "did": "The agent.",
        "document": "The DID document as it was read, by its SHA-256.",
        "keys": "The keys that may sign for the agent.",
        "tenure": "How often the DID has changed hands, from 1. A new owner inherits nothing.",
        "previous": "The identity statement before this one.",
    },
    "validation": {
        "did": "The name.",
        "document": "What the operator saw, by its SHA-256: the claims of a token, without the token.",
        "keys": "The keys that may sign. The first was proved now.",
        "tenure": "How often the name has changed hands, from 1.",
        "previous": "The validation before this one.",
        "method": "How it was checked: by a token of a workflow (oidc), or by a record (dns).",
        "account": "The number of the account. Another account of the same name has another one.",
        "workflow": "The file whose steps ran.",
    },
    "grant": {"namespace": "The namespace to publish in."},
    "publish": {
        "card": "The short description, by its SHA-256.",
        "origin": "Whether agents negotiated it or a publisher wrote it as a standard.",
        "aliases": "Names elsewhere that the publisher claims for it.",
        "base.uri": "The protocol that this one changes.",
        "base.document": "The text of the protocol that this one changes.",
    },
    "handler": {
        "filename": "The name of the package's file.",
        "entry_point": "Where in the package the handler begins.",
        "bundle": "The proof of who signed the package, by its SHA-256.",
    },
    "status": {"state": "The new status.", "successor": "The protocol to use instead."},
    "report": {
        "nid": "The number of the negotiation. It is a hash over both agents and their random numbers.",
        "document": "The text that they agreed on, by its SHA-256.",
        "outcome": "Whether they agreed.",
    },
    "ballot": {"tiers": "The ranking, best first. A line with several choices is a tie. Below none nothing is accepted."},
    "vouch": {"to": "The agent that is trusted."},
    "decision": {
        "parameters": "The constants that applied.",
        "input.size": "The number of leaves that were counted.",
        "input.root": "The root of the log at that size.",
        "input.witnessed": "The checkpoint of that size with the cosignatures of witnesses.",
        "remaining": "The number of decisions of the same epoch that follow.",
        "transcript": "Every vote and number of the count, by its SHA-256.",
        "roll": "All voters and their weights, by its SHA-256.",
        "states": "Each document and its state from now on.",
        "consensus": "The document that won.",
        "previous": "The topic's decision before this one.",
    },
    "parameters": {
        "memory_horizons": "The horizons for which the newest report of two members speaks for what they use.",
        "horizon_epochs": "The epochs in which a report makes candidates, and a vote halves unless it is used.",
        "candidate_pairs": "The pairs of agents that must report a protocol before it is a candidate.",
        "candidate_clusters": "The clusters that these agents must be from, at least.",
        "candidate_share": "Reporters of a candidate weigh at least all votes that are not for it, divided by this.",
        "max_candidates": "The largest number of candidates in a topic.",
        "quorum_share": "The quorum is all votes that are not for a protocol, divided by this less one.",
        "cluster_share": "The support of a protocol is what so many clusters of one size would give.",
        "provisional_share": "To stay elected, the quorum divided by this is enough.",
        "over_none": "A consensus needs this ratio of votes against no consensus.",
        "over_incumbent": "A successor needs this ratio of votes against the present consensus.",
        "sustain_epochs": "The epochs for which a protocol must hold its lead.",
        "dormant_epochs": "The epochs without enough support after which a consensus is dormant.",
        "suspect_epochs": "The epochs for which a warning stands.",
        "credit.report_share": "Of standing: a confirmed report earns at most a full credit divided by this.",
        "credit.epochs": "Of standing: the epochs in which a report can be confirmed.",
        "credit.pairs": "Of standing: after this number of credits with the same other agent, the next one is half as large.",
        "epoch_seconds": "The length of an epoch in seconds.",
        "reputation.anchors": "The domains where trust starts.",
        "reputation.suffix_list": "The Public Suffix List, which tells the domains of owners apart.",
        "reputation.rounds": "The rounds in which trust flows.",
        "reputation.max_vouches": "The newest vouches of a domain that are kept.",
        "reputation.least_vouches": "A domain that vouches for fewer does not spend all its trust.",
        "reputation.cap_share": "The cap on the trust of one domain leaves the held trust divided by this.",
        "reputation.loan_share": "Lent trust is lent on up to the cap divided by this.",
        "reputation.acquainted_epochs": "The epochs in which two agents agreed before a vouch between them counts.",
        "reputation.mature_epochs": "The age in epochs from which a domain weighs its whole.",
        "reputation.counterparties": "The counterparties in a topic from which a domain weighs its whole there.",
        "reputation.counterparty_share": "A counterparty has trust of at least the cap divided by this.",
        "witnesses.keys": "The witnesses whose cosignatures a decision needs.",
        "witnesses.quorum": "The number of these cosignatures.",
    },
    "withdrawal": {"reason": "Why the bytes are gone."},
    "rotation": {
        "log_key": "The key that signs the log's checkpoints from this leaf on.",
        "clock_key": "The key that states the time of a checkpoint from this leaf on.",
        "until": "The keys before them sign too until this time.",
        "proof": "The agreement of the old and the new keys.",
        "authority.ca": "The next certificate authority of the registry's Sigstore services, which signs from then on.",
        "authority.ct_key": "Its key of the time in each signing certificate.",
        "authority.tsa": "The next timestamp authority, and the certificate above it.",
        "authority.proofs": "The agreement of the keys of the next authority.",
    },
}
_RATIOS = frozenset({"over_none", "over_incumbent"})
_BLOBS = frozenset({"card", "bundle", "transcript", "roll", "wheel", "sha256", "reputation.suffix_list"})
_DOCUMENTS = frozenset({"document", "base.document", "consensus"})
_STATEMENTS = frozenset({"previous", "parameters"})


def meaning(kind: str, member: str) -> str:
    """Return the meaning of a member of a statement."""
    text = _MEMBERS.get(kind, {}).get(member) or _ANYWHERE.get(member)
    return text or ("A constant of the election." if kind == "parameters" else "")


def about(body: kinds.Body, origin: str) -> LinkedText | None:
    """Return the subject of a statement, or None when it has none beside its author."""
    match body:
        case kinds.Publish(uri=uri) | kinds.Handler(uri=uri) | kinds.Status(uri=uri):
            return protocol(uri, origin)
        case kinds.Ballot(topic=topic) | kinds.Report(topic=topic) | kinds.Decision(topic=topic):
            return LinkedText(topic, f"/topics/{topic}")
        case kinds.Identity(did=did):
            return agent(did)
        case kinds.Vouch(to=did) | kinds.Grant(to=did):
            return agent(did)
    return None


def checks(body: kinds.Body) -> tuple[str, ...]:
    """Return the commands that check this entry without this page."""
    match body:
        case kinds.Publish(uri=uri) | kinds.Handler(uri=uri) | kinds.Status(uri=uri):
            return f"treaty verify {uri}", "treaty audit"
        case kinds.Decision(topic=topic):
            return f"treaty topic {topic}", f"treaty audit --topic {topic}"
    return ("treaty audit",)


def protocol(uri: str, origin: str) -> LinkedText:
    """Return a protocol's URI, with a link when it is of this registry."""
    try:
        parsed = parse_protocol_uri(uri)
    except TreatyError:
        return LinkedText(uri)
    is_here = uri.startswith(f"https://{origin}/")
    return LinkedText(uri, f"/protocols/{parsed.namespace}/{parsed.name}/{parsed.version}" if is_here else None)


def agent(did: str) -> LinkedText:
    """Return a DID with a link to its page."""
    return LinkedText(did, f"/identities/{quote(did, safe=':')}" if did.startswith("did:") else None)


def links(kind: str, member: str, value: object, origin: str) -> Iterator[LinkedText]:
    """Yield the values of a member of a statement of this kind, each with a link to the resource it names."""
    match value:
        case {"sha256": str(digest), "size": int(size)}:
            # The document of an identity is a DID document, and that of a publication a protocol.
            is_protocol = kind == "publish" and member in _DOCUMENTS
            yield LinkedText(f"{digest} ({size:,} bytes)", f"/hashes/{digest}" if is_protocol else f"/blobs/sha256/{digest}")
        case {"id": str(id_), "multikey": str(key)}:
            yield LinkedText(f"{id_} = {key}")
        case list() | tuple() if member in ("tiers", "states"):
            for row in value:
                document = (
                    next((choice for choice in row if len(choice) == 64), None) if len(row) == 1 or member == "states" else None
                )
                text = (" = " if member == "tiers" else " becomes ").join(map(str, row))
                yield LinkedText(text, document and f"/hashes/{document}")
        case list() | tuple() if member in _RATIOS:
            yield LinkedText(" : ".join(map(str, value)))
        case list() | tuple():
            for one in value:
                yield from links(kind, member, one, origin)
        case str() if "\n" in value:
            yield LinkedText(value, is_block=True)
        case str():
            yield LinkedText(value, _href(member, value, origin))
        case bool():
            yield LinkedText("yes" if value else "no")
        case _:
            yield LinkedText(f"{value:,}" if isinstance(value, int) else str(value))


def _href(member: str, value: str, origin: str) -> str | None:
    if member in ("uri", "successor", "base.uri"):
        return protocol(value, origin).href
    if member == "topic":
        return f"/topics/{value}"
    if member in ("did", "to", "operator"):
        return agent(value).href
    if member in _STATEMENTS:
        return f"/statements/{value}"
    if member in _DOCUMENTS:
        return f"/hashes/{value}"
    return f"/blobs/sha256/{value}" if member in _BLOBS else None
