"""`python -m bench modules`: a handler in WebAssembly against the same one in Python, in the worker's own program: processor
time of its compilation, of an instance, and of an event, of a small and of a long message.

It runs in this process, because a worker cannot be measured in parts from outside.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import msgspec
from rich.console import Console

from treaty_consensus.handler import HandlerPackage, Runtime
from treaty_handler import encode_json
from treaty_sandbox.worker import framing, wasm
from treaty_sandbox.worker.main import Server

from . import RESULTS, report
from .servers import REPOSITORY

sys.path.append(str(REPOSITORY / "tests" / "support"))  # the handlers with code are the tests' own
from sandboxed import sandboxed_package, wasm_package

EVENTS = 300
BAR = 100.0
"""Microseconds of an instance."""
RESULT = RESULTS / "modules.json"
PARAMETERS = {"local": "did:key:a", "peer": "did:key:b", "seed": "0" * 32}


class Figure(msgspec.Struct, frozen=True):
    """What is kept of a run: medians, in microseconds of processor time. `events`: of messages of so many bytes."""

    compilation: float
    instance: float
    events: dict[str, float]
    python: dict[str, float]
    bar: float
    met: bool
    machine: str
    measured: str


def measure() -> Figure:
    """Measure both."""
    engine = wasm.Engine.prepare()
    assert engine is not None, "it needs the extra wasm"
    module = wasm_package("1.0").module
    compilation = _median(lambda: engine.compile(module), 5)
    compiled = engine.load(engine.compile(module))
    instance = _median(lambda: wasm.Instance(engine, compiled), EVENTS)
    events, python = (_events(_server(engine, package)) for package in (wasm_package("1.0"), sandboxed_package("1.0")))
    today = time.strftime("%Y-%m-%d", time.gmtime())
    return Figure(compilation, instance, events, python, BAR, instance <= BAR, report.machine(), today)


def _server(engine: wasm.Engine, package: HandlerPackage) -> Server:
    server, files = Server(engine), package.files
    if package.manifest.runtime is Runtime.WASM:
        _ask(server, "load-wasm", engine.compile(package.module))
    else:
        code = framing.decode_any(_ask(server, "compile", {path: files[path] for path in files if path.endswith(".py")})[1])
        data = {path: files[path] for path in files if not path.endswith(".py")}
        _ask(server, "load", code, data, package.entry_point.module, package.entry_point.attribute)
    _ask(server, "open", 1, "provider", PARAMETERS, b"")
    return server


def _ask(server: Server, *request: object) -> list[msgspec.Raw]:
    return msgspec.msgpack.decode(server.reply(framing.encode_payload(*request))[framing.HEADER :], type=list[msgspec.Raw])


def _events(server: Server) -> dict[str, float]:
    """Return the time of a message, by its length."""
    times: dict[str, float] = {}
    for name, padding in (("small", 0), ("16 KiB", 16_000)):
        message = {"messageId": "m", "type": "REQUEST", "action": "getProductInfo", "productId": "P1", "more": "x" * padding}
        received = {"peer": "did:key:b", "data": encode_json(message), "stream": "", "at": 0}
        frame, spent = framing.encode_payload("event", 1, "received", received), list[float]()
        for _ in range(EVENTS):
            begun = time.process_time()
            reply = server.reply(frame)
            spent.append(1e6 * (time.process_time() - begun))
            call: Any = msgspec.msgpack.decode(reply[framing.HEADER :])[1][0][1]["call"]
            _ask(server, "event", 1, "result", {"call": call, "error": {"code": 404, "message": "None."}})
        times[name] = round(median(spent), 1)
    return times


def _median(work: Callable[[], object], times: int) -> float:
    spent = []
    for _ in range(times):
        begun = time.process_time()
        work()
        spent.append(1e6 * (time.process_time() - begun))
    return round(median(spent), 1)


def main(arguments: list[str]) -> int:
    """Run; the exit status is 1 if an instance takes longer than the bar."""
    argparse.ArgumentParser(prog="python -m bench modules", description=__doc__).parse_args(arguments)
    figure = measure()
    RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(figure), indent=2) + b"\n")
    console, verdict = Console(highlight=False, emoji=False), "[green]met[/]" if figure.met else "[red]missed[/]"
    console.print(f"{figure.compilation} us to compile; {figure.instance} us an instance (bar {figure.bar}): {verdict}")
    for name, spent in figure.events.items():
        console.print(f"{spent} us an event, {name}; in Python {figure.python[name]}")
    return 0 if figure.met else 1
