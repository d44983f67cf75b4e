"""The table of the keys of agent.toml: each key and its default is read from the classes of the configuration."""

from __future__ import annotations

from treaty_agent.config import AgentConfig, settings
from treaty_agent.sessions.interfaces import PATIENT

from . import GENERATORS
from .limits import size, table

_BYTES = {"limits.waiting_bytes", "sandbox.memory", "sandbox.reply"}
_NEGOTIATING = dict(settings(AgentConfig(timeouts=PATIENT)))
_MEANINGS = {
    "timeouts.hello": "seconds for the other Hello",
    "timeouts.code": "seconds for both codes after an agreement",
    "timeouts.reply": "seconds for an answer, or for this side's own decision",
    "timeouts.idle": "seconds without a message in a running session",
    "timeouts.send": "seconds for the peer to read one message",
    "timeouts.flush": "seconds for the peer to read the last messages",
    "timeouts.handler": "seconds for a handler to take one event",
    "timeouts.answer": "seconds beyond an operation's own time",
    "timeouts.report": "seconds for a co-signature, and for a session to get it after its application has left",
    "timeouts.operation": "seconds for an operation whose own time is not known yet",
    "timeouts.connect": "seconds for opening a session, unless a person or a negotiation decides",
    "timeouts.registry": "seconds for one exchange with a registry",
    "timeouts.close": "seconds that the end of the agent waits for reports and publications of former sessions",
    "timeouts.drain": "seconds for calls under way when the agent stops",
    "timeouts.provide": "seconds for the other provided protocols, once one is ready",
    "limits.rounds": "protocolNegotiation messages of both sides together, at most 10",
    "limits.test_rounds": "testCasesNegotiation messages of both sides together, at most 10",
    "limits.fix_rounds": "errors that each side may report",
    "limits.questions": "questions that each side may ask",
    "limits.early_frames": "frames of early data",
    "limits.waiting_frames": "frames kept in each direction until the session runs",
    "limits.waiting_bytes": "their bytes",
    "flow.timeouts.first": "seconds for the first message",
    "flow.timeouts.reply": "seconds for each answer",
    "flow.timeouts.idle": "seconds without a message",
    "flow.timeouts.work": "seconds for evaluating, fetching and starting a handler; less than `reply`",
    "flow.timeouts.renew": "seconds before its end when the initiator renews a session, at most half of its time; 0 for never",
    "flow.limits.rounds": "offers of parameters for one protocol",
    "flow.limits.proposals": "protocols that are proposed",
    "flow.limits.batch": "protocols at once",
    "flow.limits.renegotiations": "changes of one session",
    "flow.limits.lifetime": "seconds that a session may be confirmed for",
    "flow.limits.ready": "seconds that a responder may put off being ready",
    "flow.thresholds.latency": "seconds of a call; above this mean a session is slow",
    "flow.thresholds.failures": "part of failed calls; above it a session fails",
    "flow.thresholds.samples": "calls before a session is judged",
    "flow.thresholds.window": "newest calls that are judged",
    "flow.thresholds.patience": "changes of parameters before another protocol is tried",
    "flow.thresholds.pause": "seconds between two changes",
    "flow.context.resource_availability": "`low`, `medium` or `high`; told to the peer",
    "flow.context.connection_type": "a word; told to the peer",
    "flow.context.preferences": "words; told to the peer",
    "flow.shortcuts": "propose a former agreement at once",
    "capacity.sessions": "connections served at once; a further one gets 503. One network gets at most half",
    "capacity.openings": "sessions being opened at once, with one address and of all peers; others wait",
    "capacity.wait": "seconds that a peer's session, and a function, wait for their turn; then they are refused, not begun",
    "capacity.negotiations": "sessions of other initiators in which the agent negotiates at once",
    "capacity.preloads": "handlers that are loaded at once at the start",
    "capacity.lingering": "own sessions that wait for their report after the application has left; a further one ends without it",
    "capacity.functions": "functions of requests and events that run at once for one session; others wait",
    "capacity.streams": "streams that a session provides at once; a further one fails with 503",
    "capacity.threads": "functions without `async` that run at once for one protocol; others wait. One network gets at most half",
    "capacity.members": "members of one session in a shared role; one network gets at most half",
    "peers.sessions": "sessions with one peer of `Agent.peer` at once",
    "peers.attempts": "times that one call is sent",
    "peers.lifetime": "seconds after which a session gets no new calls",
    "workers.max_workers": "sandboxed workers of sessions, prewarmed ones included",
    "workers.idle": "idle seconds after which a session gives its worker up",
    "workers.starts": "workers that start at once; others wait",
    "workers.wait": "seconds that an event waits for a worker; then a call is refused, not begun",
    "sandbox.memory": "memory of a worker",
    "sandbox.reply": "one reply of a worker",
    "sandbox.cpu": "seconds of processor time over a worker's life",
    "sandbox.start": "seconds for making the sandbox",
    "sandbox.load": "seconds of processor time for compiling and importing a handler",
    "sandbox.event": "seconds of processor time for one event",
    "sandbox.wall": "seconds for one event in all; a pause of the agent's process counts a part at most",
    "recordings": "a folder for each session of a handler as a vector; relative to the home",
    "transcripts": "a folder for a transcript of each session; relative to the home",
}


def agent_keys() -> str:
    """The keys of agent.toml. Raises `KeyError` for one without a meaning."""
    keys = settings(AgentConfig())
    return table(("key", "default", "meaning"), ((f"`{key}`", _default(key, value), _MEANINGS[key]) for key, value in keys))


def _default(key: str, value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "`[]`"
    assert isinstance(value, int | float)
    shown = f"{value} ({size(value)})" if key in _BYTES else f"{value:g}"
    negotiating = _NEGOTIATING[key]
    return shown if negotiating == value else f"{shown}; with negotiators {negotiating:g}"


GENERATORS["agent-keys"] = agent_keys
