"""Vectors of what a log holds: statements, names, and an election. `made_vectors` joins them with those of the wire."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from signers import NOW, ORIGIN, Signer, domain_signer, identity_body, key_signer, signed
from simulated_log import ANCHORS, SUFFIX_LIST, LogBuilder

from treaty_consensus import canonical, did, kinds, protocol, statement
from treaty_consensus.election.defaults import development_parameters, open_parameters
from treaty_consensus.errors import TreatyError
from treaty_consensus.log.checkpoint import KeyTerm
from treaty_consensus.log.merkle import leaf_hash
from treaty_consensus.log.note import KeyType, SignerKey, sign
from treaty_consensus.rotation import Rotation, rotation_text

LOG_KEY = SignerKey(ORIGIN, KeyType.ED25519, canonical.sha256(b"log key"))
CLOCK_KEY = SignerKey(f"{ORIGIN}/clock", KeyType.COSIGNATURE, canonical.sha256(b"clock key"))
ALICE, BOB, OPERATOR = domain_signer("alice.example"), domain_signer("bob.example"), key_signer("operator")
DOCUMENT = b"# Greeting\n\nOne message: `hello`.\n"
CARD = protocol.Card("Greeting", "Say hello.", ("greeting",), "Apache-2.0")
URI = f"https://{ORIGIN}/protocols/alice.example/greeting/1.0"
TOPIC = "social/greeting"
_DIGEST = canonical.hex_digest(DOCUMENT)


def refusal(read: Callable[[], object]) -> str:
    """The code of the error that something raises. Raises `ValueError` if it raises none: then it is no vector of a refusal."""
    try:
        read()
    except TreatyError as error:
        return error.code
    raise ValueError("this is accepted")


def _blob(data: bytes) -> kinds.Blob:
    return kinds.Blob(canonical.hex_digest(data), len(data))


def _bodies() -> list[tuple[kinds.Body, tuple[Signer, ...]]]:
    """One body of each kind, two where a kind has two forms."""
    checkpoint = LogBuilder().checkpoint()
    keys = str(LOG_KEY.verifier), str(CLOCK_KEY.verifier)
    wheel, bundle = _blob(b"a wheel"), _blob(b"a bundle")
    filename = "treaty_handler_greeting-1.0-py3-none-any.whl"
    decided = kinds.Input(40, canonical.hex_digest(b"root"))
    states: tuple[tuple[str, kinds.State], ...] = ((_DIGEST, "consensus"),)
    parameters = canonical.hex_digest(b"the parameters in force")
    transcript, roll = _blob(b"a transcript"), _blob(b"a roll")
    return [
        (kinds.Genesis(ORIGIN, *keys, OPERATOR.did, "0" * 64), (OPERATOR,)),
        (identity_body(ALICE), (OPERATOR,)),
        (kinds.Grant("alice.example", BOB.did), (ALICE,)),
        (kinds.Publish(URI, TOPIC, _blob(DOCUMENT), _blob(CARD.encode()), "negotiated"), (ALICE,)),
        (kinds.Handler(URI, _DIGEST, filename, wheel, "treaty_handler.declarative:handler", bundle), (ALICE,)),
        (kinds.Status(URI, "deprecated", successor=URI.replace("1.0", "2.0")), (ALICE,)),
        (kinds.Report(TOPIC, canonical.hex_digest(b"a negotiation"), _DIGEST, "agreed", 3, checkpoint), (BOB, ALICE)),
        (kinds.Ballot(TOPIC, 0, ((_DIGEST,), (kinds.NONE,)), checkpoint), (BOB,)),
        (kinds.Ballot(TOPIC, 1, (), checkpoint), (BOB,)),
        (kinds.Vouch(BOB.did, 0), (ALICE,)),
        (development_parameters(), (OPERATOR,)),
        (open_parameters(ANCHORS, SUFFIX_LIST, epoch_seconds=604_800), (OPERATOR,)),
        (
            kinds.Decision(
                TOPIC, 3, "schulze-margins-v2", "development", parameters, decided, 0, transcript, roll, states, _DIGEST
            ),
            (OPERATOR,),
        ),
        (kinds.Withdrawal(wheel.sha256, "malicious"), (OPERATOR,)),
        (rotation(), (OPERATOR,)),
        *((validation, (OPERATOR,)) for validation in _validations()),
    ]


def _validations() -> tuple[kinds.Validation, kinds.Validation]:
    """Of an account and of a domain."""
    multikey = did.encode_multikey(key_signer("a key").public_key)
    account, domain = "did:treaty:github.com:alice", "did:treaty:alice.example"
    workflow = "alice/protocols/.github/workflows/publish.yml@refs/tags/v1.0"
    key, recorded = (kinds.Key(f"{name}#{multikey}", multikey) for name in (account, domain))
    evidence = _blob(b"the evidence")
    return (
        kinds.Validation(account, evidence, (key,), 1, method="oidc", account="65", workflow=workflow),
        kinds.Validation(domain, evidence, (recorded,), 1, method="dns"),
    )


def rotation() -> Rotation:
    """From the keys of the log to two others."""
    log = SignerKey(ORIGIN, KeyType.ED25519, canonical.sha256(b"next log key"))
    clock = SignerKey(f"{ORIGIN}/clock", KeyType.COSIGNATURE, canonical.sha256(b"next clock key"))
    before, until = KeyTerm(LOG_KEY.verifier, CLOCK_KEY.verifier), NOW + 90 * 24 * 3600
    text = rotation_text(before, log.verifier, clock.verifier, until)
    proof = sign(text, [LOG_KEY, log, CLOCK_KEY, clock], time=NOW).decode()
    return Rotation(str(log.verifier), str(clock.verifier), until, proof)


def statements() -> dict[str, Any]:
    """One statement of each kind, and leaves that are refused."""
    keys = {signer.key_id: signer for signer in (ALICE, BOB, OPERATOR)}
    accepted = []
    for body, signers in _bodies():
        record = signed(body, *signers)
        accepted.append(
            {
                "kind": record.type,
                "payload": record.payload.decode(),
                "signing_input": canonical.b64encode(statement.pre_authentication_encoding(record.payload)),
                "leaf": record.leaf.decode(),
                "id": record.id,
                "leaf_hash": leaf_hash(record.leaf).hex(),
            }
        )
    return {
        "keys": {
            key_id: {"seed": signer.private_key.private_bytes_raw().hex(), "multikey": did.encode_multikey(signer.public_key)}
            for key_id, signer in keys.items()
        },
        "accepted": accepted,
        "refused": _refused_leaves(),
    }


def _refused_leaves() -> list[dict[str, str]]:
    good = signed(kinds.Vouch(BOB.did, 0), ALICE)
    text, payload = good.leaf.decode(), good.payload.decode()
    keys = {ALICE.key_id: ALICE.public_key}
    flipped = bytes([good.signatures[0][0] ^ 1]) + good.signatures[0][1:]

    def with_payload(changed: str) -> str:
        return text.replace(canonical.b64encode(good.payload), canonical.b64encode(changed.encode()))

    leaves = {
        "a blank between two members": text.replace(",", ", ", 1),
        "an unknown member of the envelope": text.replace('{"payload"', '{"a":1,"payload"'),
        "another payload type": text.replace("statement.v1", "statement.v2"),
        "an unknown member of the body": with_payload(payload.replace(f'"to":"{BOB.did}"', f'"to":"{BOB.did}","why":"x"')),
        "a number that is written as a text": with_payload(payload.replace('"seq":0', '"seq":"0"')),
        "an absent field that is written as null": with_payload(
            payload.replace(f'"to":"{BOB.did}"', f'"to":"{BOB.did}","withdrawn":null')
        ),
        "an unknown kind": with_payload(payload.replace('"vouch"', '"praise"')),
        "a signature of 63 bytes": text.replace(
            canonical.b64encode(good.signatures[0]), canonical.b64encode(good.signatures[0][:63])
        ),
        "no signature": text[: text.index('"signatures":')] + '"signatures":[]}',
        "another signature": text.replace(canonical.b64encode(good.signatures[0]), canonical.b64encode(flipped)),
        "base64 in a second spelling": text.replace(canonical.b64encode(good.payload), _respelled(good.payload)),
    }
    return [
        {"title": title, "leaf": leaf, "code": refusal(lambda leaf=leaf: statement.verify(statement.parse(leaf.encode()), keys))}  # type: ignore[misc]
        for title, leaf in leaves.items()
    ]


def _respelled(data: bytes) -> str:
    """Base64 without its padding, or with one that it should not have."""
    return canonical.b64encode(data).rstrip("=") if len(data) % 3 else canonical.b64encode(data) + "="


def names() -> dict[str, Any]:
    """Documents, cards, URIs, topics and DIDs, right ones and wrong ones."""
    uris = [URI, "https://registry.example:8443/protocols/did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK/a/1.0rc1"]
    bad_uris = [
        URI.replace("https", "http"),
        f"{URI}/",
        URI.replace("greeting", "Greeting"),
        URI.replace("1.0", "1.0+local"),
        URI.replace("1.0", "v1.0"),
        URI.replace("alice.example", "127.1"),
        f"https://{ORIGIN}/protocols/alice.example/{'n' * 65}/1.0",
    ]
    dids = ["did:wba:example.com", "did:web:example.com", "did:wba:example.com:users:alice", "did:wba:example.com%3A8443:a"]
    dids += [ALICE.did.replace("alice", "xn--bcher-kva"), "did:treaty:github.com:alice", "did:treaty:example.com"]
    key = key_signer("a key")
    bad_dids = [
        "did:wba:127.0.0.1",
        "did:wba:0x7f.1",
        "did:wba:Example.com",
        "did:wba:bücher.example",
        "did:wba:example.com:..",
        "did:wba:example.com%3A99999:a",
        "did:example:x",
        "did:key:z6Mk",
        "did:treaty:github.com:Alice",
        "did:treaty:example.com:alice",
        "did:treaty:localhost",
    ]
    bad_documents = {"empty": b"", "a byte-order mark": b"\xef\xbb\xbf# A", "NUL": b"# A\0", "no UTF-8": b"# \xff"}
    bad_cards = {
        "an empty field": b'{"licence":"","summary":"S","title":"T"}',
        "no title": b'{"summary":"S","title":""}',
        "a tag with a blank": b'{"summary":"S","tags":["a b"],"title":"T"}',
        "the members in another order": b'{"title":"T","summary":"S"}',
    }
    return {
        "document": {"text": DOCUMENT.decode(), "hash": protocol.check_document(DOCUMENT), "agora": _agora(DOCUMENT)},
        "documents_refused": [
            {
                "title": title,
                "base64": canonical.b64encode(data),
                "code": refusal(partial(protocol.check_document, data)),
            }
            for title, data in bad_documents.items()
        ],
        "card": {"text": CARD.encode().decode(), "sha256": canonical.hex_digest(CARD.encode())},
        "cards_refused": [
            {"title": title, "text": data.decode(), "code": refusal(lambda data=data: protocol.parse_card(data))}  # type: ignore[misc]
            for title, data in bad_cards.items()
        ],
        "uris": [_uri(text) for text in uris],
        "uris_refused": [
            {"uri": text, "code": refusal(lambda text=text: protocol.parse_protocol_uri(text))}  # type: ignore[misc]
            for text in bad_uris
        ],
        "topics": ["commerce/product-info", "a", "a/b/c/d"],
        "topics_refused": [
            {"topic": text, "code": refusal(lambda text=text: protocol.check_topic(text))}  # type: ignore[misc]
            for text in ("", "A", "a//b", "a/b/c/d/e", "a_b", "-a", "a/")
        ],
        "dids": [
            *map(_did, dids),
            {"did": key.did, "public_key": key.public_key.hex(), "key_id": key.key_id, "namespace": key.did},
        ],
        "dids_refused": [
            {"did": text, "code": refusal(lambda text=text: did.parse_did(text))}  # type: ignore[misc]
            for text in bad_dids
        ],
    }


def _agora(data: bytes) -> str:
    return protocol.agora_digest(data).hex()


def _uri(text: str) -> dict[str, str]:
    parts = protocol.parse_protocol_uri(text)
    return {"uri": text, "origin": parts.origin, "namespace": parts.namespace, "name": parts.name, "version": parts.version}


def _did(text: str) -> dict[str, str]:
    parsed = did.parse_did(text)
    identity = {"did": text} if parsed.validated_by else {"did": text, "document": parsed.document_url}
    return identity if "%3A" in text else {**identity, "namespace": parsed.namespace}


def election() -> dict[str, Any]:
    """A log of two protocols of one topic: reports, ballots, three epochs, and each decision with its transcript and roll."""
    log = LogBuilder()
    first, second = (log.publish(agent, name, topic=TOPIC) for agent, name in zip(log.agents, ("one", "two"), strict=False))
    decisions = []
    for _ in range(3):
        log.everybody_reports(first, topic=TOPIC)
        # A pair counts for one document of a topic in an epoch, so the second one has pairs of its own.
        for agent, other in zip(log.agents, (*log.agents[2:], *log.agents[:2]), strict=True):
            log.report(agent, other, second, topic=TOPIC)
        for place, agent in enumerate(log.agents):
            order = (second, first, kinds.NONE) if place < 2 else (first, second, kinds.NONE)
            log.vote(agent, *order, topic=TOPIC)
        begun = len(log.leaves)
        log.close()
        decisions += [
            {"leaf": index, "transcript": log.transcripts[index].decode(), "roll": log.rolls[log.epoch - 1].decode()}
            for index in range(begun, len(log.leaves))
        ]
    return {
        "issued": NOW,
        "leaves": [leaf.decode() for leaf in log.leaves],
        "root": log.replay.root().hex(),
        "decisions": decisions,
    }
