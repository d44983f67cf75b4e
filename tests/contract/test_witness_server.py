"""A witness over real sockets: C2SP tlog-witness, to the status and the byte."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from signers import Signer, domain_signer, key_signer, signed
from witness_process import WitnessProcess, witness_process
from witnesses import LOG, ORIGIN, OTHER_LOG, History, leaves

from treaty_consensus import kinds
from treaty_consensus.canonical import hex_digest
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.equivocation import Equivocation
from treaty_consensus.log.note import KeyType, SignerKey
from treaty_consensus.log.witness import MAX_REQUEST, AddCheckpoint, Quorum
from treaty_consensus.stamped import MAX_ENVELOPE

HISTORY = History.of(leaves(40))
FORK = History.of(leaves(40, fork_at=5))


def record(witness: WitnessProcess) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (witness.data / "logs").glob("*")}


@pytest.mark.threat(63)
async def test_it_answers_as_the_specification_says(tmp_path: Path) -> None:
    async with witness_process(tmp_path / "w", LOG.verifier, name="w.example/1") as witness:
        assert witness.about["logs"] == {ORIGIN: 0}
        assert (witness.key.name, witness.key.type) == ("w.example/1", KeyType.COSIGNATURE)
        for old, new in ((0, 9), (9, 20), (20, 20)):
            answer = await witness.ask(HISTORY.request(old, new).format())
            assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
            assert answer.text.startswith("— w.example/1 ") and answer.text.count("\n") == 2, "one line for each of its keys"
            opened = open_checkpoint(HISTORY.note(new) + answer.content, LOG.verifier, witness.key)
            assert opened.time is not None
            for key in witness.keys:
                Quorum((key,), 1).check(HISTORY.note(new) + answer.content, HISTORY.checkpoint(new))
        assert [key.type for key in witness.keys] == [KeyType.COSIGNATURE, KeyType.ML_DSA_44]
        before = record(witness)
        impostor = SignerKey(ORIGIN, KeyType.ED25519, b"\7" * 32)
        for body, status in (
            (b"", 400),
            (b"old 20\n\nno note\n", 400),
            (b"old 020\n\n" + HISTORY.note(30), 400),
            (AddCheckpoint(40, (), HISTORY.note(30)).format(), 400),
            (AddCheckpoint(20, (), HISTORY.note(30, impostor)).format(), 403),
            (HISTORY.request(0, 30, OTHER_LOG).format(), 404),
            (HISTORY.request(9, 30).format(), 409),
            (HISTORY.request(0, 0).format(), 409),
            (FORK.request(20, 30).format(), 422),
            (AddCheckpoint(20, (), HISTORY.note(30)).format(), 422),
            (b"x" * (MAX_REQUEST + 1), 413),
        ):
            answer = await witness.ask(body)
            assert answer.status_code == status, (body[:40], answer.text)
            if status == 409:
                assert (answer.headers["content-type"], answer.content) == ("text/x.tlog.size", b"20\n")
            assert record(witness) == before
        other_root = await witness.ask(FORK.request(20, 20).format())
        assert (other_root.status_code, other_root.json()["code"]) == (422, "witness.root")
        assert other_root.headers["content-type"] == "application/problem+json", "a log that got a size would ask again"
        assert record(witness) == before
        stranger, voter = key_signer("stranger"), domain_signer("voter.example")
        ballot = kinds.Ballot("demo/echo", 0, (), "a checkpoint")
        for body, status in (
            (b"no statement", 400),
            (signed(ballot, voter, log="unknown.example").leaf, 404),
            (signed(ballot, Signer(stranger.did, stranger.key_id, voter.private_key), log=ORIGIN).leaf, 403),
            (signed(kinds.Vouch(stranger.did, 0), stranger, log=ORIGIN).leaf.replace(b"vnd.treaty", b"vnd.x"), 400),
            (signed(kinds.Grant("voter.example", stranger.did), voter, log=ORIGIN).leaf, 422),
            (b"x" * (MAX_ENVELOPE + 1), 413),
        ):
            answer = await witness.ask(body, path="/add-statement")
            assert answer.status_code == status, (body[:40], answer.text)
            assert not (witness.data / "box").exists()
        empty = f"/{hex_digest(ORIGIN.encode())}/statements"
        assert (await witness.ask(b"", "GET", f"{empty}?from=7")).json() == {"next": 0, "stamped": []}
        for path, status in ((f"{empty}?from=-1", 400), (f"/{hex_digest(b'unknown')}/statements", 404)):
            assert (await witness.ask(b"", "GET", path)).status_code == status
        for method, path, status in (("GET", "/add-checkpoint", 405), ("POST", "/", 404), ("POST", "/checkpoint", 404)):
            assert (await witness.ask(b"", method, path)).status_code == status
        assert await witness.stop() == 0


@pytest.mark.deep
async def test_monitors_read_the_newest_cosigned_checkpoint(tmp_path: Path) -> None:
    async with witness_process(tmp_path / "w", LOG.verifier, OTHER_LOG.verifier) as witness:
        path = f"/{hex_digest(ORIGIN.encode())}/checkpoint"
        nothing = await witness.ask(b"", "GET", path)
        assert (nothing.status_code, nothing.json()["code"]) == (404, "witness.unknown-log")
        unknown = await witness.ask(b"", "GET", f"/{hex_digest(b'unknown')}/checkpoint")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "witness.unknown-log")
        cosigned = await witness.ask(HISTORY.request(0, 9).format())
        answer = await witness.ask(b"", "GET", path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert answer.content == HISTORY.note(9) + cosigned.content, "the cosignatures that were returned, and the log's own"
        assert (await witness.ask(FORK.request(9, 20).format())).status_code == 422
        assert (await witness.ask(b"", "GET", path)).content == answer.content
        await witness.kill()
        await witness.start()
        again = await witness.ask(b"", "GET", path)
        for key in witness.keys:
            Quorum((key,), 1).check(again.content, HISTORY.checkpoint(9))
        assert open_checkpoint(again.content, LOG.verifier).checkpoint == HISTORY.checkpoint(9)


async def test_it_keeps_a_proof_of_what_it_is_shown(tmp_path: Path) -> None:
    async with witness_process(tmp_path / "w", LOG.verifier) as witness:
        assert (await witness.ask(HISTORY.request(0, 9).format())).status_code == 200
        assert (await witness.ask(FORK.request(9, 20).format())).status_code == 422
        (file,) = (witness.data / "evidence").iterdir()
        first, second = Equivocation.parse(file.read_bytes()).verify()
        assert (first, second) == (HISTORY.checkpoint(9), FORK.checkpoint(20))
        assert "a log signed two histories" in witness.said and "critical" in witness.said


@pytest.mark.deep
async def test_of_many_at_once_one_history_is_cosigned(tmp_path: Path) -> None:
    async with witness_process(tmp_path / "w", LOG.verifier) as witness:
        assert (await witness.ask(HISTORY.request(0, 5).format())).status_code == 200
        requests = [(history, size) for size in range(6, 16) for history in (HISTORY, FORK)]
        answers = await asyncio.gather(*(witness.ask(history.request(5, size).format()) for history, size in requests))
        assert {answer.status_code for answer in answers} <= {200, 409, 422}
        ((history, size),) = (requests[number] for number, answer in enumerate(answers) if answer.status_code == 200)
        assert list(record(witness).values()) == [history.note(size)], "of those that begin with one size, one alone"


@pytest.mark.deep
async def test_it_goes_on_where_it_stopped_and_under_its_own_name(tmp_path: Path) -> None:
    async with witness_process(tmp_path / "w", LOG.verifier, OTHER_LOG.verifier) as witness:
        key = witness.key
        assert key.name == f"localhost:{witness.port}/witness"
        assert (await witness.ask(HISTORY.request(0, 9).format())).status_code == 200
        second = WitnessProcess(witness.data, [LOG.verifier])
        await second.start()
        assert second.about["error"]["code"] == "system.held"
        assert await second.ended() == 1
    async with witness_process(tmp_path / "w", LOG.verifier) as witness:
        assert (witness.key, witness.about["logs"]) == (key, {ORIGIN: 9})
        assert (await witness.ask(FORK.request(0, 9).format())).status_code == 409
        assert (await witness.ask(HISTORY.request(9, 12).format())).status_code == 200


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "code"), [("w w", "note.form"), ("w" * 81, "witness.policy")])
async def test_a_name_that_no_witness_can_have_makes_none(tmp_path: Path, name: str, code: str) -> None:
    async with witness_process(tmp_path / "w", LOG.verifier, name=name) as witness:
        assert witness.about["error"]["code"] == code
        assert not (witness.data / "witness.key").exists()
