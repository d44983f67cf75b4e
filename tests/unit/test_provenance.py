"""SLSA provenance from the log: of a handler that a run attached with the key that its token proved, and of no other."""

from __future__ import annotations

import json
from typing import Any, cast

import jwt
import pytest
from admission_log import GENESIS, OPERATOR, OTHER
from signers import NOW, ORIGIN, Signer, key_signer, signed
from sigstore.dsse import Statement as InTotoStatement
from workflow_issuer import WorkflowIssuer, jwk

from treaty_client.protocols.provenance import provenance, validation_of
from treaty_client.protocols.verification.records import Evidence, Logged
from treaty_consensus import kinds
from treaty_consensus.canonical import hex_digest
from treaty_consensus.did import encode_multikey
from treaty_consensus.errors import TreatyError
from treaty_consensus.workflow_evidence import Claims, IssuerKey, WorkflowEvidence, audience, convert

DID = "did:treaty:github.com:octo-org"
BUILDER = "builders/shared/.github/workflows/build.yml@refs/tags/v2"


def run_of(name: str) -> Signer:
    key = key_signer(name)
    return Signer(DID, f"{DID}#{encode_multikey(key.public_key)}", key.private_key)


def proved(name: str, **claims: object) -> WorkflowEvidence:
    """The evidence that a run proved its key."""
    multikey = encode_multikey(key_signer(name).public_key)
    issuer = WorkflowIssuer(now=lambda: NOW)
    token = issuer.token(audience(ORIGIN, multikey), **cast(Any, claims))
    payload = json.loads(jwt.utils.base64url_decode(token.split(".")[1]))
    key = convert({name: jwk("first")[name] for name in IssuerKey.__struct_fields__}, IssuerKey)
    return WorkflowEvidence(convert(payload, Claims), key, hex_digest(token.encode()))


def log_of(*statements: tuple[kinds.Body, Signer]) -> Evidence:
    logged = [Logged(number + 1, signed(body, signer), 1) for number, (body, signer) in enumerate(statements)]
    return Evidence(cast(Any, None), GENESIS, tuple(logged))


def test_a_handler_of_a_run_names_repository_commit_and_workflow() -> None:
    evidence = proved("run 1", job_workflow_ref=BUILDER)
    stated = evidence.validation(key_signer("run 1").public_key, earlier=(), tenure=1, previous=None)
    uri = f"https://{ORIGIN}/protocols/github.com:octo-org/x/1.0"
    body = kinds.Handler(uri, "ab" * 32, "treaty_handler_x-1.0-py3-none-any.whl", OTHER, "treaty_handler_x:handler", OTHER)
    log = log_of((stated, OPERATOR), (body, run_of("run 1")), (body, run_of("run 2")), (body, key_signer("stranger")))
    validation, handler, of_another_run, stranger = log.statements
    assert validation_of(log, handler) is validation
    # Another key proves nothing about this run, though it is of the same account.
    assert validation_of(log, of_another_run) is None
    assert validation_of(log, stranger) is None
    value = provenance(handler, validation, evidence.encode())
    # Sigstore's own reader takes it for an in-toto statement.
    InTotoStatement(json.dumps(value).encode())
    predicate = cast(dict[str, Any], value["predicate"])
    assert predicate["buildDefinition"]["externalParameters"]["workflow"] == {
        "ref": "refs/tags/v1.0",
        "repository": "https://github.com/Octo-Org/protocols",
        "path": ".github/workflows/publish.yml",
    }
    (source,) = predicate["buildDefinition"]["resolvedDependencies"]
    assert source == {"uri": "git+https://github.com/Octo-Org/protocols@refs/tags/v1.0", "digest": {"gitCommit": "ab" * 20}}
    assert predicate["runDetails"]["builder"]["id"] == f"https://github.com/{BUILDER}"
    assert value["subject"] == [{"name": body.filename, "digest": {"sha256": OTHER.sha256}}]
    for other in (proved("run 2"), proved("run 1"), proved("run 1", repository_owner_id="66", job_workflow_ref=BUILDER)):
        with pytest.raises(TreatyError):
            provenance(handler, validation, other.encode())
