"""The rules of one stream of messages between an initiator and a receiver. Gateways and receivers hold the same ones."""

from __future__ import annotations

from treaty_handler import Value

from .frames import MAX_NAME

QUESTS = ("START_QUEST", "HOLD_QUEST", "STOP_QUEST")
RESPONSES = ("HOLD_RESPONSE", "STOP_RESPONSE")


def first_fault(message: Value) -> str:
    """Return the reason for which a message cannot begin a stream, or ""."""
    if message["session_status"] != "START_QUEST":
        return "The first message of a stream is START_QUEST."
    names = (message["session_id"], message["sender_id"], message["receiver_id"])
    if not names[0] or any(len(name) > MAX_NAME for name in names):
        return f"The first message of a stream names its session; a name has at most {MAX_NAME} characters."
    return ""


def quest_fault(session: Value, message: Value) -> str:
    """Return the reason for which the initiator may not send this message in its session, or "".

    A stream has one session: the id of another one would join the stream of another initiator. It has one sender, which was
    checked with the first message.
    """
    if message["session_id"] != session["session_id"]:
        return "A message of a stream has the session_id of its first one."
    if (message["sender_id"], message["receiver_id"]) != (session["sender"], session["receiver"]):
        return "A stream has one sender and one receiver."
    if message["session_status"] not in ("HOLD_QUEST", "STOP_QUEST"):
        return "After the first message the initiator sends HOLD_QUEST and STOP_QUEST."
    return "No message follows STOP_QUEST." if session["last"] == "STOP_QUEST" else ""


def response_fault(session: Value, message: Value) -> str:
    """Return the reason for which the receiver may not send this message in its session, or ""."""
    if message["session_id"] != session["session_id"]:
        return "An answer has the session_id of its stream."
    if (message["sender_id"], message["receiver_id"]) != (session["receiver"], session["sender"]):
        return "An answer is of the receiver, to the sender."
    return "" if message["session_status"] in RESPONSES else "A receiver sends HOLD_RESPONSE and STOP_RESPONSE."


def tool_ids(request: Value) -> dict[str, str]:
    """Return the three ids of a request to a tool."""
    return {name: request[name] for name in ("sender_id", "receiver_id", "session_id")}


def tool_answer_ids(request: Value) -> dict[str, Value]:
    """Return the ids of the answer to a request with these ids."""
    return {"sender_id": request["receiver_id"], "receiver_id": request["sender_id"], "session_id": request["session_id"]}


def tool_answer_fault(request: Value, response: Value) -> str:
    """Return the reason for which this is no answer to a request, or "". The source's tools leave the ids out."""
    if any(response[name] not in ("", expected) for name, expected in tool_answer_ids(request).items()):
        return "The answer of the tool has the ids of another request."
    return ""


def due_response(session: Value) -> str:
    """Return the status of an answer whose application names none."""
    return "STOP_RESPONSE" if session["last"] == "STOP_QUEST" else "HOLD_RESPONSE"


def stopped(session_id: str, sender: str, receiver: str, reason: str, status: str = "STOP_RESPONSE") -> dict[str, Value]:
    """Return the message that ends a session after a timeout or an error."""
    return {
        "sender_id": sender,
        "receiver_id": receiver,
        "session_id": session_id,
        "session_status": status,
        "content": [{"text": reason}],
    }
