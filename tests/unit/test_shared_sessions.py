"""Sessions of a shared role: who is a member, what one member can do to the others, and how the session ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from assemblies import Meeting, Member, meet

from treaty_agent import Capacity, OperationError, TreatyError
from treaty_agent.sessions import wire
from treaty_agent.sessions.shared_handler import MemberSteps
from treaty_agent.testing import run
from treaty_agent.transport import memory
from treaty_anp.flow_profile.capabilities import ProtocolOffer
from treaty_io.identity import ProvedPeer


def test_an_application_calls_all_members_of_a_session() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        (ada, says), (bob, _) = [await meeting.joined(stack, f"{name}.example") for name in ("ada", "bob")]
        assert meeting.members == [ada.agent.did, bob.agent.did]
        assert await says.call("say", text="Hello.") == 1
        await asyncio.gather(ada.has_heard("Hello."), bob.has_heard("Hello."))
        with pytest.raises(OperationError) as caught:
            await says.call("say", text="HELLO.")
        assert caught.value.status == 403
        shared = meeting.room.shared(meeting.uri)
        assert await shared.call("announce", text="We close.") == 2
        await asyncio.gather(ada.has_heard("Hello.", "We close."), bob.has_heard("Hello.", "We close."))
        assert (shared.role, shared.protocol) == ("room", meeting.uri)
        assert meeting.room.metrics().sessions_in == 2
        # The peer of a call is the member whose message led to it.
        assert {context.peer for context in meeting.callers} == {ProvedPeer(ada.agent.did)}

    meet(test)


def test_a_call_to_one_member_names_the_shared_session() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        ada, _ = await meeting.joined(stack, "ada.example")
        while not meeting.room.sessions(meeting.uri):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        [one] = meeting.room.sessions(meeting.uri)
        with pytest.raises(TreatyError) as caught:
            await one.call("announce", text="To Ada alone.")
        assert caught.value.code == "session.operation"
        assert "agent.shared(URI)" in caught.value.fix
        assert meeting.members == [ada.agent.did]
        assert ada.heard == []

    meet(test)


def test_a_later_proof_of_a_did_replaces_the_earlier() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        ada, first = await meeting.joined(stack, "ada.example")
        bob, bob_says = await meeting.joined(stack, "bob.example")
        again, second = await meeting.joined(stack, "ada.example")
        assert meeting.members == [bob.agent.did, again.agent.did]
        with pytest.raises(TreatyError) as caught:
            await first.call("say", text="Am I here?")
        assert caught.value.peer_code == "session.peer"
        await bob_says.call("say", text="Welcome back.")
        await again.has_heard("Welcome back.")
        assert ada.heard == []
        assert await second.call("say", text="Thanks.") == 2

    meet(test)


@pytest.mark.threat(210)
@pytest.mark.parametrize("owner_is_proved", [True, False])
def test_a_claimed_did_cannot_replace_its_owner(owner_is_proved: bool) -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        ada, says = await meeting.joined(stack, "ada.example", proved=owner_is_proved)
        with pytest.raises(TreatyError) as caught:
            await meeting.joined(stack, "ada.example", proved=False)
        assert caught.value.peer_code == "session.peer"
        assert meeting.members == [ada.agent.did]
        await says.call("say", text="Still me.")
        await ada.has_heard("Still me.")

    meet(test)


def test_an_owner_replaces_a_stranger_that_claims_its_did() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        await meeting.joined(stack, "ada.example", proved=False)
        await meeting.joined(stack, "ada.example", proved=True)
        [member] = meeting.room.shared(meeting.uri).members
        assert isinstance(member.peer, ProvedPeer)

    meet(test)


def test_a_lost_member_leaves_the_others() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        bob, says = await meeting.joined(stack, "bob.example")
        async with meeting.join("ada.example"):
            await meeting.until(2)
        await meeting.until(1)
        carol, _ = await meeting.joined(stack, "carol.example")
        await carol.connection.close()
        await meeting.until(1)
        assert await says.call("say", text="Alone.") == 1
        await bob.has_heard("Alone.")
        assert await meeting.room.shared(meeting.uri).call("announce", text="One.") == 1

    meet(test)


@pytest.mark.threat(211)
def test_a_member_that_never_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "CALL_ROOM", 4000)

    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        ada, says = await meeting.joined(stack, "ada.example")
        deaf, _ = await meeting.joined(stack, "deaf.example")
        deaf.connection.may_read = False
        for number in range(1, 41):
            assert await says.call("say", text=f"Text {number}." + 400 * " ") == number
        assert len(meeting.members) == 2, "no call waited until the member was dropped"
        await meeting.until(1)
        assert meeting.members == [ada.agent.did]
        assert await says.call("say", text="Go on.") == 41
        await ada.has_heard("Go on.")

    meet(test)


@pytest.mark.deep
def test_two_hundred_members_hear_each_text() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        joined = await asyncio.gather(*(meeting.joined(stack, f"m{number}.example") for number in range(200)))
        assert len(set(meeting.members)) == 200
        await joined[0][1].call("say", text="All?")
        await asyncio.gather(*(member.has_heard("All?") for member, _ in joined))
        assert await meeting.room.shared(meeting.uri).call("announce", text="All.") == 200

    meet(test)


@pytest.mark.threat(211)
def test_a_network_gets_half_of_the_places() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        async with meeting.join("ada.example"):
            await meeting.joined(stack, "bob.example")
            before = meeting.members
            with pytest.raises(TreatyError) as caught:
                await meeting.joined(stack, "carol.example")
            assert (caught.value.code, caught.value.peer_code) == ("session.busy", "") or caught.value.peer_code == "session.busy"
            assert meeting.members == before
        await meeting.until(1)
        await meeting.joined(stack, "carol.example")
        await meeting.until(2)

    meet(test, capacity=Capacity(members=4))


@pytest.mark.threat(211)
def test_the_networks_of_members_take_turns() -> None:
    async def main() -> None:
        steps, taken = MemberSteps(), list[str]()

        def step(name: str) -> partial[Coroutine[Any, Any, None]]:
            async def take(name: str) -> None:
                taken.append(name)

            return partial(take, name)

        for number in range(40):
            steps.put(step(f"crowd {number}"), "192.0.2.0/24")
        steps.put(step("honest 0"), "198.51.100.0/24")
        steps.put(step("honest 1"), "198.51.100.0/24")
        steps.put(step("own"))
        for _ in range(6):
            await (await steps.get())()
        assert taken == ["crowd 0", "honest 0", "own", "crowd 1", "honest 1", "crowd 2"]
        steps.put_last(step("end"))
        # A flood goes on meanwhile, and does not hold up the end.
        while taken[-1] != "end":
            steps.put(step("more"), "192.0.2.0/24")
            await (await steps.get())()
        assert taken[6:] == [*(f"crowd {number}" for number in range(3, 40)), "end"]

    run(main())


@pytest.mark.deep
@pytest.mark.threat(211)
def test_hanging_members_leave_calls_for_the_others() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        meeting.may_answer.clear()
        ada, says = await meeting.joined(stack, "ada.example")
        greedy = [await meeting.joined(stack, f"g{number}.example") for number in range(3)]
        calls = [
            asyncio.create_task(session.call("say", text=f"slow {number}")) for _, session in greedy for number in range(500)
        ]
        while len(meeting.callers) < len(greedy) * Capacity().functions:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        # Without a bound for each member, 1,500 calls would end the session of all.
        assert await says.call("say", text="Quick.") == 1
        await ada.has_heard("Quick.")
        begun = [context.peer.did for context in meeting.callers]
        assert {begun.count(member.agent.did) for member, _ in greedy} == {Capacity().functions}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert len(meeting.members) == 4

    meet(test)


def test_a_session_without_members_goes_on_with_its_state() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        shared = meeting.room.shared(meeting.uri)
        assert await shared.call("announce", text="First.") == 0
        async with meeting.join("ada.example") as (ada, says):
            await ada.has_heard("First.")
            await says.call("say", text="Second.")
        await meeting.until(0)
        bob, _ = await meeting.joined(stack, "bob.example")
        await bob.has_heard("First.", "Second.")

    meet(test)


def test_session_state_returns_with_the_agent() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        await meeting.room.shared(meeting.uri).call("announce", text="Before.")
        await meeting.room.aclose()
        again = Meeting(meeting.simulation)
        await again.room.prepare()
        ada, says = await again.joined(stack, "ada.example")
        await ada.has_heard("Before.")
        assert await says.call("say", text="After.") == 2

    meet(test)


def test_a_withdrawn_protocol_ends_the_session_and_its_members() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        _, says = await meeting.joined(stack, "ada.example")
        await meeting.room.withdraw(meeting.uri)
        with pytest.raises(TreatyError):
            await says.call("say", text="Hello?")
        with pytest.raises(TreatyError) as caught:
            meeting.room.shared(meeting.uri)
        assert caught.value.code == "agent.not-provided"
        assert meeting.room.metrics().sessions_in == 0

    meet(test)


def test_the_side_that_connects_has_no_shared_role() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        other = meeting.simulation.agent("other.example")

        @other.provides(meeting.uri, role="member")
        async def said(number: int, speaker: str, text: str) -> None: ...

        await other.prepare()
        near, far = memory.pair(source=meeting.room.did)
        serving = asyncio.create_task(other.accept(far))
        with pytest.raises(TreatyError) as caught:
            async with meeting.room.connect_over(near, protocols=[meeting.uri], role="room"):
                raise AssertionError
        assert caught.value.code == "session.role"
        with pytest.raises(TreatyError) as caught:
            other.shared(meeting.uri)
        assert caught.value.code == "session.role"
        await near.close()
        await serving

    meet(test)


def test_members_of_both_profiles_are_in_one_session() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        id = "anp:protocol:assembly:1.0"
        meeting.room.flow.registry.add(ProtocolOffer(id, ("accept",), uri=meeting.uri))
        ada, says = await meeting.joined(stack, "ada.example")
        bob = Member(meeting.simulation.agent("bob.example"))
        bob.agent.flow.registry.add(ProtocolOffer(id, uri=meeting.uri))
        await stack.enter_async_context(meeting.simulation.serving(meeting.room))
        over = bob.agent.connect("wss://room.example", protocols=[id], did=meeting.room.did, role="member", serving=[bob.said])
        bob_says = await stack.enter_async_context(over)
        assert meeting.members == [ada.agent.did, bob.agent.did]
        assert await says.call("say", text="From Hello.") == 1
        assert await bob_says.call("say", text="From flow.") == 2
        for member in (ada, bob):
            await member.has_heard("From Hello.", "From flow.")
        await bob_says.close()
        await meeting.until(1)
        assert await says.call("say", text="Alone.") == 3

    meet(test)
