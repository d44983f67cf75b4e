"""C2SP tlog-mirror: entries of any log are uploaded, proved, kept, served and cosigned; over real sockets."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from ports import free_port
from witness_process import WitnessProcess
from witnesses import LOG, ORIGIN, OTHER_LOG, History, leaves

from treaty_consensus.canonical import hex_digest
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.merkle import Frontier, leaf_hash
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.subtree import subtree_ranges, verify_subtree
from treaty_consensus.log.tiles import decode_bundle
from treaty_consensus.log.upload import INFO_TYPE, Upload, encode_package
from treaty_consensus.log.witness import Quorum

HISTORY = History.of(leaves(900))
FORK = History.of(leaves(900, fork_at=5))
COPY = f"/mirror/{hex_digest(ORIGIN.encode())}"


def root_over(entries: Sequence[bytes]) -> bytes:
    tree = Frontier()
    for entry in entries:
        tree.append(leaf_hash(entry))
    return tree.root()


def body(start: int, end: int, *, history: History = HISTORY, packages: int = 32, origin: str = ORIGIN) -> bytes:
    """An upload of the first packages of an interval."""
    upload = Upload(origin, start, end)
    parts = []
    for first, last in upload.packages()[:packages]:
        ranges = subtree_ranges(first - first % 256, last, end)
        proof = [root_over(history.leaves[one:other]) for one, other in ranges]
        parts.append(encode_package(history.leaves[first:last], proof))
    return upload.format() + b"".join(parts)


@asynccontextmanager
async def mirror(data: Path) -> AsyncIterator[WitnessProcess]:
    """A witness that is also a mirror."""
    running = WitnessProcess(data, [LOG.verifier], "w.example/1", free_port(), options=("--mirror",))
    await running.start()
    try:
        yield running
    finally:
        await running.kill()


async def upload(to: WitnessProcess, content: bytes, *, gzipped: bool = False) -> httpx.Response:
    headers = {"Content-Type": "application/octet-stream"} | ({"Content-Encoding": "gzip"} if gzipped else {})
    async with httpx.AsyncClient(base_url=to.about["url"], trust_env=False) as client:
        return await client.post("/add-entries", content=gzip.compress(content) if gzipped else content, headers=headers)


def info(answer: httpx.Response, status: int) -> tuple[int, int]:
    """The pending size and the next entry in an answer."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, INFO_TYPE), answer.text
    pending, following, ticket = answer.text.split("\n")[:3]
    assert ticket == ""
    return int(pending), int(following)


async def expect(to: WitnessProcess, old: int, new: int) -> None:
    assert (await to.ask(HISTORY.request(old, new).format())).status_code == 200


async def check_copy(of: WitnessProcess, size: int) -> None:
    """The copy has these leaves, a checkpoint with the signature of the log, and both cosignatures of the mirror."""
    note = (await of.ask(b"", "GET", f"{COPY}/checkpoint")).content
    assert open_checkpoint(note, LOG.verifier).checkpoint == HISTORY.checkpoint(size)
    for key in map(VerifierKey.parse, of.about["mirror"]["keys"]):
        assert key.name == "w.example/1/mirror"
        Quorum((key,), 1).check(note, HISTORY.checkpoint(size))
    leaves: list[bytes] = []
    while len(leaves) < size:
        width = min(256, size - len(leaves))
        path = f"/tile/entries/{len(leaves) // 256:03}" + ("" if width == 256 else f".p/{width}")
        leaves += decode_bundle((await of.ask(b"", "GET", COPY + path)).content, width)
    assert leaves == HISTORY.leaves[:size]


async def test_entries_are_uploaded_and_the_copy_is_cosigned(tmp_path: Path) -> None:
    async with mirror(tmp_path / "w") as witness:
        assert (await witness.ask(b"", "GET", f"{COPY}/checkpoint")).status_code == 404
        assert (await upload(witness, body(0, 300))).status_code == 422, "no checkpoint was sent yet"
        await expect(witness, 0, 300)
        assert info(await upload(witness, body(0, 200)), 409) == (300, 0), "200 is no pending checkpoint"
        assert info(await upload(witness, body(256, 300)), 409) == (300, 0), "entries may not be left out"
        assert info(await upload(witness, body(0, 300, packages=1)), 202) == (300, 256)
        assert (await witness.ask(b"", "GET", f"{COPY}/checkpoint")).status_code == 404
        done = await upload(witness, body(256, 300))
        assert done.status_code == 200 and done.text.count("— w.example/1/mirror ") == 2
        await check_copy(witness, 300)
        # A larger one, compressed, which begins within a bundle and repeats entries.
        await expect(witness, 300, 900)
        assert (await upload(witness, body(290, 900), gzipped=True)).status_code == 200
        await check_copy(witness, 900)
        assert (await upload(witness, Upload(ORIGIN, 900, 900).format())).status_code == 200, "the same again"
        assert (await witness.ask(b"", "GET", f"{COPY}/tile/0/000")).status_code == 200
        await witness.kill()
        await witness.start()
        await check_copy(witness, 900)


@pytest.mark.deep
@pytest.mark.threat(303)
async def test_what_is_not_proved_is_not_kept(tmp_path: Path) -> None:
    async with mirror(tmp_path / "w") as witness:
        await expect(witness, 0, 600)
        assert (await upload(witness, body(0, 600, history=FORK))).status_code == 422
        mixed = body(0, 600, packages=1) + body(0, 600, history=FORK)[len(body(0, 600, packages=1, history=FORK)) :]
        assert (await upload(witness, mixed)).status_code == 422, "its first package holds, its second does not"
        assert info(await upload(witness, body(300, 600)), 409) == (600, 256)
        assert (await upload(witness, body(0, 600, origin="unknown.example"))).status_code == 404
        assert (await upload(witness, body(0, 600, origin=OTHER_LOG.name))).status_code == 404
        whole = body(256, 600)
        for broken in (b"", whole[:5], whole[:40], whole[:200], b"\0\0" + whole, Upload(ORIGIN, 9, 3).format()):
            assert (await upload(witness, broken)).status_code == 400, broken[:10]
        assert (await upload(witness, b"no gzip", gzipped=False)).status_code == 400
        assert info(await upload(witness, whole[: len(whole) - 9]), 202) == (600, 512)
        assert (await upload(witness, body(512, 600))).status_code == 200
        await check_copy(witness, 600)


@pytest.mark.deep
async def test_uploads_at_the_same_time_end_in_one_copy(tmp_path: Path) -> None:
    async with mirror(tmp_path / "w") as witness:
        await expect(witness, 0, 900)
        answers = await asyncio.gather(*(upload(witness, body(start, 900)) for start in (0, 0, 0, 0)))
        assert 200 in {answer.status_code for answer in answers} <= {200, 202, 409}
        await check_copy(witness, 900)


@pytest.mark.deep
async def test_a_plain_witness_takes_no_entries(tmp_path: Path) -> None:
    running = WitnessProcess(tmp_path / "w", [LOG.verifier], "w.example/1", free_port())
    await running.start()
    try:
        assert (await upload(running, body(0, 300))).status_code == 404
    finally:
        await running.kill()


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 21])
def test_every_subtree_is_proved_and_nothing_else(size: int) -> None:
    history = History.of(leaves(size))
    for start in range(size):
        for end in range(start + 1, size + 1):
            whole, part = history.root(size), root_over(history.leaves[start:end])
            if start % (1 << (end - start - 1).bit_length()):
                continue
            proof = [root_over(history.leaves[one:other]) for one, other in subtree_ranges(start, end, size)]
            verify_subtree(start, end, size, part, whole, proof)
            wrong = [(part, whole, [*proof, bytes(32)]), (bytes(32), whole, proof), (part, bytes(32), proof)]
            wrong += [(part, whole, proof[:-1])] if proof else []
            for false_part, false_whole, false_proof in wrong:
                with pytest.raises(Exception) as refused:
                    verify_subtree(start, end, size, false_part, false_whole, false_proof)
                assert getattr(refused.value, "code", "") == "log.consistency"
