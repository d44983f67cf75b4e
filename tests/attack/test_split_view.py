"""A log shows one history to its witnesses and another one to an agent: step 2. Whoever sees both has the proof."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from fetching import fetcher, kept_in, refused_at
from simulated_registry import LOG_KEY, NAME, SimulatedRegistry, uri_of, with_echo
from structlog.testing import capture_logs
from witnesses import VKEYS, WITNESSES

from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_command.main import main
from treaty_consensus.errors import TreatyError
from treaty_consensus.log import merkle
from treaty_consensus.log.equivocation import Equivocation
from treaty_consensus.log.note import SignerKey, add_signatures
from treaty_consensus.log.witness import AddCheckpoint, Quorum, cosignature
from treaty_registry.witness.cosigner import Cosigner
from treaty_registry.witness.records import WitnessStore

TWO_OF_THREE = Quorum.parse(VKEYS, 2)


class Watched:
    """The witnesses of one log, each on a disk of its own."""

    def __init__(self, data: Path, registry: SimulatedRegistry) -> None:
        keys = [LOG_KEY.verifier]
        self.cosigners = [Cosigner(WitnessStore(data / key.name), key, keys, lambda: registry.now) for key in WITNESSES]

    def cosign(self, registry: SimulatedRegistry, only: Iterable[int] = (0, 1, 2)) -> bytes:
        """The registry's checkpoint with what the witnesses give for it; raises what the first one that refuses says."""
        note = SimulatedRegistry.checkpoint(registry)
        lines = b""
        for number in only:
            cosigner = self.cosigners[number]
            latest = cosigner.latest(NAME.origin)
            old = latest.checkpoint.size if latest else 0
            proof = tuple(merkle.consistency_proof(old, registry.size, registry.nodes))
            answer = cosigner.add_checkpoint(AddCheckpoint(old, proof, note).format())
            lines += cosignature(answer, note, cosigner.key)
        return note + lines


def serving(registry: SimulatedRegistry, note: bytes) -> SimulatedRegistry:
    registry.checkpoint = lambda: note  # type: ignore[method-assign]
    return registry


def rewritten(registry: SimulatedRegistry) -> SimulatedRegistry:
    """The same log, but for what ALICE attached."""
    fork = registry.rewritten(registry.size - 1, registry.leaves[3])
    fork.now = registry.now
    return fork


async def test_what_enough_witnesses_have_seen_is_used(tmp_path: Path) -> None:
    registry = with_echo()
    watched = Watched(tmp_path / "witnesses", registry)
    serving(registry, watched.cosign(registry))
    async with fetcher(registry, tmp_path / "home", witnesses=TWO_OF_THREE) as agent:
        assert (await agent.fetch(uri_of())).uri is not None
    serving(registry, watched.cosign(registry, only=(0, 2)))
    async with fetcher(registry, tmp_path / "another", witnesses=TWO_OF_THREE) as agent:
        await agent.fetch(uri_of())


@pytest.mark.threat(12)
async def test_what_too_few_have_seen_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    watched = Watched(tmp_path / "witnesses", registry)
    for only in ((), (1,)):
        serving(registry, watched.cosign(registry, only=only))
        failure = await refused_at(2, registry, tmp_path / "home", witnesses=TWO_OF_THREE)
        assert failure.code == "checkpoint.not-witnessed"
    strangers = [SignerKey(f"w{number}.example", WITNESSES[0].type, bytes([number]) * 32) for number in (1, 2, 3)]
    serving(registry, add_signatures(watched.cosign(registry, only=(1,)), strangers[::2], time=registry.now))
    assert (await refused_at(2, registry, tmp_path / "home", witnesses=TWO_OF_THREE)).code == "checkpoint.not-witnessed"


@pytest.mark.threat(12)
async def test_a_history_that_the_witnesses_were_not_shown_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    watched = Watched(tmp_path / "witnesses", registry)
    note = watched.cosign(registry)
    fork = rewritten(registry)
    with capture_logs() as logged, pytest.raises(TreatyError):
        watched.cosign(fork)
    assert [entry["event"] for entry in logged] == ["a log signed two histories"]
    serving(fork, SimulatedRegistry.checkpoint(fork))
    assert (await refused_at(2, fork, tmp_path / "home", witnesses=TWO_OF_THREE)).code == "checkpoint.not-witnessed"
    lines = note.removeprefix(SimulatedRegistry.checkpoint(registry))
    serving(fork, SimulatedRegistry.checkpoint(fork) + lines)
    failure = await refused_at(2, fork, tmp_path / "home", witnesses=TWO_OF_THREE)
    assert failure.code == "checkpoint.not-witnessed", "cosignatures do not carry over"


@pytest.mark.threat(12)
async def test_an_old_head_with_a_new_time_is_refused(tmp_path: Path) -> None:
    """The clock is the operator's: it can say that an old head is the newest. The witnesses would not."""
    registry = with_echo()
    watched = Watched(tmp_path / "witnesses", registry)
    lines = watched.cosign(registry).removeprefix(SimulatedRegistry.checkpoint(registry))
    registry.now += 601
    serving(registry, SimulatedRegistry.checkpoint(registry) + lines)
    failure = await refused_at(2, registry, tmp_path / "home", witnesses=TWO_OF_THREE, max_age=600)
    assert failure.code == "checkpoint.not-witnessed"
    registry.now -= 1
    serving(registry, SimulatedRegistry.checkpoint(registry) + lines)
    async with fetcher(registry, tmp_path / "home", witnesses=TWO_OF_THREE, max_age=600) as agent:
        await agent.fetch(uri_of())


def equivocations(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.equivocation.json"))


@pytest.mark.threat(13)
@pytest.mark.parametrize("grown", [0, 3])
async def test_a_split_view_leaves_a_proof_for_anybody(tmp_path: Path, capsys: pytest.CaptureFixture[str], grown: int) -> None:
    registry = with_echo()
    fork = rewritten(registry)
    for number in range(grown):
        fork.force(fork.leaves[number])
    async with fetcher(registry, tmp_path) as agent:
        await agent.head(NAME.origin).refresh()
    for attempt in range(2):
        async with fetcher(fork, tmp_path) as agent:
            with pytest.raises(VerificationFailed) as failure:
                await (agent.fetch(uri_of()) if attempt else agent.head(NAME.origin).refresh())
        assert failure.value.step == 2
        (proof,) = equivocations(tmp_path / "evidence")
        assert str(proof) in failure.value.fix
    first, second = Equivocation.parse(proof.read_bytes()).verify()
    assert {first.size, second.size} == {registry.size, fork.size}
    main(["equivocation", str(proof), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert (data["origin"], data["key"]) == (NAME.origin, str(NAME.key))
    assert {data[one]["root"] for one in ("first", "second")} == {registry.root().hex(), fork.root().hex()}
    main(["equivocation", str(proof)])
    assert f"signed two histories of its log.\n  key: {NAME.key}\n" in capsys.readouterr().out


async def test_a_log_that_shows_too_little_is_refused_without_a_proof(tmp_path: Path) -> None:
    registry = with_echo()
    short = registry.copy()
    registry.force(registry.leaves[3])
    async with fetcher(registry, tmp_path) as agent:
        await agent.head(NAME.origin).refresh()
    before = kept_in(tmp_path)
    async with fetcher(short, tmp_path) as agent:
        with pytest.raises(VerificationFailed) as failure:
            await agent.head(NAME.origin).refresh()
    assert failure.value.code == "log.rollback"
    assert (equivocations(tmp_path), kept_in(tmp_path)) == ([], before)


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"{}", "equivocation.form"), (b"x", "canonical.json"), (None, "equivocation.form"), (b" " * 2**21, "canonical.too-large")],
)
def test_a_file_that_proves_nothing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, code: str
) -> None:
    file = tmp_path / "x.equivocation.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["equivocation", str(file), "--json"])
    assert ended.value.code == (5 if content is None else 1)  # not found, or refused
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
