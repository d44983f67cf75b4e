"""The command line of an agent: what it prints, to whom, and its exit status. The end-to-end tests run it against a registry."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from signers import key_signer

from treaty_command.main import main
from treaty_consensus.log.note import KeyType, VerifierKey

NAME = f"http://127.0.0.1:9#{VerifierKey('registry.example', KeyType.ED25519, key_signer('log').public_key)}"


@pytest.fixture
def home(tmp_path: Path) -> list[str]:
    return ["--home", str(tmp_path / "home")]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What a command printed with --json: one value on standard output and nothing else."""
    main([*arguments, "--json"])
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 1) -> dict[str, Any]:
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--json"])
    assert end.value.code == status
    error: dict[str, Any] = json.loads(capsys.readouterr().out)["error"]
    return error


def test_an_identity_is_made_once_and_only_its_owner_reads_it(home: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    answer = said(capsys, "identity", "new", *home)
    file = Path(home[1]) / "identity.json"
    before = file.read_bytes()
    assert answer["did"].startswith("did:key:z6Mk")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert said(capsys, "identity", "show", *home)["did"] == answer["did"]
    assert refused(capsys, "identity", "new", *home)["code"] == "system.exists"
    assert file.read_bytes() == before


def test_a_domains_identity_comes_with_its_document(home: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "did.json"
    answer = said(capsys, "identity", "new", "shop.example:agents:a", "--document", str(document), *home)
    assert answer["document_url"] == "https://shop.example/agents/a/did.json"
    assert json.loads(document.read_text())["id"] == answer["did"] == "did:wba:shop.example:agents:a"


def test_a_domain_names_its_key_in_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = ("--home", str(tmp_path))
    answer = said(capsys, "identity", "new", "plain.example", "--record", *home)
    name, text = answer["record"]["name"], answer["record"]["text"]
    assert (answer["did"], name) == ("did:treaty:plain.example", "_treaty.plain.example")
    assert answer["key"] == f"{answer['did']}#{text.removeprefix('did:key:')}"
    assert said(capsys, "identity", "show", *home) == answer
    # The next key is named by itself too, as a log names it.
    rotated = said(capsys, "identity", "rotate", *home)
    assert rotated["record"]["name"] == name and rotated["record"]["text"] != text
    assert rotated["key"] == f"{answer['did']}#{rotated['record']['text'].removeprefix('did:key:')}"
    other = ("--home", str(tmp_path / "other"))
    assert refused(capsys, "identity", "new", "--record", *other, status=2)["code"] == "system.usage"
    assert not (tmp_path / "other").exists()


def test_people_see_a_did_as_it_is_written(home: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`:key:` is also the name of an emoji."""
    main(["identity", "new", *home])
    assert "did:key:z6Mk" in capsys.readouterr().out


def test_a_refusal_names_the_fix_on_standard_error(home: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["identity", "show", *home])
    printed = capsys.readouterr()
    assert (end.value.code, printed.out) == (5, "")
    assert "identity.missing" in printed.err
    assert "treaty identity new" in printed.err
    assert not Path(home[1]).exists()


def test_registries_are_trusted_by_key(home: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    untrusting = refused(capsys, "search", *home, status=5)
    assert untrusting["code"] == "registry.not-trusted"
    assert "treaty trust add" in untrusting["fix"]
    assert "--home" in untrusting["fix"]
    assert said(capsys, "trust", "add", NAME, *home)["origin"] == "registry.example"
    other = NAME.replace("registry.example", "other.example")
    assert refused(capsys, "trust", "add", other, *home)["code"] == "note.form"
    assert said(capsys, "trust", "list", *home)["registries"] == [NAME]
    assert said(capsys, "trust", "remove", "registry.example", *home) == {"removed": "registry.example"}
    assert said(capsys, "trust", "list", *home)["registries"] == []


def test_a_registry_that_does_not_answer_is_a_clear_error(home: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "trust", "add", NAME, *home)
    assert refused(capsys, "search", "x", *home, status=3)["code"] == "registry.unreachable"
    assert refused(capsys, "topic", "Not A Topic", *home)["code"] == "topic.name"
    assert refused(capsys, "vote", "a/b", *home)["code"] == "ballot.tiers"


def test_a_missing_project_is_refused_before_sending(home: list[str], tmp_path: Path, capsys: Any) -> None:
    said(capsys, "trust", "add", NAME, *home)
    error = refused(capsys, "publish", str(tmp_path), *home, status=5)
    assert error["code"] == "project.file"
    assert "protocol.toml" in error["message"]


@pytest.mark.parametrize(
    "command",
    [
        "identity new",
        "trust add",
        "yank",
        "deprecate",
        "revoke",
        "activate",
        "grant",
        "ungrant",
        "grants",
        "withdraw vote",
        "withdraw vouch",
        "topics",
        "doctor",
        "policy allow",
        "policy list",
        "trust explain",
        "trust forget",
        "new",
        "test",
        "record",
        "stubs",
        "publish",
        "search",
        "info",
        "open",
        "diff",
        "fetch",
        "verify",
        "vote",
        "vouch",
        "vouches",
        "topic",
        "audit",
    ],
)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([*command.split(), "--help"])
    printed = capsys.readouterr().out
    assert f"treaty {command}" in printed
    assert "--json" in printed


def test_a_wrong_command_line_has_another_status() -> None:
    done = subprocess.run([sys.executable, "-c", "from treaty_command.main import main; main(['fetch'])"], check=False)
    assert done.returncode == 2


def test_a_key_is_rotated_and_a_did_taken_out_of_use(home: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = said(capsys, "identity", "new", "shop.example:a", "--bind", *home)
    assert answer["did"].startswith("did:wba:shop.example:a:e1_")
    document = tmp_path / "did.json"
    rotated = said(capsys, "identity", "rotate", "--document", str(document), *home)
    assert (rotated["did"], rotated["key"]) == (answer["did"], f"{answer['did']}#key-2")
    assert json.loads(document.read_text())["authentication"] == [rotated["key"]]
    assert said(capsys, "identity", "show", *home)["key"] == rotated["key"]
    deactivated = said(capsys, "identity", "deactivate", *home)
    assert deactivated["document"]["deactivated"] is True
    assert said(capsys, "identity", "show", *home)["key"] == rotated["key"]


@pytest.mark.parametrize("existing", ["the document of another key", "# no document\n"])
def test_a_document_of_another_key_is_never_overwritten(
    existing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, first, second = tmp_path / "did.json", ["--home", str(tmp_path / "1")], ["--home", str(tmp_path / "2")]
    if existing.startswith("#"):
        document.write_text(existing)
    else:
        said(capsys, "identity", "new", "shop.example", "--document", str(document), *first)
    before = document.read_bytes()
    error = refused(capsys, "identity", "new", "bob.example", "--document", str(document), *second)
    assert error["code"] == "system.exists" and str(document) in error["message"]
    assert not (tmp_path / "2").exists()
    said(capsys, "identity", "new", "shop.example", *second)
    key = (tmp_path / "2" / "identity.json").read_bytes()
    for command in ("rotate", "deactivate"):
        assert refused(capsys, "identity", command, "--document", str(document), *second)["code"] == "system.exists"
    assert document.read_bytes() == before
    assert (tmp_path / "2" / "identity.json").read_bytes() == key


def test_the_own_document_is_replaced_if_deactivated(home: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "did.json"
    said(capsys, "identity", "new", "shop.example", "--document", str(document), *home)
    for command in ("rotate", "deactivate", "deactivate", "rotate"):
        answer = said(capsys, "identity", command, "--document", str(document), *home)
        assert json.loads(document.read_text()) == answer["document"]


def test_a_did_key_is_neither_rotated_nor_deactivated(home: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    answer = said(capsys, "identity", "new", *home)
    assert refused(capsys, "identity", "rotate", *home)["code"] == "identity.rotate"
    assert refused(capsys, "identity", "deactivate", *home)["code"] == "did.method"
    assert said(capsys, "identity", "show", *home) == {"did": answer["did"], "key": answer["key"]}


def test_a_path_that_cannot_be_used_is_an_error_with_a_code(
    home: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(capsys, "equivocation", str(tmp_path), *home)
    assert error["code"] == "system.file" and str(tmp_path) in error["message"]
    assert not Path(home[1]).exists() and not list(tmp_path.iterdir())


def test_a_document_that_cannot_be_written_is_shown_later(
    home: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "absent" / "did.json"
    error = refused(capsys, "identity", "new", "shop.example", "--document", str(document), *home)
    assert error["code"] == "system.file" and str(document) in error["message"]
    assert not document.parent.exists()
    assert said(capsys, "identity", "show", *home)["document"]["id"] == "did:wba:shop.example"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "command", ["search", "identity", "trust", "vote", "topic", "speakers", "discover", "audit", "vouches", "transcript"]
)
def test_a_command_without_attestation_imports_no_sigstore(command: str) -> None:
    """It takes a third of a second."""
    code = f"import sys; from treaty_command.commands import app; app[{command!r}]; sys.exit('sigstore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
