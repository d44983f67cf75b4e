"""An audit that continues where the last one ended: what it takes over, and what it does not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from signers import signed
from simulated_registry import NAME, OPERATOR, SimulatedRegistry, elected, flipped

from treaty_client.audit import snapshot as snapshots
from treaty_client.audit.auditor import AuditOptions, AuditReport, audit
from treaty_consensus import kinds
from treaty_consensus.errors import Untrusted
from treaty_consensus.log.equivocation import SUFFIX
from treaty_consensus.log.tiles import TILE_WIDTH
from treaty_consensus.sigstore_leaf import CertificateLeaf

DEFAULT, FROM_START = AuditOptions(), AuditOptions(from_start=True)


def silent(*progress: object) -> None:
    """Who does not listen."""


def grown(registry: SimulatedRegistry, leaves: int) -> SimulatedRegistry:
    for _ in range(leaves):
        registry.force(CertificateLeaf(b"certificate %d" % len(registry.leaves)).encode())
    return registry


async def audited(registry: SimulatedRegistry, home: Path, options: AuditOptions = DEFAULT) -> AuditReport:
    network, key = registry.network(), home / "audit.key"
    return await audit(NAME, home / "log", home / "evidence", network, progress=silent, options=options, own_key=key)


async def test_an_audit_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    registry = elected()
    first = await audited(registry, tmp_path)
    assert first.resumed == 0
    assert (await audited(registry, tmp_path)).resumed == registry.size, "nothing is new"
    before = registry.size
    again = await audited(grown(registry, 20), tmp_path)
    assert again.resumed == before
    assert again == await audited(registry, tmp_path / "another"), "as from the start"
    fresh = await audited(registry, tmp_path, FROM_START)
    assert (fresh.resumed, fresh) == (0, again)
    assert (await audited(registry, tmp_path)).resumed == registry.size


async def test_one_state_is_one_file(tmp_path: Path) -> None:
    registry = elected()
    for home in ("one", "other"):
        await audited(registry, tmp_path / home)
    one, other = ((tmp_path / home / "log" / "replay").read_bytes() for home in ("one", "other"))
    assert one[:-32] == other[:-32] and one[-32:] != other[-32:], "the keys differ"


async def test_a_resumed_state_equals_one_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "DIGESTS_TOGETHER", 2)  # so that this small log has many sections
    registry = elected()
    await audited(registry, tmp_path / "often")
    grown(registry, 20)
    assert (await audited(registry, tmp_path / "often")).resumed, "and saved again"
    await audited(registry, tmp_path / "once")
    often, once = ((tmp_path / home / "log" / "replay").read_bytes()[:-32] for home in ("often", "once"))
    assert often == once


@pytest.mark.parametrize("changes", [AuditOptions(topic="any/topic"), AuditOptions(anchors=("one.example",))])
async def test_an_audit_of_earlier_results_begins_at_the_start(tmp_path: Path, changes: AuditOptions) -> None:
    registry = elected()
    await audited(registry, tmp_path)
    saved = (tmp_path / "log" / "replay").read_bytes()
    assert (await audited(registry, tmp_path, changes)).resumed == 0
    if changes.anchors:
        assert (tmp_path / "log" / "replay").read_bytes() == saved, "other anchors give another state"


def torn(home: Path) -> None:
    path = home / "log" / "replay"
    path.write_bytes(path.read_bytes()[:-1])


def changed(home: Path) -> None:
    path = home / "log" / "replay"
    data = path.read_bytes()
    path.write_bytes(flipped(data, len(data) // 2))


def empty(home: Path) -> None:
    (home / "log" / "replay").write_bytes(b"")


def foreign(home: Path) -> None:
    """Another auditor's, whole."""
    (home / "audit.key").write_bytes(bytes(32))


def writable(home: Path) -> None:
    (home / "log" / "replay").chmod(0o666)


def linked(home: Path) -> None:
    path = home / "log" / "replay"
    path.symlink_to(path.rename(home / "elsewhere"))


def piped(home: Path) -> None:
    (home / "log" / "replay").unlink()
    os.mkfifo(home / "log" / "replay")


def keyless(home: Path) -> None:
    (home / "audit.key").write_bytes(b"")


@pytest.mark.parametrize("spoil", [torn, changed, empty, foreign, writable, linked, piped, keyless])
async def test_another_snapshot_is_ignored(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    registry = elected()
    first = await audited(registry, tmp_path)
    spoil(tmp_path)
    again = await audited(registry, tmp_path)
    assert (again.resumed, again) == (0, first)


async def test_a_snapshot_of_other_rules_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = elected()
    await audited(registry, tmp_path)
    with monkeypatch.context() as older:
        older.setattr(snapshots, "rules", lambda: "0" * 64)
        assert (await audited(registry, tmp_path)).resumed == 0
    assert (await audited(registry, tmp_path)).resumed == 0, "the older release replaced it"
    assert (await audited(registry, tmp_path)).resumed > 0


async def test_a_state_that_is_too_large_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOT", 4096)
    registry = elected()
    for _ in range(2):
        assert (await audited(registry, tmp_path)).resumed == 0
    assert not [path for path in (tmp_path / "log").iterdir() if "replay" in path.name]


async def test_a_wrong_decision_after_the_snapshot_is_found(tmp_path: Path) -> None:
    registry = elected()
    statement = registry.statements()[-1][1]
    assert isinstance(statement.body, kinds.Decision)
    older_log = registry.copy(leaves=registry.leaves[:-1])
    await audited(older_log, tmp_path)
    saved = (tmp_path / "log" / "replay").read_bytes()
    lie = kinds.Decision(
        **{name: getattr(statement.body, name) for name in statement.body.__struct_fields__}
        | {"transcript": kinds.Blob("0" * 64, statement.body.transcript.size)}
    )
    fork = registry.rewritten(registry.size - 1, signed(lie, OPERATOR, issued=registry.now).leaf)
    for home in (tmp_path, tmp_path / "another"):
        with pytest.raises(Untrusted) as error:
            await audited(fork, home)
        assert error.value.code == "audit.decision"
    assert (tmp_path / "log" / "replay").read_bytes() == saved, "what did not hold is not saved"


async def test_a_fork_below_the_snapshot_is_found(tmp_path: Path) -> None:
    """The mirror was made anew from a log that the same key signed: its tree alone shows no fork, the snapshot does."""
    await audited(elected(), tmp_path)
    fork = elected()
    fork = grown(fork.copy(leaves=fork.leaves[:-1]), 3)
    saved = (tmp_path / "log" / "replay").read_bytes()
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "replay").write_bytes(saved)
    with pytest.raises(Untrusted) as error:
        await audited(fork, tmp_path)
    assert error.value.code == "audit.fork"
    assert [*(tmp_path / "evidence").glob(f"*{SUFFIX}")], "with a proof"


async def test_a_smaller_mirror_does_not_fit(tmp_path: Path) -> None:
    registry = grown(elected(), 5)
    await audited(registry, tmp_path)
    saved = (tmp_path / "log" / "replay").read_bytes()
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "replay").write_bytes(saved)
    assert (await audited(elected(), tmp_path)).resumed == 0


async def test_a_changed_leaf_below_the_snapshot_is_detected(tmp_path: Path) -> None:
    registry = grown(elected(), TILE_WIDTH)
    await audited(registry, tmp_path)
    bundle = tmp_path / "log" / "tile" / "entries" / "000"
    bundle.write_bytes(flipped(bundle.read_bytes(), 100))
    assert (await audited(registry, tmp_path)).resumed > 0, "verified when it was replayed, and not read again"
    with pytest.raises(Untrusted) as error:
        await audited(registry, tmp_path, FROM_START)
    assert error.value.code == "log.damaged"
