"""The rules of a validation: an account keeps its tenure by its number, each run has its own key, and no weight comes of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from admission_log import ALICE, DAY, GENESIS, OPERATOR, Log, publish
from msgspec.structs import replace
from signers import NOW, Signer, domain_signer, identity_body, key_signer
from simulated_log import TOPIC, LogBuilder, document_hash, open_log

from treaty_consensus import did, kinds, protocol
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Malformed
from treaty_consensus.facts import IdentityFact, identity_key
from treaty_consensus.kinds import Blob, Key, Validation

DID = "did:treaty:github.com:octo-org"


def run_of(name: str, of: str = DID) -> Signer:
    key = key_signer(name)
    return Signer(of, f"{of}#{did.encode_multikey(key.public_key)}", key.private_key)


def validation(log: Log, *runs: str, account: str = "65", tenure: int = 1, of: str = DID) -> Validation:
    """The operator's statement that the first run proved its key."""
    before = log.facts.get(identity_key(of))
    keys = tuple(Key(run_of(run, of).key_id, did.encode_multikey(run_of(run).public_key)) for run in runs)
    return Validation(
        did=of,
        document=Blob(hex_digest(" ".join(runs).encode()), 900),
        keys=keys,
        tenure=tenure,
        previous=before.statement if isinstance(before, IdentityFact) else None,
        method="oidc",
        account=account,
        workflow="Octo-Org/x/.github/workflows/publish.yml@refs/tags/v1",
    )


@pytest.fixture
def log() -> Log:
    log = Log()
    log.add(GENESIS, OPERATOR)
    return log


def test_only_the_operator_validates(log: Log) -> None:
    run = run_of("run 1")
    assert log.refuses(validation(log, "run 1"), ALICE) in ("statement.unknown-key", "statement.not-operator")
    log.add(validation(log, "run 1"), OPERATOR)
    assert log.refuses(validation(log, "run 1"), run) == "statement.not-operator"
    # No co-signature: nothing follows from one.
    assert log.refuses(validation(log, "run 1"), *sorted((OPERATOR, run), key=lambda each: each.key_id)) == "statement.signatures"


def test_a_run_publishes_in_the_namespace_of_its_account(log: Log) -> None:
    run = run_of("run 1")
    assert log.refuses(publish(namespace="github.com:octo-org"), run) == "statement.unknown-key"
    log.add(validation(log, "run 1"), OPERATOR)
    log.add(publish(namespace="github.com:octo-org"), run)
    for namespace in ("github.com", "github.com:other", "octo-org.github.io"):
        assert log.refuses(publish("2.0", namespace), run) == "publish.not-entitled"
    # The domain of all accounts owns none of them.
    github = domain_signer("github.com", "web")
    log.add(identity_body(github), OPERATOR)
    assert log.refuses(publish("2.0", "github.com:octo-org"), github) == "publish.not-entitled"


def test_a_key_ends_and_a_later_run_goes_on(log: Log) -> None:
    log.add(validation(log, "run 1"), OPERATOR)
    log.add(validation(log, "run 2", "run 1"), OPERATOR, issued=NOW + 1800)
    log.add(publish("1.0", "github.com:octo-org"), run_of("run 1"))
    # The first one's hour is over, the second one's is not. No statement of the operator prolongs it.
    late = replace(validation(log, "run 3", "run 2", "run 1"))
    assert log.refuses(late, OPERATOR, issued=NOW + 3700) == "identity.form"
    log.add(validation(log, "run 3", "run 2"), OPERATOR, issued=NOW + 3700)
    assert log.refuses(publish("2.0", "github.com:octo-org"), run_of("run 1")) == "statement.unknown-key"
    log.add(publish("2.0", "github.com:octo-org"), run_of("run 2"))
    # The log's clock passes the end of all.
    log.add(kinds.Withdrawal("cd" * 32, "illegal"), OPERATOR, issued=NOW + 3 * 3600)
    for run in ("run 2", "run 3"):
        assert log.refuses(publish("3.0", "github.com:octo-org"), run_of(run)) == "statement.unknown-key"


def test_a_key_that_no_token_named_cannot_be_listed(log: Log) -> None:
    assert log.refuses(validation(log, "run 1", "the operator's own"), OPERATOR) == "identity.form"
    log.add(validation(log, "run 1"), OPERATOR)
    assert log.refuses(validation(log, "run 2", "the operator's own"), OPERATOR) == "identity.form"


def test_another_account_of_the_name_waits_thirty_days(log: Log) -> None:
    log.add(validation(log, "run 1"), OPERATOR)
    assert log.refuses(validation(log, "run 2", account="66"), OPERATOR) == "identity.form"
    # It inherits no key.
    assert log.refuses(validation(log, "run 2", "run 1", account="66", tenure=2), OPERATOR) == "identity.form"
    log.add(validation(log, "run 2", account="66", tenure=2), OPERATOR)
    assert log.refuses(publish("2.0", "github.com:octo-org"), run_of("run 2")) == "identity.new-tenure"
    log.add(validation(log, "run 3", account="66", tenure=2), OPERATOR, issued=NOW + 30 * DAY)
    log.add(publish("2.0", "github.com:octo-org"), run_of("run 3"))
    # The first owner, back again, is another one than the second.
    assert log.refuses(validation(log, "run 4", account="65", tenure=2), OPERATOR) == "identity.form"


def test_forms_that_are_no_validations(log: Log) -> None:
    good = validation(log, "run 1")
    plain = {name: getattr(good, name) for name in kinds.Identity.__struct_fields__}
    for body in (
        kinds.Identity(**plain),
        replace(good, method="dns"),
        replace(good, account=None),
        replace(good, workflow=None),
        replace(good, did="did:web:github.com:octo-org"),
        replace(good, keys=(Key(f"{DID}#key-1", good.keys[0].multikey),)),
    ):
        with pytest.raises(Malformed):
            body.check()


@pytest.mark.parametrize(
    "text",
    [
        "did:treaty:github.com:Octo-Org",
        "did:treaty:github.com:-octo",
        "did:treaty:github.com:octo:repo",
        "did:treaty:gitlab.com:octo",
        "did:treaty:localhost",
        "did:treaty:github.com%3A443:octo",
        "did:treaty:bücher.example",
        "did:treaty:127.0.0.1",
    ],
)
def test_names_that_nobody_validates(text: str) -> None:
    with pytest.raises(Malformed):
        did.parse_did(text)


@pytest.mark.parametrize(
    ("alias", "verified"),
    [
        ("https://github.com/octo-org/x402/v0.1", True),
        ("https://github.com/OCTO-ORG/x402", True),
        ("https://github.com/octo-org", True),
        ("io.github.octo-org/server", True),
        ("io.github.Octo-Org/server", True),
        ("https://github.com/octo-org-evil/x402", False),
        ("https://github.com/other/octo-org", False),
        ("https://github.com@evil.example/octo-org", False),
        ("http://github.com/octo-org/x402", False),
        ("https://octo-org.github.io/x402", False),
        ("io.github.octo-orgs/server", False),
        ("com.github.octo-org/server", False),
        ("https://github.com", False),
    ],
)
def test_the_names_that_an_account_owns(alias: str, verified: bool) -> None:
    assert protocol.is_verified_alias(alias, did.parse_did(DID)) is verified


def without_places(value: Any) -> Any:
    """A result of a count, without the places of leaves in the log and the digests of what has them."""
    if isinstance(value, list):
        return [*map(without_places, value)]
    if not isinstance(value, dict):
        return value
    return {name: without_places(each) for name, each in value.items() if name not in ("index", "input", "identities", "weights")}


@pytest.mark.threat(448)
@pytest.mark.parametrize("build", [LogBuilder, open_log])
def test_a_thousand_accounts_move_no_decision(build: Callable[[], LogBuilder]) -> None:
    """They report, vote and are vouched for, and every number of the count is as without them."""
    alone, crowded = build(), build()
    for log in (alone, crowded):
        log.publish(log.agents[0], "ours")
    theirs = crowded.publish(crowded.agents[1], "theirs")
    alone.publish(alone.agents[1], "theirs")
    accounts = [run_of("run", f"did:treaty:github.com:account-{number}") for number in range(1000)]
    for number, account in enumerate(accounts):
        key = Key(account.key_id, did.encode_multikey(account.public_key))
        workflow = f"account-{number}/x/.github/workflows/publish.yml@refs/tags/v1"
        identity = (account.did, Blob(f"{number:064x}", 900), (key,), 1)
        crowded.add(Validation(*identity, method="oidc", account=str(number + 1), workflow=workflow), crowded.operator)
        crowded.add(kinds.Ballot(TOPIC, 0, ((theirs,),), "note"), account)
    crowded.add(kinds.Vouch(accounts[0].did, 0), crowded.agents[0])
    alone.add(kinds.Vouch("did:treaty:github.com:account-0", 0), alone.agents[0])
    for number, pair in enumerate(pairwise(accounts[:200])):
        crowded.add(kinds.Report(TOPIC, f"{number:064x}", theirs, "agreed", 0, "note"), *pair)
    for log in (alone, crowded):
        log.everybody_reports(document_hash("ours"))
        log.everybody_votes(document_hash("ours"))
        log.close()
    results = [(without_places(log.newest_roll()), without_places(log.newest_transcript())) for log in (alone, crowded)]
    assert results[0] == results[1]
