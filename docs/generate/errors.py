"""The tables of errors that application code meets: docs/guides/errors.md."""

from __future__ import annotations

import ast
import inspect
from functools import cache, partial

from treaty_consensus import codes as consensus
from treaty_consensus import errors
from treaty_consensus.codes import Code
from treaty_consensus.errors import Origin, TreatyError, Unavailable
from treaty_io import codes as client
from treaty_io.codes import (
    AgentCode,
    AuthenticationCode,
    ConnectionCode,
    HelloCode,
    OperationCode,
    PeerCode,
    SandboxCode,
    SessionCode,
)

from . import GENERATORS, ROOT, SITE
from .syntax import tree_of

CLIENT = ROOT / "client"
ROOMS = (
    *(f"treaty_agent/{room}" for room in ("agent", "authentication", "discovery", "rpc", "sessions", "transport")),
    *("treaty_anp", "treaty_io/admission", "treaty_io/network", "treaty_sandbox"),
    *("treaty_client/registries/api.py", "treaty_client/registries/unreachable.py"),
)
"""The parts of the client whose errors `Agent` and `Session` pass on."""

GROUPS = {
    "calls": ("operation", "session", "peer", "agent", "sandbox", "handler", "system"),
    "reaching": ("connection", "discovery", "egress", "network", "authentication", "did", "secure", "rpc"),
    "agreeing": ("hello", "frame", "meta", "flow", "negotiation", "report"),
    "registries": ("registry", "checkpoint", "status"),
}
"""The tables, and the prefixes of their codes; all other prefixes are in the last table."""

_ADVICE: dict[Code, str] = {
    AgentCode.LATE: "wait; the agent goes on trying",
    AgentCode.NO_CANDIDATES: "name a protocol, or another topic",
    AuthenticationCode.TIME: "compare the clocks",
    ConnectionCode.REFUSED: "read `peer_code`",
    ConnectionCode.SESSION: "open another session",
    HelloCode.DESTINATION: "compare `peer=` with the DID of the agent at the address",
    HelloCode.REFUSED: "read `peer_code`",
    OperationCode.ARGUMENTS: "correct the arguments; the message names them",
    PeerCode.CHANGED: "accept the new DID, or do not call",
    PeerCode.CLOSED: "make another handle",
    SandboxCode.UNAVAILABLE: "install bubblewrap",
    SessionCode.BUSY: "call later; `Agent.peer` does",
    SessionCode.CLOSED: "connect again; `Agent.peer` does",
    SessionCode.NO_WORKER: "call later, or allow more workers",
    SessionCode.OUTCOME_UNKNOWN: "repeat an idempotent call; of others ask the peer first",
    SessionCode.PEER_CODE: "read `peer_code`",
    SessionCode.PEER_REFUSED: "read `peer_code`",
}
_AGAIN = {
    Origin.CALLER: "repeat it later",
    Origin.PEER: "repeat it later; `Agent.peer` does",
    Origin.NETWORK: "repeat it later; `Agent.peer` does",
    Origin.REGISTRY: "repeat it when the registry answers",
}
_NOT_AGAIN = {
    Origin.CALLER: "correct this side; the message says where",
    Origin.PEER: "tell the peer's operator the code",
    Origin.NETWORK: "correct this side; the message says where",
    Origin.REGISTRY: "ask the registry's operator, or trust another one",
}


@cache
def met() -> tuple[Code, ...]:
    """The codes that the rooms name and that errors carry, in the order of their texts."""
    classes = {name: found for module in (consensus, client) for name, found in inspect.getmembers(module, inspect.isclass)}
    named = set[Code]()
    for room in ROOMS:
        for path in [CLIENT / room] if room.endswith(".py") else sorted((CLIENT / room).rglob("*.py")):
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in classes:
                    found = getattr(classes[node.value.id], node.attr, None)
                    named |= {found} if isinstance(found, Code) and found.kinds else set()
    return tuple(sorted(named))


def advice(code: Code, error: TreatyError) -> str:
    """The action after an error."""
    return _ADVICE.get(code, (_AGAIN if error.retryable else _NOT_AGAIN)[error.origin])


def table(group: str) -> str:
    """The table of a group."""
    others = {prefix for prefixes in GROUPS.values() for prefix in prefixes}
    lines = ["| code | family | whose fault | repeat | the error says | do |", "|---|---|---|---|---|---|"]
    for code in met():
        prefix = code.partition(".")[0]
        if prefix not in GROUPS[group] and not (group == "registries" and prefix not in others):
            continue
        made = [kind(code, "") for kind in code.kinds]
        families = ", ".join(error.family for error in made)
        origin = ", ".join(dict.fromkeys(error.origin.value for error in made))
        answers = ("yes" if error.retryable else "no" for error in made)
        # In the order of the families, unless all have one answer.
        again = "if idempotent" if code == SessionCode.OUTCOME_UNKNOWN else ", ".join(dict.fromkeys(answers))
        does = "; ".join(dict.fromkeys(advice(code, error) for error in made))
        lines.append(f"| `{code}` | {families} | {origin} | {again} | {code.meaning} | {does} |")
    return "\n".join(lines)


def families() -> str:
    """The table of families."""
    lines = ["| family | it means | repeat |", "|---|---|---|"]
    classes: list[type[TreatyError]] = [Unavailable]
    classes += [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, TreatyError)]
    for kind in dict.fromkeys(found for found in classes if found is not TreatyError):
        summary = " ".join((inspect.getdoc(kind) or "").split())
        lines.append(f"| `{kind.__name__}` | {summary} | {'yes' if kind is Unavailable else 'no'} |")
    return "\n".join(lines)


SITE.update({f"errors-{group}": partial(table, group) for group in GROUPS})
GENERATORS["error-families"] = families
