"""The table of errors that application code meets: docs/guides/errors.md."""

from __future__ import annotations

from treaty_consensus.codes import Code
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

from . import GENERATORS
from .limits import table

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
    SandboxCode.UNAVAILABLE: "do what the fix says; `treaty doctor` names each level",
    SessionCode.BUSY: "call later; `Agent.peer` does",
    SessionCode.CLOSED: "connect again; `Agent.peer` does",
    SessionCode.NO_WORKER: "call later, or allow more workers",
    SessionCode.OUTCOME_UNKNOWN: "repeat an idempotent call; of others ask the peer first",
    SessionCode.PEER_CODE: "read `peer_code`",
    SessionCode.PEER_REFUSED: "read `peer_code`",
}


def advice() -> str:
    """The table of the codes whose action follows from nothing else."""
    return table(("code", "do"), ((f"`{code}`", does) for code, does in sorted(_ADVICE.items())))


GENERATORS["error-advice"] = advice
