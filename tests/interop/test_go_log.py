"""Go reads the log: the client of the Go checksum database, transparency-dev's formats, and Tessera's fsck and mirror."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from go_programs import needs_go, refusal, result, run
from http_api import serving
from ports import free_port
from registries import Web, ballot, grant, log
from signers import NOW, ORIGIN, domain_signer, key_signer

from treaty_consensus import statement
from treaty_consensus.kinds import Decision
from treaty_consensus.log.note import KeyType, SignerKey
from treaty_registry.operator.rotations import ROLES, prepare
from treaty_registry.registry import Registry

pytestmark = needs_go("x/mod/sumdb, transparency-dev/formats, Tessera's fsck and mirror, against the log")

FULL_TILE = 256
OTHER_KEY = str(SignerKey(ORIGIN, KeyType.ED25519, bytes(32)).verifier)


@dataclass
class Served:
    """A log of more than one tile with a decision in it, on a socket. `decision`: the index of that leaf."""

    url: str
    registry: Registry
    decision: int

    @property
    def key(self) -> str:
        return str(self.registry.log_key)


@pytest.fixture
async def served(registry: Registry, web: Web) -> AsyncIterator[Served]:
    voter, owner = domain_signer("voter.example"), key_signer("owner")
    web.serve(voter)
    await log(registry, ballot(registry, 0, "ab" * 32), voter)
    (decided,) = await registry.decide()
    missing = FULL_TILE + 5 - registry.head.size
    outcomes = await registry.submit([owner.statement(grant(owner, number)).leaf for number in range(missing)])
    assert len(outcomes) == missing and registry.head.size == FULL_TILE + 5
    async with serving(registry, free_port()) as url:
        yield Served(url, registry, decided.index)


@pytest.mark.deep
async def test_sumdb_proves_every_record_and_every_tree(served: Served, go_log: Path) -> None:
    size = served.registry.head.size
    assert await result(go_log / "log", "tlog", served.url, served.key) == {"size": size, "records": size}
    words = await refusal(go_log / "log", "tlog", served.url, OTHER_KEY)
    assert "note" in words


async def test_tessera_recomputes_the_log_and_its_mirror(served: Served, go_log: Path, tmp_path: Path) -> None:
    size = {"size": served.registry.head.size}
    for base in ("", "/api/v2", "/sigstore/api/v2"):  # the last two as monitors of Rekor v2 read it
        assert await result(go_log / "log", "fsck", f"{served.url}{base}", served.key) == size
    mirror = tmp_path / "mirror"
    status, _, errors = await run(go_log / "posix", "--storage_dir", mirror, "--source_url", f"{served.url}/")
    assert status == 0, errors
    assert await result(go_log / "log", "fsck", mirror.as_uri(), served.key) == size
    entries = mirror / "tile" / "entries" / "000"
    leaf = (await served.registry.leaves([served.decision]))[served.decision]
    assert leaf in entries.read_bytes()
    entries.write_bytes(entries.read_bytes().replace(leaf, leaf[:-1] + b" "))
    assert "log has:" in await refusal(go_log / "log", "fsck", mirror.as_uri(), served.key)


@pytest.mark.parametrize("which", ["genesis", "decision", "newest"])
async def test_a_receipt_is_a_tlog_proof(served: Served, go_log: Path, tmp_path: Path, which: str) -> None:
    registry = served.registry
    index = {"genesis": 0, "decision": served.decision, "newest": registry.head.size - 1}[which]
    leaf = (await registry.leaves([index]))[index]
    made = statement.parse(leaf)
    assert isinstance(made.body, Decision) == (which == "decision")
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as api:
        (tmp_path / "receipt").write_bytes((await api.get(f"/proofs/{made.id}")).content)
    (tmp_path / "leaf").write_bytes(leaf)
    files = (tmp_path / "receipt", tmp_path / "leaf")
    proved = await result(go_log / "log", "receipt", served.key, registry.clock_key, *files)
    assert (proved["index"], proved["time"]) == (index, NOW)
    other = await refusal(go_log / "log", "receipt", OTHER_KEY, registry.clock_key, *files)
    assert "note" in other
    (tmp_path / "leaf").write_bytes(leaf + b" ")
    assert "root" in await refusal(go_log / "log", "receipt", served.key, registry.clock_key, *files)


async def test_a_client_with_one_key_verifies_during_a_rotation(registry: Registry, go_log: Path, tmp_path: Path) -> None:
    old = str(registry.log_key)
    prepare(tmp_path / "registry" / "keys", [*ROLES])
    await registry.rotate(3600)
    async with serving(registry, free_port()) as url:
        for key in (old, str(registry.log_key)):
            assert await result(go_log / "log", "tlog", url, key) == {"size": 3, "records": 3}
