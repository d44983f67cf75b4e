"""One session: an outbox of messages that wait for their receipt, and an inbox of messages that wait for their work."""

from __future__ import annotations

from typing import Any

from treaty_handler import (
    Audit,
    Call,
    Cancel,
    Close,
    Effect,
    End,
    Event,
    Failure,
    Invoke,
    Opened,
    PeerLost,
    Persist,
    Received,
    Result,
    Return,
    Send,
    SetTimer,
    Timer,
    Value,
    decode_json,
    encode_json,
)

from .messages import (
    MAX_MESSAGE,
    accepted,
    expires,
    id_of,
    in_reply_to,
    is_unknown,
    issues,
    kind_of,
    rank,
    read,
    rejection,
    reply,
    status_update,
)
from .remembered import RememberedIds
from .rules import TIME_OVER, after_failure, answer, pause, strategy, time_limit, unhandled, unmet

MAX_WAITING = 32 * 1024
"""Bytes of all messages that wait in a session, so that its snapshot stays below 64 KiB."""
MAX_SEEN = 200
"""Messages whose ids are remembered. Further ones make the oldest give way, and what may be its repetition is refused."""
SEND_AGAIN, MAX_SENT = 5.0, 5
NO_ROOM = 5
"""Seconds after which a message for which there is no room may come again."""

_STATUS = "STATUS_UPDATE"
_RETURNED = {"REJECTED": 400, "EXPIRED": 410, "FAILED": 422}
_ENDS = {"escalate": "ESCALATED", "fallBack": "FELL_BACK"}


class HandoffSession:
    """All roles send and receive. A receiver and a member retry, escalate and fall back; a sender hands failures back.

    The application works on one message at a time: more would make the order of priorities meaningless.
    """

    def __init__(self, role: str, peer: str, seed: str, state: dict[str, Any]) -> None:
        self.role, self.peer, self.seed = role, peer, seed
        self.made: int = state.get("made", 0)
        self.out: dict[str, Any] = state.get("out", {})
        self.inbox: dict[str, Any] = state.get("inbox", {})
        self.seen = RememberedIds(state.get("seen", {}))

    def snapshot(self) -> bytes:
        """The state as JSON."""
        return encode_json({"made": self.made, "out": self.out, "inbox": self.inbox, "seen": self.seen.state()})

    def handle(self, event: Event) -> list[Effect]:
        """Process one event."""
        match event:
            case Opened(stored=stored):
                return self.restore(stored, event.at)
            case Call(call=call, arguments=arguments):
                return self.hand_off(call, arguments["message"], event.at)
            case Received(data=data):
                return self.receive(data, event.at)
            case Result(call=call, error=error, value=value):
                return self.finish(call, value, error, event.at)
            case Timer(name=name):
                return self.expired_or_due(name, event.at)
            case PeerLost():
                # The outbox stays in the store: the next session with this peer sends it again.
                lost = [entry["call"] for entry in self.out.values() if entry["call"]]
                failure = Failure(code=503, message="The peer is gone. The message is kept and will be sent again.")
                return [*(Return(call=call, error=failure) for call in lost), End(status="failed" if lost else "completed")]
            case Close():
                return [End()]
        return []

    # Sending

    def hand_off(self, call: str, message: Value, at: int) -> list[Effect]:
        """Check a message of the application, and send it."""
        message = accepted(message)
        faults = issues(message) or ([unhandled(message)] if is_unknown(message) else [])
        if faults:
            return [_fail(call, 400, " ".join(faults))]
        moment = expires(message)
        if moment is not None and moment <= at:
            return [_fail(call, 410, "The message has expired.")]
        if id_of(message) in self.out:
            return [_fail(call, 409, "A message with this id is being sent.")]
        data = encode_json(message)
        if not self.has_room(len(data)):
            return [_fail(call, 429, "Too many messages wait in this session.")]
        if kind_of(message) == _STATUS:
            return [Send(peer=self.peer, data=data), Return(call=call, value={"status": "ACCEPTED"})]
        return self.post(message, call, at)

    def post(self, message: Value, call: str, at: int) -> list[Effect]:
        """Keep a message, send it, and wait for the receipt. `call`: the call that waits for it; "" if none does."""
        key, moment, data = id_of(message), expires(message), encode_json(message)
        self.out[key] = {"message": message, "call": call, "sent": 1}
        timers = [SetTimer(name=f"send:{key}", seconds=SEND_AGAIN)]
        if moment is not None:
            timers.append(SetTimer(name=f"expire:{key}", seconds=_seconds(moment - at)))
        return [Persist(key=f"out:{key}", value=data), *timers, Send(peer=self.peer, data=data)]

    def settle(self, key: str, status: str, detail: str) -> list[Effect]:
        """A receipt ends the wait of its message."""
        entry = self.out.pop(key)
        effects: list[Effect] = [
            Persist(key=f"out:{key}", value=None),
            SetTimer(name=f"send:{key}", seconds=None),
            SetTimer(name=f"expire:{key}", seconds=None),
        ]
        if entry["call"]:
            code = _RETURNED.get(status)
            value = {"status": status}
            effects.append(Return(call=entry["call"], value=value) if code is None else _fail(entry["call"], code, detail))
        return effects

    def expired_or_due(self, name: str, at: int) -> list[Effect]:
        """A message is sent or tried again, or its time is over."""
        what, _, key = name.partition(":")
        if what == "try":
            self.inbox[key]["state"] = "waiting"
            return self.work(at)
        if what == "limit":
            # The function is cancelled: its result would come too late.
            return [Cancel(call=key), *self.finish(key, None, Failure(code=422, message=TIME_OVER), at)]
        entry = self.out.get(key)
        if entry is None:
            return []
        if what == "expire":
            # A timer lasts 30 days at most: it is set again for a message that lives longer.
            left = (expires(entry["message"]) or at) - at
            if left > 0:
                return [SetTimer(name=name, seconds=_seconds(left))]
            return self.settle(key, "EXPIRED", "The message expired before the peer confirmed it.")
        if entry["sent"] >= MAX_SENT and entry["call"]:
            # The message stays in the store for the next session; only this caller stops waiting.
            call, entry["call"] = entry["call"], ""
            return [_fail(call, 504, "The peer does not confirm. The message is kept and will be sent again.")]
        if entry["sent"] >= MAX_SENT:
            return []
        entry["sent"] += 1
        data = encode_json(entry["message"])
        return [SetTimer(name=f"send:{key}", seconds=SEND_AGAIN * entry["sent"]), Send(peer=self.peer, data=data)]

    # Receiving

    def receive(self, data: bytes, at: int) -> list[Effect]:
        """Confirm a message and queue its work, or say why not. The receipt of this side's own message ends its wait."""
        message, faults = read(data)
        if faults:
            return self.reject(message, faults, at)
        key, about, is_status = id_of(message), in_reply_to(message), kind_of(message) == _STATUS
        if is_status and about in self.out:
            # A receipt is for the sender's session. Later feedback on the same message goes to the application.
            report = message["payload"]["data"]
            if report.get("status") == "REJECTED" and "retry_after" in report:
                return [SetTimer(name=f"send:{about}", seconds=float(report["retry_after"]))]
            return self.settle(about, report.get("status", "ACCEPTED"), report.get("detail", "The peer refused."))
        status, why = self.seen.verdict(message, at)
        if not status and is_unknown(message):
            status, why = "REJECTED", unhandled(message)
        if status:
            return [] if is_status else self.report(message, status, at, detail=why)
        if not self.has_room(len(encode_json(message))):
            note = Audit(text=f"No room for message {key}.")
            return [note, *([] if is_status else self.report(message, "REJECTED", at, detail="There is no room.", wait=NO_ROOM))]
        self.inbox[key] = {"message": message, "state": "waiting", "tries": 0, "order": self.made, "step": "handOff"}
        self.made += 1
        confirmed = [] if is_status else self.report(message, "ACCEPTED", at)
        # Kept before it is confirmed: a crash after the receipt must not lose the message.
        persist = Persist(key=f"in:{key}", value=encode_json(message))
        return [persist, *self.remember(message, "ACCEPTED", at), *confirmed, *self.work(at)]

    def reject(self, message: Value, faults: list[str], at: int) -> list[Effect]:
        """Report an invalid message to its sender, as far as it says who that is."""
        note, reply = (
            Audit(text=f"Invalid message: {' '.join(faults)}"[:1000]),
            rejection(self.seed, self.made, at, message, faults),
        )
        self.made += reply is not None
        return [note] if reply is None else [note, Send(peer=self.peer, data=encode_json(reply))]

    def work(self, at: int) -> list[Effect]:
        """Give the application the most urgent message, if it has none."""
        if any(entry["state"] == "running" for entry in self.inbox.values()):
            return []
        waiting = sorted(
            (rank(entry["message"]), entry["order"], key) for key, entry in self.inbox.items() if entry["state"] == "waiting"
        )
        effects: list[Effect] = []
        for _, _, key in waiting:
            entry = self.inbox[key]
            message, step = entry["message"], entry["step"]
            moment = expires(message)
            if moment is not None and moment <= at:
                effects += self.close(key, {"status": "EXPIRED"}, at)
                continue
            entry["state"] = "running"
            if step != "handOff":
                target = strategy(message)["escalate_to" if step == "escalate" else "fallback_action"]
                return [*effects, Invoke(call=key, operation=step, arguments={"message": message, "target": target})]
            limit = time_limit(message)
            timer = [] if limit is None else [SetTimer(name=f"limit:{key}", seconds=_seconds(limit * 1000))]
            return [*effects, *timer, Invoke(call=key, operation=step, arguments={"message": message})]
        return effects

    def finish(self, key: str, value: Value, error: Failure | None, at: int) -> list[Effect]:
        """Close the message; or retry it, escalate it, fall back, in this order."""
        entry, outcome = self.inbox[key], value or {}
        message, step = entry["message"], entry["step"]
        is_limited = step == "handOff" and time_limit(message) is not None
        effects: list[Effect] = [SetTimer(name=f"limit:{key}", seconds=None)] if is_limited else []
        if error is None and step != "handOff":
            return [*effects, *self.close(key, {**outcome, "status": _ENDS[step]}, at), *self.work(at)]
        why = error.message if error is not None else unmet(message, outcome)
        if not why:
            return [*effects, *self.close(key, outcome, at), *self.work(at)]
        # A sender has no functions for the other steps: it hands a failure back at once.
        following = "" if self.role == "sender" else after_failure(message, step, entry["tries"])
        if not following:
            return [*effects, *self.close(key, {"status": "FAILED", "detail": why}, at), *self.work(at)]
        entry["step"], entry["state"] = following, "waiting"
        if following == "handOff":
            entry["state"] = "resting"
            effects.append(SetTimer(name=f"try:{key}", seconds=pause(entry["tries"])))
            entry["tries"] += 1
        return [*effects, *self.work(at)]

    def close(self, key: str, outcome: Value, at: int) -> list[Effect]:
        """Forget the message but for its id, and tell its sender how it ended."""
        message = self.inbox.pop(key)["message"]
        status = outcome.get("status", "COMPLETED")
        forgotten = [Persist(key=f"in:{key}", value=None), *self.remember(message, status, at)]
        content = answer(message, outcome)
        if content is None:
            return forgotten
        response = reply(self.seed, self.made, at, message, *content)
        self.made += 1
        data = encode_json(response)
        if content.kind == _STATUS and len(data) <= MAX_MESSAGE:
            return [*forgotten, Send(peer=self.peer, data=data)]
        if content.kind == _STATUS or not self.has_room(len(data)):
            return [*forgotten, *self.report(message, "FAILED", at, detail="The answer has no room in this session.")]
        # An answer has a receipt, as a request has. It is kept before the request is forgotten: a crash must not lose both.
        return [*self.post(response, "", at), *forgotten]

    def report(self, about: Value, status: str, at: int, *, detail: str = "", wait: int = 0) -> list[Effect]:
        """Send feedback by a STATUS_UPDATE."""
        update = status_update(self.seed, self.made, at, about, status, detail=detail, pause=wait)
        self.made += 1
        return [Send(peer=self.peer, data=encode_json(update))]

    # Memory

    def restore(self, stored: dict[str, bytes], at: int) -> list[Effect]:
        """Go on with the messages that earlier sessions left: send them again, and work on them again."""
        effects: list[Effect] = []
        for name, data in sorted(stored.items()):
            what, _, key = name.partition(":")
            if what == "seen":
                self.seen.ids[key] = decode_json(data)
            elif what == "floor":
                self.seen.floor = decode_json(data)
            elif what == "out" and self.has_room(len(data)):
                message = decode_json(data)
                moment = expires(message)
                self.out[key] = {"message": message, "call": "", "sent": 1}
                if moment is not None and moment <= at:
                    effects += self.settle(key, "EXPIRED", "")
                else:
                    effects += [SetTimer(name=f"send:{key}", seconds=SEND_AGAIN), Send(peer=self.peer, data=data)]
            elif what == "in" and self.has_room(len(data)):
                entry = {"message": decode_json(data), "state": "waiting", "tries": 0, "order": self.made, "step": "handOff"}
                self.inbox[key] = entry
                self.made += 1
        return [*effects, *self.work(at)]

    def remember(self, message: Value, status: str, at: int) -> list[Effect]:
        """Keep the id of a message, so that a repetition has no second effect."""
        effects: list[Effect] = [Persist(key=f"seen:{id_of(message)}", value=encode_json(self.seen.add(message, status)))]
        if len(self.seen.ids) > MAX_SEEN:
            # The floor is kept before the id is lost: a crash in between must not let a repetition in.
            forgotten = self.seen.give_way(at, self.inbox)
            effects.append(Persist(key="floor", value=encode_json(self.seen.floor)))
            effects.append(Persist(key=f"seen:{forgotten}", value=None))
        return effects

    def has_room(self, size: int) -> bool:
        """Whether a message of this size fits into the session."""
        waiting = [entry["message"] for entry in (*self.out.values(), *self.inbox.values())]
        return size <= MAX_MESSAGE and size + sum(len(encode_json(message)) for message in waiting) <= MAX_WAITING


def _seconds(milliseconds: float) -> float:
    """A timer lasts 30 days at most. A message that lives longer is checked again where it is used."""
    return min(max(milliseconds / 1000, 0.01), 30 * 86_400.0)


def _fail(call: str, code: int, text: str) -> Return:
    return Return(call=call, error=Failure(code=code, message=text[:500]))
