"""Co-signed reports: what is signed, by whom, and every reason not to; after a refusal nothing is signed, nothing submitted."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fetching import fetcher
from meetings import LAPTOP, MAX_AGE, TOPIC, Party, buyer, identity, meeting, shop
from meta_peers import destination_hello, source_hello
from msgspec import structs
from report_log import BUYER, CHECKPOINT, OPENED, SHOP, SimulatedLog
from signers import NOW, ORIGIN
from simulated_registry import CLOCK_KEY, LOG_KEY
from working_agents import agents_registry

from treaty_agent.reports.report import RegistryLog, Reporter
from treaty_agent.reports.report_rules import OpenEpoch, SessionFacts, draft_report, negotiation_id
from treaty_agent.sessions.interfaces import SessionTimeouts
from treaty_agent.testing.virtual_time import run
from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed, ReportRefused, ReportSigned
from treaty_client.policy import Policy
from treaty_consensus import canonical, kinds, statement
from treaty_consensus.errors import Refused, TreatyError, Unavailable
from treaty_consensus.facts import LogFact
from treaty_consensus.log.checkpoint import open_checkpoint
from treaty_io.identity import Identity
from treaty_io.network.egress import EgressGuard

DOCUMENT, NID = "d0" * 32, "e1" * 32
WEEK = 7 * 24 * 3600


def facts(own: Identity, peer: Identity, **changes: Any) -> SessionFacts:
    facts = SessionFacts(own.key_id, peer.key_id, ORIGIN, NID, TOPIC, DOCUMENT, spoke=True)
    return dataclasses.replace(facts, **changes)


class CountingIdentity(Identity):
    """Counts its signatures."""

    signatures: list[bytes]

    def sign(self, message: bytes) -> bytes:
        self.signatures.append(message)
        return super().sign(message)


def counting(someone: Identity) -> CountingIdentity:
    identity = CountingIdentity(someone.did, someone.key_id, someone.private_key)
    object.__setattr__(identity, "signatures", [])
    return identity


@dataclass
class Sides:
    """A reporter for each side, on one log."""

    log: SimulatedLog
    buyer: CountingIdentity
    shop: CountingIdentity
    buyers: Reporter
    shops: Reporter
    home: Path
    clock: list[float]

    def a_minute_later(self) -> None:
        """Let the facts of the registry get old."""
        self.clock[0] += 61

    async def report(self, ours: SessionFacts | None = None, theirs: SessionFacts | None = None) -> bool:
        """The whole exchange."""

        async def propose(proposal: ReportProposed) -> ReportCosignature:
            return await self.shops.cosign(theirs or facts(SHOP, BUYER), proposal)

        return await self.buyers.report(ours or facts(BUYER, SHOP), propose)

    def untouched(self) -> bool:
        """Whether the shop signed nothing, kept nothing, and the log got nothing."""
        return not self.shop.signatures and not self.log.submitted and not list((self.home / "shop").rglob("*"))


def sides(home: Path, delay: float = 0, now: int = NOW) -> Sides:
    log, clock = SimulatedLog(), [float(now)]
    buyer, shop = counting(BUYER), counting(SHOP)

    def log_of(origin: str) -> SimulatedLog:
        assert origin == ORIGIN
        return log

    return Sides(
        log,
        buyer,
        shop,
        Reporter(buyer, home / "buyer", log_of, delay=delay, clock=lambda: clock[0]),
        Reporter(shop, home / "shop", log_of, delay=delay, clock=lambda: clock[0]),
        home,
        clock,
    )


def proposal(own: SessionFacts | None = None, *, signer: Identity = BUYER, **changes: Any) -> ReportProposed:
    """What a buyer proposes, with fields of the report or of the statement replaced by a liar, and signed all the same."""
    own_facts = own or facts(BUYER, SHOP)
    body: dict[str, Any] = {
        "topic": own_facts.topic,
        "nid": own_facts.nid,
        "document": own_facts.document,
        "outcome": "agreed",
        "epoch": 4,
        "seen_checkpoint": CHECKPOINT.decode(),
    }
    head: dict[str, Any] = {"log": own_facts.log, "by": (own_facts.own_key, own_facts.peer_key), "issued": OPENED}
    for name, value in changes.items():
        (head if name in head else body)[name] = value
    draft = statement.draft(kinds.Report(**body), **head)
    return ReportProposed(draft.payload, signer.key_id, signer.sign(draft.signing_input))


# What is signed


def test_the_negotiation_id_is_the_same_for_both_and_pinned() -> None:
    source, destination = source_hello(), destination_hello(selected="https://x.example/")
    expected = canonical.dumps([source.source_did, destination.source_did, "b" * 32, "t" * 32])
    assert negotiation_id(source, destination) == hashlib.sha256(expected).hexdigest()
    assert negotiation_id(source, destination) != negotiation_id(destination, source)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_without_a_random_in_both_hellos_there_is_no_id(side: str) -> None:
    hellos = {"source": source_hello(), "destination": destination_hello(selected="https://x.example/")}
    hellos[side] = structs.replace(hellos[side], random=None)
    with pytest.raises(Refused) as refusal:
        negotiation_id(hellos["source"], hellos["destination"])
    assert refusal.value.code == "report.other"


def test_a_report_is_signed_by_both_and_has_no_time(tmp_path: Path) -> None:
    both = sides(tmp_path)
    assert run(both.report())
    (report,) = both.log.submitted
    body = report.body
    assert isinstance(body, kinds.Report)
    assert report.by == tuple(sorted((BUYER.key_id, SHOP.key_id)))
    assert (body.nid, body.document, body.topic, body.outcome, body.epoch) == (NID, DOCUMENT, TOPIC, "agreed", 4)
    assert report.issued == OPENED, "when the epoch opened, whenever the two met"
    assert len(both.buyer.signatures) == len(both.shop.signatures) == 1


def test_what_is_signed_is_on_disk_before_it_is_signed(tmp_path: Path) -> None:
    both = sides(tmp_path)
    seen: list[list[str]] = []
    for who, home in ((both.buyer, "buyer"), (both.shop, "shop")):

        def watch(message: bytes, home: str = home, who: Any = who) -> bytes:
            seen.append([path.name for path in (tmp_path / home / "reports").glob("*.json")])
            return Identity.sign(who, message)

        object.__setattr__(who, "sign", watch)
    run(both.report())
    assert seen == [[f"{NID}.json"]] * 2


# The other side's refusals


REFUSALS: list[tuple[str, Callable[[], ReportProposed]]] = [
    ("report.other", lambda: proposal(nid="ab" * 32)),
    ("report.other", lambda: proposal(topic="commerce/other")),
    ("report.other", lambda: proposal(document="ab" * 32)),
    ("report.other", lambda: proposal(outcome="failed")),
    ("report.other", lambda: proposal(log="other.example")),
    ("report.epoch", lambda: proposal(epoch=5)),
    ("report.other", lambda: proposal(issued=NOW)),
    ("report.other", lambda: proposal(issued=OPENED - WEEK)),
    ("report.other", lambda: proposal(issued=OPENED + 1)),
    ("report.other", lambda: proposal(by=(BUYER.key_id,))),
    ("report.other", lambda: proposal(by=(BUYER.key_id, identity("third.example").key_id))),
    ("report.other", lambda: proposal(signer=SHOP)),
    ("report.other", lambda: structs.replace(proposal(), signature=bytes(64))),
    ("report.other", lambda: structs.replace(proposal(), signature=proposal(epoch=5).signature)),
    ("report.not-checked", lambda: structs.replace(proposal(), payload=b"{}")),
    ("report.not-checked", lambda: structs.replace(proposal(), payload=proposal().payload + b" ")),
]


@pytest.mark.threat(113)
@pytest.mark.parametrize(("code", "make"), REFUSALS)
def test_a_proposal_that_does_not_hold_is_refused_unsigned(tmp_path: Path, code: str, make: Callable[[], ReportProposed]) -> None:
    both = sides(tmp_path)
    assert run(both.shops.cosign(facts(SHOP, BUYER), make())) == ReportRefused(code)
    assert both.untouched()
    assert isinstance(run(both.shops.cosign(facts(SHOP, BUYER), proposal())), ReportSigned)


def test_another_kind_of_statement_is_never_signed(tmp_path: Path) -> None:
    both = sides(tmp_path)
    ballot = kinds.Ballot(TOPIC, 0, ((DOCUMENT,),), CHECKPOINT.decode())
    draft = statement.draft(ballot, log=ORIGIN, by=(BUYER.key_id, SHOP.key_id), issued=OPENED)
    proposed = ReportProposed(draft.payload, BUYER.key_id, BUYER.sign(draft.signing_input))
    assert run(both.shops.cosign(facts(SHOP, BUYER), proposed)) == ReportRefused("report.other")
    assert both.untouched()


def test_an_unverifiable_report_is_refused_unsigned(tmp_path: Path) -> None:
    both = sides(tmp_path)
    both.log.forked = True
    assert run(both.shops.cosign(facts(SHOP, BUYER), proposal())) == ReportRefused("report.not-checked")
    both.log.forked = False
    both.log.known.pop(BUYER.did)
    both.a_minute_later()
    assert run(both.shops.cosign(facts(SHOP, BUYER), proposal())) == ReportRefused("report.not-checked")
    both.log.known[BUYER.did] = BUYER
    assert run(both.shops.cosign(facts(SHOP, BUYER, spoke=False), proposal())) == ReportRefused("report.other")
    assert both.untouched()


@pytest.mark.threat(35)
def test_one_negotiation_is_never_signed_with_two_documents(tmp_path: Path) -> None:
    both = sides(tmp_path)
    other = "ab" * 32
    assert isinstance(run(both.shops.cosign(facts(SHOP, BUYER), proposal())), ReportSigned)
    again = sides(tmp_path)  # after a restart
    lied = again.shops.cosign(facts(SHOP, BUYER, document=other), proposal(document=other))
    assert run(lied) == ReportRefused("report.equivocation")
    assert again.shop.signatures == []


def test_one_peer_and_topic_are_reported_once_an_epoch(tmp_path: Path) -> None:
    both = sides(tmp_path)
    another = "ab" * 32
    assert run(both.report())
    assert run(both.report(facts(BUYER, SHOP, nid=another), facts(SHOP, BUYER, nid=another))) is False
    again = proposal(nid=another)
    assert run(both.shops.cosign(facts(SHOP, BUYER, nid=another), again)) == ReportRefused("report.exists")
    assert len(both.log.submitted) == len(both.shop.signatures) == 1
    both.log.open_epoch = 5
    both.a_minute_later()
    assert run(both.report(facts(BUYER, SHOP, nid=another), facts(SHOP, BUYER, nid=another)))
    assert len(both.log.submitted) == 2


# The proposing side


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ReportRefused("report.other"), "report.other"),
        (ReportSigned(BUYER.key_id, bytes(64)), "report.other"),
        (ReportSigned(SHOP.key_id, bytes(64)), "report.other"),
        (proposal(), "report.not-checked"),
    ],
)
def test_without_the_peers_true_signature_nothing_is_submitted(tmp_path: Path, answer: ReportCosignature, code: str) -> None:
    both = sides(tmp_path)

    async def propose(_: ReportProposed) -> ReportCosignature:
        return answer

    with pytest.raises(TreatyError) as refusal:
        run(both.buyers.report(facts(BUYER, SHOP), propose))
    assert refusal.value.code == code
    assert both.log.submitted == []
    assert run(both.report())  # a later session may try again


def test_a_session_without_words_is_not_reported(tmp_path: Path) -> None:
    both = sides(tmp_path)
    with pytest.raises(Refused) as refusal:
        run(both.report(facts(BUYER, SHOP, spoke=False)))
    assert refusal.value.code == "report.other"
    assert both.untouched()
    assert both.buyer.signatures == []


@pytest.mark.parametrize("delay", [0, 60])
def test_useless_reports_are_announced_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, delay: int) -> None:
    ours, *strangers = (Identity.create() for _ in range(4))
    log = SimulatedLog(refuses=Refused("electorate.no-principal", "It speaks for no principal."))
    log.known = {someone.did: someone for someone in (ours, *strangers, SHOP)}
    clock = [float(NOW)]
    reporter = Reporter(ours, tmp_path, lambda _: log, delay=delay, clock=lambda: clock[0])
    proposed = 0

    async def meet(peer: Identity, number: int) -> bool:
        async def propose(proposal: ReportProposed) -> ReportCosignature:
            nonlocal proposed
            proposed += 1
            return ReportSigned(peer.key_id, peer.sign(statement.pre_authentication_encoding(proposal.payload)))

        was_made = await reporter.report(facts(ours, peer, nid=f"{number:02x}" * 32), propose)
        await asyncio.sleep(2 * delay)
        return was_made

    async def meet_all() -> None:
        outcomes = [await meet(stranger, number) for number, stranger in enumerate(strangers)]
        assert outcomes == [delay > 0, False, False]
        assert proposed == 1, "the first one alone was asked to sign"
        await meet(SHOP, 8)
        assert (proposed, log.submitted) == (2, [])
        log.refuses = None  # the registry lists a peer with a domain, once it takes the report
        assert await meet(SHOP, 9) is False, "signed already in this epoch"
        log.open_epoch += 1
        clock[0] += 61
        assert await meet(SHOP, 10)
        assert len(log.submitted) == 1

    with caplog.at_level(logging.INFO):
        run(meet_all())
    assert [record.getMessage() for record in caplog.records] == [
        "A report is dropped, the log refuses it: It speaks for no principal."
    ]
    assert not list((tmp_path / "reports" / "outbox").glob("*.json"))


def test_an_epoch_that_closes_meanwhile_is_signed_again(tmp_path: Path) -> None:
    both = sides(tmp_path)

    async def propose(proposed: ReportProposed) -> ReportCosignature:
        answer = await both.shops.cosign(facts(SHOP, BUYER), proposed)
        both.log.open_epoch = 5
        return answer

    assert run(both.buyers.report(facts(BUYER, SHOP), propose))
    (report,) = both.log.submitted
    assert isinstance(report.body, kinds.Report)
    assert report.body.epoch == 5
    assert len(both.shop.signatures) == 2


def test_epochs_that_close_for_ever_are_given_up(tmp_path: Path) -> None:
    both = sides(tmp_path)

    async def propose(proposed: ReportProposed) -> ReportCosignature:
        answer = await both.shops.cosign(facts(SHOP, BUYER), proposed)
        both.log.open_epoch += 1
        return answer

    with pytest.raises(Refused) as refusal:
        run(both.buyers.report(facts(BUYER, SHOP), propose))
    assert refusal.value.code == "report.epoch"
    assert both.log.submitted == []


# Submission


def test_a_submission_is_delayed_and_outlives_the_process(tmp_path: Path) -> None:
    async def first() -> None:
        both = sides(tmp_path, delay=3600)
        assert await both.report()
        assert both.log.submitted == []
        await both.buyers.close()
        await asyncio.sleep(7200)
        assert both.log.submitted == []

    async def second() -> None:
        both = sides(tmp_path, delay=3600)
        both.buyers.resume()
        await asyncio.sleep(3601)
        assert len(both.log.submitted) == 1
        both.buyers.resume()
        await asyncio.sleep(3601)
        assert len(both.log.submitted) == 1

    run(first())
    run(second())


def test_a_registry_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    async def main() -> None:
        both = sides(tmp_path)
        both.log.down = 6
        assert await both.report()
        assert both.log.submitted == []
        await asyncio.sleep(5 * 3600)
        assert len(both.log.submitted) == 1
        await both.buyers.close()

    run(main())


def test_a_report_that_the_log_refuses_is_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        both = sides(tmp_path, delay=10)
        both.log.refuses = Refused("quota.sender", "Too many reports.")
        assert await both.report()
        await asyncio.sleep(3600)
        assert list((tmp_path / "buyer" / "reports" / "outbox").iterdir()) == []
        assert both.log.submitted == []

    run(main())


def test_a_report_that_is_logged_already_is_done(tmp_path: Path) -> None:
    both = sides(tmp_path)
    both.log.refuses = Refused("report.exists", "This negotiation has already been reported.")
    assert run(both.report())


def test_a_damaged_ledger_signs_nothing(tmp_path: Path) -> None:
    both = sides(tmp_path)
    folder = tmp_path / "shop" / "reports"
    folder.mkdir(parents=True)
    (folder / f"{NID}.json").write_bytes(b"{")
    assert run(both.shops.cosign(facts(SHOP, BUYER), proposal())) == ReportRefused("report.not-checked")
    assert both.shop.signatures == []


# The registry's log


async def test_what_is_carried_and_taken_of_the_log_has_no_times(tmp_path: Path) -> None:
    registry = agents_registry()
    async with fetcher(registry, tmp_path) as fetching:
        log = RegistryLog(fetching, EgressGuard(registry.network()), ORIGIN)
        fact = registry.facts["log"]
        assert isinstance(fact, LogFact)
        assert await log.epoch() == OpenEpoch(fact.epoch, fact.opened)
        note = registry.checkpoint()
        seen = fetching.registries.get(ORIGIN).seen
        assert seen is not None, "every report names a checkpoint"
        assert open_checkpoint(note, LOG_KEY.verifier, CLOCK_KEY.verifier).time is not None
        with pytest.raises(Refused) as refusal:
            await log.observe(note)
        assert refusal.value.code == "report.other"
        assert fetching.registries.get(ORIGIN).seen == seen
        await fetching.head(ORIGIN).observe(note)
        carried = log.newest_seen()
        opened = open_checkpoint(carried, LOG_KEY.verifier, CLOCK_KEY.verifier)
        assert (opened.time, opened.checkpoint) == (None, open_checkpoint(note, LOG_KEY.verifier).checkpoint)
        await log.observe(carried)


# In a session


REPORTING = Policy(publishers=["did:wba:publisher.example"], max_age=MAX_AGE, report=True, report_delay=0)


def bodies(log: SimulatedLog) -> list[kinds.Report]:
    return [report.body for report in log.submitted if isinstance(report.body, kinds.Report)]


async def _session(seller: Party, customer: Party, calls: int = 1) -> None:
    async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
        for _ in range(calls):
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP


@pytest.mark.parametrize(("ours", "theirs"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_session_is_reported_only_if_both_policies_say_so(tmp_path: Path, ours: bool, theirs: bool) -> None:
    log = SimulatedLog()

    def policy(report: bool) -> Policy:
        return dataclasses.replace(REPORTING, report=report)

    customer = buyer(tmp_path, policy=policy(ours), log_of=lambda _: log)
    seller = shop(tmp_path, policy=policy(theirs), log_of=lambda _: log)
    run(_session(seller, customer))
    assert len(log.submitted) == int(ours and theirs)
    assert ("reported" in customer.names()) is (ours and theirs)


def test_the_report_of_a_session_names_what_was_spoken(tmp_path: Path) -> None:
    log = SimulatedLog()
    customer, seller = (make(tmp_path, policy=REPORTING, log_of=lambda _: log) for make in (buyer, shop))
    run(_session(seller, customer))
    (report,) = log.submitted
    body = report.body
    assert isinstance(body, kinds.Report)
    # Written a moment after the messages, at the latest when the agent is closed.
    run(customer.agent.aclose())
    remembered = json.loads((customer.home / "agreements.json").read_bytes())["agreements"][0]
    assert (body.document, body.topic) == (remembered["hash"], TOPIC)
    assert {did.text for did in report.authors} == {customer.agent.did, seller.agent.did}
    assert (customer.home / "reports" / f"{body.nid}.json").exists()
    assert (seller.home / "reports" / f"{body.nid}.json").exists()


def test_a_session_without_a_reply_is_not_reported(tmp_path: Path) -> None:
    log = SimulatedLog()
    customer, seller = (make(tmp_path, policy=REPORTING, log_of=lambda _: log) for make in (buyer, shop))
    run(_session(seller, customer, calls=0))
    assert log.submitted == []
    assert customer.names()[-1] == "end"
    assert "report failed" not in customer.names()
    assert not (seller.home / "reports").exists()


def test_a_report_that_fails_does_not_spoil_the_session(tmp_path: Path) -> None:
    log = SimulatedLog(forked=True)
    customer, seller = (make(tmp_path, policy=REPORTING, log_of=lambda _: log) for make in (buyer, shop))
    run(_session(seller, customer))
    assert log.submitted == []
    assert "report failed" in customer.names()


def test_an_unanswered_proposal_does_not_delay_the_end(tmp_path: Path) -> None:
    log, stuck = SimulatedLog(), SimulatedLog()

    async def hang(note: bytes) -> None:
        await asyncio.sleep(1e9)

    stuck.observe = hang  # type: ignore[method-assign]
    customer = buyer(tmp_path, policy=REPORTING, log_of=lambda _: log)
    seller = shop(tmp_path, policy=REPORTING, log_of=lambda _: stuck)
    run(_session(seller, customer))
    assert log.submitted == stuck.submitted == []
    assert customer.names()[-2:] == ["report failed", "end"]


def test_an_answer_to_no_proposal_ends_the_session(tmp_path: Path) -> None:
    log = SimulatedLog()

    async def main() -> None:
        customer, seller = (make(tmp_path, policy=REPORTING, log_of=lambda _: log) for make in (buyer, shop))
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            wire.send(b'\x00{"action":"reportCosignature","status":"refused","reason":"report.x"}')
            with pytest.raises(TreatyError):
                await session.call("getProductInfo", productId="P12345")

    run(main())
    assert log.submitted == []


def test_the_draft_holds_for_the_other_side() -> None:
    draft = draft_report(facts(BUYER, SHOP), OpenEpoch(4, OPENED), CHECKPOINT)
    assert draft.payload == proposal().payload


# Beside the session


ENDLESS = SessionTimeouts(report=1e6, idle=1e7)


def test_a_hanging_registry_delays_neither_start_nor_end(tmp_path: Path) -> None:
    async def main() -> None:
        log, request_seen = SimulatedLog(), asyncio.Event()

        async def hang() -> OpenEpoch:
            request_seen.set()
            await asyncio.sleep(1e9)
            raise AssertionError

        log.epoch = hang  # type: ignore[method-assign]
        customer, seller = (make(tmp_path, policy=REPORTING, log_of=lambda _: log, timeouts=ENDLESS) for make in (buyer, shop))
        began = asyncio.get_running_loop().time()
        await _session(seller, customer)
        assert request_seen.is_set(), "it is asked in the background"
        assert asyncio.get_running_loop().time() - began < 1_000, "virtual time: it was not waited for"
        await customer.agent.aclose()

    run(main())


def test_a_hanging_registry_is_refused_at_once_the_next_time(tmp_path: Path) -> None:
    async def main() -> None:
        log, stuck = SimulatedLog(), SimulatedLog()

        requests = 0

        async def hang(note: bytes) -> None:
            nonlocal requests
            requests += 1
            await asyncio.sleep(10)
            raise Unavailable("network.deadline", "No answer in time.")

        stuck.observe = hang  # type: ignore[method-assign]
        customer = buyer(tmp_path, policy=REPORTING, log_of=lambda _: log)
        seller = shop(tmp_path, policy=REPORTING, log_of=lambda _: stuck)
        for _ in range(3):
            await _session(seller, customer)
        assert requests == 1
        assert log.submitted == []
        assert customer.names().count("report failed") == 3
        await seller.agent.aclose()

    run(main())


def test_an_open_session_reports_after_work(tmp_path: Path) -> None:
    async def main() -> None:
        log = SimulatedLog()
        customer, seller = (make(tmp_path, policy=REPORTING, log_of=lambda _: log) for make in (buyer, shop))
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            await asyncio.sleep(1)
            assert log.submitted == [], "it has done no work"
            for _ in range(3):
                await session.call("getProductInfo", productId="P12345")
                await asyncio.sleep(1)
            assert len(log.submitted) == 1
        # Another session of the pair in this epoch.
        await _session(seller, customer)
        assert len(log.submitted) == 1
        assert "nothing to report" in customer.names()

    run(main())


def test_an_open_session_reports_again_in_a_later_epoch(tmp_path: Path) -> None:
    async def main() -> None:
        log, idle = SimulatedLog(), SessionTimeouts(idle=1e7)
        customer, seller = (make(tmp_path, policy=REPORTING, log_of=lambda _: log, timeouts=idle) for make in (buyer, shop))
        for side in (customer, seller):
            # The facts of the registry get old in virtual time.
            context, clock = side.agent.context, asyncio.get_running_loop().time
            context.reports.reporter = Reporter(context.identity, side.home, lambda _: log, delay=0, clock=clock)
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            for epoch in (4, 5, 6):
                log.open_epoch = epoch
                await session.call("getProductInfo", productId="P12345")
                await asyncio.sleep(2 * 3600)
            log.open_epoch = 7
            await asyncio.sleep(5 * 3600)
            assert [body.epoch for body in bodies(log)] == [4, 5, 6], "it does no work in epoch 7"
            await session.call("getProductInfo", productId="P12345")
        # The hour was not over when the application left.
        assert [body.epoch for body in bodies(log)] == [4, 5, 6, 7]
        assert len({body.nid for body in bodies(log)}) == 4, "a log takes an id once"
        assert customer.names().count("reported") == 4
        assert "nothing to report" not in customer.names()

    run(main())


def test_a_failed_report_is_retried_at_the_applications_leave(tmp_path: Path) -> None:
    async def main() -> None:
        log = SimulatedLog(forked=True)
        customer, seller = (make(tmp_path, policy=REPORTING, log_of=lambda _: log) for make in (buyer, shop))
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            await session.call("getProductInfo", productId="P12345")
            await asyncio.sleep(30)
            log.forked = False
            assert log.submitted == []
        assert len(log.submitted) == 1

    run(main())


def test_an_unchecked_report_is_proposed_again(tmp_path: Path) -> None:
    async def main() -> None:
        log = SimulatedLog(forked=True)
        customer, seller = (make(tmp_path, policy=REPORTING, log_of=lambda _: log) for make in (buyer, shop))
        async with meeting(seller) as wire, customer.agent.connect_over(wire, topic=TOPIC) as session:
            await session.call("getProductInfo", productId="P12345")
            await asyncio.sleep(1)
            assert log.submitted == []
            log.forked = False
            await asyncio.sleep(60)
            assert len(log.submitted) == 1

    run(main())


def test_a_signed_report_outlives_session_and_outage(tmp_path: Path) -> None:
    async def main() -> None:
        log = SimulatedLog(down=2)
        customer, seller = (make(tmp_path, policy=REPORTING, log_of=lambda _: log) for make in (buyer, shop))
        await _session(seller, customer)
        assert log.submitted == []
        assert list((customer.home / "reports" / "outbox").glob("*.json"))
        assert "reported" in customer.names()
        await asyncio.sleep(3600)
        assert len(log.submitted) == 1
        assert not list((customer.home / "reports" / "outbox").glob("*.json"))
        await customer.agent.aclose()

    run(main())
