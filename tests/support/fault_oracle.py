"""The oracle of all faults: nothing that was acknowledged is lost, the log has no fork, and no answer was wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

import httpx
from registry_process import Server

from treaty_consensus import kinds, statement
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.merkle import Frontier, leaf_hash
from treaty_consensus.log.note import VerifierKey
from treaty_consensus.log.proof import Receipt


@dataclass
class Seen:
    """What clients saw: acknowledged leaves with their receipts, uploads, and checkpoints. `refusals`: codes of 429 and 503."""

    acknowledged: list[tuple[bytes, bytes]] = field(default_factory=list)
    uploads: dict[str, bytes] = field(default_factory=dict)
    checkpoints: set[str] = field(default_factory=set)
    refusals: set[str] = field(default_factory=set)

    def answer(self, leaf: bytes, answer: httpx.Response) -> bool:
        """Take an answer to a statement. Returns whether the statement is acknowledged; every other answer asks to retry."""
        if answer.status_code in (200, 201):
            self.acknowledged.append((leaf, answer.content))
            self.checkpoints.add(Receipt.parse(answer.content).checkpoint.decode())
            return True
        assert answer.status_code in (429, 503), answer.text
        assert int(answer.headers["Retry-After"]) >= 1
        self.refusals.add(answer.json()["code"])
        return False


async def check_acknowledged(server: Server, seen: Seen) -> None:
    """Every acknowledged statement is in the log once, at the place its receipts say, and every blob that it names is served."""
    key = VerifierKey.parse(server.about["key"])
    leaves = await server.leaves()
    named = set[str]()
    for leaf, receipt in seen.acknowledged:
        proof = Receipt.parse(receipt)
        proof.verify(leaf, key)
        assert leaves[proof.index] == leaf
        named |= {blob.sha256 for blob in kinds.blobs_of(statement.parse(leaf).body)}
    assert len(set(leaves)) == len(leaves)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
        for digest in named:
            answer = await client.get(f"/blobs/sha256/{digest}")
            assert answer.content == seen.uploads[digest]


async def check_history(server: Server, seen: Seen) -> None:
    """Every checkpoint that anybody saw, in a receipt or by asking, is of a beginning of the log as it is now."""
    log_key = VerifierKey.parse(server.about["key"])
    frontier, roots = Frontier(), [Frontier().root()]
    for leaf in await server.leaves():
        frontier.append(leaf_hash(leaf))
        roots.append(frontier.root())
    for note in seen.checkpoints:
        checkpoint = open_checkpoint(note.encode(), log_key).checkpoint
        assert checkpoint.size < len(roots)
        assert roots[checkpoint.size] == checkpoint.root


async def check_tables(server: Server) -> None:
    """All tables are what follows from the leaves, and an audit finds nothing."""
    rebuilt = await server.run("rebuild")
    assert isinstance(rebuilt["tables"], dict)
    assert {table: rows for table, rows in rebuilt["tables"].items() if rows} == {}
    assert (await server.run("audit"))["findings"] == []


async def judge(server: Server, seen: Seen) -> None:
    """Check all of it, while the registry runs."""
    await check_acknowledged(server, seen)
    await check_history(server, seen)
    await check_tables(server)
