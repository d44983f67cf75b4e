"""What members of a shared session, its handler and its agent may do to it: it stays bounded, and the others go on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from assemblies import Meeting, Member, meet
from connections import ConnectionWrapper

from treaty_agent import Capacity, Policy, Refused, SessionTimeouts, TreatyError, Unavailable
from treaty_agent.sessions import provision, shared_handler
from treaty_agent.sessions.middleware import Call, Proceed
from treaty_agent.testing.memory_registry import RegistryView
from treaty_agent.transport import memory
from treaty_agent.transport.connection import ConnectionLost
from treaty_consensus.kinds import Report
from treaty_handler import Effect, Event, Received
from treaty_sandbox.in_process import LocalSession

PATIENT = SessionTimeouts(send=1000.0, idle=10_000.0)


class Failing(ConnectionWrapper):
    """A connection whose `send` raises an error from a moment on."""

    error: Exception | None = None

    def send(self, message: str | bytes) -> None:
        if self.error is not None:
            raise self.error
        super().send(message)


@pytest.mark.threat(211)
def test_a_lost_busy_member_is_no_member() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        meeting.may_answer.clear()
        ada, _ = await meeting.joined(stack, "ada.example")
        busy, says = await meeting.joined(stack, "busy.example")
        calls = [asyncio.create_task(says.call("say", text=f"slow {number}")) for number in range(40)]
        while len(meeting.callers) < Capacity().functions:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await busy.connection.close()
        # The room does not read it now, so the loss shows at the next message to it.
        shared = meeting.room.shared(meeting.uri)
        while len(meeting.members) == 2:
            await shared.call("announce", text="Hello?")
            await asyncio.sleep(0.1)
        assert meeting.members == [ada.agent.did]
        assert len(meeting.callers) == Capacity().functions
        await asyncio.gather(*calls, return_exceptions=True)
        await ada.has_heard("Hello?")

    # The functions may run for as long as the operation allows, which is less than the test waits.
    meet(test, timeouts=PATIENT)


def test_a_replaced_busy_member_goes_on_after_its_functions() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        meeting.may_answer.clear()
        _, says = await meeting.joined(stack, "ada.example")
        calls = [asyncio.create_task(says.call("say", text=f"slow {number}")) for number in range(20)]
        while len(meeting.callers) < Capacity().functions:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        assert len(meeting.callers) == Capacity().functions
        meeting.may_answer.set()
        assert await asyncio.gather(*calls) == list(range(1, 21))
        meeting.may_answer.clear()
        calls = [asyncio.create_task(says.call("say", text=f"slow {number}")) for number in range(20)]
        while len(meeting.callers) < 20 + Capacity().functions:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        again, _ = await meeting.joined(stack, "ada.example")
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, TreatyError) for error in ended)
        assert meeting.members == [again.agent.did]

    meet(test)


@pytest.mark.threat(211)
@pytest.mark.parametrize("error", [ConnectionLost("reset"), OSError("reset")])
def test_an_error_while_sending_costs_that_member_alone(error: Exception) -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        ada, says = await meeting.joined(stack, "ada.example")
        near, far = memory.pair(source="did:wba:broken.example")
        broken, failing = meeting.simulation.agent("broken.example"), Failing(far)
        serving = asyncio.create_task(meeting.room.accept(failing))
        listening = Member(broken)
        over = broken.connect_over(near, protocols=[meeting.uri], did=meeting.room.did, role="member", serving=[listening.said])
        with pytest.raises(TreatyError):
            async with over as session:
                assert len(meeting.members) == 2
                failing.error = error
                assert await says.call("say", text="One.") == 1
                await near.close()
                await session.call("say", text="Two.")
        await meeting.until(1)
        assert await says.call("say", text="Three.") == 2
        await ada.has_heard("One.", "Three.")
        await serving

    meet(test)


@pytest.mark.threat(379)
def test_an_undeliverable_message_costs_its_sender_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = LocalSession.handle

    async def refuse(session: LocalSession, event: Event) -> list[Effect]:
        if isinstance(event, Received) and session.role == "room" and b"Die." in event.data:
            raise Refused("session.message", "It ended the worker twice.")
        return await handle(session, event)

    monkeypatch.setattr(LocalSession, "handle", refuse)

    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        ada, says = await meeting.joined(stack, "ada.example")
        _, bob_says = await meeting.joined(stack, "bob.example")
        with pytest.raises(TreatyError) as caught:
            await bob_says.call("say", text="Die.")
        assert caught.value.peer_code == "session.message"
        await meeting.until(1)
        assert await says.call("say", text="Go on.") == 1
        await ada.has_heard("Go on.")

    meet(test)


@pytest.mark.threat(211)
def test_the_slowest_member_is_dropped_at_the_common_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_handler, "MAX_WAITING", 30_000)

    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        ada, says = await meeting.joined(stack, "ada.example")
        deaf = [(await meeting.joined(stack, f"deaf{number}.example"))[0] for number in range(3)]
        for number, one in enumerate(deaf):
            one.connection.may_read = False
            for _ in range(20):  # the first one has missed the most
                await says.call("say", text=f"{number} {'x' * 400}")
        for _ in range(40):
            await says.call("say", text="y" * 400)
        assert ada.agent.did in meeting.members
        assert deaf[0].agent.did not in meeting.members
        await says.call("say", text="Go on.")
        await ada.has_heard("Go on.")

    meet(test, timeouts=PATIENT)


@pytest.mark.deep
@pytest.mark.threat(211)
def test_joining_and_leaving_in_a_loop_leaves_nothing_behind() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        ada, says = await meeting.joined(stack, "ada.example")

        async def around(count: int) -> None:
            for number in range(count):
                async with meeting.join(f"loop{number % 3}.example"):
                    pass
            await meeting.until(1)
            while meeting.room.metrics().sessions_in > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await asyncio.gather(*(task for task in meeting.serving if task.done()))
            await asyncio.sleep(60)

        await around(5)
        before = len(asyncio.all_tasks())
        await around(100)
        assert len(asyncio.all_tasks()) <= before + 2
        metrics = meeting.room.metrics()
        assert (metrics.sessions_in, metrics.opening, metrics.functions.under_way, metrics.calls.under_way) == (1, 0, 0, 0)
        assert await says.call("say", text="Still here.") == 1
        assert meeting.members == [ada.agent.did]

    meet(test)


@pytest.mark.deep
@pytest.mark.threat(211)
def test_five_hundred_and_twelve_may_join_at_once() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        joining = [meeting.joined(stack, f"m{number}.example") for number in range(512)]
        outcomes = await asyncio.gather(*joining, return_exceptions=True)
        joined = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        refused = [outcome for outcome in outcomes if isinstance(outcome, TreatyError)]
        assert len(joined) + len(refused) == 512
        # All come from one network, which gets at most as many places as are free.
        assert len(joined) == len(set(meeting.members)) == 256
        assert {getattr(error, "peer_code", error.code) or error.code for error in refused} == {"session.busy"}
        assert await joined[0][1].call("say", text="All?") == 1
        await asyncio.gather(*(member.has_heard("All?") for member, _ in joined))

    meet(test, capacity=Capacity(openings=512))


def test_a_revocation_ends_the_session_and_those_of_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    revoked = Refused("status.revoked", "Its publisher revoked it.")

    async def refuse(view: RegistryView, uri: str) -> None:
        raise revoked

    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        sessions = [(await meeting.joined(stack, f"{name}.example"))[1] for name in ("ada", "bob")]
        shared = meeting.room.shared(meeting.uri)
        monkeypatch.setattr(RegistryView, "fetch", refuse)
        provision.withdraw(meeting.room.context, meeting.uri, revoked)
        while meeting.room.metrics().sessions_in:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        for session in sessions:
            with pytest.raises(Unavailable) as caught:
                await session.call("say", text="Hello?")
            assert caught.value.code == "session.revoked"
        with pytest.raises(TreatyError) as over:
            await shared.call("announce", text="Hello?")
        assert over.value.code == "status.revoked"
        # Nothing of it goes on: its handler has ended, so the state is closed.
        assert not [task for task in asyncio.all_tasks() if "SharedHandler" in str(task.get_coro())]

    meet(test)


def test_a_revocation_without_members_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    revoked = Refused("status.revoked", "Its publisher revoked it.")

    async def refuse(view: RegistryView, uri: str) -> None:
        raise revoked

    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        assert await meeting.room.shared(meeting.uri).call("announce", text="Hello?") == 0
        monkeypatch.setattr(RegistryView, "fetch", refuse)
        provision.withdraw(meeting.room.context, meeting.uri, revoked)
        await asyncio.sleep(10)
        assert not [task for task in asyncio.all_tasks() if "SharedHandler" in str(task.get_coro())]

    meet(test)


def test_a_drain_answers_and_tells_each_member() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        meeting.may_answer.clear()
        _, says = await meeting.joined(stack, "ada.example")
        _, bob_says = await meeting.joined(stack, "bob.example")
        call = asyncio.create_task(says.call("say", text="slow one"))
        while not meeting.callers:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        draining = asyncio.create_task(meeting.room.drain())
        await asyncio.sleep(1)
        assert not draining.done()
        meeting.may_answer.set()
        assert await call == 1
        await draining
        assert meeting.members == []
        with pytest.raises(Unavailable) as caught:
            await bob_says.call("say", text="Hello?")
        assert caught.value.code == "session.draining"

    meet(test)


def test_members_stay_when_the_agent_reloads() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        ada, says = await meeting.joined(stack, "ada.example")
        meeting.room.reload(meeting.room.context.identity)
        assert meeting.members == [ada.agent.did]
        assert await says.call("say", text="Still here.") == 1
        await meeting.joined(stack, "bob.example")
        assert len(meeting.members) == 2

    meet(test)


def test_each_member_and_the_room_sign_a_report_of_their_own() -> None:
    policy = Policy(report=True, report_delay=0)

    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(meeting.simulation.serving(meeting.room))
        async with AsyncExitStack() as joined:
            for name in ("ada", "bob"):
                member = Member(meeting.simulation.agent(f"{name}.example", policy))
                over = member.agent.connect("wss://room.example", protocols=[meeting.uri], role="member", serving=[member.said])
                await (await joined.enter_async_context(over)).call("say", text=f"I am {name}.")
        # The last one is on disk; it is submitted in the background.
        while len(reports := meeting.simulation.registry.reports) < 2:  # noqa: ASYNC110
            await asyncio.sleep(1)
        pairs = [[author.text.split(":")[2] for author in report.authors] for report in reports]
        assert sorted(pairs) == [["ada.example", "room.example"], ["bob.example", "room.example"]]
        # Each pair has a negotiation id of its own, so none of them is taken for a second report of the other.
        assert len({report.body.nid for report in reports if isinstance(report.body, Report)}) == 2

    meet(test, policy=policy)


def test_a_rooms_calls_are_counted_and_pass_its_middleware() -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        passed = list[tuple[str, str, str, str]]()

        @meeting.room.middleware
        async def note(call: Call, proceed: Proceed) -> object:
            passed.append((call.direction, call.operation, call.context.peer.did, call.context.trace.trace_id))
            return await proceed()

        ada, says = await meeting.joined(stack, "ada.example")
        assert await says.call("say", text="One.") == 1
        assert await meeting.room.shared(meeting.uri).call("announce", text="Two.") == 1
        await ada.has_heard("Two.")
        assert [entry[:3] for entry in passed] == [("in", "accept", ada.agent.did), ("out", "announce", "")]
        metrics = meeting.room.metrics()
        assert metrics.functions.outcomes["ok"] == 1
        assert metrics.calls.outcomes["ok"] == 1
        # A broadcast is for roles with one peer: here each of its calls is refused, and names the shared session.
        [outcome] = await meeting.room.broadcast(meeting.uri, "announce", text="Three.")
        assert outcome.error is not None
        assert outcome.error.code == "session.operation"
        assert ada.heard == ["One.", "Two."]

    meet(test)


def test_the_log_of_a_function_that_fails_names_the_member(caplog: pytest.LogCaptureFixture) -> None:
    async def test(meeting: Meeting, stack: AsyncExitStack) -> None:
        @meeting.room.middleware
        async def fail(call: Call, proceed: Proceed) -> object:
            raise ZeroDivisionError

        _, says = await meeting.joined(stack, "ada.example")
        bob, _ = await meeting.joined(stack, "bob.example")
        with pytest.raises(TreatyError):
            await says.call("say", text="One.")
        [line] = [record.getMessage() for record in caplog.records if "operation.uncaught" in record.getMessage()]
        assert "accept for did:wba:ada.example" in line
        assert bob.agent.did not in line

    meet(test)
