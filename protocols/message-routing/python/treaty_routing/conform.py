"""Check a foreign environment or member of message routing in sessions of the Hello profile: `treaty conform routing`.

`ENVIRONMENT` are tried by members of this side (`Members`), `MEMBER` at an environment of this side (`Host`). The rules are
those of protocols/message-routing/1.0/document.md.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from treaty_agent.transport.foreign_session import QUIET, SOCKET, ForeignSession, foreign_socket, new_name
from treaty_io.conformance import Broken, Items, PeerUnderTest
from treaty_io.extras import naming_extras

with naming_extras("agent"):
    from websockets.asyncio.server import serve
    from websockets.exceptions import ConnectionClosed


ENVIRONMENT, MEMBER = (Items("protocols/message-routing/1.0/document.md") for _ in range(2))
_WIRE, _RULES = "Messages on the wire", "Rules"
_PART = 128
"""Messages that a member may publish in a round."""
_FIELDS = {"id": str, "content": str, "role": str, "cause_by": str, "sent_from": str, "send_to": list}


def message(sender: str, *recipients: str, **parts: Any) -> dict[str, Any]:
    """Return a message with all its fields."""
    base = {"id": uuid.uuid4().hex, "content": "hello", "instruct_content": None, "role": "user"}
    return {**base, "cause_by": "Conform", "sent_from": sender, "send_to": list(recipients), **parts}


class Members(PeerUnderTest):
    """Members of this side at a foreign environment: `alice` and `bob`, each in a class of its own."""

    def __init__(self, url: str, uri: str, stack: AsyncExitStack) -> None:
        super().__init__()
        self._url, self._uri, self._stack = url, uri, stack
        self.names, self.links = (new_name(), new_name()), list[ForeignSession]()

    async def link(self) -> ForeignSession:
        """Open a session that has not joined."""
        socket = await self._stack.enter_async_context(foreign_socket(self._url))
        link = ForeignSession(self, socket)
        await link.greet(self._uri, "member")
        return link

    async def both(self) -> tuple[ForeignSession, ForeignSession]:
        """Return the sessions of `alice` and `bob`, who join at the first use."""
        while len(self.links) < len(self.names):
            link, name = await self.link(), self.names[len(self.links)]
            answer = await link.request(type="join", name=name, address=f"{name}-class", shared=False)
            self.expect(answer.get("type") == "accepted", "A member with a new name and a new class cannot join.")
            self.links.append(link)
        return self.links[0], self.links[1]

    async def refused(self, link: ForeignSession, code: int, why: str, **request: Any) -> None:
        """Send a request that must be refused with this code."""
        answer = await link.request(**request)
        self.expect((answer.get("type"), answer.get("code")) == ("refused", code), f"{why} It is not refused with {code}.")


@ENVIRONMENT.rule("joins", _WIRE, "Answer a join with its id, and give each member a name and a class.")
async def members_join(peer: Members) -> None:
    """A member joins with a name and a class, and gets `accepted` with the id of its request."""
    await peer.both()


@ENVIRONMENT.rule("first-join", f"{_WIRE}, codes", "Refuse a publish of a peer that has not joined.")
async def nobody_publishes_before_joining(peer: Members) -> None:
    """Where there is no member yet, a request is refused with 403."""
    sent = message("stranger", "<all>")
    await peer.refused(await peer.link(), 403, "The peer has not joined.", type="publish", message=sent)


@ENVIRONMENT.rule("names", f"{_WIRE}, names", "Compare a new name with all names and classes, and a class with all names.")
async def names_are_unique(peer: Members) -> None:
    """A name is not the name or the class of another member, a class is shared by consent alone, and a peer joins once: 409."""
    alice, _ = await peer.both()
    first, other = peer.names[0], await peer.link()
    for name, address, why in (
        (first, new_name(), "Another member has the name."),
        (f"{first}-class", new_name(), "The name is the class of another."),
        (new_name(), first, "The class is the name of another."),
        (new_name(), f"{first}-class", "The class of another is not shared."),
    ):
        await peer.refused(other, 409, why, type="join", name=name, address=address, shared=True)
    await peer.refused(alice, 409, "The peer has joined.", type="join", name=new_name(), address=new_name(), shared=False)


@ENVIRONMENT.rule("delivers", f"{_RULES}, 2", "Give a message to each member whose name or class is in send_to, as it was sent.")
async def a_message_reaches_its_addresses(peer: Members) -> None:
    """A member gets each message whose `send_to` has its name or its class, with all its fields; others do not get it."""
    alice, bob = await peer.both()
    for address in (peer.names[1], f"{peer.names[1]}-class"):
        sent = message(peer.names[0], address, instruct_content={"a": [1, None]})
        answer = await alice.request(type="publish", message=sent)
        peer.expect(answer.get("type") == "accepted", "The message is not accepted.")
        peer.expect(await bob.given(sent["id"]), f"The message to {address} does not reach its member.")
        came = next(each["message"] for each in bob.heard if each.get("message", {}).get("id") == sent["id"])
        peer.expect(came == sent, "The message was changed on its way.")
        peer.expect(not await alice.given(sent["id"]), "The message reaches a member that it does not name.")


@ENVIRONMENT.rule("all", f"{_RULES}, 2", "Give a message to <all> to its sender, too.")
async def all_includes_the_sender(peer: Members) -> None:
    """`<all>` includes the sender."""
    alice, bob = await peer.both()
    await alice.request(type="publish", message=(sent := message(peer.names[0], "<all>")))
    peer.expect(await alice.given(sent["id"]) and await bob.given(sent["id"]), "The message to <all> does not reach all members.")


@ENVIRONMENT.rule("no-recipient", f"{_RULES}, 5", "Accept a message without a recipient, and keep it in the history.")
async def a_message_to_nobody_is_recorded(peer: Members) -> None:
    """A message to `<none>` or to an unknown name is accepted, and no member is given it."""
    alice, bob = await peer.both()
    for address in ("<none>", new_name()):
        answer = await alice.request(type="publish", message=(sent := message(peer.names[0], address)))
        peer.expect(answer.get("type") == "accepted", f"The message to {address} is not accepted.")
        peer.expect(not await bob.given(sent["id"]), f"The message to {address} reaches a member.")


@ENVIRONMENT.rule("sender", "Test case 2", "Compare sent_from with the name and the class of the sender.")
async def a_member_speaks_for_itself(peer: Members) -> None:
    """The environment refuses a message whose `sent_from` is no address of its sender: 403, and no member is given it."""
    alice, bob = await peer.both()
    sent = message(peer.names[1], "<all>")
    await peer.refused(alice, 403, "The message names another sender.", type="publish", message=sent)
    peer.expect(not await bob.given(sent["id"]), "The refused message reaches a member.")


@ENVIRONMENT.rule("junk", _WIRE, "Ignore what does not parse, and go on.")
async def messages_that_do_not_conform_are_ignored(peer: Members) -> None:
    """Messages that do not conform are ignored, or refused with 400: no member is given one, and the session goes on."""
    alice, bob = await peer.both()
    bad = message(peer.names[0], "<all>", role="robot")
    for junk in (b"\xff", b"[]", b"{}", b'{"type": 1}', {"type": "publish", "id": new_name(), "message": bad}):
        await alice.say(junk)
    await alice.request(type="publish", message=(sent := message(peer.names[0], peer.names[1])))
    peer.expect(await bob.given(sent["id"]), "After messages that do not conform a good one does not arrive.")
    peer.expect(not await bob.given(bad["id"]), "A message with an unknown role reaches a member.")


@ENVIRONMENT.rule("rounds", f"{_RULES}, 9", "Begin a round for members that are not idle, each with a larger number. Call run.")
async def rounds_have_growing_numbers(peer: Members) -> None:
    """When messages wait, a round begins; its number is larger than that of all before."""
    alice, bob = await peer.both()
    for _ in range(2):
        await alice.request(type="publish", message=message(peer.names[0], peer.names[1]))
        await bob.quiet()
    peer.need(bob.rounds, "The environment began no round.")
    peer.expect(bob.rounds == sorted({*bob.rounds}), f"The rounds have the numbers {bob.rounds}.")


@ENVIRONMENT.rule("room", _WIRE, "Count what a member published since the last round began, and refuse with 429.")
async def a_member_has_a_part_of_the_room(peer: Members) -> None:
    """A member publishes at most 128 messages until the next round begins. A message beyond is refused with 429."""
    alice, bob = await peer.both()
    await bob.quiet()
    # While alice is in a round, no further one begins.
    alice.is_idle = False
    await alice.request(type="publish", message=message(peer.names[0], peer.names[0]))
    await alice.quiet()
    answers = [await alice.request(type="publish", message=message(peer.names[0], "<none>")) for _ in range(_PART + 1)]
    alice.is_idle = True
    await alice.say({"type": "state", "round": (alice.rounds or [0])[-1], "idle": True, "error": ""})
    peer.expect(answers[-1].get("code") == 429, f"{_PART + 1} messages of a member are taken in one round.")


@ENVIRONMENT.rule("leaves", _WIRE, "Remove a member when its session ends.")
async def a_lost_member_leaves(peer: Members) -> None:
    """A member that is lost leaves: its name is free."""
    name, link = new_name(), await peer.link()
    await link.request(type="join", name=name, address=f"{name}-class", shared=False)
    await link.close()
    again = await peer.link()
    for _ in range(10):  # the end of a connection takes a moment
        answer = await again.request(type="join", name=name, address=f"{name}-class", shared=False)
        if answer.get("type") == "accepted":
            return
        await asyncio.sleep(QUIET / 5)
    raise Broken("The name of a member that is gone is taken still.")


class Host(PeerUnderTest):
    """An environment of this side, with the first foreign member that joins. `join`: its request, {} before it."""

    def __init__(self) -> None:
        super().__init__()
        self.join: dict[str, Any] = {}
        self.joined = asyncio.Event()
        self.link: ForeignSession | None = None
        self.round = 0

    @asynccontextmanager
    async def serving(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve during the block, and yield the port. `port` 0 chooses a free one."""
        ended = asyncio.Event()

        async def take(socket: Any) -> None:
            link = ForeignSession(self, socket)
            # A stranger that never joins holds one connection of its own.
            with suppress(ConnectionClosed, AttributeError, TypeError):
                await link.welcome("environment")
                while (request := await link.hear()).get("type") != "join" or self.link is not None:
                    pass
                await link.say({"type": "accepted", "id": request.get("id")})
                self.join, self.link = request, link
                self.joined.set()
                await ended.wait()

        async with serve(take, host, port, **SOCKET) as server:
            try:
                yield server.sockets[0].getsockname()[1]
            finally:
                ended.set()

    async def works(self, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        """Give the member messages, run a round, and return the messages that it published in it."""
        self.need(self.link is not None, "No member joined at this address.")
        assert self.link is not None
        self.sent = self.came = ""
        for each in messages:
            await self.link.say({"type": "message", "message": each})
        early = await self.link.quiet()
        self.expect(not [each for each in early if each.get("type") == "publish"], "The member works before the round begins.")
        self.round += 1
        await self.link.say({"type": "run", "round": self.round})
        published = []
        while (came := await self.link.hear()).get("type") != "state" or came.get("round") != self.round:
            if came.get("type") == "publish":
                published.append(came)
                await self.link.say({"type": "accepted", "id": came.get("id")})
        self.expect(came.keys() == {"type", "round", "idle", "error"}, "The state has not exactly `round`, `idle` and `error`.")
        return [each.get("message", {}) for each in published]

    def news(self, *recipients: str, **parts: Any) -> dict[str, Any]:
        """Return a message for the member, to its name unless given."""
        return message("", *(recipients or (self.join.get("name", ""),)), **{"cause_by": "UserRequirement", **parts})


@MEMBER.rule("joins", _WIRE, "Send join with exactly id, name, address and shared.")
async def the_member_joins(peer: Host) -> None:
    """A member joins with a name and a class of 1 to 64 characters without dots, angle brackets and control characters."""
    peer.need(peer.link is not None, "No member joined at this address.")
    peer.came = json.dumps(peer.join)
    peer.expect(peer.join.keys() == {"type", "id", "name", "address", "shared"}, "The join has other members.")
    for name in ("id", "name", "address"):
        text = peer.join[name]
        is_name = isinstance(text, str) and 1 <= len(text) <= 64 and text.isprintable() and not {*text} & {*".<>"}
        peer.expect(is_name, f"{name} is no name.")


@MEMBER.rule("works", f"{_RULES}, 3 and 9", "Wait for run, work on the news, and then send state with its round.")
async def the_member_works_in_rounds(peer: Host) -> None:
    """A member works when a round begins, and ends its part with `state` of this round. A message to its name is news."""
    await peer.works(peer.news())


@MEMBER.rule("publishes", "Message", "Publish messages with all seven fields; sent_from is your name or your class.")
async def the_member_publishes_messages(peer: Host) -> None:
    """A published message has all its fields, and is of the member's name or class."""
    published = await peer.works(peer.news())
    peer.need(published, "The member published nothing.")
    for each in published:
        peer.expect(each.keys() == {*_FIELDS, "instruct_content"}, f"The message has the fields {sorted(each)}.")
        wrong = [name for name, kind in _FIELDS.items() if not isinstance(each[name], kind)]
        peer.expect(not wrong, f"{', '.join(wrong)} are of a wrong type.")
        peer.expect(each["sent_from"] in (peer.join["name"], peer.join["address"]), "`sent_from` is no address of the member.")
        peer.expect("<self>" not in each["send_to"], "`<self>` is not replaced by the class of the member.")


@MEMBER.rule("once", f"{_RULES}, 3 and 7", "Remember the messages that you have seen: two are one if all their fields are equal.")
async def a_message_is_news_once(peer: Host) -> None:
    """Of the messages that a member was given, those are news that it has not seen before."""
    sent = peer.news()
    peer.need(await peer.works(sent), "The member publishes nothing, so that its reactions cannot be seen.")
    peer.expect(not await peer.works({**sent, "send_to": [*sent["send_to"]]}), "The member works on the same message again.")


@MEMBER.rule("unwatched", f"{_RULES}, 3", "Compare cause_by with the causes that you watch, and send_to with your name.")
async def an_unwatched_cause_is_no_news(peer: Host) -> None:
    """A message to the class of a member that does not watch the cause is no news."""
    peer.need(await peer.works(peer.news()), "The member publishes nothing, so that its reactions cannot be seen.")
    peer.need(peer.join["name"] != peer.join["address"], "The name of the member is its class.")
    other = peer.news(peer.join["address"], cause_by="ConformNothing")
    peer.expect(not await peer.works(other), "The member works on a cause that it does not watch.")


@MEMBER.rule("junk", _WIRE, "Ignore what does not parse, and go on.")
async def messages_of_the_environment_that_do_not_conform_are_ignored(peer: Host) -> None:
    """Messages that do not conform are ignored."""
    peer.need(peer.link is not None, "No member joined at this address.")
    assert peer.link is not None
    for junk in (b"\xff", b"[]", b"{}", {"type": "message", "message": {"id": 1}}, {"type": "run", "round": "x"}):
        await peer.link.say(junk)
    await peer.works(peer.news())
