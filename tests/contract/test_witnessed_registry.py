"""A registry with witnesses, each a process of its own: what it serves, and what it may decide."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from registries import Web, ballot, contents, log, new_or_not, settings_for
from signers import NOW, ORIGIN, domain_signer, signed
from witness_process import WitnessProcess, witness_process

from treaty_consensus.audit import Replay
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Malformed, Unavailable
from treaty_consensus.kinds import Decision, Witnesses
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_consensus.log.witness import Quorum
from treaty_consensus.stamped import Stamped, read_page
from treaty_consensus.statement import Statement, parse
from treaty_registry.app import create_app
from treaty_registry.registry import Registry
from treaty_registry.settings import Settings, WitnessName
from treaty_registry.witness.records import WitnessStore


@dataclass
class Witnessed:
    """A registry's settings, and the two witnesses that its parameters want."""

    settings: Settings
    witnesses: list[WitnessProcess]
    quorum: Quorum

    @asynccontextmanager
    async def open(self, web: Web) -> AsyncIterator[Registry]:
        async with Registry.open(
            new_or_not(self.settings), clock=lambda: datetime.fromtimestamp(NOW, UTC), resolve=web.resolve
        ) as registry:
            yield registry


@pytest.fixture
async def witnessed(tmp_path: Path, database: str, web: Web) -> AsyncIterator[Witnessed]:
    folders = [tmp_path / "w1", tmp_path / "w2"]
    keys = []
    for folder in folders:
        with WitnessStore(folder).held():
            keys.append(str(WitnessStore(folder).key(f"{folder.name}.example").verifier))
    file = tmp_path / "parameters.toml"
    file.write_text(f'electorate = "development"\n[witnesses]\nquorum = 2\nkeys = {keys}\n')
    settings = replace(settings_for(tmp_path / "registry", database), parameters=file)
    witnessed = Witnessed(settings, [], Witnesses(tuple(keys), 2).parsed)
    async with witnessed.open(web) as registry:
        log_key = registry.log_key
    async with witness_process(folders[0], log_key) as first, witness_process(folders[1], log_key) as second:
        witnessed.witnesses = [first, second]
        witnessed.settings = replace(settings, witnesses=(first.at, second.at))
        yield witnessed


async def test_decisions_rest_on_what_the_witnesses_have_seen(witnessed: Witnessed, web: Web) -> None:
    voter = domain_signer("voter.example")
    web.serve(voter)
    async with witnessed.open(web) as registry:
        await log(registry, ballot(registry, 0, "ab" * 32), voter)
        await log(registry, ballot(registry, 0, "ab" * 32, topic="another/topic"), voter)
        head = registry.head
        decided = await registry.decide()
        assert [item.decision.topic for item in decided] == ["another/topic"], "the first of two that weigh as much"
        for item in decided:
            assert item.decision.input.size == head.size and item.decision.input.witnessed is not None
            witnessed.quorum.check(item.decision.input.witnessed.encode(), head.signed.checkpoint)
        leaves = await registry.leaves(range(registry.head.size))
        replay = Replay()
        entries = [replay.append(leaves[index]) for index in sorted(leaves)]
        assert [entry.body for entry in entries if isinstance(entry, Statement) and isinstance(entry.body, Decision)] == [
            item.decision for item in decided
        ]


@pytest.mark.deep
@pytest.mark.threat(14)
async def test_without_them_nothing_is_decided_and_the_rest_goes_on(witnessed: Witnessed, web: Web) -> None:
    voter = domain_signer("voter.example")
    web.serve(voter)
    async with witnessed.open(web) as registry:
        await log(registry, ballot(registry, 0, "ab" * 32), voter)
        await witnessed.witnesses[1].kill()
        before = registry.head.size
        with pytest.raises(Unavailable) as refusal:
            await registry.decide()
        assert refusal.value.code == "witness.quorum"
        assert registry.head.size == before
        await log(registry, ballot(registry, 1, "cd" * 32), voter)
        await witnessed.witnesses[1].start()
        (decided,) = await registry.decide()
        assert decided.decision.input.size == before + 1
    async with witnessed.open(web) as registry:
        known = await contents(registry)
        assert await registry.decide(), "the next epoch counts the same ballot"
        assert await contents(registry) != known


@pytest.mark.threat(361)
async def test_stamped_ballots_are_logged_before_the_epoch_closes(witnessed: Witnessed, web: Web) -> None:
    voter, unheard, newcomer = (domain_signer(f"{name}.example") for name in ("voter", "unheard", "newcomer"))
    web.serve(voter, unheard, newcomer)
    first, second = witnessed.witnesses
    async with witnessed.open(web) as registry:
        await log(registry, ballot(registry, 0, "ab" * 32), voter)
        await log(registry, ballot(registry, 0, "ab" * 32, topic="another/topic"), unheard)
        await registry.intake.senders.block(unheard.did, "it votes for others", "operator")
        # Out of order, and one twice.
        late_ballots = [signed(ballot(registry, seq, "cd" * 32), unheard) for seq in (1, 0)]
        for witness, statement in ((first, late_ballots[0]), (second, late_ballots[1]), (first, late_ballots[1])):
            answer = await witness.ask(statement.leaf, path="/add-statement")
            assert answer.status_code == 200, answer.text
            assert list(Stamped.of(statement.leaf, answer.content).times(witness.keys[:1])) == witness.keys[:1]
        box = await first.ask(b"", "GET", f"/{hex_digest(ORIGIN.encode())}/statements")
        assert [each.leaf for each in read_page(box.content)[1]] == [late_ballots[0].leaf, late_ballots[1].leaf]
        # Each minute what is new is taken as from any sender: a newcomer is learned, and a blocked one stays out.
        other = signed(ballot(registry, 0, "ef" * 32), newcomer)
        assert (await first.ask(other.leaf, path="/add-statement")).status_code == 200
        size = registry.head.size
        await registry.decisions.boxes.forward()
        leaves = await registry.leaves(range(size, registry.head.size))
        assert [parse(leaves[index]).type for index in sorted(leaves)] == ["identity", "ballot"]
        # A block, a quota or an order of arrival is no reason to close an epoch without them. A failure leaves it open.
        await second.kill()
        with pytest.raises(Unavailable) as refusal:
            await registry.decide()
        assert refusal.value.code == "witness.quorum"
        end = registry.head.size
        leaves = await registry.leaves([end - 2, end - 1])
        assert [leaves[end - 2], leaves[end - 1]] == [late_ballots[1].leaf, late_ballots[0].leaf]
        await second.start()
        box = await second.ask(b"", "GET", f"/{hex_digest(ORIGIN.encode())}/statements")
        assert [each.leaf for each in read_page(box.content)[1]] == [late_ballots[1].leaf], "it outlives a power failure"
        decided = await registry.decide()
        assert decided[0].decision.input.size == end, "and they are logged once"


async def test_the_checkpoint_carries_their_cosignatures(witnessed: Witnessed, web: Web) -> None:
    async with witnessed.open(web) as registry:
        transport = httpx.ASGITransport(create_app(registry))  # type: ignore[arg-type]  # the two spell ASGI's types differently
        async with httpx.AsyncClient(transport=transport, base_url=f"https://{ORIGIN}") as api, asyncio.timeout(30):
            note = b""
            while len(note.splitlines()) < 8:  # text, empty line, log, clock and two witnesses
                await asyncio.sleep(0.05)
                note = (await api.get("/checkpoint")).content
        signed = open_checkpoint(note, registry.log_key, registry.clock_key)
        witnessed.quorum.check(note, signed.checkpoint)
        assert (signed.checkpoint, signed.time) == (registry.head.signed.checkpoint, NOW)


@pytest.mark.parametrize("text", ["", "https://w.example", "https://w.example#x", "http://w.example#KEY", "w.example#KEY"])
def test_a_witness_is_named_by_url_and_key(text: str) -> None:
    key = "w1.example+11c8f4c8+BEtCePP28bkSi/ZxLF65+cydHDRh+AhwUc5Okowfb9iu"
    assert str(WitnessName.parse(f"https://w.example/x/#{key}").key) == key
    with pytest.raises(Malformed) as refusal:
        WitnessName.parse(text.replace("KEY", key))
    assert refusal.value.code == "settings.value"


def test_one_witness_under_two_names_is_no_two(tmp_path: Path) -> None:
    key = "w1.example+11c8f4c8+BEtCePP28bkSi/ZxLF65+cydHDRh+AhwUc5Okowfb9iu"
    witness = WitnessName.parse(f"https://w.example#{key}")
    with pytest.raises(Malformed) as refusal:
        Settings(data=tmp_path, witnesses=(witness, witness))
    assert refusal.value.code == "settings.value"
