"""Fault: a witness is killed at random moments, between the record and the answer among them, while it is shown two histories.

Everything that it ever cosigned is of one history, and it starts again every time. The seed is printed; `TREATY_SEED` repeats it.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from depth import FULL, SEED
from witness_process import WitnessProcess, witness_process
from witnesses import LOG, ORIGIN, History, leaves

from treaty_consensus.canonical import hex_digest
from treaty_consensus.log.checkpoint import Checkpoint, open_checkpoint
from treaty_consensus.log.merkle import EMPTY_ROOT
from treaty_consensus.log.witness import SIZE_TYPE, cosignature

KILLS = 12 if FULL else 4
SIZE = 400


@dataclass
class Log:
    """One of two who have the log's key. `cosigned`: the heads that it has cosignatures of."""

    history: History
    cosigned: list[Checkpoint] = field(default_factory=list)

    async def ask(self, witness: WitnessProcess, choices: random.Random) -> None:
        """Submit ever larger heads from what the witness says that it knows, until it is gone."""
        old = 0
        async with httpx.AsyncClient(base_url=witness.about["url"], trust_env=False) as client:
            while True:
                new = min(old + choices.randrange(3), SIZE)
                request = self.history.request(min(old, new), new)
                try:
                    answer = await client.post("/add-checkpoint", content=request.format())
                except httpx.HTTPError:
                    return
                if answer.status_code == 200:
                    assert cosignature(answer.content, request.note, witness.key)
                    self.cosigned.append(self.history.checkpoint(new))
                    old = new
                elif answer.headers["content-type"] == SIZE_TYPE:
                    old = int(answer.text)
                else:
                    assert answer.status_code in (409, 422)
                    await asyncio.sleep(0.01)  # the other one is ahead


def record_of(data: Path) -> Path:
    """The file that says what was cosigned last."""
    return data / "logs" / hex_digest(ORIGIN.encode())


def recorded(data: Path) -> Checkpoint:
    """What it says; the empty tree when the witness was killed before there was anything to say."""
    path = record_of(data)
    return open_checkpoint(path.read_bytes(), LOG.verifier).checkpoint if path.exists() else Checkpoint(ORIGIN, 0, EMPTY_ROOT)


@pytest.mark.threat(12)
async def test_a_killed_witness_cosigns_one_history(tmp_path: Path) -> None:
    seed = int(SEED or secrets.randbits(32))
    print(f"TREATY_SEED={seed}")
    choices = random.Random(seed)
    logs = [Log(History.of(leaves(SIZE))), Log(History.of(leaves(SIZE, fork_at=1)))]
    for _ in range(KILLS):
        async with witness_process(tmp_path / "w", LOG.verifier, name="w.example") as witness:
            assert "error" not in witness.about
            asking = [asyncio.create_task(log.ask(witness, choices)) for log in logs]
            # A slow machine may need longer for the first cosignature than the time to the kill.
            while not any(log.cosigned for log in logs):  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
            await asyncio.sleep(choices.uniform(0.02, 0.4))
            await witness.kill()
            await asyncio.gather(*asking)
        newest = recorded(tmp_path / "w")
        heads = [head for log in logs for head in log.cosigned]
        assert max((head.size for head in heads), default=0) <= newest.size
        one, other = (all(log.history.checkpoint(head.size) == head for head in [*heads, newest]) for log in logs)
        assert one or other
    assert heads


@pytest.mark.deep
async def test_a_recorded_checkpoint_is_cosigned_when_asked_again(tmp_path: Path) -> None:
    """The crash between record and answer, made by hand: the record is there, and nobody has the cosignature."""
    history = History.of(leaves(20))
    async with witness_process(tmp_path / "w", LOG.verifier) as witness:
        assert (await witness.ask(history.request(0, 9).format())).status_code == 200
        await witness.kill()
    record_of(tmp_path / "w").write_bytes(history.note(15))
    async with witness_process(tmp_path / "w", LOG.verifier) as witness:
        answer = await witness.ask(history.request(9, 15).format())
        assert (answer.status_code, answer.text) == (409, "15\n")
        answer = await witness.ask(history.request(15, 15).format())
        assert cosignature(answer.content, history.note(15), witness.key)
