"""The session of a broker. All its members are peers of one session: it keeps their messages, and passes them on."""

from __future__ import annotations

import hashlib
from typing import Any

from treaty_handler import (
    Audit,
    Call,
    Close,
    Effect,
    End,
    Event,
    Failure,
    Opened,
    PeerJoined,
    PeerLost,
    Persist,
    Received,
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
    recipients_of,
    rejection,
    status_update,
)
from .remembered import RememberedIds
from .routing import BROKER, JOIN, RULES, faults, holds, routed
from .rules import ANSWERS, unhandled

MAX_WAITING = 32 * 1024
"""Bytes of all messages that wait. A message without room is refused, and may come again."""
MAX_MEMBERS, MAX_NAME, MAX_PASSED = 64, 64, 200
MAX_SEEN = 128
"""Messages whose ids are remembered. One of the sender that has the most gives way: a member cannot have those of others lost."""
SEND_AGAIN, MAX_SENT = 5.0, 5
NO_ROOM = 5
"""Seconds after which a message for which there is no room may come again."""
_STATUS = "STATUS_UPDATE"


class BrokerSession:
    """`members`: name → peer ("" while it is away), owner, `proved` if it proved its DID, `since` (the time of its first JOIN),
    groups and subscriptions. `proofs`: the peers that are present and proved their DID. `waiting`: by number the messages, each
    with the member that gets it, the group by which it does, and the agent whose share of the room it takes. `seen`: the ids that
    each member sent, and those of the application under "". `passed`: which messages went to which members, for their reports.

    A DID that is merely claimed keeps nothing: its name, and the messages to it, last as long as its connection.
    """

    def __init__(self, seed: str, state: dict[str, Any]) -> None:
        self.seed = seed
        self.made: int = state.get("made", 0)
        self.members: dict[str, Any] = state.get("members", {})
        self.proofs: list[str] = state.get("proofs", [])
        self.waiting: dict[str, Any] = state.get("waiting", {})
        self.seen: dict[str, Any] = state.get("seen", {})
        self.passed: list[list[str]] = state.get("passed", [])
        self.rules: list[Value] = state.get("rules", [])

    def snapshot(self) -> bytes:
        """Return the state as JSON."""
        return encode_json({name: value for name, value in vars(self).items() if name != "seed"})

    def handle(self, event: Event) -> list[Effect]:
        """Process one event."""
        match event:
            case Opened(stored=stored):
                return self.restore(stored, event.at)
            case Call(call=call, operation=operation, arguments=arguments):
                return self.called(call, operation, arguments, event.at)
            case Received(peer=peer, data=data):
                return self.received(peer, data, event.at)
            case Timer(name=name):
                return self.repeat(name, event.at)
            case PeerJoined(peer=peer, is_proved=True):
                self.proofs.append(peer)
            case PeerLost(peer=peer):
                self.proofs = [other for other in self.proofs if other != peer]
                return self.lose(peer, event.at)
            case Close():
                return [End()]
        return []

    def called(self, call: str, operation: str, arguments: dict[str, Value], at: int) -> list[Effect]:
        """The application sets the rules, reads the members, or hands a message off."""
        if operation == "readMembers":
            members = [
                {"name": name, "groups": of["groups"], "present": bool(of["peer"]), "proved": of["proved"]}
                for name, of in self.members.items()
            ]
            return [Return(call=call, value={"members": members})]
        if operation == "setRoutes":
            if problems := faults(RULES, arguments["rules"]):
                return [Return(call=call, error=Failure(code=400, message=" ".join(problems)[:500]))]
            self.rules = arguments["rules"]
            return [Persist(key="rules", value=encode_json(self.rules)), Return(call=call, value={})]
        message = accepted(arguments["message"])
        if problems := issues(message):
            return [Return(call=call, error=Failure(code=400, message=" ".join(problems)[:500]))]
        status, why, effects = self.accept(message, "", at)
        code = {"REJECTED": 400, "EXPIRED": 410, "": 429}.get(status)
        if code is not None:
            return [*effects, Return(call=call, error=Failure(code=code, message=why or "The message has expired."))]
        return [*effects, Return(call=call, value={"status": status})]

    # Members

    def received(self, peer: str, data: bytes, at: int) -> list[Effect]:
        """Take a JOIN, a receipt, or a message to pass on."""
        message, problems = read(data)
        if problems:
            note = Audit(text=f"Invalid message of {peer[:500]}: {' '.join(problems)}"[:1000])
            self.made += 1
            reply = rejection(self.seed, self.made, at, message, problems)
            return [note] if reply is None else [note, Send(peer=peer, data=encode_json(reply))]
        metadata, payload = message["metadata"], message["payload"]
        is_joining = payload["handoff_type"] == "NOTIFICATION" and payload["data"].get("event") == "JOIN"
        if is_joining and recipients_of(message) == (BROKER,):
            return self.join(peer, message, at)
        name = self.name_of(peer)
        if name is not None and payload["handoff_type"] == _STATUS:
            return self.reported(name, message, at)
        # An answer to a message to a group, or of a rule, has the recipient's name as its sender, as a report on it has.
        is_answer = kind_of(message) in ANSWERS and [in_reply_to(message), name] in self.passed
        if name is None or (metadata["sender_id"] != name and not is_answer):
            return self.answer(peer, message, "REJECTED", at, "The sender is not the member that sends it.")
        status, why, effects = self.accept(message, name, at)
        if not status:
            return [*effects, *self.answer(peer, message, "REJECTED", at, why, wait=NO_ROOM)]
        # Kept before it is confirmed.
        return [*effects, *self.answer(peer, message, status, at, why)]

    def reported(self, name: str, message: Value, at: int) -> list[Effect]:
        """Take the receipt of a message that was passed on, or pass on a report on a message that the member was given."""
        about, data = in_reply_to(message), message["payload"]["data"]
        status = data.get("status", "")
        sent = (
            n for n, entry in self.waiting.items() if entry["to"] == name and entry["sent"] and id_of(entry["message"]) == about
        )
        number, effects = next(sent, None), list[Effect]()
        if number is not None and status == "REJECTED" and "retry_after" in data:
            # The member has no room now.
            return [SetTimer(name=f"send:{_key(name)}", seconds=float(data["retry_after"]))]
        if number is not None:
            if not self.waiting[number]["is_copy"]:
                self.passed = [*self.passed, [about, name]][-MAX_PASSED:]
            effects = [*self.forget(number), *self.deliver(name, at)]
            if status in ("ACCEPTED", "DUPLICATE"):
                return effects
        # A report on a message to a group, or of a rule, has the recipient's name as its sender. Those on copies end here.
        if message["metadata"]["sender_id"] != name and [about, name] not in self.passed:
            return [*effects, Audit(text=f"A report of {name} is on no message that was passed to it.")]
        return [*effects, *self.accept(message, name, at)[2]]

    def join(self, peer: str, message: Value, at: int) -> list[Effect]:
        """Add a member, or take it back with what waits for it."""
        name, attributes = message["metadata"]["sender_id"], message["payload"]["data"].get("attributes", {})
        if problems := faults(JOIN, attributes):
            return self.answer(peer, message, "REJECTED", at, " ".join(problems))
        current, groups = self.members.get(name), {group for member in self.members.values() for group in member["groups"]}
        is_proved = peer in self.proofs
        # A name that a proved agent joined with is for proofs of its DID alone. Any other is free when its agent leaves.
        is_others = current is not None and (current["owner"] != peer or (current["proved"] and not is_proved))
        if is_others or name == BROKER or name in groups or len(name) > MAX_NAME:
            problems.append(f"The name is another's, or has more than {MAX_NAME} characters.")
        if any(group in self.members or group == BROKER for group in attributes.get("groups", ())):
            problems.append("A group has the name of a member.")
        if self.name_of(peer) not in (None, name):
            problems.append("The agent has another name already.")
        is_full = current is None and len(self.members) >= MAX_MEMBERS
        gives_way = self.newest_away(is_proved) if is_full and not problems else None
        if is_full and gives_way is None:
            problems.append(f"The broker has {MAX_MEMBERS} members already.")
        if problems:
            return self.answer(peer, message, "REJECTED", at, " ".join(problems))
        effects = [] if gives_way is None else self.remove(gives_way, at)
        interests = {"groups": attributes.get("groups", []), "subscriptions": attributes.get("subscriptions", [])}
        since = at if current is None else current["since"]
        self.members[name] = {"owner": peer, "proved": is_proved, "since": since, **interests, "peer": peer}
        detail = ""
        if is_proved:
            record = {**self.members[name], "name": name, "peer": ""}
            effects.append(Persist(key=f"member:{_key(name)}", value=encode_json(record)))
        else:
            detail = "The name lasts as long as this connection, because it proves no DID."
        return [*effects, *self.answer(peer, message, "ACCEPTED", at, detail), *self.deliver(name, at)]

    def newest_away(self, is_proved: bool) -> str | None:
        """Return the member that gives way to a further one: an absent one, which has nothing waiting if there is such a one,
        and of these the newest. None if all are present.

        The newest, so that an agent which joins with many DIDs takes its own places, and not those of members before it. A
        proof takes the place of a proof, so that claims take none.
        """
        busy = {entry["to"] for entry in self.waiting.values()}
        away = [name for name, member in reversed(self.members.items()) if not member["peer"] and is_proved]
        return min(away, key=lambda name: (name in busy, -self.members[name]["since"]), default=None)

    def remove(self, name: str, at: int) -> list[Effect]:
        """Remove an absent member, with all that the next one of this name could use."""
        del self.members[name]
        self.seen.pop(name, None)
        self.passed = [passed for passed in self.passed if passed[1] != name]
        forgotten = [Persist(key=f"member:{_key(name)}", value=None), Persist(key="seen", value=encode_json(self.seen))]
        return [*forgotten, *self.orphans(name, at)]

    def orphans(self, name: str, at: int) -> list[Effect]:
        """Give the messages to a former member to another one of their group, or up."""
        effects: list[Effect] = []
        for number in [number for number, entry in self.waiting.items() if entry["to"] == name]:
            other = self.one_of(self.waiting[number]["group"])
            effects += (
                self.give_up(number, f"{name} is no member any more.", at) if other is None else self.move(number, other, at)
            )
        return effects

    def lose(self, peer: str, at: int) -> list[Effect]:
        """Messages to a group go to another member of it. Others wait until the member comes back."""
        name = self.name_of(peer)
        if name is None:
            return []
        self.members[name]["peer"] = ""
        effects: list[Effect] = [SetTimer(name=f"send:{_key(name)}", seconds=None)]
        for number, entry in list(self.waiting.items()):
            other = self.one_of(entry["group"]) if entry["to"] == name else name
            if entry["to"] == name:
                entry["sent"] = 0
            if other not in (None, name):
                effects += self.move(number, other, at)
        # Who claims the DID next gets neither the name nor the messages.
        return effects if self.members[name]["proved"] else [*effects, *self.remove(name, at)]

    def move(self, number: str, name: str, at: int) -> list[Effect]:
        """Give a message to another member of its group."""
        self.waiting[number] |= {"to": name, "sent": 0}
        return [self.keep(number), *self.deliver(name, at)]

    def name_of(self, peer: str) -> str | None:
        """Return the name of the member that is present as this peer."""
        return next((name for name, member in self.members.items() if member["peer"] == peer), None)

    def one_of(self, group: str) -> str | None:
        """Return the member of a group that has the fewest messages, a present one if there is one."""
        names = [name for name, member in self.members.items() if group in member["groups"]]
        load = {name: sum(entry["to"] == name for entry in self.waiting.values()) for name in names}
        return min(names, key=lambda name: (not self.members[name]["peer"], load[name]), default=None)

    # Messages

    def accept(self, message: Value, by: str, at: int) -> tuple[str, str, list[Effect]]:
        """Keep a message of `by` for its recipients and subscribers. Return its status, "" if there is no room, and why."""
        data, seen = encode_json(message), RememberedIds(self.seen.get(by, {}))
        status, why = seen.verdict(message, at)
        if not status and is_unknown(message):
            status, why = "REJECTED", unhandled(message)
        if status:
            return status, why, [Audit(text=f"No effect: {why}")] if why else []
        targets: dict[str, tuple[str, bool]] = {}
        for target in routed(message, self.rules):
            name = target if target in self.members else self.one_of(target)
            if name is None:
                why = f"No member has the name or group {target}."
                return "REJECTED", why, [Audit(text=why)]
            targets.setdefault(name, (target if name != target else "", False))
        for name, member in self.members.items():
            is_own = name == message["metadata"]["sender_id"]
            if not is_own and any(holds(subscription, message) for subscription in member["subscriptions"]):
                targets.setdefault(name, ("", True))
        agent = self.agent_of(by)
        if not self.has_room(agent, len(data), len(targets)):
            return "", "There is no room.", [Audit(text=f"No room for message {message['metadata']['message_id']}.")]
        seen.add(message, "")
        effects = self.remember(by, seen, at)
        for name, (group, is_copy) in targets.items():
            self.made += 1
            entry = {"message": message, "of": agent, "to": name, "group": group, "is_copy": is_copy, "sent": 0}
            self.waiting[str(self.made)] = entry
            effects.append(self.keep(str(self.made)))
        for name in targets:
            effects += self.deliver(name, at)
        return "ACCEPTED", "", effects

    def deliver(self, name: str, at: int) -> list[Effect]:
        """Send a member the most urgent message that waits for it, unless it has not confirmed the last one."""
        member, effects = self.members[name], list[Effect]()
        mine = [number for number, entry in self.waiting.items() if entry["to"] == name]
        if not member["peer"] or any(self.waiting[number]["sent"] for number in mine):
            return []
        for number in sorted(mine, key=lambda number: (rank(self.waiting[number]["message"]), int(number))):
            entry = self.waiting[number]
            moment, data = expires(entry["message"]), encode_json(entry["message"])
            if moment is not None and moment <= at:
                effects += self.forget(number)
                continue
            effects.append(Send(peer=member["peer"], data=data))
            if entry["message"]["payload"]["handoff_type"] == _STATUS:
                effects += self.forget(number)  # it has no receipt
                continue
            entry["sent"] = 1
            return [*effects, SetTimer(name=f"send:{_key(name)}", seconds=SEND_AGAIN)]
        return effects

    def repeat(self, timer: str, at: int) -> list[Effect]:
        """Send a message again, or give it up: its sender learns that the member does not confirm."""
        sent = [number for number, entry in self.waiting.items() if entry["sent"] and f"send:{_key(entry['to'])}" == timer]
        if not sent:
            return []
        number, entry = sent[0], self.waiting[sent[0]]
        name = entry["to"]
        if entry["sent"] < MAX_SENT:
            entry["sent"] += 1
            again = SetTimer(name=f"send:{_key(name)}", seconds=SEND_AGAIN * entry["sent"])
            return [again, Send(peer=self.members[name]["peer"], data=encode_json(entry["message"]))]
        return [*self.give_up(number, f"{name} does not confirm.", at), *self.deliver(name, at)]

    def give_up(self, number: str, detail: str, at: int) -> list[Effect]:
        """Drop a message, and tell its sender."""
        message = self.waiting[number]["message"]
        forgotten = self.forget(number)
        if kind_of(message) == _STATUS:
            return forgotten
        self.made += 1
        report = status_update(self.seed, self.made, at, message, "FAILED", detail=detail)
        return [*forgotten, *self.accept(report, "", at)[2]]

    def answer(self, peer: str, about: Value, status: str, at: int, detail: str = "", *, wait: int = 0) -> list[Effect]:
        """Send a member a receipt. A STATUS_UPDATE has none."""
        if about["payload"]["handoff_type"] == _STATUS:
            return [Audit(text=f"Ignored a report: {detail}")] if detail else []
        self.made += 1
        receipt = status_update(self.seed, self.made, at, about, status, detail=detail, pause=wait)
        return [Send(peer=peer, data=encode_json(receipt))]

    # Memory

    def remember(self, by: str, seen: RememberedIds, at: int) -> list[Effect]:
        """Keep the ids that a sender sent. At the bound, the sender that has the most loses one."""
        self.seen[by] = seen.state()
        if sum(len(of["ids"]) for of in self.seen.values()) > MAX_SEEN:
            most = max(self.seen, key=lambda name: len(self.seen[name]["ids"]))
            fewer = RememberedIds(self.seen[most])
            fewer.give_way(at)
            self.seen[most] = fewer.state()
        return [Persist(key="seen", value=encode_json(self.seen))]

    def agent_of(self, by: str) -> str:
        """Return the agent whose share of the room a member uses: its DID. All DIDs that are merely claimed are one agent."""
        member = self.members.get(by, {"proved": True, "owner": BROKER})
        return member["owner"] if member["proved"] else ""

    def has_room(self, agent: str, size: int, copies: int) -> bool:
        """Whether copies of a message fit. An agent has at most as many bytes as stay free, so that there is room for others."""
        added, own, every = size * copies, 0, 0
        for entry in self.waiting.values():
            waits = len(encode_json(entry["message"]))
            every += waits
            own += waits if entry.get("of") == agent else 0
        return size <= MAX_MESSAGE and own + added <= MAX_WAITING - every - added

    def keep(self, number: str) -> Persist:
        """Keep a message beyond this session."""
        entry = self.waiting[number]
        return Persist(key=f"wait:{number}", value=encode_json({**entry, "sent": 0}))

    def forget(self, number: str) -> list[Effect]:
        """Remove a message that is confirmed, expired or given up."""
        name = self.waiting.pop(number)["to"]
        return [Persist(key=f"wait:{number}", value=None), SetTimer(name=f"send:{_key(name)}", seconds=None)]

    def restore(self, stored: dict[str, bytes], at: int) -> list[Effect]:
        """Go on with the messages of an earlier session. Its proved members are away until they join again."""
        for key, data in stored.items():
            what, _, name = key.partition(":")
            value = decode_json(data)
            if what == "member":
                self.members[value.pop("name")] = value
            elif what == "wait":
                self.waiting[name] = value
            elif what == "seen":
                self.seen = value
            else:
                self.rules = value
        self.waiting = {number: self.waiting[number] for number in sorted(self.waiting, key=int)}
        self.made = max((int(number) for number in self.waiting), default=0)
        gone = {entry["to"] for entry in self.waiting.values()} - self.members.keys()
        return [effect for name in sorted(gone) for effect in self.orphans(name, at)]


def _key(name: str) -> str:
    """Return a name as a part of a key or timer, which have fewer characters than names: any other would end the session."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]
