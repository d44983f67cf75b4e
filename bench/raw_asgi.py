"""The baseline of every HTTP row: an ASGI application that does nothing but send, on the server and with the settings of the
registry's own.

    python -m bench.raw_asgi --port PORT ANSWERS

ANSWERS is a pickle of {(path, query): (headers, body)}, whole answers of the registry recorded before, so that both send the same
bytes and the ratio is what finding or making them costs.
"""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import TypeAlias

import uvloop
from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server
from litestar.types import ASGIApp, HTTPResponseBodyEvent, HTTPResponseStartEvent, Receive, Scope, Send

Answers: TypeAlias = dict[tuple[str, bytes], tuple[list[tuple[bytes, bytes]], bytes]]


def application(answers: Answers) -> ASGIApp:
    """An application that knows these answers, and nothing else."""
    events: dict[tuple[str, bytes], tuple[HTTPResponseStartEvent, HTTPResponseBodyEvent]] = {
        target: (
            {"type": "http.response.start", "status": 200, "headers": headers},
            {"type": "http.response.body", "body": body, "more_body": False},
        )
        for target, (headers, body) in answers.items()
    }

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        start, body = events[scope["path"], scope["query_string"]]
        await send(start)
        await send(body)

    return answer


def main() -> None:
    """Serve until terminated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("answers", type=Path)
    arguments = parser.parse_args()
    server = Server(
        application(pickle.loads(arguments.answers.read_bytes())),
        address="127.0.0.1",
        port=arguments.port,
        interface=Interfaces.ASGI,
        http=HTTPModes.auto,
        websockets=False,
        backlog=1024,
        log_enabled=False,
    )
    uvloop.run(server.serve())


if __name__ == "__main__":
    main()
