"""`treaty watch` against a log that is really signed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from served_log import Wire, served
from simulated_registry import ALICE, BOB, NAME, OPERATOR, TOPIC, SimulatedRegistry, uri_of, with_echo
from treaty_process import finished, start, treaty_here
from webhook_receiver import SECRET, Receiver, receiving, secret_in

from treaty_client.registries.signed import SignedIds
from treaty_client.registries.trust import TrustedRegistries, parse_registry_name
from treaty_consensus import kinds
from treaty_consensus.election.defaults import development_parameters
from treaty_consensus.log.equivocation import Equivocation
from treaty_consensus.sigstore_leaf import CertificateLeaf

PROGRAM = Path(sys.executable).with_name("treaty")


@pytest.fixture
def registry() -> SimulatedRegistry:
    return with_echo()


@pytest.fixture
def home(tmp_path: Path, registry: SimulatedRegistry) -> Iterator[Path]:
    with served(Wire(registry)) as name:
        TrustedRegistries(tmp_path / "home").add(parse_registry_name(name))
        yield tmp_path / "home"


def moved(home: Path, name: str) -> None:
    TrustedRegistries(home).add(parse_registry_name(name))


def watch(home: Path, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, findings, and the error."""
    status, out, err = treaty_here("watch", "--once", "--json", "--home", str(home), *options)
    lines = [json.loads(line) for line in out.splitlines()]
    return status, [line for line in lines if "error" not in line], err + "".join(str(line) for line in lines if "error" in line)


def kinds_of(findings: list[dict[str, Any]]) -> list[str]:
    return [finding["kind"] for finding in findings]


def cursors(home: Path) -> dict[str, int]:
    (file,) = (home / "watch").rglob("*.json")
    cursors_of: dict[str, int] = json.loads(file.read_bytes())["watches"]
    return cursors_of


def test_a_new_watch_reports_each_later_entry_once(home: Path, registry: SimulatedRegistry) -> None:
    assert watch(home, "--did", ALICE.did)[:2] == (0, [])
    registry.publish("2.0")
    registry.publish(signer=BOB)
    status, findings, _ = watch(home, "--did", ALICE.did)
    assert status == 7
    assert [(one["kind"], one["severity"], one["index"]) for one in findings] == [("publish", "unexpected", 8)]
    assert "did:wba:alice.example publishes" in findings[0]["sentence"]
    assert watch(home, "--did", ALICE.did)[:2] == (0, [])


def test_every_kind_of_entry_in_the_name_of_a_did_is_told(home: Path, registry: SimulatedRegistry) -> None:
    watch(home, "--did", ALICE.did)
    registry.add(kinds.Grant("bob.example", ALICE.did), BOB)
    registry.add(kinds.Vouch(ALICE.did, 0), BOB)
    registry.attach(signer=BOB, of=ALICE, release="9")
    registry.add(kinds.Status(uri_of(), "revoked"), ALICE)
    registry.add(kinds.Ballot(TOPIC, 0, (("none",),), registry.checkpoint().decode()), ALICE)
    registry.publish("1.0", signer=BOB, aliases=("https://alice.example/echo", uri_of()))
    findings = watch(home, "--did", ALICE.did)[1]
    assert kinds_of(findings) == ["grant", "vouch", "handler", "status", "ballot", "publish"]
    findings = watch(home, "--from", "0", "--did", ALICE.did, "--name", "all")[1]
    assert kinds_of(findings)[:5] == ["identity", "publish", "certificate", "hashedrekord", "handler"]


def test_topics_namespaces_and_handlers_are_told(home: Path, registry: SimulatedRegistry) -> None:
    registry.add(kinds.Ballot(TOPIC, 0, (("none",),), registry.checkpoint().decode()), BOB)
    registry.decide()
    assert kinds_of(watch(home, "--from", "0", "--topic", TOPIC)[1]) == ["publish", "ballot", "decision"]
    wheel = next(
        statement.body.wheel.sha256 for _, statement in registry.statements() if isinstance(statement.body, kinds.Handler)
    )
    registry.add(kinds.Withdrawal(wheel, "malicious"), OPERATOR)
    assert kinds_of(watch(home, "--from", "0", "--handler", wheel, "--name", "a")[1]) == ["handler", "withdrawal"]
    for number, uri in enumerate((uri_of(), uri_of().rpartition("/")[0])):
        assert kinds_of(watch(home, "--from", "0", "--handler", uri, "--name", f"b{number}")[1]) == ["publish", "handler"]
    findings = watch(home, "--from", "0", "--namespace", "bob.example", "--name", "c")[1]
    assert kinds_of(findings) == ["identity", "ballot"]


def test_an_amendment_is_reported_when_announced_and_begun(home: Path, registry: SimulatedRegistry) -> None:
    registry.add(kinds.Ballot(TOPIC, 0, (("none",),), registry.checkpoint().decode()), BOB)
    registry.decide()
    watch(home, "--constitution", "--from", "0", "--topic", TOPIC)
    announced = registry.add(replace(development_parameters(), quorum_share=5), OPERATOR)
    status, findings, _ = watch(home, "--constitution", "--topic", TOPIC)
    assert (status, kinds_of(findings)) == (7, ["parameters"])
    registry.add(kinds.Ballot(TOPIC, 1, (("none",),), registry.checkpoint().decode()), BOB)
    registry.decide()
    assert kinds_of(watch(home, "--constitution", "--topic", TOPIC)[1]) == ["ballot", "decision"], "still of the old epoch"
    registry.add(kinds.Ballot(TOPIC, 2, (("none",),), registry.checkpoint().decode()), BOB)
    registry.decide()
    findings = watch(home, "--constitution", "--topic", TOPIC)[1]
    assert kinds_of(findings) == ["ballot", "enactment", "decision"] and announced.id in findings[1]["sentence"]
    assert watch(home, "--constitution", "--topic", TOPIC)[:2] == (0, [])


def test_entries_of_this_home_and_of_named_files_are_expected(home: Path, registry: SimulatedRegistry, tmp_path: Path) -> None:
    watch(home, "--did", ALICE.did)
    one, two, three = (registry.publish(version) for version in ("2.0", "3.0", "4.0"))
    SignedIds(home / "signed.txt").add(one.id)
    with (home / "signed.txt").open("ab") as file:
        file.write(b"half a li")  # a crash
    SignedIds(home / "signed.txt").add(two.id)
    other = tmp_path / "other.txt"
    other.write_text(f"# the build machine\n{three.id} release of May\n")
    status, findings, _ = watch(home, "--did", ALICE.did, "--expected", str(other))
    assert (status, [finding["severity"] for finding in findings]) == (0, ["expected"] * 3)
    assert watch(home, "--did", ALICE.did, "--expected", str(tmp_path / "mistyped"))[0] == 5


def test_a_watch_that_is_added_or_comes_back_loses_nothing(home: Path, registry: SimulatedRegistry) -> None:
    watch(home, "--did", ALICE.did)
    registry.publish("2.0")
    assert watch(home, "--did", BOB.did)[:2] == (0, [])
    registry.publish(signer=BOB)
    findings = watch(home, "--did", ALICE.did, "--did", BOB.did)[1]
    assert [(one["watch"], one["index"]) for one in findings] == [(f"did {ALICE.did}", 8), (f"did {BOB.did}", 9)]


def test_a_fork_is_grave_with_a_proof_that_holds_alone(home: Path, registry: SimulatedRegistry) -> None:
    watch(home, "--did", ALICE.did)
    before = cursors(home)
    fork = registry.rewritten(registry.size - 1, registry.leaves[3])
    fork.now = registry.now
    fork.force(fork.leaves[2])
    with served(Wire(fork)) as name:
        moved(home, name)
        status, (finding,), _ = watch(home, "--did", ALICE.did)
    assert (status, finding["severity"], finding["kind"]) == (4, "grave", "log.consistency")
    first, second = Equivocation.parse(Path(finding["evidence"]).read_bytes()).verify()
    assert (first.size, second.size) == (8, 9)
    assert len(finding["notes"]) == 2
    assert cursors(home) == before


def test_entries_that_were_not_signed_are_grave_and_not_told(home: Path, registry: SimulatedRegistry) -> None:
    watch(home, "--did", ALICE.did)
    registry.publish("2.0")
    other = registry.rewritten(registry.size - 1, CertificateLeaf(b"x").encode())
    registry.tamper = lambda path, body: other.tile(path) if "/entries/" in path else body
    status, findings, _ = watch(home, "--did", ALICE.did)
    assert (status, kinds_of(findings)) == (4, ["mirror.root"])
    registry.tamper = lambda path, body: body
    assert watch(home, "--did", ALICE.did)[0] == 7


def test_an_old_or_shrunk_or_badly_signed_log_is_grave(home: Path, registry: SimulatedRegistry) -> None:
    watch(home, "--did", ALICE.did)
    registry.publish("2.0")
    assert watch(home, "--did", ALICE.did)[0] == 7
    registry.served = registry.size - 1
    whole = registry.copy()
    registry.now += 60
    registry.tamper = lambda path, body: whole.tile(path) if path.startswith("/tile/") else body
    status, (finding,), _ = watch(home, "--did", ALICE.did)
    assert (status, finding["kind"], len(finding["notes"])) == (4, "watch.shrunk", 2)
    registry.served, registry.cosigned = None, registry.now - 7200
    assert kinds_of(watch(home, "--did", ALICE.did)[1]) == ["checkpoint.stale"]
    registry.cosigned = None
    registry.tamper = lambda path, body: body.replace(b"\n\n", b"\nx\n\n") if path == "/checkpoint" else body
    assert kinds_of(watch(home, "--did", ALICE.did)[1]) == ["note.signature"]


def test_only_a_long_absence_of_a_registry_is_a_finding(home: Path, registry: SimulatedRegistry) -> None:
    watch(home, "--did", ALICE.did)
    moved(home, f"http://127.0.0.1:9#{NAME.key}")
    assert watch(home, "--did", ALICE.did)[:2] == (3, [])
    (file,) = (home / "watch").rglob("*.json")
    state = json.loads(file.read_bytes())
    file.write_text(json.dumps(state | {"read": state["read"] - 7200}))
    status, findings, _ = watch(home, "--did", ALICE.did)
    assert (status, kinds_of(findings)) == (4, ["checkpoint.stale"])


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as posts:
        yield posts


def test_a_webhook_that_fails_for_a_while_gets_every_finding(
    home: Path, registry: SimulatedRegistry, receiver: Receiver, tmp_path: Path
) -> None:
    hook = ("--webhook", receiver.url, "--secret-file", str(secret_in(tmp_path)), "--did", ALICE.did)
    watch(home, *hook)
    registry.publish("2.0")
    registry.publish("3.0")
    receiver.failing = 2
    status, findings, err = watch(home, *hook)
    assert status == 7, err
    assert receiver.tried[0] == receiver.tried[1] == receiver.tried[2]
    assert [finding for _, finding in receiver.taken] == findings
    assert [id_.partition("-")[0] for id_, _ in receiver.taken] == [one["statement"] for one in findings]


@pytest.mark.parametrize("status", [302, 500])
def test_the_cursor_waits_for_a_webhook(
    home: Path, registry: SimulatedRegistry, receiver: Receiver, tmp_path: Path, status: int
) -> None:
    hook = ("--webhook", receiver.url, "--secret-file", str(secret_in(tmp_path)), "--did", ALICE.did)
    watch(home, *hook)
    before = cursors(home)
    registry.publish("2.0")
    receiver.failing, receiver.status = 4, status
    assert watch(home, *hook)[0] == 3
    assert (cursors(home), receiver.taken) == (before, [])
    assert watch(home, *hook)[0] == 7
    assert len(receiver.taken) == 1


@pytest.mark.parametrize("url", ["http://alarm.example/", "https://10.0.0.1/", "https://user@alarm.example/", "ftp://127.0.0.1/"])
def test_a_webhook_needs_https_or_this_machine(home: Path, registry: SimulatedRegistry, tmp_path: Path, url: str) -> None:
    hook = ("--webhook", url, "--secret-file", str(secret_in(tmp_path)))
    status, findings, _ = watch(home, *hook, "--from", "0", "--handler", "0" * 64)
    if "10.0.0.1" in url:  # a name may lead there too, so the address is checked at each delivery
        assert status == 0
        assert watch(home, *hook, "--did", ALICE.did, "--from", "6")[0] == 3
    else:
        assert (status, findings) == (1, [])


def test_a_secret_that_others_can_read_is_refused(home: Path, tmp_path: Path, receiver: Receiver) -> None:
    secret = secret_in(tmp_path)
    secret.chmod(0o644)
    hook = ("--webhook", receiver.url, "--secret-file", str(secret), "--did", ALICE.did)
    assert watch(home, *hook)[0] == 1
    secret.chmod(0o600)
    for text in ("whsec_c2hvcnQ=", SECRET.removeprefix("whsec_"), "whsec_***"):
        secret.write_text(text)
        assert watch(home, *hook)[0] == 1


def test_a_closed_or_full_output_leaves_the_cursor(home: Path, registry: SimulatedRegistry) -> None:
    watch(home, "--did", ALICE.did)
    before = cursors(home)
    registry.publish("2.0")
    arguments = ["watch", "--once", "--json", "--home", str(home), "--did", ALICE.did]
    process = start(*arguments)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 141, "the status of a command whose reader has gone"
    assert cursors(home) == before
    with Path("/dev/full").open("w") as full:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TREATY_")}
        assert subprocess.run([PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, env=clean, check=False).returncode != 0
    assert cursors(home) == before
    assert watch(home, "--did", ALICE.did)[0] == 7


def test_two_processes_do_not_share_cursors(home: Path, registry: SimulatedRegistry) -> None:
    process = start("watch", "--home", str(home), "--did", ALICE.did, environment={"PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    assert "Watching 1 names" in process.stdout.readline()
    assert "system.held" in watch(home, "--did", ALICE.did)[2]
    assert watch(home, "--did", ALICE.did, "--name", "cron")[0] == 0
    process.terminate()
    finished(process)


def test_a_file_names_watches_and_webhooks(home: Path, registry: SimulatedRegistry, receiver: Receiver, tmp_path: Path) -> None:
    secret_in(tmp_path)
    (tmp_path / "ids.txt").write_text("")
    file = tmp_path / "watch.toml"
    file.write_text(
        'namespaces = ["alice.example"]\nexpected = ["ids.txt"]\n'
        f'[[webhooks]]\nurl = "{receiver.url}"\nsecret_file = "webhook.secret"\n'
    )
    watch(home, "--file", str(file))
    registry.publish("2.0")
    assert watch(home, "--file", str(file))[0] == 7
    assert receiver.taken[0][1]["watch"] == "namespace alice.example"
    for text in ('name = ["x"]', "dids = 3", 'dids = ["did:none:x"]', "x" * 70_000):
        file.write_text(text)
        assert watch(home, "--file", str(file))[0] == 1


def test_without_a_name_there_is_nothing_to_watch(home: Path) -> None:
    assert watch(home)[0] == 2
