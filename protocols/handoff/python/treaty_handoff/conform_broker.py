"""Check a foreign broker of handoff in a session: `treaty conform handoff --broker`. This side is its members.

The rules are those of protocols/handoff/1.0/document.md, "Meeting at a broker". The members merely claim their DIDs, so that
nothing waits for them when they are away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from typing import Any

from treaty_agent.transport.foreign_session import QUIET, ForeignSession, foreign_socket, new_name
from treaty_io.conformance import Broken, Items, PeerUnderTest

from .messages import Kind, Message, build, id_of, respond

BROKER = Items("protocols/handoff/1.0/document.md")
_MEETING = "Meeting at a broker"
_NOTE: dict[str, Any] = {"event": "CONFORM"}


class Member:
    """A member of this side. It confirms all that comes, unless `is_silent`."""

    def __init__(self, peer: Members, session: ForeignSession, name: str) -> None:
        self._peer, self._session, self.name = peer, session, name
        self.came: list[Message] = []
        self.is_silent = False

    def message(self, recipient: str, kind: Kind = Kind.NOTIFICATION, data: Mapping[str, Any] = _NOTE, **parts: Any) -> Message:
        """Return a new message of this member."""
        parts = {"sender": self.name, "recipient": recipient, "task": "conform", "state": "CONFORM", **parts}
        return build(kind, data, now=datetime.now(UTC), **parts)

    async def hear(self) -> Message:
        """Return the next message. One that is no report is confirmed."""
        one = await self._session.hear()
        if one["payload"]["handoff_type"] != Kind.STATUS_UPDATE:
            self.came.append(one)
            if not self.is_silent:
                await self._session.say(self.report(one, "ACCEPTED"))
        return one

    def report(self, about: Message, status: str) -> Message:
        """Return a report of this member on a message that it was given."""
        data = {"status": status}
        return respond(about, Kind.STATUS_UPDATE, data, sender=self.name, state=status, now=datetime.now(UTC), key=status)

    async def tell(self, about: Message, status: str) -> None:
        """Report on a message that this member was given."""
        await self._session.say(self.report(about, status))

    async def told(self, message: Message) -> dict[str, Any]:
        """Wait for a report on a message, and return its data."""
        while True:
            data: dict[str, Any] = (await self.hear())["payload"]["data"]
            if data.get("in_reply_to") == id_of(message):
                return data

    async def hand(self, message: Message, status: str, why: str) -> dict[str, Any]:
        """Hand a message to the broker, whose receipt must have this status."""
        await self._session.say(message)
        data = await self.told(message)
        self._peer.expect(data.get("status") == status, f"{why} The receipt is {data.get('status')!r}, and not {status!r}.")
        return data

    async def given(self, message: Message) -> int:
        """Return how often the broker gave this member a message, after all that comes has come."""
        with suppress(TimeoutError):
            while True:
                await asyncio.wait_for(self.hear(), QUIET)
        return sum(id_of(one) == id_of(message) for one in self.came)

    async def leave(self) -> None:
        """End the session."""
        await self._session.close()


class Members(PeerUnderTest):
    """The sessions of this side with a foreign broker at `url`, which provides the protocol `uri`."""

    def __init__(self, url: str, uri: str, stack: AsyncExitStack) -> None:
        super().__init__()
        self._url, self._uri, self._stack = url, uri, stack

    async def member(self, name: str = "", status: str = "ACCEPTED", why: str = "A JOIN.", **attributes: Any) -> Member:
        """Join in a new session; the receipt must have this status."""
        session = ForeignSession(self, await self._stack.enter_async_context(foreign_socket(self._url)))
        await session.greet(self._uri, "member")
        member = Member(self, session, name or new_name())
        data = {"event": "JOIN", "attributes": attributes} if attributes else {"event": "JOIN"}
        await member.hand(member.message("broker", data=data), status, why)
        return member


@BROKER.rule("joins", f"{_MEETING}, 1", "Answer a NOTIFICATION with the event JOIN to `broker` with ACCEPTED.")
async def a_member_joins(peer: Members) -> None:
    """A member joins with a `NOTIFICATION` to `broker` whose `event` is `JOIN`, and the broker answers `ACCEPTED`."""
    await (await peer.member()).leave()


@BROKER.rule("names", f"{_MEETING}, 1", "Keep the name of a member for it, and give no group the name of a member.")
async def a_name_belongs_to_its_member(peer: Members) -> None:
    """A name belongs to the agent that joined with it first, and a group has no name of a member: `REJECTED`."""
    first = await peer.member()
    for name, groups in ((first.name, []), ("broker", []), (new_name(), [first.name])):
        await peer.member(name, "REJECTED", "A name or group that is taken.", groups=groups)


@BROKER.rule("delivers", f"{_MEETING}, 3 and 6", "Send a message to the member that it names, as it was sent.")
async def a_message_reaches_its_recipient(peer: Members) -> None:
    """A message goes to the member that `recipient_id` names, unchanged, and to no other."""
    one, two, three = await peer.member(), await peer.member(), await peer.member()
    await one.hand(sent := one.message(two.name, data={**_NOTE, "attributes": {"a": [1, None]}}), "ACCEPTED", "A message.")
    peer.expect(await two.given(sent) and two.came[-1] == sent, "The message does not reach its recipient as it was sent.")
    peer.expect(not await three.given(sent), "The message reaches another member.")


@BROKER.rule("unknown", f"{_MEETING}, 3", "Answer a message to no member and no group with REJECTED.")
async def a_message_to_nobody_is_rejected(peer: Members) -> None:
    """A message whose recipient the broker does not know is answered with `REJECTED`."""
    one = await peer.member()
    await one.hand(one.message(new_name()), "REJECTED", "The recipient is unknown.")


@BROKER.rule("sender", f"{_MEETING}, 2", "Compare sender_id with the name of the member that sends.")
async def a_member_speaks_for_itself(peer: Members) -> None:
    """`sender_id` is the name of the member that sends a message, or the broker answers `REJECTED`."""
    one, two, three = await peer.member(), await peer.member(), await peer.member()
    await one.hand(sent := one.message(three.name, sender=two.name), "REJECTED", "The sender is another member.")
    peer.expect(not await three.given(sent), "A message under another name is delivered.")


@BROKER.rule("once", "Rules, 2", "Remember the ids of each member's messages.")
async def a_repetition_is_not_delivered(peer: Members) -> None:
    """A repetition is answered with `DUPLICATE`, another message with the id with `REJECTED`, and neither is delivered."""
    one, two = await peer.member(), await peer.member()
    sent = one.message(two.name)
    await one.hand(sent, "ACCEPTED", "A message.")
    await one.hand(sent, "DUPLICATE", "A repetition.")
    await one.hand({**sent, "instructions": {"next_steps_suggestion": "Another."}}, "REJECTED", "Another message has the id.")
    peer.expect(await two.given(sent) == 1, "The message is delivered more than once.")


@BROKER.rule("expired", "Rules, 3", "Compare expiration_time with the clock.")
async def an_expired_message_is_not_delivered(peer: Members) -> None:
    """A message whose `expiration_time` has come is answered with `EXPIRED`."""
    one, two = await peer.member(), await peer.member()
    sent = one.message(two.name)
    sent["metadata"]["expiration_time"] = "2020-01-01T00:00:00.000Z"
    await one.hand(sent, "EXPIRED", "The message has expired.")
    peer.expect(not await two.given(sent), "It is delivered.")


@BROKER.rule("invalid", "Rules, 1", "Check the form of a message before you keep it.")
async def an_invalid_message_is_rejected(peer: Members) -> None:
    """A broker rejects an invalid message, and names the faults."""
    one, two = await peer.member(), await peer.member()
    sent = one.message(two.name)
    sent["payload"] = {"handoff_type": "ESCALATION", "data": {"requested_info_keys": ["level"]}}
    data = await one.hand(sent, "REJECTED", "An escalation has the data of a request.")
    peer.expect(data.get("issues"), "The receipt has no `issues`.")


@BROKER.rule("reports", f"{_MEETING}, 2", "Pass a report of a recipient to the sender of the message.")
async def a_report_reaches_the_sender(peer: Members) -> None:
    """The report of a recipient reaches the sender of the message."""
    one, two = await peer.member(), await peer.member()
    task = one.message(two.name, Kind.TASK_TRANSFER, {"objective": "Say that this message came."})
    await one.hand(task, "ACCEPTED", "A message.")
    await two.given(task)
    await two.tell(task, "COMPLETED")
    data = await one.told(task)
    peer.expect(data.get("status") == "COMPLETED", f"The report of the recipient comes as {data.get('status')!r}.")


@BROKER.rule("group", f"{_MEETING}, 3", "Give a message to a group to one of its members.")
async def one_member_of_a_group_is_given_a_message(peer: Members) -> None:
    """A message to a group goes to one member of it."""
    group = new_name()
    one, two, three = await peer.member(), await peer.member(groups=[group]), await peer.member(groups=[group])
    await one.hand(sent := one.message(group), "ACCEPTED", "A message to a group.")
    count = await two.given(sent) + await three.given(sent)
    peer.expect(count == 1, f"It is given to {count} members.")


@BROKER.rule("subscription", f"{_MEETING}, 5", "Copy each message that fits a subscription to its member.")
async def a_subscriber_is_given_a_copy(peer: Members) -> None:
    """A member gets a copy of the messages that fit its subscription, and of no others."""
    wanted = {"kinds": ["NOTIFICATION"], "where": {"event": (event := new_name())}}
    one, two = await peer.member(), await peer.member()
    three = await peer.member(subscriptions=[wanted])
    for data, count in (({"event": event}, 1), ({"event": "OTHER"}, 0)):
        await one.hand(sent := one.message(two.name, data=data), "ACCEPTED", "A message.")
        peer.expect(await two.given(sent), "The recipient is not given the message.")
        peer.expect(await three.given(sent) == count, f"The subscriber is given a message {1 - count} times.")


@BROKER.rule(
    "one-by-one", f"{_MEETING}, 6", "Send a member the next message when it has confirmed the last one: the most urgent."
)
async def messages_come_one_by_one_the_most_urgent_first(peer: Members) -> None:
    """The broker sends a member one message at a time, and the next one, the most urgent, when the member has confirmed it."""
    one, two = await peer.member(), await peer.member()
    two.is_silent = True
    sent = [one.message(two.name, priority=each) for each in ("MEDIUM", "LOW", "CRITICAL")]
    for each in sent:
        await one.hand(each, "ACCEPTED", "A message.")
    await two.given(sent[0])
    peer.expect(
        {id_of(each) for each in two.came} == {id_of(sent[0])}, "The next message comes before the last one is confirmed."
    )
    two.is_silent = False
    await two.tell(sent[0], "ACCEPTED")
    await two.given(sent[0])
    order = [id_of(each) for each in two.came[-2:]]
    peer.expect(order == [id_of(sent[2]), id_of(sent[1])], "The most urgent message is not the next one.")


@BROKER.rule("claimed", f"{_MEETING}, 1 and 7", "Remove a member that proved no DID when its session ends, and report FAILED.")
async def a_claim_keeps_nothing(peer: Members) -> None:
    """The name of a member that proves no DID is free when it leaves, and the senders of messages to it get `FAILED`."""
    one, two = await peer.member(), await peer.member()
    two.is_silent = True
    task = one.message(two.name, Kind.TASK_TRANSFER, {"objective": "Say that this message came."})
    await one.hand(task, "ACCEPTED", "A message.")
    await two.leave()
    data = await one.told(task)
    peer.expect(data.get("status") == "FAILED", f"Its sender gets {data.get('status')!r}, and not FAILED.")
    again = await peer.member(two.name, why="The name of a member that has left.")
    if await again.given(task):
        raise Broken("What waited for a claimed DID is given to the next one that claims it.")
