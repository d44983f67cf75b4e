"""The operator's keys: made once and whole, readable by nobody else, and refused when they do not belong together."""

from __future__ import annotations

import hashlib
import shutil
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from treaty_consensus import admit
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.errors import NotFound, TreatyError, Untrusted
from treaty_consensus.facts import LogFact
from treaty_consensus.log.checkpoint import KeyTerm, LogKeys
from treaty_registry.keys import Operator, create_operator, load_operator
from treaty_registry.operator.rotations import Rotations, prepare

ORIGIN = "registry.example"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return create_operator(tmp_path / "keys", ORIGIN)


def refusal(directory: Path) -> str:
    with pytest.raises(TreatyError) as refused:
        load_operator(directory)
    assert not isinstance(refused.value, AssertionError)
    return refused.value.code


def test_what_is_made_is_what_is_loaded(operator: Operator, tmp_path: Path) -> None:
    again = load_operator(tmp_path / "keys")
    assert (again.log_key, again.clock_key, again.did) == (operator.log_key, operator.clock_key, operator.did)
    assert again.trusted_root == operator.trusted_root
    assert (operator.origin, operator.log_key.name, operator.clock_key.name) == (ORIGIN, ORIGIN, f"{ORIGIN}/clock")


def test_nobody_else_reads_a_key_and_nothing_else_is_left(operator: Operator, tmp_path: Path) -> None:
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    files = [path for path in (tmp_path / "keys").rglob("*") if path.is_file()]
    assert len(files) >= 8
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_two_logs_share_no_key(operator: Operator, tmp_path: Path) -> None:
    other = create_operator(tmp_path / "other", ORIGIN)
    assert other.did != operator.did
    assert other.log_key.seed not in (operator.log_key.seed, operator.clock_key.seed, other.clock_key.seed)


def test_its_first_statements_begin_a_log(operator: Operator) -> None:
    genesis = operator.state(operator.genesis(), issued=NOW)
    facts = admit.admit({}, genesis, 0)
    parameters = operator.state(development_parameters(), issued=NOW)
    facts |= admit.admit(facts, parameters, 1)
    log = facts["log"]
    assert isinstance(log, LogFact)
    assert (log.origin, log.operator, log.parameters) == (ORIGIN, operator.did, parameters.statement.id)
    assert operator.genesis().trusted_root == hashlib.sha256(operator.trusted_root).hexdigest()


@pytest.mark.threat(91)
@pytest.mark.parametrize("name", ["log.key", "clock.key", "operator.json", "authority/ca.key.pem"])
def test_each_key_must_be_there_and_secret(operator: Operator, tmp_path: Path, name: str) -> None:
    path = tmp_path / "keys" / name
    path.chmod(0o640)
    assert refusal(tmp_path / "keys") in ("keys.damaged", "identity.file")
    path.unlink()
    assert refusal(tmp_path / "keys") in ("keys.missing", "identity.missing")


@pytest.mark.parametrize("content", [b"", b"\xff", b"PRIVATE+KEY+x", b"no key at all\n"])
def test_a_damaged_key_is_noticed(operator: Operator, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "keys" / "log.key").write_bytes(content)
    assert refusal(tmp_path / "keys") == "keys.damaged"


def test_keys_of_two_logs_do_not_mix(operator: Operator, tmp_path: Path) -> None:
    create_operator(tmp_path / "other", "other.example")
    (tmp_path / "other" / "clock.key").replace(tmp_path / "keys" / "clock.key")
    assert refusal(tmp_path / "keys") == "keys.damaged"


def test_a_log_key_is_no_clock_key(operator: Operator, tmp_path: Path) -> None:
    log_key, clock_key = tmp_path / "keys" / "log.key", tmp_path / "keys" / "clock.key"
    one, two = log_key.read_bytes(), clock_key.read_bytes()
    log_key.write_bytes(two)
    clock_key.write_bytes(one)
    assert refusal(tmp_path / "keys") == "keys.damaged"


def test_an_empty_directory_holds_no_log(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        load_operator(tmp_path)


def test_making_them_twice_is_an_error_and_changes_nothing(operator: Operator, tmp_path: Path) -> None:
    with pytest.raises(OSError):
        create_operator(tmp_path / "keys", ORIGIN)
    assert load_operator(tmp_path / "keys").did == operator.did
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_an_untrusted_key_never_shows_its_seed(operator: Operator, tmp_path: Path) -> None:
    path = tmp_path / "keys" / "log.key"
    path.write_bytes(path.read_bytes()[:-6] + b"\n")
    with pytest.raises(Untrusted) as refused:
        load_operator(tmp_path / "keys")
    assert "PRIVATE" not in str(refused.value)


def test_a_node_takes_its_key_from_a_folder_copied_later(tmp_path: Path, operator: Operator) -> None:
    directory = tmp_path / "keys"
    rotations = Rotations(directory, operator)
    assert rotations.secret(operator.first_keys) == operator.log_key.seed
    prepare(directory, ["log"])
    (new,) = load_operator(directory).next
    keys = LogKeys((*operator.first_keys.terms, KeyTerm(new.verifier, operator.clock_key.verifier, 3, 9)))
    assert rotations.secret(keys) == new.seed
    shutil.rmtree(directory / "next")
    assert Rotations(directory, operator).secret(keys) == operator.log_key.seed
