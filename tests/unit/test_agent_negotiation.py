"""Two agents that negotiate their protocol, over a connection in memory: every way to an agreement, and every way not to one."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import meetings
import pytest
from meetings import LAPTOP, TOPIC, URI_1, Party, Tap, meeting, party
from meta_peers import proposal, source_hello
from scripted_negotiators import (
    CHANGED,
    DOCUMENT,
    NO_PRODUCT,
    TEST_CASES,
    WANTED,
    WRONG_CODE,
    WRONG_PRICE,
    Script,
    ScriptedNegotiator,
    ScriptedNegotiators,
)

from treaty_agent import Capacity
from treaty_agent.negotiators.language_model import Allowance, Budget, Prompt
from treaty_agent.negotiators.model_negotiator import ModelNegotiators
from treaty_agent.negotiators.negotiator import Capability, Negotiator, Proposal, Rejection, Requirement, Verdict
from treaty_agent.negotiators.test_cases import MessageCase, format_test_cases, parse_test_cases
from treaty_agent.sessions.escalation import Escalation
from treaty_agent.sessions.operation_errors import OperationError
from treaty_agent.sessions.session import Session
from treaty_agent.testing.virtual_time import run
from treaty_agent.transport.connection import next_message
from treaty_anp.hello_profile.machine import Limits
from treaty_anp.transcript import parse_transcript, replay
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import Refused, TreatyError, Unavailable, Untrusted
from treaty_io.errors import PeerUnavailable

HASH = hex_digest(DOCUMENT.encode())
T = TypeVar("T")


def seller(
    home: Path, script: Script | None = None, *, make: Callable[[Script], Negotiator] = ScriptedNegotiator, **options: Any
) -> Party:
    """A shop that offers its function to whoever negotiates; without a script it has no negotiator."""
    negotiators = ScriptedNegotiators(script, make) if script else None
    side = party("shop", home, negotiators=negotiators, transcripts=home / "shop-transcripts", **options)
    side.sold = []  # type: ignore[attr-defined]

    @side.agent.offers
    async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
        """Everything about one product."""
        side.sold.append(productId)  # type: ignore[attr-defined]
        if productId != LAPTOP["productId"]:
            raise OperationError(404, "There is no such product.")
        return LAPTOP

    return side


def customer(home: Path, script: Script | None = None, **options: Any) -> Party:
    """A buyer; without a script it has no negotiator."""
    negotiators = ScriptedNegotiators(script) if script else None
    return party("buyer", home, negotiators=negotiators, transcripts=home / "buyer-transcripts", **options)


@asynccontextmanager
async def talks(shop: Party, buyer: Party, **how: Any) -> AsyncIterator[tuple[Session, Tap]]:
    """A session, by a requirement unless said otherwise."""
    async with meeting(shop) as tap, buyer.agent.connect_over(tap, **(how or {"requirement": WANTED})) as session:
        yield session, tap


async def buy(shop: Party, buyer: Party, product: str = "P12345", **how: Any) -> Any:
    async with talks(shop, buyer, **how) as (session, _):
        result = await session.call("getProductInfo", productId=product)
    await asyncio.sleep(1)  # both have written what they remember
    return result


@dataclass
class Prompts:
    """A language model that accepts what is proposed, and writes nothing. `asked`: for what, and with which text."""

    asked: list[tuple[str, str]] = field(default_factory=list)
    budget: Budget = field(default_factory=lambda: Budget(Allowance()))

    async def complete(self, prompt: Prompt[T], budget: Budget | None = None) -> T:
        self.asked.append((prompt.name, prompt.user))
        if prompt.name != "consider":
            raise Refused("model.answer", "No.")
        return prompt.read({"decision": "accept", "document": "", "summary": "", "reason": ""})

    async def aclose(self) -> None:
        pass


async def fails(shop: Party, buyer: Party, **how: Any) -> TreatyError:
    """A session that cannot be had; nothing of it is remembered, run or kept."""
    with pytest.raises(TreatyError) as failure:
        await buy(shop, buyer, **how)
    for someone in (shop, buyer):
        assert not (someone.home / "negotiated").exists()
        someone.agent.context.afterwards.settle()
        assert not (someone.home / "agreements.json").exists()
        assert all(handler.closed for handler in someone.runtime.opened)
    return failure.value


def transcripts(home: Path) -> list[bytes]:
    """Of both roles."""
    return [path.read_bytes() for path in sorted(home.glob("*-transcripts/*.jsonl"))]


def check_replays(home: Path, count: int = 2) -> None:
    """Each session's transcript, on either side, replays to the byte."""
    records = transcripts(home)
    assert len(records) == count
    assert all(replay(transcript) > 1 for transcript in records)


# Agreement


def test_000_09_a_proposal_is_accepted_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        here, there = Script(), Script()
        shop, buyer = seller(tmp_path, there), customer(tmp_path, here)
        async with talks(shop, buyer) as (session, _):
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            assert (session.protocol, session.document) == (f"urn:treaty:negotiated:{HASH}", DOCUMENT)
            assert not session.resumed
        assert here.names() == ["draft", "implement", "draft_tests"]
        assert there.names() == ["consider", "implement"]
        assert [len(hellos) for hellos in (here.situations, there.situations)] == [1, 1]
        assert buyer.names() == ["hello", "negotiating", "written", "sandbox", "running", "first reply", "end"]
        assert here.closed == there.closed == 1

    run(main())
    check_replays(tmp_path)


def _properties(offered: Capability) -> list[str]:
    properties = offered.arguments["properties"]
    assert isinstance(properties, dict)
    return sorted(properties)


@dataclass
class Serving(ScriptedNegotiator):
    """A negotiator that answers each proposal by the functions that it was told of."""

    async def consider(self, document: str, summary: str, *, last: bool) -> Verdict:
        (situation,) = self.script.situations
        served = "".join(
            f"- `{offered.name}`: {offered.description} Arguments: {', '.join(_properties(offered))}.\n"
            for offered in situation.capabilities
        )
        return Proposal(f"{document}\n## Served\n\n{served}", f"Added what this side serves:\n\n{served}")


SERVED = "- `getProductInfo`: Everything about one product. Arguments: productId, productName.\n"


def test_000_10_a_responder_answers_with_its_choice(tmp_path: Path) -> None:
    async def main() -> None:
        here, there = Script(), Script()
        shop = seller(tmp_path, there, make=Serving)
        async with talks(shop, customer(tmp_path, here)) as (session, tap):
            assert session.document == f"{DOCUMENT}\n## Served\n\n{SERVED}"
        answer = next(json.loads(message[1:]) for way, message in tap.seen if way == "<" and isinstance(message, bytes))
        assert (answer["status"], answer["candidateProtocols"]) == ("negotiating", session.document)
        assert SERVED in answer["modificationSummary"]

    run(main())


async def test_000_10_a_model_judges_by_its_agents_functions(tmp_path: Path) -> None:
    prompts = Prompts()
    shop = party("shop", tmp_path, negotiators=ModelNegotiators(prompts))

    @shop.agent.offers
    async def getProductInfo(productId: str) -> dict[str, Any]:  # noqa: N802, N803
        """Everything about one product."""
        return LAPTOP

    await fails(shop, customer(tmp_path, Script()))
    name, prompt = prompts.asked[0]
    (capabilities,) = re.findall(r"^BEGIN capabilities \w+\n(.*?)\nEND capabilities ", prompt, re.MULTILINE | re.DOTALL)
    (offered,) = json.loads(capabilities)
    assert (name, offered["name"], offered["description"]) == ("consider", "getProductInfo", "Everything about one product.")
    assert offered["arguments"]["required"] == ["productId"]


async def test_000_09_the_proposing_model_knows_the_requirement(tmp_path: Path) -> None:
    prompts = Prompts()
    buyer = party("buyer", tmp_path, negotiators=ModelNegotiators(prompts))
    with pytest.raises(TreatyError):
        await buy(seller(tmp_path, Script()), buyer)
    name, prompt = prompts.asked[0]
    sections = dict(re.findall(r"^BEGIN ([a-z-]+) \w+\n(.*?)\nEND ", prompt, re.MULTILINE | re.DOTALL))
    assert name == "draft"
    assert sections == {
        "role": "initiator",
        "requirement": WANTED.text,
        "input": WANTED.input,
        "output": WANTED.output,
        "topic": WANTED.topic,
    }


def test_000_29_a_counter_proposal_is_accepted_by_the_initiator(tmp_path: Path) -> None:
    async def main() -> None:
        here, there = Script(), Script(verdicts=[Proposal(CHANGED, "Says for whom it is.")])
        shop, buyer = seller(tmp_path, there), customer(tmp_path, here)
        async with talks(shop, buyer) as (session, _):
            assert session.document == CHANGED
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        assert here.calls[1] == ("consider", CHANGED)

    run(main())
    check_replays(tmp_path)


def test_a_negotiator_knows_its_agent_and_its_offers(tmp_path: Path) -> None:
    here, there = Script(), Script()
    run(buy(seller(tmp_path, there), customer(tmp_path, here)))
    (ours,), (theirs,) = here.situations, there.situations
    assert (ours.role, ours.requirement, ours.capabilities) == ("initiator", WANTED, ())
    assert (theirs.role, theirs.requirement) == ("responder", None)
    (offered,) = theirs.capabilities
    assert (offered.name, offered.description) == ("getProductInfo", "Everything about one product.")
    properties = offered.arguments["properties"]
    assert isinstance(properties, dict)
    assert properties.keys() == {"productId", "productName"}


def test_candidates_go_before_a_negotiation(tmp_path: Path) -> None:
    async def main() -> None:
        here = Script()
        shop, buyer = meetings.shop(tmp_path), customer(tmp_path, here)
        async with talks(shop, buyer, topic=TOPIC, requirement=WANTED) as (session, _):
            assert session.protocol.startswith("https://")
        assert here.calls == []

    run(main())


def test_a_topic_without_protocols_is_negotiated(tmp_path: Path) -> None:
    shop, buyer = seller(tmp_path, Script()), customer(tmp_path, Script())
    buyer.protocols.published.clear()
    assert run(buy(shop, buyer, topic=TOPIC, requirement=WANTED)) == LAPTOP


async def test_000_21_an_agent_resolves_a_base_by_the_registry(tmp_path: Path) -> None:
    base = meetings.product_info(URI_1)
    changes = (
        f"# Products with stock\n\n- Topic: {TOPIC}\n- Base: {URI_1}\n- Base-SHA-256: {base.hash}\n\n"
        "## Changes\n\n- 100001: out of stock\n"
    )

    async def proposing(text: str, home: Path, *, registry: bool = True) -> tuple[Prompts, TreatyError]:
        prompts = Prompts()
        shop = party("shop", home, negotiators=ModelNegotiators(prompts))
        if not registry:
            shop.protocols.published.clear()
        return prompts, await fails(shop, customer(home, Script(drafts=[Proposal(text)])))

    prompts, error = await proposing(changes, tmp_path / "1")
    assert [name for name, _ in prompts.asked] == ["consider", "handler"]  # accepted, as it stands
    for _, prompt in prompts.asked:
        assert "BEGIN base-document" in prompt
        assert base.document.decode() in prompt
    for number, (text, registry) in enumerate([(changes, False), (changes.replace(base.hash, HASH[::-1]), True)], 2):
        prompts, error = await proposing(text, tmp_path / str(number), registry=registry)
        assert prompts.asked == []
        assert error.code == "negotiation.rejected"
        assert URI_1 in error.message


UNPINNED = f"# Products with stock\n\n- Base: {URI_1}\n\n## Changes\n\n- 100001: out of stock\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (UNPINNED, "does not say which bytes are meant"),
        (UNPINNED.replace("\n\n##", f"\n- Base-SHA-256: {HASH[::-1]}\n\n##"), "its digest differs"),
        (UNPINNED.replace(URI_1, "https://else.example/p").replace("\n\n##", f"\n- Base-SHA-256: {HASH}\n\n##"), "cannot fetch"),
    ],
)
@pytest.mark.parametrize("approved", [False, True])
def test_000_21_an_unpinned_or_absent_base_is_refused(tmp_path: Path, text: str, words: str, approved: bool) -> None:
    async def main() -> None:
        there = Script()
        shop = seller(tmp_path, there)
        if approved:
            shop.agent.context.memory.approvals.add(text)
        async with meeting(shop) as wire:
            wire.send(source_hello((), to="").format())
            await next_message(wire)
            wire.send(proposal(0, text))
            answer = await next_message(wire)
            assert isinstance(answer, bytes)
            message = json.loads(answer[1:])
            assert (message["status"], words in message["modificationSummary"]) == ("rejected", True)
        assert there.names() == []
        assert not (shop.home / "negotiated").exists()

    run(main())


def test_000_21_an_own_proposal_with_an_unpinned_base_stays(tmp_path: Path) -> None:
    there = Script()
    error = run(fails(seller(tmp_path, there), customer(tmp_path, Script(drafts=[Proposal(UNPINNED)]))))
    assert error.code == "document.header"
    assert there.names() == []


def test_000_21_a_base_is_fetched_once_for_a_session(tmp_path: Path) -> None:
    async def main() -> None:
        shop = party("shop", tmp_path, negotiators=ModelNegotiators(Prompts()))
        text = UNPINNED.replace("\n\n##", f"\n- Base-SHA-256: {meetings.product_info(URI_1).hash}\n\n##")
        await fails(shop, customer(tmp_path, Script(drafts=[Proposal(text)])))
        assert shop.protocols.documents == [URI_1]

    run(main())


# No agreement


def test_000_29_a_responders_rejection_has_its_reason(tmp_path: Path) -> None:
    there = Script(verdicts=[Rejection("We sell no laptops.")])
    shop, buyer = seller(tmp_path, there), customer(tmp_path, Script())
    error = run(fails(shop, buyer))
    assert error.code == "negotiation.rejected"
    assert "We sell no laptops." in error.message
    check_replays(tmp_path)


def test_000_29_a_rejection_by_the_initiator_ends_both(tmp_path: Path) -> None:
    here = Script(verdicts=[Rejection("Too complicated.")])
    shop, buyer = seller(tmp_path, Script(verdicts=[Proposal(CHANGED, "More.")])), customer(tmp_path, here)
    assert run(fails(shop, buyer)).code == "negotiation.rejected"
    check_replays(tmp_path)


def test_an_initiator_without_a_proposal_ends_before_it_begins(tmp_path: Path) -> None:
    here, there = Script(drafts=[Rejection("I do not know what to ask for.")]), Script()
    assert run(fails(seller(tmp_path, there), customer(tmp_path, here))).code == "negotiation.rejected"
    assert there.calls == []


def stubborn(who: str) -> Script:
    """Always proposes something else."""
    proposals = [Proposal(f"{DOCUMENT}\n{who} {number}\n", "Again.") for number in range(20)]
    return Script(drafts=[proposals[0]], verdicts=list(proposals[1:]))


@pytest.mark.parametrize("rounds", [2, 3, 10])
def test_000_16_the_limit_ends_a_negotiation_that_goes_on(tmp_path: Path, rounds: int) -> None:
    limits = Limits(rounds=rounds)
    shop = seller(tmp_path, stubborn("shop"), limits=limits)
    buyer = customer(tmp_path, stubborn("buyer"), limits=limits)
    error = run(fails(shop, buyer))
    assert error.code == ("negotiation.limit" if rounds % 2 else "negotiation.rejected")  # by whoever had the last word
    check_replays(tmp_path)


def test_without_a_model_at_the_destination_the_result_says_so(tmp_path: Path) -> None:
    shop, buyer = seller(tmp_path), customer(tmp_path, Script())

    @shop.agent.converses  # something has to keep the door open
    async def talk(text: str, peer: str) -> str:
        return ""

    error = run(fails(shop, buyer))
    assert error.code == "negotiation.rejected"
    assert "language model" in error.message
    check_replays(tmp_path)


def test_without_a_model_at_the_source_the_result_says_so(tmp_path: Path) -> None:
    shop, buyer = seller(tmp_path, Script()), customer(tmp_path)
    error = run(fails(shop, buyer))
    assert error.code == "agent.settings"
    buyer.protocols.published.clear()
    assert run(fails(shop, buyer, topic=TOPIC)).code == "agent.no-candidates"
    assert run(fails(shop, buyer, protocols=["https://elsewhere.example/p/1"])).code == "session.no-common-protocol"


def test_a_failed_negotiator_is_reported_to_its_owner_alone(tmp_path: Path) -> None:
    async def main() -> None:
        there = Script(verdicts=[Unavailable("model.unavailable", "The endpoint at 10.0.0.7 does not answer.")])
        shop, buyer = seller(tmp_path, there), customer(tmp_path, Script())
        error = await fails(shop, buyer)
        assert error.code == "negotiation.rejected"
        assert "10.0.0.7" not in str(error)

    run(main())
    assert not any(b"10.0.0.7" in transcript for transcript in transcripts(tmp_path))


def test_the_owner_of_a_failing_negotiator_gets_its_error(tmp_path: Path) -> None:
    failure = Unavailable("model.unavailable", "The endpoint does not answer.")
    here = Script(verdicts=[failure])
    error = run(fails(seller(tmp_path, Script(verdicts=[Proposal(CHANGED, "x")])), customer(tmp_path, here)))
    assert error is failure


def test_a_silent_negotiator_ends_with_the_deadline(tmp_path: Path) -> None:
    async def main() -> None:
        there = Script(delay=1e6)
        error = await fails(seller(tmp_path, there), customer(tmp_path, Script()))
        assert "session.reply-timeout" in error.code + error.message
        assert there.closed == 1
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())
    check_replays(tmp_path)


@pytest.mark.parametrize("failing", ["source", "destination"])
def test_000_35_code_that_cannot_be_written_ends_both(tmp_path: Path, failing: str) -> None:
    broken = Script(code_error=Refused("negotiation.handler", "No code passed, and the key is hunter2."))
    scripts = (Script(), broken) if failing == "destination" else (broken, Script())
    error = run(fails(seller(tmp_path, scripts[1]), customer(tmp_path, scripts[0])))
    assert error.code == ("session.peer-code" if failing == "destination" else "negotiation.handler")
    check_replays(tmp_path)
    assert failing == "source" or "hunter2" not in str(error)


def test_000_34_code_that_is_not_written_in_time_ends_both(tmp_path: Path) -> None:
    async def main() -> None:
        there = Script()
        shop, buyer = seller(tmp_path, there), customer(tmp_path, Script())
        shop.runtime.delay = 1e6
        error = await fails(shop, buyer)
        assert "session.code-timeout" in error.code + error.message

    run(main())


def test_an_operation_that_is_not_offered_ends_the_session(tmp_path: Path) -> None:
    async def main() -> None:
        shop = party("shop", tmp_path, negotiators=ScriptedNegotiators(Script()))
        error = await fails(shop, customer(tmp_path, Script()))
        assert error.code == "session.peer-code"

    run(main())


# Test cases


SOURCES_FORM = format_test_cases(
    [MessageCase(case.title, case.request, case.response, case.expected) for case in parse_test_cases(TEST_CASES)]
)
"""The same cases without their calls."""


@pytest.mark.parametrize("cases", [TEST_CASES, SOURCES_FORM])
def test_000_36_and_51_agreed_tests_call_no_business_function(tmp_path: Path, cases: str) -> None:
    async def main() -> None:
        here, there = Script(tests=cases), Script()
        shop, buyer = seller(tmp_path, there), customer(tmp_path, here)
        async with talks(shop, buyer) as (session, tap):
            assert shop.sold == []  # type: ignore[attr-defined]
            assert tap.kinds().count(">verification") == tap.kinds().count("<verification") == 2
            assert "application" not in str(tap.kinds())
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        assert shop.sold == ["P12345"]  # type: ignore[attr-defined]
        assert here.names() == ["draft", "implement", "draft_tests", "test"]
        assert there.names() == ["consider", "implement", "consider_tests", "test"]
        assert "testing" in buyer.names()
        assert "tests passed over" not in buyer.names() + shop.names()
        assert all(handler.closed for handler in shop.runtime.opened + buyer.runtime.opened)

    run(main())
    check_replays(tmp_path)


def test_000_38_test_cases_that_are_rejected_end_the_session(tmp_path: Path) -> None:
    here, there = Script(tests=TEST_CASES), Script(test_verdicts=[Rejection("These are not test cases.")])
    error = run(fails(seller(tmp_path, there), customer(tmp_path, here)))
    assert error.code == "negotiation.tests"
    check_replays(tmp_path)


def test_code_that_does_not_pass_its_own_tests_ends_the_session(tmp_path: Path) -> None:
    there = Script(test_problem="Test case 1 gives nothing.")
    error = run(fails(seller(tmp_path, there), customer(tmp_path, Script(tests=TEST_CASES))))
    assert error.code == "session.peer-code"


@pytest.mark.parametrize(("bug", "case", "words"), [(WRONG_PRICE, "A mouse", "9.5"), (WRONG_CODE, "No such product", "404")])
def test_000_41_a_bug_that_the_test_cases_find_is_mended(tmp_path: Path, bug: tuple[str, str], case: str, words: str) -> None:
    async def main() -> None:
        here, there = Script(tests=TEST_CASES), Script(bugs=[bug])
        shop, buyer = seller(tmp_path, there), customer(tmp_path, here)
        async with talks(shop, buyer) as (session, _):
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        assert there.names() == ["consider", "implement", "consider_tests", "test", "judge", "implement", "test"]
        complaint = dict(there.calls)["judge"]
        assert case in complaint
        assert words in complaint
        assert there.calls[-2] == ("implement", complaint)
        assert shop.sold == ["P12345"]  # type: ignore[attr-defined]
        assert "repaired" in buyer.names()

    run(main())
    check_replays(tmp_path)


def test_000_42_a_denied_fault_ends_the_tests(tmp_path: Path) -> None:
    there = Script(bugs=[WRONG_PRICE], judgement=Rejection("The price is right."))
    error = run(fails(seller(tmp_path, there), customer(tmp_path, Script(tests=TEST_CASES))))
    assert error.code == "negotiation.fault"
    assert "The price is right." in error.message
    check_replays(tmp_path)


def test_000_40_repairs_that_mend_nothing_come_to_a_limit(tmp_path: Path) -> None:
    there = Script(bugs=[WRONG_PRICE] * 9)
    error = run(fails(seller(tmp_path, there), customer(tmp_path, Script(tests=TEST_CASES))))
    assert error.code == "negotiation.too-many"
    assert there.names().count("judge") == 3
    check_replays(tmp_path)


# Repairs while the session runs


def test_000_39_a_reported_fault_is_repaired_and_called_again(tmp_path: Path) -> None:
    async def main() -> None:
        here, there = Script(), Script(bugs=[NO_PRODUCT])
        shop, buyer = seller(tmp_path, there), customer(tmp_path, here)
        async with talks(shop, buyer) as (session, _):
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        assert there.names() == ["consider", "implement", "judge", "implement"]
        assert "getProductInfo" in dict(there.calls)["judge"]
        assert len(shop.runtime.opened) == len(buyer.runtime.opened) == 2
        assert buyer.names().count("repaired") == 1

    run(main())
    check_replays(tmp_path)


def test_000_42_a_denied_fault_fails_its_call_alone(tmp_path: Path) -> None:
    async def main() -> None:
        there = Script(bugs=[NO_PRODUCT], judgement=Rejection("It is as agreed."))
        shop, buyer = seller(tmp_path, there), customer(tmp_path, Script())
        async with talks(shop, buyer) as (session, _):
            with pytest.raises(OperationError) as failure:
                await session.call("getProductInfo", productId="P12345")
            assert failure.value.status == 502
            with pytest.raises(Refused) as denied:
                await session.report_error("Still wrong.")
            assert denied.value.code == "negotiation.fault"
            assert "It is as agreed." in denied.value.message
            with pytest.raises(OperationError) as missing:
                await session.call("getProductInfo", productId="P99999")
            assert missing.value.status == 404

    run(main())
    check_replays(tmp_path)


def test_what_was_mended_is_what_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        there = Script(bugs=[NO_PRODUCT])
        shop, buyer = seller(tmp_path, there), customer(tmp_path, Script())
        await buy(shop, buyer)
        again = seller(tmp_path, script := Script())
        assert await buy(again, buyer) == LAPTOP
        assert script.calls == []

    run(main())


async def test_000_41_code_of_an_earlier_session_is_mended_too(tmp_path: Path) -> None:
    denying = Script(bugs=[NO_PRODUCT], judgement=Rejection("It is as agreed."))
    denying_seller, earlier = seller(tmp_path, denying), customer(tmp_path, Script())
    with pytest.raises(OperationError):
        await buy(denying_seller, earlier)
    # An agent writes its agreements and code a moment after the messages, at the latest when it is closed.
    await denying_seller.agent.aclose()
    await earlier.agent.aclose()
    there = Script()
    shop, buyer = seller(tmp_path, there), customer(tmp_path, Script())
    async with talks(shop, buyer) as (session, _):
        assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        assert session.resumed
    assert there.names() == ["judge", "implement"]
    await shop.agent.aclose()
    later = Script()
    newest = seller(tmp_path, later)
    assert await buy(newest, buyer) == LAPTOP
    assert later.calls == []
    # Each side writes its transcript when its session has ended, which waits for the disk.
    for met in (buyer, newest):
        await met.agent.aclose()
    check_replays(tmp_path, 6)


async def test_only_so_many_strangers_negotiate_at_once(tmp_path: Path) -> None:
    there = Script()
    there.gate.clear()  # the first buyer's negotiation goes on until the second one is refused
    shop = seller(tmp_path, there, capacity=Capacity(negotiations=1))
    buyers = [party(f"buyer{number}", tmp_path, negotiators=ScriptedNegotiators(Script())) for number in range(2)]
    buying = {asyncio.create_task(buy(shop, buyer)) for buyer in buyers}
    (refused,), (negotiating,) = await asyncio.wait(buying, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(PeerUnavailable, match="cannot negotiate with you now") as refusal:
        await refused
    assert (refusal.value.code, refusal.value.peer_code) == ("negotiation.rejected", "session.busy")
    there.gate.set()
    assert await negotiating == LAPTOP
    assert [name for name, _ in there.calls].count("consider") == 1
    assert await buy(shop, party("buyer2", tmp_path, negotiators=ScriptedNegotiators(Script()))) == LAPTOP


# Natural language


def test_000_45_and_46_a_question_reaches_the_negotiator(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = seller(tmp_path, Script()), customer(tmp_path, Script())
        async with talks(shop, buyer) as (session, tap):
            answers = await asyncio.gather(session.ask("Do you sell mice?"), session.ask("And keyboards?"))
            assert list(answers) == ["You asked: Do you sell mice?", "You asked: And keyboards?"]
        metas = [json.loads(message[1:]) for _, message in tap.seen if isinstance(message, bytes) and message[0] == 0]
        talk = [message for message in metas if message["action"] == "naturalLanguageNegotiation"]
        questions, answered = (
            [message["messageId"] for message in talk if message["type"] == type] for type in ("REQUEST", "RESPONSE")
        )
        assert sorted(answered) == sorted(questions)

    run(main())
    check_replays(tmp_path)


def test_000_46_the_ids_of_questions_are_16_random_characters(tmp_path: Path) -> None:
    """Over 32 questions in two sessions each of the 16 places has many characters. Of random ones at most 8 are the same
    everywhere with a probability below 10**-12."""

    async def asked(home: Path) -> list[str]:
        shop, buyer = seller(home, Script()), customer(home, Script())
        async with talks(shop, buyer) as (session, tap):
            await asyncio.gather(*(session.ask(f"Question {number}?") for number in range(16)))
        metas = [
            json.loads(message[1:]) for way, message in tap.seen if way == ">" and isinstance(message, bytes) and message[0] == 0
        ]
        return [message["messageId"] for message in metas if message["action"] == "naturalLanguageNegotiation"]

    async def main() -> list[str]:
        return await asked(tmp_path / "1") + await asked(tmp_path / "2")

    ids = run(main())
    assert [len(id) for id in ids] == [16] * 32
    assert len(set(ids)) == 32
    assert [place for place in range(16) if len({id[place] for id in ids}) <= 8] == []


def test_000_50_a_session_in_natural_language_alone(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = seller(tmp_path), customer(tmp_path)

        @shop.agent.converses
        async def answer(text: str, peer: str) -> str:
            return f"{peer} said: {text}"

        async with talks(shop, buyer, natural=True) as (session, tap):
            await session.say("Grüße, **Verkäufer**!")
            async for text in session.heard():
                assert text == f"{buyer.agent.did} said: Grüße, **Verkäufer**!"
                break
            assert tap.seen[-2] == (">", b"\x80" + "Grüße, **Verkäufer**!".encode())
            with pytest.raises(TreatyError):
                await session.call("getProductInfo", productId="P12345")
        assert shop.runtime.opened == buyer.runtime.opened == []

    run(main())
    check_replays(tmp_path)


def test_an_agent_that_does_not_converse_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = seller(tmp_path, Script()), customer(tmp_path, Script())
        error = await fails(shop, buyer, natural=True)
        assert error.code == "session.profile"
        async with talks(shop, buyer) as (session, _):
            with pytest.raises(Refused) as refusal:
                await session.say("Hello?")
            assert refusal.value.code == "session.profile"
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP

    run(main())


def test_nothing_is_heard_after_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with talks(seller(tmp_path, Script()), customer(tmp_path, Script())) as (session, _):
            pass
        async with asyncio.timeout(60):  # virtual time
            assert [text async for text in session.heard()] == []

    run(main())


def test_an_answerer_that_raises_leaves_one_text_unanswered(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = seller(tmp_path), customer(tmp_path)

        @shop.agent.converses
        async def answer(text: str, peer: str) -> str:
            if text == "bad":
                raise RuntimeError("the password is hunter2")
            return text

        async with talks(shop, buyer, natural=True) as (session, tap):
            for text in ("one", "bad", "two"):
                await session.say(text)
            texts = []
            async for text in session.heard():
                texts.append(text)
                if len(texts) == 2:
                    break
            assert texts == ["one", "two"]
            assert "hunter2" not in str(tap.seen)

    run(main())


def test_a_talkative_peer_is_read_no_faster_than_handled(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = seller(tmp_path), customer(tmp_path)

        @shop.agent.converses
        async def answer(text: str, peer: str) -> str:
            await asyncio.sleep(1e4)
            return ""

        async with talks(shop, buyer, natural=True) as (session, _):

            async def talk() -> None:
                for _ in range(60):
                    await session.say("x" * 10_000)

            talking = asyncio.create_task(talk())
            await asyncio.sleep(1)
            assert not talking.done()
            talking.cancel()

    run(main())


# The second time


def test_000_56_and_60_an_agreed_hash_needs_no_negotiation(tmp_path: Path) -> None:
    async def main() -> None:
        await buy(seller(tmp_path, Script()), customer(tmp_path, Script()))
        here, there = Script(), Script()
        shop, buyer = seller(tmp_path, there), customer(tmp_path, here)  # new processes with the same homes
        async with talks(shop, buyer) as (session, tap):
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
            assert (session.resumed, session.document) == (True, DOCUMENT)
        assert tap.kinds() == [">hello", ">application", "<hello", "<application"]
        assert here.calls == there.calls == []
        hello = json.loads(str(tap.seen[0][1]))
        assert hello["metaProtocol"]["usedProtocolHash"] == HASH

    run(main())


def test_000_60_an_agreed_protocol_needs_no_negotiator(tmp_path: Path) -> None:
    async def main() -> None:
        await buy(seller(tmp_path, Script()), customer(tmp_path, Script()))
        shop, buyer = seller(tmp_path), customer(tmp_path, here := Script())

        @shop.agent.converses
        async def answer(text: str, peer: str) -> str:
            return ""

        assert await buy(shop, buyer) == LAPTOP
        assert here.calls == []

    run(main())


def test_000_61_a_peer_that_lost_the_protocol_negotiates_anew(tmp_path: Path) -> None:
    async def main() -> None:
        shop, buyer = seller(tmp_path / "1", Script()), customer(tmp_path, here := Script())
        await buy(shop, buyer)
        here.calls.clear()
        here.drafts.append(Proposal(DOCUMENT))
        assert await buy(seller(tmp_path / "2", Script()), buyer) == LAPTOP
        assert here.names() == ["draft", "implement", "draft_tests"]

    run(main())


@pytest.mark.parametrize("damage", ["document.md", "handler/provider.py"])
def test_what_was_damaged_on_disk_is_negotiated_anew(tmp_path: Path, damage: str) -> None:
    async def main() -> None:
        await buy(seller(tmp_path, Script()), customer(tmp_path, Script()))
        path = tmp_path / "buyer" / "negotiated" / HASH / "project" / damage
        path.write_bytes(path.read_bytes() + b"\n# x\n")
        here = Script()
        assert await buy(seller(tmp_path, Script()), customer(tmp_path, here)) == LAPTOP
        assert here.names() == ["draft", "implement", "draft_tests"]

    run(main())


def test_another_requirement_is_another_negotiation(tmp_path: Path) -> None:
    async def main() -> None:
        here = Script()
        shop, buyer = seller(tmp_path, Script()), customer(tmp_path, here)
        await buy(shop, buyer)
        here.calls.clear()
        here.drafts.append(Proposal(CHANGED))
        async with talks(shop, buyer, requirement=Requirement("Get the weather.")) as (session, tap):
            assert not session.resumed
        assert here.names()[0] == "draft"
        assert "usedProtocolHash" not in str(tap.seen[0][1])

    run(main())


# Escalation


def test_000_30_a_person_resumes_a_failed_negotiation(tmp_path: Path) -> None:
    escalations: list[Escalation] = []

    async def person(escalation: Escalation) -> str | None:
        escalations.append(escalation)
        return CHANGED

    async def main() -> None:
        here, there = Script(), Script(verdicts=[Rejection("Say for whom it is.")])
        shop, buyer = seller(tmp_path, there), customer(tmp_path, here, on_escalation=person)
        with pytest.raises(Refused):
            await buy(shop, buyer)
        async with talks(shop, buyer) as (session, _):
            assert session.document == CHANGED
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        assert here.names() == ["draft", "implement", "draft_tests"]  # the second time a person had written it
        (escalation,) = escalations
        assert (escalation.role, escalation.peer) == ("initiator", shop.agent.did)
        assert (escalation.own_proposal, escalation.peer_proposal) == (DOCUMENT, "")
        assert "Say for whom it is." in escalation.reason
        assert replay(escalation.transcript) > 1

    run(main())


@pytest.mark.parametrize("rounds", [2, 3])
def test_000_30_a_negotiation_at_its_limit_is_escalated(tmp_path: Path, rounds: int) -> None:
    escalations: list[Escalation] = []

    async def person(escalation: Escalation) -> str | None:
        escalations.append(escalation)
        return None

    async def main() -> None:
        limits = Limits(rounds=rounds)
        shop = seller(tmp_path, stubborn("shop"), limits=limits, on_escalation=person)
        with pytest.raises(Refused) as failure:
            async with talks(shop, customer(tmp_path, stubborn("buyer"), limits=limits, on_escalation=person)):
                raise AssertionError("a session without agreement")
        assert failure.value.code in ("negotiation.limit", "negotiation.rejected")  # by whoever had the last word
        await asyncio.sleep(1)
        assert sorted((one.role, "buyer 0" in one.peer_proposal) for one in escalations) == [
            ("initiator", False),
            ("responder", True),
        ]
        assert all("limit of messages" in one.reason or f"within {rounds} messages" in one.reason for one in escalations)
        assert all(replay(one.transcript) > 1 for one in escalations)

    run(main())


def test_000_30_a_text_approved_by_a_person_is_accepted(tmp_path: Path) -> None:
    escalations: list[Escalation] = []

    async def person(escalation: Escalation) -> str | None:
        escalations.append(escalation)
        return escalation.peer_proposal

    async def main() -> None:
        here, there = Script(drafts=[Proposal(DOCUMENT)] * 2), Script(verdicts=[Rejection("I am not sure.")] * 2)
        shop, buyer = seller(tmp_path, there, on_escalation=person), customer(tmp_path, here)
        with pytest.raises(Refused):
            await buy(shop, buyer)
        await asyncio.sleep(1)
        assert await buy(shop, buyer) == LAPTOP
        assert there.names() == ["consider", "implement"]
        assert [(escalation.role, escalation.peer_proposal) for escalation in escalations] == [("responder", DOCUMENT)]
        assert "I am not sure." in escalations[0].reason
        other = Script(verdicts=[Rejection("No.")])
        assert DOCUMENT in seller(tmp_path, other).agent.context.memory.approvals  # it survives the process

    run(main())


async def test_000_30_a_reachable_peer_is_resumed_by_a_person(tmp_path: Path) -> None:
    texts = [CHANGED, f"{CHANGED}\nAnd for buyers of mice.\n"]

    async def person(escalation: Escalation) -> str | None:
        return texts.pop(0)

    here, there = Script(), Script(verdicts=[Rejection("Say for whom it is.")])
    shop, buyer = seller(tmp_path, there), customer(tmp_path, here, on_escalation=person)
    async with shop.agent, buyer.agent, shop.agent.listen("127.0.0.1", 0) as port:
        async with buyer.agent.connect(f"ws://127.0.0.1:{port}", requirement=WANTED) as session:
            assert session.document == CHANGED
            assert await session.call("getProductInfo", productId="P12345") == LAPTOP
        there.verdicts = [Rejection("No."), Rejection("No again.")]
        here.drafts = [Proposal(DOCUMENT)]
        with pytest.raises(Refused) as refusal:  # a person is asked once a connection
            async with buyer.agent.connect(f"ws://127.0.0.1:{port}", requirement=Requirement("Something else.")):
                raise AssertionError("a session without agreement")
        assert "No again." in refusal.value.message
    check_replays(tmp_path, 8)


@pytest.mark.parametrize("answer", [None, RuntimeError("asleep")])
def test_a_person_who_does_not_know_either_leaves_it_at_that(tmp_path: Path, answer: RuntimeError | None) -> None:
    async def person(escalation: Escalation) -> str | None:
        if answer is not None:
            raise answer
        return None

    there = Script(verdicts=[Rejection("No.")])
    shop, buyer = seller(tmp_path, there, on_escalation=person), customer(tmp_path, Script(), on_escalation=person)
    assert run(fails(shop, buyer)).code == "negotiation.rejected"


def test_what_is_no_failed_negotiation_is_not_escalated(tmp_path: Path) -> None:
    escalations: list[Escalation] = []

    async def person(escalation: Escalation) -> str | None:
        escalations.append(escalation)
        return None

    broken = Script(code_error=Refused("negotiation.handler", "No code passed."))
    run(fails(seller(tmp_path, broken, on_escalation=person), customer(tmp_path, Script(), on_escalation=person)))
    # Nor does a stranger call for a person who has proposed nothing.
    nothing = Script(drafts=[Rejection("Never mind.")])
    assert (
        run(fails(seller(tmp_path, Script(), on_escalation=person), customer(tmp_path, nothing))).code == "negotiation.rejected"
    )
    assert escalations == []


# Transcripts


def test_a_changed_byte_of_a_transcript_is_detected(tmp_path: Path) -> None:
    run(buy(seller(tmp_path, Script(bugs=[WRONG_PRICE])), customer(tmp_path, Script(tests=TEST_CASES))))
    check_replays(tmp_path)
    for transcript in transcripts(tmp_path):
        for position in range(0, len(transcript), 97):
            changed = bytearray(transcript)
            changed[position] ^= 1
            with pytest.raises(TreatyError):
                replay(bytes(changed))


def test_a_changed_and_resealed_transcript_does_not_replay(tmp_path: Path) -> None:
    run(buy(seller(tmp_path, Script()), customer(tmp_path, Script())))
    for transcript in transcripts(tmp_path):
        lines = transcript.splitlines(keepends=True)
        forged = b"".join(lines[:-1]).replace(b"session-", b"session_").replace(b'"Running"', b'"Ended"')
        forged += json.dumps({"end": hex_digest(forged)}, separators=(",", ":")).encode() + b"\n"
        with pytest.raises(Untrusted) as difference:
            replay(forged)
        assert difference.value.code == "transcript.differs"
        assert parse_transcript(forged)[1][0].name in ("initiator", "responder")
