"""Check contents in a separate process, and define the frames of its socket.

Standard input is a stream socket. A frame is its length (4 bytes, big-endian) and as many bytes of MessagePack:

    job       {"type": "check", "kind": "publish" or "handler", "body": the statement's body, "contents": {SHA-256: bytes}},
              or {"type": "read", "kind": a key of `readers.READERS`, "name", "contents": [bytes]}
    verdict   {"type": "accepted", "facts": those of a handler, or null}, {"type": "read", "value"}: the reader's result, encoded,
              or {"type": "rejected", "family", "code", "message", "fix"}: the error that was raised

Each job gets one verdict. The process limits its memory once, and for each job its processor time (SIGPROF) and its real time
(SIGALRM). It exits with status `EXHAUSTED` when its memory is used up, and ends when its socket is closed. It starts with an
empty environment, and with no descriptors except the socket and /dev/null.

These limits bound the cost of a check. They are not a sandbox: a process that malicious input takes over has the rights of its
user.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from typing import Annotated, Literal

import msgspec

from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError
from treaty_consensus.kinds import Handler, Publish

from ..catalogue.handler_facts import HandlerFacts
from ..catalogue.readers import READERS, ReaderKind
from .contents import check_contents

HEADER = 4
MAX_VERDICT = 256 * 1024
"""Bytes of a verdict: two texts of `errors.MAX_TEXT` characters, each escaped."""
MAX_READING = 2 * 1024 * 1024
"""Bytes of a verdict with a reader's result. The readers cut all that they show."""
EXHAUSTED = 77
FAMILIES: dict[str, type[TreatyError]] = {"Malformed": Malformed, "TooLarge": TooLarge, "Refused": Refused}

_NICE = 5  # lower priority than the parent, which serves requests
_KINDS: dict[str, type[Publish | Handler]] = {"publish": Publish, "handler": Handler}


class Check(msgspec.Struct, frozen=True, tag="check"):
    """A job: a statement's body, still encoded, and the blobs that it names."""

    kind: Literal["publish", "handler"]
    body: msgspec.Raw
    contents: dict[str, bytes]


class Read(msgspec.Struct, frozen=True, tag="read"):
    """A job: run a reader on blobs. `name`: a file name for the reader, possibly empty."""

    kind: ReaderKind
    name: str
    contents: list[bytes]


class AcceptedContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="accepted"):
    """The verdict that the contents follow the rules of the statement's type. `facts`: of a handler."""

    facts: HandlerFacts | None


class ReadContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="read"):
    """The result of a reader, still encoded."""

    value: msgspec.Raw


class Rejected(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="rejected"):
    """The verdict that the contents break a rule: the error. `family` is the name of its class."""

    family: Literal["Malformed", "TooLarge", "Refused"]
    code: Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9-]+(\.[a-z0-9-]+)+\Z", max_length=64)]
    message: str
    fix: str

    @property
    def error(self) -> TreatyError:
        """Return the error as an exception."""
        return FAMILIES[self.family](self.code, self.message, fix=self.fix)


def check_job(body: Publish | Handler, contents: dict[str, bytes]) -> Check:
    """Return the job of checking the blobs that a statement names."""
    kind: Literal["publish", "handler"] = "publish" if isinstance(body, Publish) else "handler"
    return Check(kind, msgspec.Raw(msgspec.msgpack.encode(body)), contents)


def encode_job(job: Check | Read) -> bytes:
    """Return the frame of a job."""
    return _frame(job)


def decode_verdict(payload: bytes) -> AcceptedContent | ReadContent | Rejected:
    """Decode the payload of a verdict frame. Raises `msgspec.DecodeError` when it has another form."""
    return msgspec.msgpack.decode(payload, type=AcceptedContent | ReadContent | Rejected)


def main() -> None:
    """Answer jobs until the socket is closed.

    Arguments of the command line: processor seconds and real seconds for each job, and bytes of memory.
    """
    processor, patience, memory = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    # No core dumps: input that crashes a worker again and again would fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A check writes no file.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # Not RLIMIT_AS, which also counts mapped memory. A parser that exceeds the limit gets a MemoryError.
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    os.nice(_NICE)
    with socket.socket(fileno=0) as channel:
        try:
            while (payload := _receive(channel)) is not None:
                # Signals also end a parser inside C code, and also after the parent has died. RLIMIT_CPU would count
                # all jobs of the process together.
                signal.setitimer(signal.ITIMER_PROF, processor)
                signal.setitimer(signal.ITIMER_REAL, patience)
                verdict = _judge(payload)
                # Before the answer is sent: a parent that reads late must not get the worker killed.
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
                channel.sendall(_frame(verdict))
        except MemoryError:
            # `_exit`, because an orderly end may need memory too.
            os._exit(EXHAUSTED)


def _judge(payload: bytes) -> AcceptedContent | ReadContent | Rejected:
    job = msgspec.msgpack.decode(payload, type=Check | Read)
    try:
        if isinstance(job, Read):
            return ReadContent(msgspec.Raw(msgspec.msgpack.encode(READERS[job.kind](job.name, *job.contents))))
        return AcceptedContent(check_contents(msgspec.msgpack.decode(job.body, type=_KINDS[job.kind]), job.contents))
    # Only errors about the contents are verdicts. Any other exception ends the process; the parent then answers
    # `registry.busy`.
    except (Malformed, TooLarge, Refused) as error:
        family = next(name for name, kind in FAMILIES.items() if isinstance(error, kind))
        return Rejected(family, error.code, error.message, error.fix)  # type: ignore[arg-type]  # the names of FAMILIES


def _frame(message: msgspec.Struct) -> bytes:
    payload = msgspec.msgpack.encode(message)
    return len(payload).to_bytes(HEADER, "big") + payload


def _receive(channel: socket.socket) -> bytes | None:
    """Return the payload of the next frame, or None when the other end is closed."""
    header = channel.recv(HEADER, socket.MSG_WAITALL)
    # A short read means that the parent closed the socket or died.
    if len(header) < HEADER:
        return None
    size = int.from_bytes(header, "big")
    payload = channel.recv(size, socket.MSG_WAITALL)
    return payload if len(payload) == size else None
