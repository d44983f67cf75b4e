"""Check a foreign agent that speaks handoff, over HTTP, in a session or by a queue: `treaty conform handoff`.

`RECEIVER` are the items of an agent that takes messages: this side hands them over, by `Receiver` over HTTP, by `SessionReceiver`
in a session, by `QueueReceiver` through a broker's queues. `SENDER` are those of an agent that hands messages off: `Listener`
takes them over HTTP, `SessionListener` in a session. The rules are those of protocols/handoff/1.0/document.md, and of
docs/specification/handoff.md for the envelope and the status codes. `conform_broker` has the items of a broker in a session.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import httpx
import rfc8785
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from treaty_agent import Identity
from treaty_agent.transport.foreign_session import SOCKET, ForeignSession, foreign_socket
from treaty_handler import decode_json
from treaty_io.asgi import Receive, Scope, Send
from treaty_io.conformance import Broken, Items, PeerUnderTest
from treaty_io.network.did_documents import DidResolver, fetch_did_document
from treaty_io.network.egress import EgressGuard
from treaty_io.network.exchange import BoundedClient
from treaty_io.network.hosts import Network
from treaty_io.task_set import TaskSet

from .broker import Broker
from .envelopes import Opened, envelope, open_envelope
from .handler.messages import issues
from .messages import MAX_MESSAGE, Kind, Message, build, check, id_of, moment, respond
from .postgres_broker import PostgresBroker
from .rabbitmq_broker import RabbitBroker

RECEIVER = Items("protocols/handoff/1.0/document.md")
SENDER = Items("protocols/handoff/1.0/document.md")
WORKED = (200, 202, 422, 0)
"""The status codes of a message that was worked on."""
_NEVER = "NEVER_DONE_BY_ANYONE"
"""A required action that no agent knows."""
_AFTER = 1.0
"""Seconds after an answer in which the sender must not send the message again."""


@dataclass(frozen=True)
class Answer:
    """The answer to a message. `code`: of HTTP; 0 in a session. `messages`: those that came, in their order."""

    code: int
    status: str
    messages: list[Message]

    def reports(self) -> list[dict[str, Any]]:
        """Return the data of the status updates."""
        return [one["payload"]["data"] for one in self.messages if one["payload"]["handoff_type"] == Kind.STATUS_UPDATE]


class Receiver(PeerUnderTest):
    """A foreign agent that takes messages at `url`/handoffs. `sample`: a message that it can work on, for the ids of this run."""

    repeated: tuple[str, ...] = ("DUPLICATE",)
    """The statuses of a repetition, beside that of the first time."""

    def __init__(
        self, client: BoundedClient, url: str, name: str, identity: Identity, *, sender: str = "", sample: Message | None = None
    ) -> None:
        super().__init__()
        self.client, self.url, self.name, self.identity = client, url.rstrip("/"), name, identity
        self.sender = sender or identity.did
        self._sample = sample

    def message(self, kind: Kind | None = None, data: Mapping[str, Any] | None = None, **parts: Any) -> Message:
        """Return a new message for the peer: the sample, or one of a kind with `data` and other parts of `build`."""
        task = {"objective": "Say that this message came.", "sub_tasks": []}
        parts = {"recipient": self.name, "task": f"conform-{uuid.uuid4().hex[:8]}", "state": "CONFORM", **parts}
        message = build(kind or Kind.TASK_TRANSFER, data or task, sender=self.sender, now=datetime.now(UTC), **parts)
        if kind is None and self._sample is not None:
            message |= {name: copy.deepcopy(self._sample[name]) for name in ("context", "payload")}
            message["instructions"] = {**self._sample["instructions"], **message["instructions"]}
        return message

    async def post(self, message: Message, *, signed: bool = True, identity: Identity | None = None) -> Answer:
        """Hand a message over, whatever its form is."""
        return await self.post_bytes(envelope(message, (identity or self.identity) if signed else None))

    async def post_bytes(self, body: bytes) -> Answer:
        """Post any bytes, and read the answer. Raises `Broken` for an answer that is not of the protocol's form."""
        self.sent, self.came = f"POST {self.url}/handoffs {body[:MAX_MESSAGE].decode(errors='replace')}", ""
        request = httpx.Request("POST", f"{self.url}/handoffs", content=body, headers={"Content-Type": "application/json"})
        reply = await self.client.exchange(request, limit=MAX_MESSAGE)
        self.came = f"{reply.status} {reply.body.decode(errors='replace')}"
        self.expect(reply.whole, f"The answer has more than {MAX_MESSAGE} bytes.")
        try:
            value: Any = decode_json(reply.body)
            messages = [entry["handoff"] for entry in value["handoffs"]]
            status = str(value["status"])
        except (ValueError, KeyError, TypeError) as error:
            raise Broken('The answer is not {"status": STATUS, "handoffs": [ENVELOPE, …]}.') from error
        for one in messages:
            self.expect(not issues(one), f"A message of the answer is not of the form: {' '.join(issues(one))}")
        return Answer(reply.status, status, messages)

    async def refused(self, message: Message, code: int, status: str, why: str) -> Answer:
        """Hand over a message that must be refused with this status code and this status."""
        answer = await self.post(message)
        self.expect(answer.code in (code, 0), f"{why} It is answered with {answer.code}, and not with {code}.")
        self.expect(answer.status == status, f"{why} The status is {answer.status!r}, and not {status!r}.")
        return answer

    def over_http(self, why: str = "") -> None:
        """Leave an item untried in a session. `why`: unless it is about envelopes."""


_FINAL = frozenset(("COMPLETED", "FAILED", "REJECTED", "EXPIRED", "DUPLICATE", "APPROVED", "DENIED", "ESCALATED", "FELL_BACK"))
"""The statuses after which no further one comes."""


class _AnsweringReceiver(Receiver):
    """A foreign agent that answers by messages, and by no status code."""

    async def hand_over(self, body: bytes) -> None:
        """Send an envelope."""
        raise NotImplementedError

    async def hear(self) -> Any:
        """Return the next message of the peer."""
        raise NotImplementedError

    async def post_bytes(self, body: bytes) -> Answer:
        """Send an envelope, and take the messages that answer it, up to a status that ends it."""
        about = id_of(json.loads(body)["handoff"])
        self.sent = self.came = ""
        await self.hand_over(body)
        found: list[Message] = []
        with suppress(TimeoutError):
            while not any(self._ends(one) for one in found):
                # Once something came, the rest comes soon; before it the time of the item is the bound.
                one = await asyncio.wait_for(self.hear(), _AFTER * 3)
                if not issues(one) and str(one["payload"]["data"].get("in_reply_to")).lower() == about:
                    found.append(one)
        statuses = [str(one["status"]) for one in Answer(0, "", found).reports()]
        informed = any(one["payload"]["handoff_type"] == Kind.PROVIDE_INFORMATION for one in found)
        return Answer(0, "COMPLETED" if informed else statuses[-1] if statuses else "", found)

    def _ends(self, one: Message) -> bool:
        kind, data = one["payload"]["handoff_type"], one["payload"]["data"]
        return kind == Kind.PROVIDE_INFORMATION or data.get("status") in _FINAL

    def over_http(self, why: str = "") -> None:
        """Leave the item untried."""
        self.need(False, why or "It is seen by the status codes of HTTP alone.")


class SessionReceiver(_AnsweringReceiver):
    """A foreign agent that takes messages in a session."""

    stack: AsyncExitStack
    uri: str
    session: ForeignSession | None = None
    """It is opened by the first item, so that a peer that refuses it fails there."""

    async def hand_over(self, body: bytes) -> None:
        """Send the message of an envelope: the Hello says who speaks."""
        if self.session is None:
            session = ForeignSession(self, await self.stack.enter_async_context(foreign_socket(self.url)))
            await session.greet(self.uri, "sender")
            self.session = session
            self.sent = self.came = ""
        await self.session.say(json.loads(body)["handoff"])

    async def hear(self) -> Any:
        """Return the next message of the session."""
        assert self.session is not None
        return await self.session.hear()


class QueueReceiver(_AnsweringReceiver):
    """A foreign agent that takes messages from its queue at a broker, and answers to the queue of the sender."""

    repeated = ("DUPLICATE", "")
    stack: AsyncExitStack
    broker: Broker | None = None
    bodies: asyncio.Queue[bytes]

    async def hand_over(self, body: bytes) -> None:
        """Publish an envelope in the queue of the peer."""
        self.sent = body[:MAX_MESSAGE].decode(errors="replace")
        self.broker = self.broker or await self._open()
        await self.broker.publish(self.name, body, 0)

    async def _open(self) -> Broker:
        opening = RabbitBroker.open(self.url) if self.url.startswith("amqp") else PostgresBroker.open(self.url)
        broker: Broker = await self.stack.enter_async_context(opening)
        # An item that waits no longer must not end the deliveries.
        self.bodies, tasks = asyncio.Queue(16), TaskSet[None]()
        self.stack.push_async_callback(tasks.cancel)
        tasks.start(self._take(broker))
        return broker

    async def _take(self, broker: Broker) -> None:
        async with aclosing(broker.deliveries(self.sender)) as deliveries:
            async for delivery in deliveries:
                await delivery.confirm()
                await self.bodies.put(delivery.body)

    async def hear(self) -> Any:
        """Return the message of the next envelope in the queue of this side."""
        body = await self.bodies.get()
        self.came = f"{self.came}{body.decode(errors='replace')}\n"[-MAX_MESSAGE:]
        return decode_json(body)["handoff"]


@asynccontextmanager
async def receiver_at(
    network: Network, url: str, name: str, identity: Identity, *, uri: str = "", seconds: float = 30, **options: Any
) -> AsyncIterator[Receiver]:
    """Speak with a foreign agent in the block: over HTTP; at a ws URL in a session, as the `sender` of the protocol `uri`; at the
    URL of a RabbitMQ or a PostgreSQL by its queues.

    `seconds`: the time for an answer. `options`: those of `Receiver`.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(network.client(timeout=seconds))
        scheme = url.partition(":")[0]
        if scheme in ("http", "https"):
            yield Receiver(client, url, name, identity, **options)
        elif scheme in ("ws", "wss"):
            peer = SessionReceiver(client, url, name, identity, **options)
            peer.stack, peer.uri = stack, uri
            yield peer
        else:
            queue = QueueReceiver(client, url, name, identity, **options)
            queue.stack = stack
            yield queue


def changed(message: Message, path: str, value: object = ...) -> Message:
    """Return a copy with the member at a dotted path set; without a value, removed."""
    result = copy.deepcopy(message)
    *parents, name = path.split(".")
    place = result
    for parent in parents:
        place = place[parent]
    if value is ...:
        place.pop(name, None)
    else:
        place[name] = value
    return result


@RECEIVER.rule(
    "works", "Rules, 4 and 6", "Serve POST /handoffs, verify the proof of the sender, and admit the sender of this run."
)
async def a_good_message_is_worked_on(peer: Receiver) -> None:
    """A valid message is worked on, and the end of the work is reported: `COMPLETED` or `FAILED`, or `IN_PROGRESS` before it."""
    answer = await peer.post(peer.message())
    peer.expect(answer.code in WORKED, f"A valid message is answered with {answer.code}.")
    statuses = {200: {"COMPLETED", "APPROVED", "DENIED"}, 202: {"IN_PROGRESS", "ACCEPTED"}, 422: {"FAILED"}}
    expected = statuses.get(answer.code) or {*statuses[200], *statuses[202], "FAILED"}
    peer.expect(answer.status in expected, f"The status {answer.status!r} is not one of {', '.join(sorted(expected))}.")


@RECEIVER.rule("report", "Rules, 9", "Copy task_id and correlation_id, and set in_reply_to to the id of the request.")
async def a_report_belongs_to_its_request(peer: Receiver) -> None:
    """An answer to a request, and every report, has the request's `task_id` and `correlation_id`, and its id in `in_reply_to`."""
    message = peer.message()
    answer = await peer.post(message)
    peer.expect(answer.messages, "The end of the work is not reported.")
    mine = message["metadata"]
    for one in answer.messages:
        theirs, about = one["metadata"], one["payload"]["data"].get("in_reply_to", "")
        for name in ("task_id", "correlation_id"):
            peer.expect(theirs.get(name) == mine[name], f"The {name} is not that of the request.")
        peer.expect(about.lower() == mine["message_id"], "`in_reply_to` is not the id of the request.")
        peer.expect(theirs["recipient_id"] in (peer.sender, [peer.sender]), "The report is not for the sender of the request.")


@RECEIVER.rule("once", "Rules, 2", "Keep sender and message_id, and answer from that record.")
async def a_repetition_has_no_second_effect(peer: Receiver) -> None:
    """A message has one effect: a repetition, whatever the order of its names is, gets `DUPLICATE` or the first answer again."""
    message = peer.message()
    first = await peer.post(message)
    repeated = await peer.post_bytes(json.dumps(_backwards(json.loads(envelope(message, peer.identity))), indent=1).encode())
    peer.expect(repeated.code in (200, 202, first.code), f"The repetition is answered with {repeated.code}.")
    # That it is a repetition is a report of its own in a session.
    ids = [
        {id_of(one) for one in answer.messages if one["payload"]["data"].get("status") != "DUPLICATE"}
        for answer in (first, repeated)
    ]
    peer.expect(ids[1] <= ids[0], "The repetition is answered with a new report: it was worked on twice.")
    peer.expect(repeated.status in (*peer.repeated, first.status), f"The repetition is answered with {repeated.status!r}.")


def _backwards(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _backwards(value[name]) for name in reversed(value)}
    return [_backwards(item) for item in value] if isinstance(value, list) else value


@RECEIVER.rule("changed", "Rules, 2", "Compare the canonical form of a repetition with that of the first message.")
async def another_message_with_the_id_is_rejected(peer: Receiver) -> None:
    """Another message of the sender with this `message_id` is answered with `REJECTED`, and has no effect."""
    message = peer.message()
    await peer.post(message)
    await peer.refused(changed(message, "context.workflow_state", "ANOTHER"), 409, "REJECTED", "Another message has the id.")


@RECEIVER.rule("expired", "Rules, 3", "Compare expiration_time with the clock before the work begins.")
async def an_expired_message_is_not_worked_on(peer: Receiver) -> None:
    """A message whose `expiration_time` has come is not worked on. It is answered with `EXPIRED`."""
    at = moment(datetime.now(UTC) - timedelta(seconds=1))
    await peer.refused(changed(peer.message(), "metadata.expiration_time", at), 410, "EXPIRED", "The message has expired.")


def _invalid(name: str, path: str, value: object, why: str, fix: str, *, reported: bool = True) -> None:
    async def refuses(peer: Receiver) -> None:
        if not reported:
            peer.over_http("A message to which no report can be built gets silence in a session.")
        answer = await peer.refused(changed(peer.message(), path, value), 400, "REJECTED", why)
        is_told = any(one.get("issues") and one["status"] == "REJECTED" for one in answer.reports())
        peer.expect(is_told or not reported, "No report has the faults in `issues`.")

    refuses.__doc__ = f"A recipient checks a message before anything else, and rejects an invalid one. {why}"
    RECEIVER.rule(name, "Rules, 1, and Form", fix)(refuses)


_VALIDATE = "Validate with the schema of the document: JSON Schema 2020-12, formats checked, and the conditions beside `data`."
_invalid("section", "instructions", ..., "The section `instructions` is missing.", _VALIDATE)
_invalid("priority", "metadata.priority", "URGENT", "The priority is none of the four.", _VALIDATE, reported=False)
_invalid("time", "metadata.timestamp", "yesterday", "The timestamp is no time.", _VALIDATE, reported=False)
_invalid("recipients", "metadata.recipient_id", [], "The list of recipients is empty.", _VALIDATE, reported=False)
_invalid("minimum", "instructions.failure_handling_strategy", {"retry_count": -5}, "The retry count is negative.", _VALIDATE)
_invalid("duration", "instructions.constraints", {"time_limit": "soon"}, "The time limit is no duration.", _VALIDATE)
_invalid(
    "condition",
    "payload",
    {"handoff_type": "ESCALATION", "data": {"requested_info_keys": ["level"]}},
    "An escalation has the data of a request.",
    _VALIDATE,
)
_invalid("major", "metadata.protocol_version", "2.0.0", "The major version is another one.", "Compare the major version.")


@RECEIVER.rule("minor", "Rules, 10", "Remove members that the schema does not know, if the minor version is later than yours.")
async def members_of_a_later_minor_version_are_ignored(peer: Receiver) -> None:
    """A recipient ignores the members that a later minor version of the same major version added."""
    later = changed(changed(peer.message(), "metadata.protocol_version", "1.7.0"), "metadata.colour", "green")
    answer = await peer.post(changed(later, "novelty", {"a": [1]}))
    peer.expect(
        answer.code in WORKED and answer.status != "REJECTED", f"A message of version 1.7.0: {answer.code} {answer.status}."
    )


@RECEIVER.rule("unsigned", "Envelope", "Demand a proof where the transport does not prove the sender.")
async def an_unsigned_message_is_refused(peer: Receiver) -> None:
    """A message without a proof of its sender is answered with 401, where the transport does not prove the sender."""
    peer.over_http()
    answer = await peer.post(peer.message(), signed=False)
    peer.need(answer.code not in WORKED, "The peer takes messages without a proof: the transport has to prove the sender.")
    peer.expect(answer.code in (401, 403), f"It is answered with {answer.code}.")


@RECEIVER.rule(
    "tampered", "Envelope", "Verify Ed25519 over `treaty-handoff-v1`, LF and the JCS form of the message as it was sent."
)
async def a_message_changed_after_its_signature_is_refused(peer: Receiver) -> None:
    """A recipient refuses a message if its signature does not verify."""
    peer.over_http()
    value = json.loads(envelope(peer.message(), peer.identity))
    value["handoff"]["metadata"]["priority"] = "CRITICAL"
    answer = await peer.post_bytes(json.dumps(value).encode())
    peer.expect(answer.code in (401, 403), f"A message changed after its signature is answered with {answer.code}.")


@RECEIVER.rule("foreign-key", "Envelope", "Compare the DID of the key with the DID of the sender.")
async def a_signature_of_another_is_refused(peer: Receiver) -> None:
    """A recipient refuses a message if the key's DID is not the one that its owner gave to `sender_id`."""
    peer.over_http()
    answer = await peer.post(peer.message(), signed=False)
    peer.need(answer.code not in WORKED, "The peer takes messages without a proof.")
    answer = await peer.post(peer.message(), identity=Identity.create())
    peer.expect(answer.code in (401, 403), f"A message signed by another DID is answered with {answer.code}.")


@RECEIVER.rule("canonical", "Envelope", "Use a library for JCS (RFC 8785): UTF-16 order of names, shortest numbers, raw Unicode.")
async def the_signature_covers_the_canonical_form(peer: Receiver) -> None:
    """The signature covers the JCS form (RFC 8785), whichever characters and numbers the message has."""
    peer.over_http()
    difficult = {"\u20ac": '\u00fc\u2028\\"/', "\U0001f600": 1e21, "\ufb33": 1e-7, "a\u0301": [0.1, -0.0, 9007199254740991]}
    message = changed(peer.message(), "instructions.constraints", {"resource_limit": difficult})
    answer = await peer.post_bytes(json.dumps(json.loads(envelope(message, peer.identity))).encode())
    peer.expect(answer.code in WORKED, f"A good signature is answered with {answer.code}.")


@RECEIVER.rule("recipient", "Rules, 4, and Queues", "Compare recipient_id with your own name and groups.")
async def a_message_for_another_agent_is_refused(peer: Receiver) -> None:
    """An agent takes a message only if it names the agent, or one of its groups."""
    peer.over_http()
    answer = await peer.post(peer.message(recipient=f"not-{uuid.uuid4().hex}"))
    peer.expect(answer.code in (400, 403), f"A message for another agent is answered with {answer.code}.")
    peer.expect(answer.status == "REJECTED", f"The status is {answer.status!r}.")


@RECEIVER.rule("actions", "Messages, instructions", "Report COMPLETED only with every required action in actions_done.")
async def required_actions_bind(peer: Receiver) -> None:
    """`required_actions` binds: work is complete only when all are done."""
    answer = await peer.post(peer.message(instructions={"required_actions": [_NEVER]}))
    for one in answer.reports():
        done = one["status"] != "COMPLETED" or _NEVER in one.get("actions_done", [])
        peer.expect(done, f"The work is COMPLETED, and {_NEVER} is not in `actions_done`.")
    peer.expect(answer.status != "COMPLETED" or answer.reports(), "The status is COMPLETED, without a report of the actions.")


@RECEIVER.rule(
    "criteria", "Messages, instructions", "Report COMPLETED only with criteria_met, if the message has success_criteria."
)
async def success_criteria_are_judged(peer: Receiver) -> None:
    """`success_criteria` says how the recipient judges its work: a completed one says that they are met."""
    answer = await peer.post(peer.message(instructions={"success_criteria": "The moon is made of cheese."}))
    met = [one.get("criteria_met") for one in answer.reports() if one["status"] == "COMPLETED"]
    peer.expect(all(each is True for each in met), "The work is COMPLETED, and `criteria_met` is not true.")
    peer.expect(answer.status != "COMPLETED" or met, "The status is COMPLETED, without a report of the criteria.")


@RECEIVER.rule("no-loop", "Rules, 8", "Report nothing on a STATUS_UPDATE.")
async def a_report_is_not_reported_on(peer: Receiver) -> None:
    """A `STATUS_UPDATE` is never answered by a `STATUS_UPDATE`."""
    about = {"in_reply_to": str(uuid.uuid4()), "status": "IN_PROGRESS"}
    answer = await peer.post(peer.message(Kind.STATUS_UPDATE, about))
    peer.expect(not answer.reports(), "A report is answered with a report: two agents would never end.")


@RECEIVER.rule(
    "question", "Messages, PROVIDE_INFORMATION", "Answer with PROVIDE_INFORMATION; name the keys you lack in missing_keys."
)
async def a_question_is_answered(peer: Receiver) -> None:
    """A `REQUEST_INFORMATION` is answered with `PROVIDE_INFORMATION`, and the keys that are not known are in `missing_keys`."""
    answer = await peer.post(peer.message(Kind.REQUEST_INFORMATION, {"requested_info_keys": [_NEVER]}))
    peer.need(answer.code in (200, 202, 0) and answer.status != "REJECTED", "The peer answers no questions of this kind.")
    answers = [one["payload"]["data"] for one in answer.messages if one["payload"]["handoff_type"] == Kind.PROVIDE_INFORMATION]
    peer.expect(answers, "The answer has no PROVIDE_INFORMATION.")
    is_named = _NEVER in answers[0]["information"] or _NEVER in answers[0].get("missing_keys", [])
    peer.expect(is_named, f"{_NEVER} is neither in `information` nor in `missing_keys`.")


@RECEIVER.rule("size", "Envelope", "Count the bytes of the body while they arrive, and stop at 1 MiB.")
async def a_message_over_the_cap_is_refused(peer: Receiver) -> None:
    """An envelope has at most 1 MiB: a larger one is answered with 413."""
    peer.over_http()
    answer = await peer.post_bytes(b" " * (MAX_MESSAGE + 1))
    peer.sent = f"POST {peer.url}/handoffs, {MAX_MESSAGE + 1} spaces"
    peer.expect(answer.code == 413, f"It is answered with {answer.code}.")


@RECEIVER.rule("junk", "Rules, 1", "Parse strictly, and answer each fault with 400 and the form of an answer.")
async def junk_is_refused(peer: Receiver) -> None:
    """A body that is no envelope is answered with 400, and the agent goes on."""
    peer.over_http()
    for body in (b"\xff\x00", b"[]", b'{"handoff": 1}', b"[" * 5_000):
        answer = await peer.post_bytes(body)
        peer.expect(answer.code == 400, f"It is answered with {answer.code}.")


class Deliveries(PeerUnderTest):
    """What a foreign sender hands to this side. The first delivery is not answered, and the second as the work's end."""

    def __init__(self, identity: Identity, network: Network) -> None:
        super().__init__()
        self.identity = identity
        self.resolver = DidResolver(partial(fetch_did_document, guard=EgressGuard(network)))
        self.bodies: list[bytes] = []
        self.news = asyncio.Event()

    async def delivery(self, number: int) -> bytes:
        """Wait for a delivery, the first is 0, and return its body."""
        while len(self.bodies) <= number:
            self.news.clear()
            await self.news.wait()
        self.came = self.bodies[number].decode(errors="replace")
        return self.bodies[number]

    async def opened(self, number: int) -> Opened:
        """Return the message of a delivery. Raises `NotTried` where none came."""
        self.need(self.bodies, "The peer handed no message to this address.")
        return await open_envelope(await self.delivery(number), self.resolver)

    async def message(self, number: int = 0) -> Message:
        """See `opened`."""
        return (await self.opened(number)).message

    def keep(self, body: bytes) -> bool:
        """Keep a delivery. Return whether it has an answer."""
        # A sender that never stops fills nothing.
        self.bodies = [*self.bodies, body][:16]
        self.news.set()
        return len(self.bodies) > 1

    def report(self, message: Any) -> Message:
        """Return the report that the work on a message has ended."""
        name = message["metadata"]["recipient_id"]
        data = {"status": "COMPLETED", "criteria_met": True, "actions_done": message["instructions"].get("required_actions", [])}
        sender = name if isinstance(name, str) else name[0]
        return respond(message, Kind.STATUS_UPDATE, data, sender=sender, state="DONE", now=datetime.now(UTC), key="done")


class Listener(Deliveries):
    """Takes messages over HTTP; the first is answered with 503."""

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve POST /handoffs."""
        if scope["type"] != "http":
            return
        body = b""
        while len(body) <= MAX_MESSAGE:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        code, value = 404, {"status": "REJECTED", "handoffs": list[Any]()}
        if (scope["method"], scope["path"]) == ("POST", "/handoffs"):
            code, value = self._answer(body[: MAX_MESSAGE + 1])
        data = rfc8785.dumps(value)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    def _answer(self, body: bytes) -> tuple[int, dict[str, Any]]:
        if not self.keep(body):
            return 503, {"status": "FAILED", "handoffs": []}
        try:
            report = self.report(json.loads(body)["handoff"])
            return 200, {"status": "COMPLETED", "handoffs": [json.loads(envelope(report, self.identity))]}
        except Exception:  # of any form: the items tell it
            return 400, {"status": "REJECTED", "handoffs": []}

    @asynccontextmanager
    async def serving(self, host: str, port: int) -> AsyncIterator[str]:
        """Serve during the block, and yield the URL."""
        from treaty_agent.transport.listener import serving  # a web server, which the other role does not need

        async with serving(self.app, host, port, sockets=16) as server:
            yield f"http://{host}:{server.port}"


class SessionListener(Deliveries):
    """Takes messages as the receiver of a session; the first has no receipt, so that it comes again."""

    async def opened(self, number: int) -> Opened:
        """Return the message of a delivery, which has no envelope."""
        self.need(self.bodies, "The peer handed no message to this address.")
        return Opened(decode_json(await self.delivery(number)), None)

    async def _take(self, socket: Any) -> None:
        session = ForeignSession(self, socket)
        with suppress(ConnectionClosed, AttributeError, KeyError, TypeError, ValueError):
            await session.welcome("receiver")
            while True:
                message = await session.hear()
                if message["payload"]["handoff_type"] == Kind.STATUS_UPDATE or not self.keep(json.dumps(message).encode()):
                    continue
                at, sender = datetime.now(UTC), self.report(message)["metadata"]["sender_id"]
                receipt = {"status": "ACCEPTED"}
                await session.say(
                    respond(message, Kind.STATUS_UPDATE, receipt, sender=sender, state="TAKEN", now=at, key="taken")
                )
                await session.say(self.report(message))

    @asynccontextmanager
    async def serving(self, host: str, port: int) -> AsyncIterator[str]:
        """Serve during the block, and yield the URL."""
        async with serve(self._take, host, port, **SOCKET) as server:
            yield f"ws://{host}:{server.sockets[0].getsockname()[1]}"


@SENDER.rule("sends", "Rules, 4", "Post the envelope to /handoffs.")
async def a_message_comes(peer: Deliveries) -> None:
    """A sender hands a message over: an envelope of at most 1 MiB, and the message in `handoff`."""
    peer.need(peer.bodies, "The peer handed no message to this address.")
    try:
        await peer.message()
    except Exception as error:
        raise Broken(f"The envelope cannot be opened: {error}") from error


@SENDER.rule("form", "Form", "Validate each message with the schema of the document before you send it.")
async def the_message_has_the_form(peer: Deliveries) -> None:
    """A message has the four sections and the form of the document: times with milliseconds and a zone, UUIDs, known types."""
    message = await peer.message()
    check(message)
    until = message["metadata"].get("expiration_time")
    peer.expect(until is None or datetime.fromisoformat(until) > datetime.now(UTC), "The message was expired when it came.")


@SENDER.rule("signs", "Envelope", "Sign `treaty-handoff-v1`, LF and the JCS form with the key that `proof.key` names.")
async def the_message_is_signed(peer: Deliveries) -> None:
    """The proof of a message verifies with a key of the DID that it names."""
    opened = await peer.opened(0)
    peer.need(opened.signer is not None, "The message has no proof: the transport has to prove the sender.")


@SENDER.rule("keeps", "Rules, 4", "Keep a message until it is answered. After 503 or 5 s of silence send the same one again.")
async def the_message_is_sent_again(peer: Deliveries) -> None:
    """The sender keeps a message until it has an answer, and sends the same one again: here after 503, or a silence."""
    first = await peer.message()
    peer.sent = "503 or nothing, and then a wait for the second delivery"
    again = await peer.message(1)
    peer.expect(again == first, "The second delivery is another message.")


@SENDER.rule("stops", "Rules, 4", "Stop when a message has an answer other than 503.")
async def the_message_is_not_sent_after_its_answer(peer: Deliveries) -> None:
    """A message that has its answer is not sent again."""
    await peer.message()
    peer.need(len(peer.bodies) > 1, "The message was not sent again after 503.")
    peer.sent = "200 COMPLETED"
    await asyncio.sleep(_AFTER)
    later = [await peer.message(number) for number in range(2, len(peer.bodies))]
    peer.expect(await peer.message() not in later, "The message came again after its answer.")
