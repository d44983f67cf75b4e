"""One session: an outbox of messages that wait for their receipt, and an inbox of messages that wait for their work."""

from __future__ import annotations

from typing import Any

from treaty_handler import (
    Audit,
    Call,
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

from .messages import MAX_MESSAGE, expires, issues, rank, read, status_update

MAX_WAITING = 32 * 1024
"""Bytes of all messages that wait in a session, so that its snapshot stays below 64 KiB."""
MAX_SEEN = 200
"""Messages whose ids are kept. A repetition of an older one reaches the application, which has its id as idempotency key."""
MAX_RUNNING = 1
"""Messages that the application works on at a time: more would make the order of priorities meaningless."""
SEND_AGAIN, TRY_AGAIN = 5.0, 1.0
MAX_SENT = 5

_RETURNED = {"REJECTED": 400, "EXPIRED": 410, "FAILED": 422}
_NO_RECEIPT = frozenset(("STATUS_UPDATE",))


class HandoffSession:
    """All roles send and receive. A receiver and a member retry, escalate and fall back; a sender hands failures back."""

    def __init__(self, role: str, peer: str, seed: str, state: dict[str, Any]) -> None:
        self.role, self.peer, self.seed = role, peer, seed
        self.made: int = state.get("made", 0)
        self.out: dict[str, Any] = state.get("out", {})
        self.inbox: dict[str, Any] = state.get("inbox", {})
        self.seen: dict[str, str] = state.get("seen", {})

    def snapshot(self) -> bytes:
        """The state as JSON."""
        return encode_json({"made": self.made, "out": self.out, "inbox": self.inbox, "seen": self.seen})

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
        """Keep a message, send it, and wait for the receipt."""
        faults = issues(message)
        if faults:
            return [_fail(call, 400, " ".join(faults))]
        key, moment = message["metadata"]["message_id"].lower(), expires(message)
        if moment is not None and moment <= at:
            return [_fail(call, 410, "The message has expired.")]
        if key in self.out:
            return [_fail(call, 409, "A message with this id is being sent.")]
        data = encode_json(message)
        if not self.has_room(len(data)):
            return [_fail(call, 429, "Too many messages wait in this session.")]
        if message["payload"]["handoff_type"] in _NO_RECEIPT:
            return [Send(peer=self.peer, data=data), Return(call=call, value={"status": "ACCEPTED"})]
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
        payload, key = message["payload"], message["metadata"]["message_id"].lower()
        is_status = payload["handoff_type"] in _NO_RECEIPT
        about = payload["data"].get("in_reply_to", "").lower() if is_status else ""
        if about in self.out:
            # A receipt is for the sender's session. Later feedback on the same message goes to the application.
            return self.settle(about, payload["data"]["status"], payload["data"].get("detail", "The peer refused."))
        if key in self.seen:
            return [] if is_status else self.report(message, "DUPLICATE", at, detail=self.seen[key])
        moment = expires(message)
        if moment is not None and moment <= at:
            return [] if is_status else self.report(message, "EXPIRED", at)
        if not self.has_room(len(data)):
            # No receipt: the sender sends it again when there is room.
            return [Audit(text=f"No room for message {key}.")]
        self.inbox[key] = {"message": message, "state": "waiting", "tries": 0, "order": self.made, "step": "handOff"}
        self.made += 1
        confirmed = [] if is_status else self.report(message, "ACCEPTED", at)
        # Kept before it is confirmed: a crash after the receipt must not lose the message.
        kept = Persist(key=f"in:{key}", value=data)
        return [kept, *self.remember(key, "ACCEPTED"), *confirmed, *self.work(at)]

    def reject(self, message: Value, faults: list[str], at: int) -> list[Effect]:
        """Report an invalid message to its sender, as far as it says who that is."""
        note = Audit(text=f"Invalid message: {' '.join(faults)}"[:1000])
        try:
            answer = status_update(self.seed, self.made, at, message, "REJECTED", issues=faults)
            if message["payload"]["handoff_type"] in _NO_RECEIPT or issues(answer):
                return [note]
        except (KeyError, TypeError, IndexError):
            return [note]
        self.made += 1
        return [note, Send(peer=self.peer, data=encode_json(answer))]

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
            moment = expires(entry["message"])
            if moment is not None and moment <= at:
                effects += self.close(key, "EXPIRED", at)
                continue
            entry["state"] = "running"
            arguments = {"message": entry["message"]}
            strategy = _strategy(entry["message"])
            if entry["step"] != "handOff":
                arguments["target"] = strategy["escalate_to" if entry["step"] == "escalate" else "fallback_action"]
            return [*effects, Invoke(call=key, operation=entry["step"], arguments=arguments)]
        return effects

    def finish(self, key: str, value: Value, error: Failure | None, at: int) -> list[Effect]:
        """Close the message; or retry it, escalate it, fall back, in this order."""
        entry = self.inbox[key]
        if error is None:
            status = {"escalate": "ESCALATED", "fallBack": "FELL_BACK"}.get(
                entry["step"], (value or {}).get("status", "COMPLETED")
            )
            return [*self.close(key, status, at, detail=(value or {}).get("detail", "")), *self.work(at)]
        strategy = _strategy(entry["message"]) if self.role in ("receiver", "member") else {}
        if entry["step"] == "handOff" and entry["tries"] < strategy.get("retry_count", 0):
            entry["tries"] += 1
            entry["state"] = "resting"
            return [SetTimer(name=f"try:{key}", seconds=TRY_AGAIN * entry["tries"]), *self.work(at)]
        entry["state"] = "waiting"
        if entry["step"] == "handOff" and "escalate_to" in strategy:
            entry["step"] = "escalate"
        elif entry["step"] in ("handOff", "escalate") and "fallback_action" in strategy:
            entry["step"] = "fallBack"
        else:
            return [*self.close(key, "FAILED", at, detail=error.message), *self.work(at)]
        return self.work(at)

    def close(self, key: str, status: str, at: int, *, detail: str = "") -> list[Effect]:
        """Forget the message but for its id, and report how it ended."""
        message = self.inbox.pop(key)["message"]
        is_status = message["payload"]["handoff_type"] in _NO_RECEIPT
        told = [] if is_status else self.report(message, status, at, detail=detail)
        return [Persist(key=f"in:{key}", value=None), *self.remember(key, status), *told]

    def report(self, about: Value, status: str, at: int, *, detail: str = "") -> list[Effect]:
        """Send feedback by a STATUS_UPDATE."""
        answer = status_update(self.seed, self.made, at, about, status, issues=[], detail=detail)
        self.made += 1
        return [Send(peer=self.peer, data=encode_json(answer))]

    # Memory

    def restore(self, stored: dict[str, bytes], at: int) -> list[Effect]:
        """Go on with the messages that earlier sessions left: send them again, and work on them again."""
        effects: list[Effect] = []
        for name, data in sorted(stored.items()):
            what, _, key = name.partition(":")
            if what == "seen":
                self.seen[key] = data.decode()
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

    def remember(self, key: str, status: str) -> list[Effect]:
        """Keep the id of a message, so that a repetition has no second effect. The oldest gives way."""
        effects: list[Effect] = [Persist(key=f"seen:{key}", value=status.encode())]
        self.seen[key] = status
        if len(self.seen) > MAX_SEEN:
            oldest = next(known for known in self.seen if known not in self.inbox)
            del self.seen[oldest]
            effects.append(Persist(key=f"seen:{oldest}", value=None))
        return effects

    def has_room(self, size: int) -> bool:
        """Whether a message of this size fits into the session."""
        waiting = [entry["message"] for entry in (*self.out.values(), *self.inbox.values())]
        return size <= MAX_MESSAGE and size + sum(len(encode_json(message)) for message in waiting) <= MAX_WAITING


def _strategy(message: Value) -> dict[str, Value]:
    return message["instructions"].get("failure_handling_strategy", {})  # type: ignore[no-any-return]


def _seconds(milliseconds: int) -> float:
    """A timer lasts 30 days at most. A message that lives longer is checked again where it is used."""
    return min(max(milliseconds / 1000, 0.01), 30 * 86_400.0)


def _fail(call: str, code: int, text: str) -> Return:
    return Return(call=call, error=Failure(code=code, message=text[:500]))
