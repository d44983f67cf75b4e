"""Witnesses across implementations: transparency-dev's client asks ours, and our registry asks transparency-dev's witness."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import go_programs
import httpx
import pytest
from go_programs import needs_go, refusal, result
from http_api import serving
from ports import free_port
from registries import Web, ballot, grant, log, new_or_not, operator_in, settings_for
from signers import NOW, ORIGIN, domain_signer, key_signer
from witness_process import witness_process
from witnesses import LOG, OTHER_LOG, WITNESSES, History, leaves

from treaty_consensus.audit import Replay
from treaty_consensus.kinds import Decision
from treaty_consensus.log.checkpoint import Checkpoint, open_checkpoint
from treaty_consensus.log.note import KeyType, SignerKey, VerifierKey, add_signatures, sign, signature_lines
from treaty_consensus.log.policy import Group, PolicyLog, PolicyWitness, WitnessPolicy
from treaty_consensus.log.subtree import subtree_ranges
from treaty_consensus.log.witness import Quorum
from treaty_consensus.statement import Statement
from treaty_registry.data_directory import create_log
from treaty_registry.registry import Registry
from treaty_registry.settings import Settings, WitnessName

pytestmark = needs_go("transparency-dev/witness as a client of our witness, and as a witness of our log")

WRITER = key_signer("writer")


def other_history(size: int, key: SignerKey) -> bytes:
    """A checkpoint with a root that the log never had."""
    return sign(Checkpoint(key.name, size, hashlib.sha256(b"another history").digest()).format(), [key])


async def test_a_foreign_log_is_witnessed_by_ours(registry: Registry, go_log: Path, tmp_path: Path) -> None:
    program, key = go_log / "log", operator_in(tmp_path / "registry").log_key
    async with (
        serving(registry, free_port()) as tiles,
        witness_process(tmp_path / "witness", registry.log_key, name="w1.example") as witness,
    ):
        url = witness.about["url"]

        async def update(old: int, note: bytes, *tiles: str) -> Any:
            return await result(program, "update", url, old, *tiles, stdin=note)

        async def refused(old: int, note: bytes) -> str:
            answer = await update(old, note)
            assert answer["size"] == 0  # only a stale size is answered with the right one
            return str(answer["error"])

        async def cosigned(old: int) -> int:
            """Have the newest head cosigned; its size."""
            head = registry.head
            answer = await update(old, head.note, tiles)
            Quorum((witness.key,), 1).check(head.note + answer["signatures"].encode(), head.signed.checkpoint)
            return head.size

        size = await cosigned(0)
        for number in range(5):
            await log(registry, grant(WRITER, number), WRITER)
        newer = await cosigned(size)
        assert await cosigned(newer) == newer
        stale = await update(size, registry.head.note)
        assert stale == {"error": "old size != current", "size": newer}
        assert await refused(newer, other_history(newer, key)) == "consistency proof invalid"  # 422, as C2SP of 2026 has it
        assert await refused(newer, other_history(newer + 1, key)) == "consistency proof invalid"
        assert await refused(newer + 1, registry.head.note) == "old size > current"
        assert await refused(0, other_history(1, OTHER_LOG)) == "unknown log"
        thief = SignerKey(key.name, key.type, bytes(32))
        assert await refused(newer, other_history(newer, thief)) == "no valid signatures"


async def test_cosignatures_of_ml_dsa_44_cross_implementations(go_log: Path) -> None:
    program, history = go_log / "log", History.of(leaves(20))
    ours = SignerKey("ours.example/w1", KeyType.ML_DSA_44, hashlib.sha256(b"ours").digest())
    opened = await result(program, "cosigned", ours.verifier, stdin=add_signatures(history.note(20), [ours], time=NOW))
    assert opened == {"name": ours.name, "time": NOW, "hash": ours.verifier.id.hex()}
    cosignature = await result(program, "cosign", "theirs.example/w1", stdin=history.note(20))
    theirs = VerifierKey.parse(cosignature["key"])
    assert theirs.type == KeyType.ML_DSA_44
    Quorum((theirs,), 1).check(cosignature["note"].encode(), history.checkpoint(20), since=NOW)
    thief = SignerKey(ours.name, KeyType.ML_DSA_44, bytes(32))
    forged = history.note(20) + signature_lines(add_signatures(history.note(19), [ours], time=NOW), [ours.verifier])
    assert "malformed note" not in await refusal(program, "cosigned", ours.verifier, stdin=forged)
    assert await refusal(program, "cosigned", thief.verifier, stdin=add_signatures(history.note(20), [ours], time=NOW))


async def test_tessera_reads_our_policies_and_decides_as_we_do(go_log: Path) -> None:
    program, history = go_log / "log", History.of(leaves(20))
    signers = [
        SignerKey(f"w{n}.example", KeyType.ML_DSA_44 if n % 2 else KeyType.COSIGNATURE, hashlib.sha256(b"%d" % n).digest())
        for n in range(6)
    ]
    witnesses = tuple(PolicyWitness(f"X{n}", key.verifier, f"https://{key.name}") for n, key in enumerate(signers))
    groups = (
        Group("A", 2, ("X0", "X1", "X2")),
        Group("B", 1, ("X3", "X4")),
        Group("C", 2, ("A", "B")),
        Group("D", 1, ("C", "X5")),
    )
    for quorum in ("A", "B", "C", "D", "X4", None):
        policy = WitnessPolicy((PolicyLog(LOG.verifier),), witnesses, groups, quorum)
        assert WitnessPolicy.parse(policy.format()) == policy
        # One note for each set of witnesses; all sets of six are 64.
        for selection in range(0, 64, 3):
            cosigners = [key for n, key in enumerate(signers) if selection >> n & 1]
            note = add_signatures(history.note(20), cosigners, time=NOW) if cosigners else history.note(20)
            ours = policy.holds([key.verifier for key in cosigners])
            answer = await result(program, "satisfied", go_programs.b64(policy.format()), stdin=note)
            assert answer == {"satisfied": ours}, (quorum, selection)


async def test_torchwood_reads_our_policies_and_decides_as_we_do(go_log: Path) -> None:
    program, history = go_log / "log", History.of(leaves(20))
    names = [PolicyWitness(f"X{n}", key.verifier) for n, key in enumerate(WITNESSES)]
    groups = (Group("A", 2, ("X0", "X1")), Group("B", 1, ("A", "X2")))
    for logs, quorum in ((LOG, "A"), (LOG, "B"), (LOG, "X2"), (OTHER_LOG, "B")):
        policy = WitnessPolicy((PolicyLog(logs.verifier),), tuple(names), groups, quorum)
        for selection in range(1, 8):
            cosigners = [key for n, key in enumerate(WITNESSES) if selection >> n & 1]
            note = add_signatures(history.note(20), cosigners, time=NOW)
            ours = logs is LOG and policy.holds([key.verifier for key in cosigners])
            answer = await result(program, "policy", go_programs.b64(policy.format()), stdin=note)
            assert answer == ({"holds": True, "size": 20} if ours else {"holds": False}), (quorum, selection)


async def test_subtree_proofs_cross_implementations(go_log: Path) -> None:
    history, size = History.of(leaves(700)), 700

    def root(begin: int, end: int) -> bytes:
        return History.of(history.leaves[begin:end]).root(end - begin)

    for start, end in ((0, 256), (256, 512), (512, 700), (512, 600), (0, 700), (0, 300), (0, 1), (256, 257)):
        proof = [root(*each) for each in subtree_ranges(start, end, size)]
        for part, holds in ((root(start, end), True), (bytes(32), False)):
            hashes = [go_programs.b64(each) for each in (history.root(size), part, *proof)]
            answer = await result(go_log / "log", "subtree", size, hashes[0], start, end, *hashes[1:])
            assert answer == {"holds": holds}, (start, end)


@asynccontextmanager
async def foreign_witness(go_log: Path, log_key: VerifierKey) -> AsyncIterator[WitnessName]:
    """transparency-dev's witness of one log."""
    async with go_programs.serving(go_log / "log", "witness", "foreign.example/w1", log_key) as about:
        yield WitnessName.parse(f"{about['url']}#{about['key']}")


@asynccontextmanager
async def opened(settings: Settings, web: Web) -> AsyncIterator[Registry]:
    async with Registry.open(
        new_or_not(settings), clock=lambda: datetime.fromtimestamp(NOW, UTC), resolve=web.resolve
    ) as registry:
        yield registry


async def test_a_foreign_witness_cosigns_the_log_and_its_decisions(database: str, web: Web, go_log: Path, tmp_path: Path) -> None:
    settings, voter = settings_for(tmp_path / "registry", database), domain_signer("voter.example")
    web.serve(voter)
    operator = await create_log(settings, database)
    async with foreign_witness(go_log, operator.log_key.verifier) as witness:
        parameters = tmp_path / "parameters.toml"
        parameters.write_text(f'electorate = "development"\n[witnesses]\nquorum = 1\nkeys = ["{witness.key}"]\n')
        quorum = Quorum((witness.key,), 1)
        async with (
            opened(replace(settings, parameters=parameters, witnesses=(witness,)), web) as registry,
            serving(registry, free_port()) as url,
        ):
            await log(registry, ballot(registry, 0, "ab" * 32), voter)
            (decided,) = await registry.decide()
            assert decided.decision.input.witnessed is not None
            checkpoint = Checkpoint(ORIGIN, decided.decision.input.size, bytes.fromhex(decided.decision.input.root))
            quorum.check(decided.decision.input.witnessed.encode(), checkpoint)
            leaves = await registry.leaves(range(registry.head.size))
            replay = Replay()
            entries = [replay.append(leaves[index]) for index in sorted(leaves)]
            bodies = [entry.body for entry in entries if isinstance(entry, Statement)]
            assert [body for body in bodies if isinstance(body, Decision)] == [decided.decision]
            async with httpx.AsyncClient(base_url=url, trust_env=False) as api, asyncio.timeout(60):
                while True:
                    note = (await api.get("/checkpoint")).content
                    head = open_checkpoint(note, registry.log_key, registry.clock_key).checkpoint
                    if head.size == registry.head.size and witness.key.name.encode() in note:
                        break
                    await asyncio.sleep(0.05)
                quorum.check(note, head)
                assert (await api.get("/health/ready")).json() == {"status": "ready"}


@pytest.mark.parametrize("more, code", [(0, "witness.history"), (5000, "witness.ahead")])
async def test_a_foreign_witness_that_knows_another_history_is_named(
    database: str, web: Web, go_log: Path, tmp_path: Path, more: int, code: str
) -> None:
    settings = settings_for(tmp_path / "registry", database)
    async with opened(settings, web) as registry:
        size, key = registry.head.size, operator_in(tmp_path / "registry").log_key
    async with foreign_witness(go_log, key.verifier) as witness:
        forged = other_history(size + more, key)
        assert (await result(go_log / "log", "update", witness.url, 0, stdin=forged))["signatures"]
        async with (
            opened(replace(settings, witnesses=(witness,)), web) as registry,
            serving(registry, free_port()) as url,
            httpx.AsyncClient(base_url=url, trust_env=False) as api,
        ):
            async with asyncio.timeout(60):
                while True:
                    answer = (await api.get("/health/ready")).json()
                    if answer != {"status": "ready"}:
                        break
                    await asyncio.sleep(0.05)
            assert answer["witnesses"] == {"foreign.example/w1": code}
            assert witness.key.name.encode() not in (await api.get("/checkpoint")).content
