"""A live agent and a peer that knows only the text of the source, over a WebSocket: in both roles, all that the source prints."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from meetings import LAPTOP, URI_1, URI_2, Party, party, product_info
from meetings import shop as published_shop
from scripted_negotiators import CHANGED, DOCUMENT, TEST_CASES, WANTED, WRONG_PRICE, Script, ScriptedNegotiators
from source_peer import (
    APPLICATION,
    NATURAL,
    VERIFICATION,
    SourcePeer,
    hello,
    printed,
    printed_json,
    protocol_hash,
    provider,
    requester,
)
from working_agents import NEW, agents_registry, open_shop

from treaty_agent import Policy
from treaty_agent.negotiators.negotiator import FaultAdmitted, Proposal, Rejection
from treaty_agent.negotiators.test_cases import read_test_cases
from treaty_agent.sessions.operation_errors import OperationError
from treaty_consensus.errors import TreatyError

ALL = (
    "naturalLanguageProtocol",
    "verificationProtocol",
    "naturalLanguageNegotiation",
    "testCasesNegotiation",
    "fixErrorNegotiation",
)
SOURCE, DESTINATION = "16-candidates-source-hello.json", "17-candidates-destination-hello.json"
IN_FULL = printed("02-candidate-in-full.md")
SUMMARY = printed("04-modification-summary.md")
UNKNOWN: dict[str, Any] = {"confidence": 0.9, "tokens": 1e300, "large": 10**40, "nested": {"b": [1.5, None], "a": True}}
"""Members that no one asked for, with numbers of every form."""


@asynccontextmanager
async def serving(home: Path, script: Script | None = None) -> AsyncIterator[tuple[str, Party]]:
    """The URL of a live agent that sells a laptop, and negotiates as the script says."""
    shop = party("shop", home, negotiators=ScriptedNegotiators(script or Script()))

    @shop.agent.offers
    async def getProductInfo(productId: str = "", productName: str = "") -> dict[str, Any]:  # noqa: N802, N803
        if productId != LAPTOP["productId"]:
            raise OperationError(404, "产品未找到")
        return LAPTOP

    @shop.agent.converses
    async def answer(text: str, peer: str) -> str:
        return printed("12-natural-language-response.md") if "P12345" in text else "?"

    async with shop.agent.listen("127.0.0.1", 0) as port:
        yield f"ws://127.0.0.1:{port}", shop


async def meet(peer: SourcePeer, *capabilities: str, **offers: Any) -> dict[str, Any]:
    """The Hellos; returns the answer's `metaProtocol`."""
    await peer.say_hello(hello(SOURCE, *capabilities, **offers))
    answer = await peer.receive_hello()
    assert answer["type"] == "destinationHello"
    destination_hello: dict[str, Any] = answer["metaProtocol"]
    return destination_hello


async def agree(peer: SourcePeer, text: str = IN_FULL) -> None:
    """Propose a text that is accepted, and get the code ready on both sides."""
    await peer.propose(0, text)
    assert await peer.meta("protocolNegotiation") == {
        "action": "protocolNegotiation",
        "sequenceId": 1,
        "candidateProtocols": text,
        "status": "accepted",
    }
    await codes(peer)


def printed_cases() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The request and the response of each printed test case."""
    parts = re.findall(r"^ \{.*?^ \}", printed("07-test-cases.md"), re.DOTALL | re.MULTILINE)
    return list(zip(map(json.loads, parts[::2]), map(json.loads, parts[1::2]), strict=True))


async def codes(peer: SourcePeer) -> None:
    await peer.generated()
    assert await peer.meta("codeGeneration") == printed_json("05-code-generation.json")


# The peer as requester


async def test_000_22_a_printed_hello_and_protocol_are_spoken(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, _), requester(url) as peer:
        assert "usedProtocolHash" not in await meet(peer)
        await agree(peer)
        answer = await peer.request("msg001", "P12345")
        assert (answer["status"]["code"], answer["productInfo"]) == (200, LAPTOP)
        missing = await peer.request("msg002", "P99999")
        assert (missing["status"]["code"], missing["productInfo"]) == (404, None)


async def test_000_08_a_hello_in_bytes_and_numbers_of_every_form(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, _), requester(url) as peer:
        await peer.say_hello({**UNKNOWN, **hello(SOURCE), "temperature": 0.5}, binary=True)
        await peer.receive_hello()
        await peer.propose(0.0, IN_FULL, **UNKNOWN)
        assert (await peer.meta())["status"] == "accepted"
        await peer.say("05-code-generation.json", **UNKNOWN)
        assert (await peer.meta())["status"] == "generated"
        assert (await peer.request("msg001", "P12345"))["productInfo"] == LAPTOP


async def test_000_52_a_missing_member_is_named_in_an_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, _), requester(url) as peer:
        value = hello(SOURCE)
        del value["metaProtocol"]["supportedCapabilities"]
        await peer.say_hello(value)
        answer = await peer.last_words()
        assert (answer["action"], answer["status"]) == ("protocolNegotiation", "rejected")
        assert "`supportedCapabilities`" in answer["modificationSummary"]


async def test_000_11_63_a_peer_without_a_did_uses_the_sandbox(tmp_path: Path) -> None:
    async with open_shop(agents_registry(), tmp_path) as url, requester(url) as peer:
        assert (await meet(peer, candidateProtocols=[NEW]))["selectedProtocol"] == NEW
        await codes(peer)
        assert (await peer.request("msg001", "P12345"))["productInfo"] == LAPTOP


async def test_000_63_64_the_first_candidate_needs_no_hash(tmp_path: Path) -> None:
    shop = published_shop(tmp_path, URI_1)
    async with shop.agent.listen("127.0.0.1", 0) as port, requester(f"ws://127.0.0.1:{port}") as peer:
        others = [f"https://example.com/protocol/{number}.0" for number in range(10)]
        hello = await meet(peer, candidateProtocols=[*others, URI_1, 7, "no URI", *others])
        assert hello["selectedProtocol"] == URI_1
        assert "usedProtocolHash" not in hello
        assert hello["selectedProtocolHash"] == product_info(URI_1).hash
        await codes(peer)
        assert (await peer.request("msg001", "P12345"))["productInfo"] == LAPTOP


@pytest.mark.parametrize(
    "numbers", [(0, 2), (1, 3), (0, 1), (1, 2)], ids=["all", "all from one", "own or rounds", "own from one"]
)
async def test_000_18_rounds_in_each_way_of_counting(tmp_path: Path, numbers: tuple[int, int]) -> None:
    script = Script(verdicts=[Proposal(CHANGED, "Says for whom it is.")])
    async with serving(tmp_path, script) as (url, _), requester(url) as peer:
        await meet(peer)
        await peer.propose(numbers[0], DOCUMENT)
        counter = await peer.meta("protocolNegotiation")
        assert (counter["status"], counter["candidateProtocols"]) == ("negotiating", CHANGED)
        assert counter["modificationSummary"] == "Says for whom it is."
        await peer.propose(numbers[1], IN_FULL)
        assert (await peer.meta("protocolNegotiation"))["status"] == "accepted"
        await codes(peer)
        assert (await peer.request("msg001", "P12345"))["productInfo"] == LAPTOP


@pytest.mark.parametrize("capabilities", [(), ALL], ids=["none", "all"])
@pytest.mark.parametrize("number", [7, 0], ids=["jump", "stays"])
async def test_000_18_an_uncountable_number_gets_a_basic_rejection(
    tmp_path: Path, capabilities: tuple[str, ...], number: int
) -> None:
    script = Script(verdicts=[Proposal(CHANGED, "More.")])
    async with serving(tmp_path, script) as (url, _), requester(url) as peer:
        await meet(peer, *capabilities)
        await peer.propose(0, DOCUMENT)
        await peer.meta("protocolNegotiation")
        await peer.propose(number, IN_FULL, SUMMARY)
        answer = await peer.last_words()
        assert (answer["action"], answer["status"]) == ("protocolNegotiation", "rejected")
        assert "negotiation.message" in answer["modificationSummary"]


async def test_000_21_the_printed_change_of_a_base_is_spoken(tmp_path: Path) -> None:
    script = Script()
    async with serving(tmp_path, script) as (url, shop), requester(url) as peer:
        await meet(peer)
        await agree(peer, printed("03-candidate-with-base.md"))
        assert (await peer.request("msg001", "P12345"))["productInfo"] == LAPTOP
        (agreement,) = shop.agent.context.memory.negotiated.all()
        assert agreement.hash == protocol_hash(printed("03-candidate-with-base.md"))
    assert script.names() == ["consider", "implement"]


async def test_000_21_a_pinned_base_is_read_in_the_printed_form(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, _), requester(url) as peer:
        await meet(peer)
        base = f"(URI: {URI_1}, SHA-256: {product_info(URI_1).hash})"
        await agree(
            peer,
            printed("03-candidate-with-base.md").replace(
                "(URI: https://agent-network-protocol.com/protocols/product-info-0-1-1)", base
            ),
        )


async def test_000_28_and_29_a_rejection_of_either_side_says_why(tmp_path: Path) -> None:
    async with serving(tmp_path, Script(verdicts=[Rejection("No laptops here.")])) as (url, _):
        async with requester(url) as peer:
            await meet(peer)
            await peer.propose(0, IN_FULL)
            answer = await peer.last_words()
            assert (answer["status"], answer["modificationSummary"]) == ("rejected", "No laptops here.")
        async with requester(url) as peer:
            await meet(peer)
            await peer.verdict(0, "rejected", None, "不需要了")
            assert await peer.last_words() == {}


async def test_000_37_51_the_printed_test_cases_pass(
    tmp_path: Path,
) -> None:
    (request, response), (unknown, not_found) = printed_cases()
    async with serving(tmp_path) as (url, shop), requester(url) as peer:
        await meet(peer, "testCasesNegotiation", "verificationProtocol")
        await agree(peer)
        await peer.say("06-test-cases-negotiation.json", testCases=printed("07-test-cases.md"), modificationSummary=None)
        assert (await peer.meta("testCasesNegotiation"))["status"] == "accepted"
        for message, expected in ((request, response), (unknown, not_found)):
            await peer.send(VERIFICATION, json.dumps(message).encode())
            data = json.loads(await peer.expect(VERIFICATION))
            # The handler writes a word of its own for 200.
            assert data == {**expected, "status": {"code": expected["status"]["code"], "message": data["status"]["message"]}}
        assert (await peer.request("msg003", "P3", VERIFICATION))["status"]["code"] == 500  # of no case that was agreed on
        assert (await peer.request("msg001", "P12345"))["productInfo"] == LAPTOP
        assert "tests passed over" not in shop.names()


async def test_000_37_code_without_the_printed_response_fails(tmp_path: Path) -> None:
    async with serving(tmp_path, Script(bugs=[WRONG_PRICE])) as (url, _), requester(url) as peer:
        await meet(peer, "testCasesNegotiation", "fixErrorNegotiation")
        await agree(peer)
        await peer.say("06-test-cases-negotiation.json", testCases=printed("07-test-cases.md"), modificationSummary=None)
        assert (await peer.meta("testCasesNegotiation"))["status"] == "accepted"
        assert await peer.last_words() == {"action": "codeGeneration", "status": "error", "reason": "negotiation.code"}


async def test_000_37_cases_in_wire_form_are_run_and_others_skipped(tmp_path: Path) -> None:
    script = Script()
    async with serving(tmp_path, script) as (url, shop), requester(url) as peer:
        await meet(peer, "testCasesNegotiation", "verificationProtocol")
        await agree(peer)
        text = f"{printed('07-test-cases.md')}\n{TEST_CASES}\nThat is all."
        await peer.say("06-test-cases-negotiation.json", testCases=text, modificationSummary=None)
        assert (await peer.meta("testCasesNegotiation"))["status"] == "accepted"
        tested = await peer.request("t1", "M1", VERIFICATION)
        assert (tested["status"]["code"], tested["productInfo"]["productName"]) == (200, "Mouse")
        assert (await peer.request("t2", "P99999", VERIFICATION))["status"]["code"] == 404
        assert (await peer.request("msg001", "P12345"))["productInfo"] == LAPTOP
        assert "tests passed over" in shop.names()
        (tested_text,) = [about for name, about in script.calls if name == "test"]
        assert len(read_test_cases(tested_text).cases) == 4


async def test_000_39_40_41_the_printed_error_is_mended_and_42_denied(tmp_path: Path) -> None:
    script = Script()
    async with serving(tmp_path, script) as (url, _), requester(url) as peer:
        await meet(peer, "fixErrorNegotiation")
        await agree(peer)
        await peer.request("msg001", "P12345")
        await peer.say("08-fix-error-negotiation.json", errorDescription=printed("09-error-description.md"))
        assert (await peer.meta("fixErrorNegotiation"))["status"] == "accepted"
        assert (await peer.meta("codeGeneration"))["status"] == "generated"
        assert (await peer.request("msg002", "P12345"))["productInfo"] == LAPTOP
        assert ("implement", printed("09-error-description.md")) in script.calls
        script.judgement = Rejection("The code is there.")
        await peer.say("08-fix-error-negotiation.json", errorDescription=printed("09-error-description.md"))
        denied = await peer.meta("fixErrorNegotiation")
        assert (denied["status"], denied["errorDescription"]) == ("rejected", "The code is there.")
        assert (await peer.request("msg003", "P12345"))["productInfo"] == LAPTOP


@pytest.mark.parametrize("id", ["自然语言协商消息标识一二三四五六", "0b7a1d6e-0e0c-4f0e-9c35-6f1b3a4f5d21", "a1B2c3D4e5F6g7H8"])
async def test_000_43_45_46_a_question_while_negotiating(tmp_path: Path, id: str) -> None:
    async with serving(tmp_path) as (url, _), requester(url) as peer:
        await meet(peer, "naturalLanguageNegotiation")
        await peer.say("10-natural-language-negotiation.json", messageId=id, message="价格用什么货币?")
        assert await peer.meta() == {
            "action": "naturalLanguageNegotiation",
            "type": "RESPONSE",
            "messageId": id,
            "message": "You asked: 价格用什么货币?",
        }
        await agree(peer)
        assert (await peer.request("msg001", "P12345"))["productInfo"] == LAPTOP


async def test_000_59_60_a_hash_is_confirmed_the_second_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, _):
        async with requester(url) as peer:
            await meet(peer)
            await agree(peer)
            await peer.request("msg001", "P12345")
        async with requester(url) as peer:
            hello = await meet(peer, usedProtocolHash=protocol_hash(IN_FULL))
            assert hello["usedProtocolHash"] == protocol_hash(IN_FULL)
            assert (await peer.request("msg002", "P12345"))["productInfo"] == LAPTOP


@pytest.mark.parametrize(
    "hash",
    [printed_json("14-hash-source-hello.json")["metaProtocol"]["usedProtocolHash"], "0" * 64, protocol_hash(IN_FULL).upper(), 7],
)
@pytest.mark.parametrize("name", ["usedProtocolHash", "protocolHash"])
async def test_000_61_an_unusable_hash_leads_to_a_negotiation(tmp_path: Path, hash: Any, name: str) -> None:
    async with serving(tmp_path) as (url, _), requester(url) as peer:
        assert "usedProtocolHash" not in await meet(peer, **{name: hash})
        await agree(peer)
        assert (await peer.request("msg001", "P12345"))["productInfo"] == LAPTOP


@pytest.mark.parametrize("name", ["13-capabilities-hello.json", "14-hash-source-hello.json", "16-candidates-source-hello.json"])
async def test_each_printed_source_hello_as_it_stands(tmp_path: Path, name: str) -> None:
    async with serving(tmp_path) as (url, _), requester(url) as peer:
        await peer.say_hello(printed_json(name))
        answer = await peer.receive_hello()
        assert answer["version"] == answer["metaProtocol"]["version"] == "1.0"
        assert set(answer["metaProtocol"]["supportedCapabilities"]) == set(ALL)
        await agree(peer)


async def test_000_48_50_printed_natural_language_needs_no_round(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, _), requester(url) as peer:
        await meet(peer, "naturalLanguageProtocol")
        await peer.send(NATURAL, printed("11-natural-language-request.md").encode())
        assert (await peer.expect(NATURAL)).decode() == printed("12-natural-language-response.md")


async def test_000_35_code_that_fails_ends_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, shop), requester(url) as peer:
        await meet(peer)
        await peer.propose(0, IN_FULL)
        assert (await peer.meta())["status"] == "accepted"
        await peer.say("05-code-generation.json", status="error")
        await peer.last_words()
    assert shop.events[-1].name == "end"


async def test_000_54_basic_messages_come_from_an_agent_without_model(tmp_path: Path) -> None:
    shop = published_shop(tmp_path, URI_1)
    async with shop.agent.listen("127.0.0.1", 0) as port:
        async with requester(f"ws://127.0.0.1:{port}") as peer:
            assert (await meet(peer, *ALL))["supportedCapabilities"] == []
            await peer.propose(0, IN_FULL)
            answer = await peer.last_words()
            assert (answer["action"], answer["status"]) == ("protocolNegotiation", "rejected")
            assert "language model" in answer["modificationSummary"]
        async with requester(f"ws://127.0.0.1:{port}") as peer:
            await meet(peer, *ALL)
            await agree(peer, product_info(URI_1).document.decode())
            assert (await peer.request("msg001", "P12345"))["productInfo"] == LAPTOP


# The peer as provider


async def answer_requests(peer: SourcePeer, count: int, wrong: int = 0) -> None:
    """Answer requests as the printed protocol says; the first `wrong` without the member `code`."""
    for number in range(count):
        data = json.loads(await peer.expect(APPLICATION))
        assert (data["type"], data["action"]) == ("REQUEST", "getProductInfo")
        status = {"message": "成功"} if number < wrong else {"code": 200, "message": "成功"}
        answer = {"messageId": data["messageId"], "type": "RESPONSE", "status": status, "productInfo": LAPTOP}
        await peer.send(APPLICATION, json.dumps(answer, ensure_ascii=False, indent=1).encode())


async def greet(peer: SourcePeer, *capabilities: str, **answer: Any) -> dict[str, Any]:
    """The Hellos; returns the `metaProtocol` of the other side."""
    source_hello: dict[str, Any] = (await peer.receive_hello())["metaProtocol"]
    await peer.say_hello(hello(DESTINATION, *capabilities, **answer))
    return source_hello


def customer(home: Path, script: Script | None = None) -> Party:
    """A live agent that needs a product."""
    return party("buyer", home, negotiators=ScriptedNegotiators(script or Script()))


async def buy(buyer: Party, url: str, **how: Any) -> Any:
    async with buyer.agent.connect(url, **(how or {"requirement": WANTED})) as session:
        return await session.call("getProductInfo", productId="P12345")


async def test_000_10_29_the_provider_accepts_what_the_agent_proposes(tmp_path: Path) -> None:
    async def script(peer: SourcePeer) -> None:
        await greet(peer)
        proposed = await peer.meta("protocolNegotiation")
        assert (proposed["sequenceId"], proposed["status"]) == (0, "negotiating")
        await peer.verdict(1, "accepted", proposed["candidateProtocols"])
        await codes(peer)
        await answer_requests(peer, 1)

    async with provider(script) as url:
        assert await buy(customer(tmp_path), url) == LAPTOP


@pytest.mark.parametrize("first", [0, 1, 2], ids=["own from zero or rounds", "all or own from one", "all from one"])
async def test_000_14_18_a_provider_counts_its_way_without_summary(tmp_path: Path, first: int) -> None:
    async def script(peer: SourcePeer) -> None:
        await greet(peer)
        await peer.meta("protocolNegotiation")
        await peer.propose(first, IN_FULL)
        counter = await peer.meta("protocolNegotiation")
        assert (counter["candidateProtocols"], counter["status"]) == (CHANGED, "negotiating")
        await peer.verdict(first + 1, "accepted", CHANGED)
        await codes(peer)
        await answer_requests(peer, 1)

    async with provider(script) as url:
        negotiator = Script(verdicts=[Proposal(CHANGED, "Names the buyers.")])
        assert await buy(customer(tmp_path, negotiator), url) == LAPTOP


async def test_000_28_the_provider_rejects_and_says_why(tmp_path: Path) -> None:
    async def script(peer: SourcePeer) -> None:
        await greet(peer)
        await peer.meta("protocolNegotiation")
        await peer.verdict(1, "rejected", None, "没有商品")

    async with provider(script) as url:
        with pytest.raises(TreatyError, match="没有商品") as failure:
            await buy(customer(tmp_path), url)
    assert failure.value.code == "negotiation.rejected"


async def test_000_64_the_provider_selects_a_candidate(tmp_path: Path) -> None:
    async def script(peer: SourcePeer) -> None:
        source_hello = await peer.receive_hello()
        assert source_hello["metaProtocol"]["candidateProtocols"] == [URI_2, URI_1]
        await peer.say_hello(hello(DESTINATION, selectedProtocol=URI_1), binary=True)
        await codes(peer)
        await answer_requests(peer, 1)

    async with provider(script) as url:
        assert await buy(customer(tmp_path), url, protocols=[URI_2, URI_1]) == LAPTOP


async def test_000_59_60_the_provider_confirms_the_hash_or_leaves_it(tmp_path: Path) -> None:
    met: list[str] = []

    async def script(peer: SourcePeer) -> None:
        source_hello = (await peer.receive_hello())["metaProtocol"]
        met.append(source_hello.get("usedProtocolHash", ""))
        if len(met) == 2:
            await peer.say_hello(hello(DESTINATION, usedProtocolHash=met[1]))
        else:
            await peer.say_hello(hello(DESTINATION))
            proposed = await peer.meta("protocolNegotiation")
            await peer.verdict(1, "accepted", proposed["candidateProtocols"])
            await codes(peer)
            peer.forget_early()
        await answer_requests(peer, 1)

    buyer = customer(tmp_path, Script(drafts=[Proposal(DOCUMENT), Proposal(CHANGED)]))
    async with provider(script) as url:
        for _ in range(3):
            assert await buy(buyer, url) == LAPTOP
    assert met == ["", protocol_hash(DOCUMENT), protocol_hash(DOCUMENT)]


async def test_000_21_a_counter_changes_an_unpublished_base(tmp_path: Path) -> None:
    async def script(peer: SourcePeer) -> None:
        await greet(peer)
        await peer.meta("protocolNegotiation")
        await peer.propose(1, printed("03-candidate-with-base.md"), SUMMARY)
        assert (await peer.meta("protocolNegotiation"))["status"] == "accepted"
        await codes(peer)
        await answer_requests(peer, 1)

    policy = Policy(publishers=["did:wba:publisher.example"], publish=True)
    buyer = party("buyer", tmp_path, negotiators=ScriptedNegotiators(Script()), policy=policy)
    async with provider(script) as url, buyer.agent:
        assert await buy(buyer, url) == LAPTOP
    assert "publishing failed" in buyer.names()


async def test_000_37_38_a_counter_has_the_printed_test_cases(tmp_path: Path) -> None:
    async def script(peer: SourcePeer) -> None:
        await greet(peer, "testCasesNegotiation", "verificationProtocol")
        proposed = await peer.meta("protocolNegotiation")
        await peer.verdict(1, "accepted", proposed["candidateProtocols"])
        await codes(peer)
        assert (await peer.meta("testCasesNegotiation"))["testCases"] == TEST_CASES
        await peer.say("06-test-cases-negotiation.json", testCases=printed("07-test-cases.md"), modificationSummary="- 中文")
        assert (await peer.meta("testCasesNegotiation"))["status"] == "accepted"
        for request, response in printed_cases():
            data = json.loads(await peer.expect(VERIFICATION))
            assert data == {**request, "messageId": data["messageId"]}
            await peer.send(VERIFICATION, json.dumps({**response, "messageId": data["messageId"]}).encode())
        await answer_requests(peer, 1)

    buyer = customer(tmp_path, Script(tests=TEST_CASES))
    async with provider(script) as url:
        assert await buy(buyer, url) == LAPTOP
    assert "tests passed over" not in buyer.names()


async def test_000_12_51_the_provider_answers_the_test_messages(tmp_path: Path) -> None:
    async def script(peer: SourcePeer) -> None:
        await greet(peer, "testCasesNegotiation", "verificationProtocol")
        proposed = await peer.meta("protocolNegotiation")
        await peer.verdict(1, "accepted", proposed["candidateProtocols"])
        await codes(peer)
        proposed = await peer.meta("testCasesNegotiation")
        await peer.say(
            "06-test-cases-negotiation.json", testCases=proposed["testCases"], modificationSummary=None, status="accepted"
        )
        for outcome in ({"code": 200, "message": "成功"}, {"code": 404, "message": "产品未找到"}):
            data = json.loads(await peer.expect(VERIFICATION))
            mouse = {"productId": "M1", "productName": "Mouse", "productDescription": "Clicks.", "price": 9.5, "currency": "USD"}
            product = mouse if outcome["code"] == 200 else None
            answer = {"messageId": data["messageId"], "type": "RESPONSE", "status": outcome, "productInfo": product}
            await peer.send(VERIFICATION, json.dumps(answer).encode())
        await answer_requests(peer, 1)

    async with provider(script) as url:
        assert await buy(customer(tmp_path, Script(tests=TEST_CASES)), url) == LAPTOP


async def test_000_39_a_reported_printed_error_is_repaired(tmp_path: Path) -> None:
    async def script(peer: SourcePeer) -> None:
        await greet(peer, "fixErrorNegotiation")
        proposed = await peer.meta("protocolNegotiation")
        await peer.verdict(1, "accepted", proposed["candidateProtocols"])
        await codes(peer)
        await answer_requests(peer, 1, wrong=1)
        report = await peer.meta("fixErrorNegotiation")
        assert (report["status"], bool(report["errorDescription"])) == ("negotiating", True)
        await peer.say("08-fix-error-negotiation.json", errorDescription=None, status="accepted")
        await peer.generated()
        await answer_requests(peer, 1)

    async with provider(script) as url:
        assert await buy(customer(tmp_path), url) == LAPTOP


async def test_000_40_the_provider_reports_an_error_of_the_agent(tmp_path: Path) -> None:
    negotiator = Script(judgement=FaultAdmitted())

    async def script(peer: SourcePeer) -> None:
        await greet(peer, "fixErrorNegotiation")
        proposed = await peer.meta("protocolNegotiation")
        await peer.verdict(1, "accepted", proposed["candidateProtocols"])
        await codes(peer)
        await peer.expect(APPLICATION)
        await peer.say("08-fix-error-negotiation.json", errorDescription=printed("09-error-description.md"))
        assert (await peer.meta("fixErrorNegotiation"))["status"] == "accepted"
        assert (await peer.meta("codeGeneration"))["status"] == "generated"
        await answer_requests(peer, 1)

    async with provider(script) as url:
        assert await buy(customer(tmp_path, negotiator), url) == LAPTOP
    assert "judge" in negotiator.names()


async def test_000_43_45_questions_of_both_sides(tmp_path: Path) -> None:
    async def script(peer: SourcePeer) -> None:
        await greet(peer, "naturalLanguageNegotiation")
        proposed = await peer.meta("protocolNegotiation")
        await peer.say("10-natural-language-negotiation.json", messageId="十六个字符的随机字符串一二三四五", message="为什么?")
        assert (await peer.meta("naturalLanguageNegotiation"))["message"] == "You asked: 为什么?"
        await peer.verdict(1, "accepted", proposed["candidateProtocols"])
        await codes(peer)
        message = await peer.meta("naturalLanguageNegotiation")
        assert (message["type"], len(message["messageId"]), message["message"]) == ("REQUEST", 16, "USD?")
        await peer.say("10-natural-language-negotiation.json", type="RESPONSE", messageId=message["messageId"], message="是")
        await answer_requests(peer, 1)

    async with provider(script) as url, customer(tmp_path).agent.connect(url, requirement=WANTED) as session:
        assert await session.ask("USD?") == "是"
        assert await session.call("getProductInfo", productId="P12345") == LAPTOP


async def test_000_48_50_natural_language_with_the_provider(tmp_path: Path) -> None:
    async def script(peer: SourcePeer) -> None:
        await greet(peer, "naturalLanguageProtocol")
        assert (await peer.expect(NATURAL)).decode() == printed("11-natural-language-request.md")
        await peer.send(NATURAL, printed("12-natural-language-response.md").encode())

    async with provider(script) as url, customer(tmp_path).agent.connect(url, natural=True) as session:
        await session.say(printed("11-natural-language-request.md"))
        async with asyncio.timeout(20):
            assert await anext(aiter(session.heard())) == printed("12-natural-language-response.md")


async def test_a_provider_with_faulty_unrepairable_code_is_left(tmp_path: Path) -> None:
    async def script(peer: SourcePeer) -> None:
        await greet(peer, "testCasesNegotiation", "verificationProtocol")  # and not fixErrorNegotiation
        proposed = await peer.meta("protocolNegotiation")
        await peer.verdict(1, "accepted", proposed["candidateProtocols"])
        await codes(peer)
        await peer.meta("testCasesNegotiation")
        await peer.say("06-test-cases-negotiation.json", testCases=TEST_CASES, modificationSummary=None, status="accepted")
        data = json.loads(await peer.expect(VERIFICATION))
        answer = {"messageId": data["messageId"], "type": "RESPONSE", "status": {"code": 404, "message": "产品未找到"}}
        await peer.send(VERIFICATION, json.dumps(answer | {"productInfo": None}).encode())
        await peer.last_words()

    buyer = customer(tmp_path, Script(tests=TEST_CASES))
    async with provider(script) as url:
        with pytest.raises(TreatyError) as failure:
            await buy(buyer, url)
    assert failure.value.code == "negotiation.tests"
