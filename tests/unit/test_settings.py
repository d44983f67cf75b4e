"""The settings of `serve` are checked at its start: a wrong one ends it with a code and a fix, and changes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rejections import rejection

import treaty_client
from treaty_consensus.errors import TreatyError
from treaty_io.home import AGENT_VARIABLES
from treaty_registry.cli import main
from treaty_registry.cli.variables import check_variables

CLIENT = Path(treaty_client.__file__).parents[1]

WRONG = {
    "settings.value: no port": ("--port", "70000"),
    "settings.value: no factor": ("--quota", "-1"),
    "settings.value: Agents cannot": ("--base-url", "registry.example"),
    "settings.value: PostgreSQL": ("--database", "mysql://user:secret@host/db"),
    "settings.value: be a log": ("--origin", "Registry.Example"),
    "settings.value: certificate": ("--tls-cert", "chain.pem"),
    "settings.value: a network": ("--trusted-proxy", "proxy"),
    "settings.value: Not a witness": ("--witness", "https://witness.example"),
    "settings.value: object store": ("--blobs", "s3:"),
    "config.file": ("--ca", "/nonexistent"),
    "network.url": ("--resolve", "host"),
}


def refusal(capsys: pytest.CaptureFixture[str], data: Path, *options: str, command: str = "serve") -> dict[str, str]:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--data", str(data), "--json", *options])
    assert ended.value.code == 1
    error: dict[str, str] = json.loads(capsys.readouterr().out)["error"]
    assert not list(data.glob("[!.]*")), "nothing was made"
    return error


@pytest.mark.parametrize("code", WRONG)
def test_a_wrong_option_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, code: str) -> None:
    error = refusal(capsys, tmp_path, *WRONG[code])
    assert rejection(TreatyError(error["code"], error["message"]), code) == code
    assert "secret" not in error["message"]
    assert error["fix"]


DATABASE = ("--database", "postgresql://user:pw@127.0.0.1:1/db")
NODE = (*DATABASE, "--blobs", "file:///nonexistent/blobs", "--head", "file:///nonexistent/head", "--node")
BAD_URLS = (
    ("settings.value: PostgreSQL", "--database", "postgresql://user:sec/ret@host/db"),
    ("settings.value: PostgreSQL", "--database", "postgresql://user:secret@host:port/db"),
    ("settings.value: PostgreSQL", "--database", "postgresql://user:secret@[::1/db"),
    ("settings.value: PostgreSQL", "--database", "postgresql://user:secret@a:1,b:secret/db"),
    ("settings.value: Agents cannot", "--base-url", "https://user:secret@registry.example/"),
    ("settings.value: object store", "--blobs", "s3://key:secret@bucket/path"),
    ("settings.value: object store", "--blobs", "ftp://bucket/path?key=secret"),
    ("settings.value: copies|standbys", "--copies", "1"),
    ("settings.value: copies|standbys", "--tiles", "file:///nonexistent/tiles", "--copies", "1"),
    ("settings.value: copies|standbys", *NODE[2:-1], "--tiles", "file:///nonexistent/tiles", "--copies", "2"),
    ("settings.value: copies|standbys", *NODE[2:-1], "--tiles", "file:///nonexistent/tiles", "--copies", "-1"),
    ("settings.value: copies|standbys", "--standbys", "1"),
    ("settings.value: object store", *DATABASE, "--tiles", "nothing"),
    ("settings.value: object store", *DATABASE, "--head", "ftp://bucket/head"),
    ("settings.value: signed head", "--head", "s3://bucket"),
    ("settings.value: signed head", "--head", "s3://bucket/path/"),
    ("settings.value: signed head", "--head", "head"),
    ("settings.value: node", *NODE, "http://user:secret@host:1"),
    ("settings.value: node", *NODE, "http://[::1"),
    ("settings.value: node", *NODE, "http://host:99999"),
)


@pytest.mark.sample(7)
@pytest.mark.parametrize(("code", "options"), [(code, options) for code, *options in BAD_URLS])
def test_a_wrong_url_is_refused_and_its_secrets_are_not_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, code: str, options: list[str]
) -> None:
    error = refusal(capsys, tmp_path, "--origin", "a.example", *options)
    assert rejection(TreatyError(error["code"], error["message"]), code) == code and error["fix"]
    assert not any(secret in error["message"] for secret in ("secret", "sec", "ret@"))


@pytest.mark.parametrize("quota", ["0", "nan", "inf"])
def test_a_factor_of_quotas_is_positive(capsys: pytest.CaptureFixture[str], tmp_path: Path, quota: str) -> None:
    assert refusal(capsys, tmp_path, "--quota", quota)["code"] == "settings.value"


def test_a_variable_is_read_and_its_option_comes_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREATY_REGISTRY_QUOTA", "-2")
    assert "-2" in refusal(capsys, tmp_path)["message"]
    assert "-3" in refusal(capsys, tmp_path, "--quota", "-3")["message"]


def test_a_variable_has_several_values(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREATY_REGISTRY_TRUSTED_PROXY", "10.0.0.7 proxy")
    error = refusal(capsys, tmp_path)
    assert error["code"] == "settings.value" and "'proxy'" in error["message"]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("TREATY_REGISTRY_WITNES", "TREATY_REGISTRY_WITNESS"),
        ("TREATY_BLOB_URL", "TREATY_BLOBS_URL"),
        ("TREATY_DATABASEURL", "TREATY_DATABASE_URL"),
        ("TREATY_ZZZ", "--help"),
    ],
)
def test_an_unknown_variable_is_refused_by_every_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, near: str
) -> None:
    monkeypatch.setenv(name, "https://witness.example#key")
    for command in ("serve", "audit", "mirror https://a.example#key", "init --origin a.example"):
        error = refusal(capsys, tmp_path, command=command)
        assert error["code"] == "settings.value" and name in error["message"] and near in error["fix"]
    with pytest.raises(SystemExit) as helped:
        main(["serve", "--help"])
    assert not helped.value.code and "TREATY_REGISTRY_WITNESS" in capsys.readouterr().out


def test_every_variable_of_an_agent_is_accepted() -> None:
    named = {name for path in CLIENT.rglob("*.py") for name in re.findall(r"""["'](TREATY_\w+)["']""", path.read_text())}
    assert named == {*AGENT_VARIABLES}
    check_variables([*AGENT_VARIABLES, "TREATY_WITNESS_DATA", "TREATYS", "HOME"])


def test_an_empty_variable_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CA", "BASE_URL", "TLS_CERT", "WITNESS"):
        monkeypatch.setenv(f"TREATY_REGISTRY_{name}", "")
    monkeypatch.setenv("TREATY_REGISTRY_QUOTA", "-2")
    assert refusal(capsys, tmp_path)["code"] == "settings.value"
