"""The command line `treaty-registry`, as a person and as a program use it; the server is a real process."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme
from did_host import did_host
from open_electorates import write
from ports import free_port
from registries import grant
from signers import domain_signer, key_signer

from treaty_consensus import kinds
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.note import VerifierKey
from treaty_registry.cli import main
from treaty_registry.log.fence import Fence

PROGRAM = Path(sys.executable).with_name("treaty-registry")
VOTER = domain_signer("voter.example")


@dataclass(frozen=True)
class Served:
    """A running `treaty-registry serve`, and the line it said when it was ready."""

    process: subprocess.Popen[str]
    about: dict[str, str]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=30)


@pytest.fixture
def port() -> int:
    return free_port()


@contextmanager
def serving(data: Path, port: int, *options: str) -> Iterator[Served]:
    new = [] if (data / "keys").exists() else ["--new"]
    arguments = [str(PROGRAM), "serve", *new, "--data", str(data), "--port", str(port), "--json", *options]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Served(process, json.loads(process.stdout.readline()))
    finally:
        process.terminate()
        process.wait(timeout=30)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """A command in this process: exit status, standard output, standard error."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


def vote(served: Served, seq: int) -> httpx.Response:
    note = httpx.get(f"{served.about['base_url']}/checkpoint", trust_env=False).text
    body = kinds.Ballot("commerce/product-info", seq, (("ab" * 32,),), note)
    leaf = VOTER.statement(body, log=served.about["origin"]).leaf
    headers = {"Content-Type": "application/json"}
    return httpx.post(f"{served.about['base_url']}/statements", content=leaf, headers=headers, trust_env=False)


def test_from_an_empty_directory_to_a_decision(data: Path, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = ("--data", str(data), "--json")
    with did_host(tmp_path, VOTER) as options, serving(data, port, *options) as served:
        assert served.about["origin"] == f"{port}.localhost"
        assert served.about["name"] == f"http://127.0.0.1:{port}#{served.about['key']}"
        assert vote(served, 0).status_code == 201
        status, out, _ = run(capsys, "decide", *here)
        (decided,) = json.loads(out)["decisions"]
        assert (status, decided["index"], decided["decision"]["epoch"]) == (0, 4, 0)
        status, out, _ = run(capsys, "rebuild", *here)
        assert (status, set(json.loads(out)["tables"].values())) == (0, {0})
        status, out, _ = run(capsys, "audit", *here)
        assert (status, json.loads(out)["findings"], json.loads(out)["size"]) == (0, [], 5)
        note = httpx.get(f"{served.about['base_url']}/checkpoint", trust_env=False).content
        assert open_checkpoint(note, VerifierKey.parse(served.about["key"])).checkpoint.size == 5
        assert served.stop() == 0
    assert not (data / "run" / "control").exists()
    assert not (data / "postgres" / "postmaster.pid").exists()
    status, out, _ = run(capsys, "decide", *here)
    assert (status, json.loads(out)["decisions"][0]["decision"]["epoch"]) == (0, 1)
    status, out, _ = run(capsys, "rebuild", "--data", str(data))
    assert status == 0
    assert "6 leaves" in out
    assert "Every table agrees with the log." in out
    status, out, _ = run(capsys, "audit", "--data", str(data))
    assert (status, "6 leaves, 2 epochs decided" in out) == (0, True)


@pytest.mark.deep
def test_from_a_development_to_an_open_electorate(
    data: Path, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, file = ("--data", str(data), "--json"), write(tmp_path, 3600)
    with did_host(tmp_path, VOTER) as options, serving(data, port, *options) as served:
        assert vote(served, 0).status_code == 201
        status, out, _ = run(capsys, "parameters", *here)
        before = json.loads(out)
        assert (status, before["epoch"], before["closes"], before["announced"]) == (0, 0, None, None)
        assert before["in_force"]["parameters"]["electorate"] == "development"
        status, out, _ = run(capsys, "parameters", str(file), *here)
        announced = json.loads(out)
        assert (status, announced["epoch"], announced["index"]) == (0, 1, 4)
        status, out, _ = run(capsys, "parameters", "--data", str(data))
        assert (status, "From epoch 1 on" in out, "it closes by hand" in out) == (0, True, True)
        assert run(capsys, "decide", *here)[0] == 0
        answer = httpx.get(f"{served.about['base_url']}/log", trust_env=False).json()
        assert (answer["electorate"], answer["parameters"], answer["epoch"]) == ("open", announced["statement"], 1)
        status, out, _ = run(capsys, "decide", *here)
        assert (status, json.loads(out)["error"]["code"]) == (1, "decision.early")
        assert served.stop() == 0
    status, out, _ = run(capsys, "parameters", *here)
    after = json.loads(out)
    assert (status, after["in_force"]["statement"], after["announced"]) == (0, announced["statement"], None)
    assert after["closes"] == answer["closes"]
    status, out, _ = run(capsys, "parameters", "--data", str(data))
    assert (status, "reputation.anchors" in out, "anchor-7.example" in out) == (0, True, True)


@pytest.mark.deep
def test_a_log_begins_as_its_operator_says(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = ("--data", str(data), "--json")
    (tmp_path / "wrong.toml").write_text("horizon_epochs = 0")
    arguments = ("init", *here, "--origin", "registry.example", "--parameters")
    status, out, _ = run(capsys, *arguments, str(tmp_path / "wrong.toml"))
    assert (status, json.loads(out)["error"]["code"]) == (1, "parameters.value")
    assert not (data / "keys").exists()
    assert run(capsys, *arguments, str(write(tmp_path, 3600)))[0] == 0
    status, out, _ = run(capsys, "parameters", *here)
    value = json.loads(out)
    assert (status, value["in_force"]["index"], value["in_force"]["parameters"]["epoch_seconds"]) == (0, 1, 3600)


@pytest.mark.deep
def test_it_ends_in_order_with_connections_open(data: Path, port: int) -> None:
    with serving(data, port) as served, httpx.Client(base_url=served.about["base_url"], trust_env=False) as idle:
        assert idle.get("/checkpoint").status_code == 200  # this connection stays open and keeps nobody waiting
        writer = key_signer("writer")
        leaves = [writer.statement(grant(writer, number), log=served.about["origin"]).leaf for number in range(20)]
        sockets = []
        for leaf in leaves:
            connection = socket.create_connection(("127.0.0.1", port))
            head = (
                f"POST /statements HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(leaf)}\r\n\r\n"
            )
            connection.sendall(head.encode() + leaf)
            sockets.append(connection)
        time.sleep(0.2)
        assert served.stop(signal.SIGINT) == 0
        answers = [connection.recv(65_536) for connection in sockets]
        for connection in sockets:
            connection.close()
    assert {answer[:12] for answer in answers} == {b"HTTP/1.1 201"}


@pytest.mark.deep
def test_it_serves_https(data: Path, port: int, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("registry.example")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    for number, part in enumerate(certificate.cert_chain_pems):
        part.write_to_path(tmp_path / "cert.pem", append=number > 0)
    options = ("--origin", "registry.example", "--tls-cert", f"{tmp_path}/cert.pem", "--tls-key", f"{tmp_path}/key.pem")
    with serving(data, port, *options) as served:
        assert served.about["base_url"] == "https://registry.example"
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        url = f"https://127.0.0.1:{port}/checkpoint"
        answer = httpx.Client(verify=trusting, trust_env=False).get(
            url, headers={"Host": "registry.example"}, extensions={"sni_hostname": "registry.example"}
        )
        assert answer.text.startswith("registry.example\n2\n")


def refused(data: Path, *options: str) -> str:
    """What `serve` says when it refuses to begin; nothing was made."""
    arguments = [str(PROGRAM), "serve", "--data", str(data), *options]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert not (data / "keys").exists()
    return ended.stderr


@pytest.mark.deep
def test_a_port_that_is_taken(data: Path, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        error = refused(data, "--port", str(port))
    assert "connection.listen" in error
    assert "--port" in error


@pytest.mark.deep
def test_tls_files_that_are_none(data: Path, port: int, tmp_path: Path) -> None:
    (tmp_path / "junk.pem").write_text("junk")
    for name in ("junk.pem", "missing.pem"):
        file = str(tmp_path / name)
        error = refused(data, "--port", str(port), "--tls-cert", file, "--tls-key", file)
        assert "settings.value" in error
        assert "--tls-key" in error


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("option", "words"), [("--blobs", "no object store"), ("--head", "newest signed head"), ("--tiles", "no object store")]
)
def test_a_path_in_the_place_of_a_store(data: Path, port: int, option: str, words: str) -> None:
    error = refused(data, "--port", str(port), option, "/var/treaty")
    assert "settings.value" in error and words in error and "/var/treaty" in error and "file:///" in error
    assert not (data / "postgres").exists()


@pytest.mark.deep
def test_init_and_migrate_without_a_server(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "init", "--data", str(data), "--origin", "registry.example", "--json")
    value = json.loads(out)
    assert (status, value["origin"], value["size"]) == (0, "registry.example", 2)
    status, out, _ = run(capsys, "migrate", "--data", str(data), "--json")
    assert (status, json.loads(out)) == (0, {"applied": []})
    status, out, err = run(capsys, "init", "--data", str(data), "--origin", "other.example")
    assert status == 1
    assert "settings.directory" in err
    status, out, _ = run(capsys, "init", "--data", str(data), "--origin", "other.example", "--json")
    assert (status, json.loads(out)["error"]["code"]) == (1, "settings.directory")


@pytest.mark.sample(1)
@pytest.mark.parametrize("command", ["decide", "audit", "migrate", "rebuild", "parameters"])
def test_without_a_log_it_says_how_to_make_one(data: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, command, "--data", str(data))
    assert status == 1
    assert "keys.missing" in err
    assert "--origin" in err


@pytest.mark.deep
def test_an_audit_with_findings_fails(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "init", "--data", str(data), "--origin", "registry.example")
    fence = Fence(data / "head", "registry.example")
    fence.advance(3, b"\1" * 32)
    fence.close()
    status, out, _ = run(capsys, "audit", "--data", str(data), "--json")
    assert status == 1
    assert len(json.loads(out)["findings"]) == 1
    status, _, err = run(capsys, "decide", "--data", str(data))
    assert status == 1
    assert "log.damaged" in err


def test_a_directory_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    status, _, err = run(capsys, "init", "--data", str(tmp_path / "file" / "data"), "--origin", "registry.example")
    assert status == 1
    assert "system.file" in err
    assert str(tmp_path / "file") in err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--help")
    for command in ("serve", "init", "migrate", "rebuild", "decide", "parameters", "audit"):
        assert command in out
        _, text, _ = run(capsys, command, "--help")
        assert "--data" in text
        assert "--json" in text


def test_settings_come_from_the_environment(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TREATY_REGISTRY_DATA", str(data))
    monkeypatch.setenv("TREATY_DATABASE_URL", f"postgresql://nobody@/none?host={data}")
    status, _, err = run(capsys, "migrate")
    assert status == 1
    assert "database.unreachable" in err
    assert not (data / "postgres").exists()
    assert os.environ["TREATY_DATABASE_URL"]
