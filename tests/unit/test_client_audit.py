"""Mirroring and auditing a log from its URL and key."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from signers import Signer, signed
from simulated_registry import ALICE, BASE_URL, BOB, NAME, OPERATOR, TOPIC, SimulatedRegistry, elected, flipped, uri_of, with_echo

from treaty_client.audit import auditor as auditing
from treaty_client.audit import parallel_verification as ahead
from treaty_client.audit import replay_store
from treaty_client.audit.auditor import AuditReport, audit
from treaty_client.audit.mirror import Mirror
from treaty_client.audit.replay_store import RECENT, ReplayStore
from treaty_client.registries.api import RegistryClient
from treaty_consensus import canonical, kinds
from treaty_consensus.did import encode_multikey
from treaty_consensus.errors import TreatyError, Unavailable, Untrusted
from treaty_consensus.facts import IdentityFact
from treaty_consensus.log.checkpoint import Checkpoint, open_checkpoint
from treaty_consensus.log.equivocation import Equivocation
from treaty_consensus.log.tiles import TILE_WIDTH
from treaty_consensus.sigstore_leaf import CertificateLeaf


def silent(*progress: object) -> None:
    """Who does not listen."""


async def audited(registry: SimulatedRegistry, folder: Path) -> AuditReport:
    return await audit(NAME, folder, folder.parent / "evidence", registry.network(), progress=silent)


async def mirrored(registry: SimulatedRegistry, folder: Path) -> Mirror:
    mirror = Mirror(folder, NAME.key, folder.parent / "evidence")
    async with RegistryClient(BASE_URL, registry.network()) as client:
        await mirror.update(client, silent)
    return mirror


def grown(registry: SimulatedRegistry, leaves: int) -> SimulatedRegistry:
    for _ in range(leaves):
        registry.force(CertificateLeaf(b"certificate %d" % len(registry.leaves)).encode())
    return registry


async def test_an_audit_recomputes_every_decision(tmp_path: Path) -> None:
    registry = elected()
    report = await audited(registry, tmp_path)
    assert report.checkpoint.note == registry.checkpoint()
    assert report.checkpoint.time == registry.now
    assert [(decision.body.epoch, decision.index) for decision in report.decisions] == [
        (0, len(registry.leaves) - 2),
        (1, len(registry.leaves) - 1),
    ]
    assert report.leaves == {
        "genesis": 1, "parameters": 1, "identity": 2, "publish": 1, "handler": 1, "sigstore": 2, "ballot": 2, "decision": 2,
    }  # fmt: skip
    assert report.witnesses == 2


async def test_a_wrong_decision_is_found(tmp_path: Path) -> None:
    registry = elected()
    statement = registry.statements()[-1][1]
    assert isinstance(statement.body, kinds.Decision)
    lie = kinds.Decision(
        **{name: getattr(statement.body, name) for name in statement.body.__struct_fields__}
        | {"consensus": registry.document_of(uri_of()).sha256}
    )
    fork = registry.rewritten(registry.size - 1, signed(lie, OPERATOR, issued=registry.now).leaf)
    with pytest.raises(Untrusted) as error:
        await audited(fork, tmp_path)
    assert error.value.code == "audit.decision"


async def test_a_wrong_decision_is_explained_from_what_it_names(tmp_path: Path) -> None:
    registry = elected()
    statement = registry.statements()[-1][1]
    assert isinstance(statement.body, kinds.Decision)
    transcript = canonical.parse_json(registry.blobs[statement.body.transcript.sha256], limit=2**20)
    transcript["ballots"]["explicit"] = 7
    lie = msgspec.structs.replace(statement.body, transcript=registry.put(canonical.dumps(transcript)))
    fork = registry.rewritten(registry.size - 1, signed(lie, OPERATOR, issued=registry.now).leaf)
    with pytest.raises(Untrusted, match=r"transcript\.ballots\.explicit = 7; recomputed from the log it is 2"):
        await audited(fork, tmp_path)
    fork.withdrawn.add(lie.transcript.sha256)
    with pytest.raises(Untrusted, match="transcript"):
        await audited(fork, tmp_path)
    forgetful = fork.copy()
    forgetful.withdrawn.add(lie.transcript.sha256)
    with pytest.raises(Untrusted, match=r"body\.transcript\.sha256 = "):
        await audited(forgetful, tmp_path / "anew")


async def test_processes_find_what_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = grown(elected(), TILE_WIDTH)
    alone = await audited(registry, tmp_path)
    monkeypatch.setattr(auditing, "WORTH_PROCESSES", 0)
    assert await audited(registry, tmp_path) == alone


@pytest.mark.deep
async def test_a_signature_by_an_ended_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = grown(elected(), 4 * TILE_WIDTH)
    monkeypatch.setattr(auditing, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(ahead.ParallelVerifier, "ahead", 1)  # all identities are known when the last leaves are checked
    old = registry.facts[f"identity/{ALICE.did}"]
    assert isinstance(old, IdentityFact)
    key = kinds.Key(ALICE.key_id, encode_multikey(BOB.public_key))
    registry.add(kinds.Identity(ALICE.did, kinds.Blob("0" * 64, 5), (key,), 2, old.statement), OPERATOR)
    ballot, new = kinds.Ballot(TOPIC, 1, (), registry.checkpoint().decode()), Signer(ALICE.did, ALICE.key_id, BOB.private_key)
    index = registry.force(signed(ballot, ALICE, issued=registry.now).leaf)
    with pytest.raises(Untrusted, match=f"Leaf {index} ") as error:
        await audited(registry, tmp_path)
    assert error.value.code == "audit.leaf"
    renewed = registry.rewritten(index, signed(ballot, new, issued=registry.now).leaf)
    assert (await audited(renewed, tmp_path / "anew")).leaves["ballot"] == 3


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.deep
async def test_a_process_that_is_killed_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(ahead, "check_all", die)
    with pytest.raises(Unavailable) as error:
        await audited(elected(), tmp_path)
    assert error.value.code == "audit.failed"


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file of this process grow beyond 128 KiB: a write beyond it fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_disk_that_fails_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_store, "_PAGES_KIB", 64)  # the file is written before memory holds all of it
    with full_disk(), pytest.raises(Unavailable) as error, ReplayStore(tmp_path) as scratch:
        for number in range(2 * RECENT):
            scratch.digests.add(f"{number:064x}")
    assert error.value.code == "audit.failed"


async def test_a_leaf_that_breaks_a_rule_is_found(tmp_path: Path) -> None:
    registry = with_echo()
    registry.force(signed(kinds.Grant("alice.example", BOB.did), BOB, issued=registry.now).leaf)
    with pytest.raises(Untrusted) as error:
        await audited(registry, tmp_path)
    assert error.value.code == "audit.leaf"


@pytest.mark.threat(11)
async def test_a_witness_of_another_history_is_heard(tmp_path: Path) -> None:
    registry = with_echo()
    fork = registry.rewritten(5, registry.leaves[4])
    ballot = kinds.Ballot(TOPIC, 0, (), fork.checkpoint().decode())
    registry.add(ballot, ALICE)
    with pytest.raises(Untrusted) as error:
        await audited(registry, tmp_path / "mirror")
    assert error.value.code == "audit.fork"
    (proof,) = (tmp_path / "evidence").iterdir()
    assert str(proof) in error.value.fix
    first, second = Equivocation.parse(proof.read_bytes()).verify()
    assert (first.root, second.size) == (fork.root(), registry.size)


async def test_a_checkpoint_larger_than_the_log_is_of_another_history(tmp_path: Path) -> None:
    """Its author cannot have seen more leaves than there were before its own, however many there are now."""
    registry, ahead = with_echo(), with_echo()
    for seq in range(3):
        ahead.add(kinds.Ballot(TOPIC, seq, (), ahead.checkpoint().decode()), BOB)
    registry.add(kinds.Ballot(TOPIC, 0, (), ahead.checkpoint().decode()), ALICE)
    for seq in range(3):
        registry.add(kinds.Ballot(TOPIC, seq, (), registry.checkpoint().decode()), BOB)
    with pytest.raises(Untrusted) as error:
        await audited(registry, tmp_path)
    assert error.value.code == "audit.fork"


async def test_what_the_log_never_signed_is_no_witness(tmp_path: Path) -> None:
    registry = with_echo()
    registry.add(kinds.Ballot(TOPIC, 0, (), "nonsense"), ALICE)
    assert (await audited(registry, tmp_path)).witnesses == 0


async def test_a_log_under_another_genesis_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    genesis = kinds.Genesis(NAME.origin, "other-key", "clock", OPERATOR.did, "0" * 64)
    fork = registry.rewritten(0, signed(genesis, OPERATOR, issued=registry.now).leaf)
    with pytest.raises(Untrusted) as error:
        await audited(fork, tmp_path)
    assert error.value.code == "audit.fork"


@pytest.mark.parametrize("steps", [(0,), (1, 1), (248, 1, 7), (600, 300), (100, 148, 256)])
async def test_a_mirror_grows_with_the_log(tmp_path: Path, steps: tuple[int, ...]) -> None:
    registry = with_echo()
    for more in steps:
        grown(registry, more)
        registry.requests.clear()
        mirror = await mirrored(registry, tmp_path)
        assert [leaf for entries in mirror.entries() for leaf in entries] == registry.leaves
        assert not any("/tile/0/" in request or "/tile/1/" in request for request in registry.requests)
        for size in {1, 7, registry.size // 2, registry.size - 1, registry.size}:
            registry.served = size
            assert mirror.root_at(size) == registry.root()
            registry.served = None


async def test_what_is_mirrored_is_not_fetched_again(tmp_path: Path) -> None:
    registry = grown(with_echo(), 2 * TILE_WIDTH)
    await mirrored(registry, tmp_path)
    registry.requests.clear()
    await mirrored(registry, tmp_path)
    assert registry.requests == ["GET /checkpoint"]


async def test_an_interrupted_mirror_is_continued(tmp_path: Path) -> None:
    registry = grown(with_echo(), 20 * TILE_WIDTH)

    def fail_late(path: str, body: bytes) -> bytes:
        if path == "/tile/entries/017":
            raise Unavailable("test.cut", "The line was cut.")
        return body

    registry.tamper = fail_late
    with pytest.raises(Unavailable):
        await mirrored(registry, tmp_path)
    assert Mirror(tmp_path, NAME.key, tmp_path / "evidence").checkpoint() is None
    registry.tamper = lambda path, body: body
    registry.requests.clear()
    mirror = await mirrored(registry, tmp_path)
    fetched = [request for request in registry.requests if "entries" in request]
    assert 0 < len(fetched) < 10
    assert [leaf for entries in mirror.entries() for leaf in entries] == registry.leaves


async def test_entries_outside_the_checkpoint_are_refused(tmp_path: Path) -> None:
    registry = with_echo()
    other = registry.rewritten(5, registry.leaves[4])
    registry.tamper = lambda path, body: other.tile(path) if path.startswith("/tile/") else body
    with pytest.raises(Untrusted) as error:
        await mirrored(registry, tmp_path)
    assert error.value.code == "mirror.root"
    assert Mirror(tmp_path, NAME.key, tmp_path / "evidence").checkpoint() is None


@pytest.mark.parametrize("more", [0, 10, 300])
async def test_a_fork_does_not_replace_the_mirror(tmp_path: Path, more: int) -> None:
    registry, folder = with_echo(), tmp_path / "mirror"
    head_before = registry.size, registry.root()
    await mirrored(registry, folder)
    fork = grown(registry.rewritten(5, registry.leaves[4]), more)
    with pytest.raises(Untrusted) as error:
        await mirrored(fork, folder)
    assert error.value.code == "mirror.root"
    mirror = await mirrored(grown(registry, 1), folder)
    assert [leaf for entries in mirror.entries() for leaf in entries] == registry.leaves
    (file,) = (tmp_path / "evidence").iterdir()
    assert str(file) in error.value.fix
    heads = Equivocation.parse(file.read_bytes()).verify()
    assert {(head.size, head.root) for head in heads} == {head_before, (fork.size, fork.root())}


async def test_a_log_that_went_back_is_compared_with_the_mirror(tmp_path: Path) -> None:
    registry = grown(with_echo(), 300)
    mirror = await mirrored(registry, tmp_path)
    registry.served = 100
    assert (await mirrored(registry, tmp_path)).checkpoint() == mirror.checkpoint()
    fork = grown(with_echo().rewritten(5, registry.leaves[4]), 20)
    with pytest.raises(Untrusted):
        await mirrored(fork, tmp_path)
    assert (mirror.checkpoint() or open_checkpoint(b"", NAME.key)).checkpoint.size == len(registry.leaves)


DAMAGES = (lambda data: b"", lambda data: data[:-1], lambda data: flipped(data, 20))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("path", ["checkpoint", "tile/entries/000", "tile/entries/001.p/52", "tile/0/001.p/52"])
async def test_damage_is_noticed(tmp_path: Path, path: str, damage: Callable[[bytes], bytes]) -> None:
    registry = grown(with_echo(), 300)
    await mirrored(registry, tmp_path)
    file = tmp_path / path
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    with pytest.raises(TreatyError) as error:
        await audited(grown(registry, 1), tmp_path)
    assert error.value.code == "log.damaged"
    file.write_bytes(whole)
    assert (await audited(registry, tmp_path)).checkpoint.checkpoint == Checkpoint(NAME.origin, registry.size, registry.root())


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("path", ["tile/0/000", "tile/1/000.p/1", "tile/0/001.p/52"])
async def test_damage_is_never_taken_for_a_fork(tmp_path: Path, path: str, damage: Callable[[bytes], bytes]) -> None:
    mirror = await mirrored(grown(with_echo(), 300), tmp_path)
    (tmp_path / path).write_bytes(damage((tmp_path / path).read_bytes()))
    with pytest.raises(Untrusted) as error:
        for size in (3, 100, 256, 300, 308):
            mirror.root_at(size)
    assert error.value.code == "log.damaged"


async def test_a_damaged_edge_is_not_blamed_on_the_log(tmp_path: Path) -> None:
    registry = grown(with_echo(), TILE_WIDTH - 8)
    assert registry.size == TILE_WIDTH
    await mirrored(registry, tmp_path)
    path = tmp_path / "tile/1/000.p/1"
    path.write_bytes(flipped(path.read_bytes(), 3))
    with pytest.raises(Untrusted) as error:
        await mirrored(grown(registry, 1), tmp_path)
    assert error.value.code == "log.damaged"


async def test_leaves_exchanged_with_their_tile_are_refused(tmp_path: Path) -> None:
    registry = grown(with_echo(), 300)
    await mirrored(registry, tmp_path)
    forged = registry.rewritten(100, CertificateLeaf(b"another certificate").encode())
    for path in ("tile/entries/000", "tile/0/000"):
        (tmp_path / path).write_bytes(forged.tile(f"/{path}"))
    with pytest.raises(Untrusted) as error:
        await audited(registry, tmp_path)
    assert error.value.code == "audit.leaf"
