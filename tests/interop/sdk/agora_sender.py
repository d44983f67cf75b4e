"""Runs inside the environment of Agora's own package: how its sender fetches a protocol and converses, one call a line."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agora import Protocol, Sender
from agora.common.storage import JSONStorage
from agora.sender.components.transporter import SimpleSenderTransporter
from agora.utils import download_and_verify_protocol


def fetch(protocol_hash: str, source: str) -> Mapping[str, object] | None:
    """The metadata of the protocol at a source and the hash of its text, or None if the text has another hash."""
    document = download_and_verify_protocol(protocol_hash, source)
    return None if document is None else {**Protocol(document, [source], None).metadata, "hash": Protocol(document, [], {}).hash}


def converse(target: str, protocol_hash: str, source: str, bodies: list[str]) -> list[object]:
    """The answers to some bodies in one conversation, which ends."""
    with SimpleSenderTransporter().new_conversation(target, len(bodies) > 1, protocol_hash, [source]) as conversation:
        return [conversation(body) for body in bodies]


def perform(target: str, protocol_hash: str, source: str, routine: str, data: dict[str, object]) -> object:
    """The result of a task that a sender performs by a protocol with a routine for it, so that it needs no model."""
    document = download_and_verify_protocol(protocol_hash, source)
    assert document is not None
    metadata = Protocol(document, [source], None).metadata
    with tempfile.TemporaryDirectory() as folder:
        sender = Sender.make_default(None, storage=JSONStorage(str(Path(folder) / "sender.json")))
        sender.memory.register_new_protocol(protocol_hash, document, [source], metadata)
        sender.memory.set_default_suitability(protocol_hash, "task", "adequate")
        sender.memory.register_implementation(protocol_hash, routine)
        return sender.execute_task("task", {"input_schema": {}, "output_schema": {}}, data, target)


FUNCTIONS: dict[str, Callable[..., Any]] = {function.__name__: function for function in (fetch, converse, perform)}

if __name__ == "__main__":
    out = sys.stdout
    sys.stdout = sys.stderr  # what the package prints is not an answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": FUNCTIONS[request["call"]](**request["arguments"])}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=out, flush=True)
