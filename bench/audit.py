"""`python -m bench audit`: `treaty audit` of a log of a million statements: time, processor time, memory.

The log is `long_log`'s, as static files behind Python's HTTP server. The command is a process of its own; it mirrors until the
mirror has its checkpoint, and replays from then on. Memory is the proportional set size (PSS) of that process and of the two that
check signatures for it, read all the time; the largest counts.

A second audit of the same log resumes the replay that the first one saved: nothing is new, so all of it is reading that state.

The baseline is nothing but Ed25519: every signature of the same log over its message, by a key that is loaded already, in one
thread of this process. The ratio is of processor time, all processes of the audit together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from rich.console import Console

from treaty_consensus import statement
from treaty_consensus.did import Did, decode_multikey
from treaty_consensus.kinds import Identity
from treaty_consensus.log.tiles import TILE_WIDTH, Bundle, decode_bundle

from . import RESULTS, long_log, report
from .servers import SceneFailed, free_port, listens, ready, running, workspace
from .sessions import Memory

LEAVES = 1_000_000
BAR_SECONDS, BAR_MIB = 600, 1536
RESULT = RESULTS / "audit.json"
_PROGRAM = Path(sys.executable).with_name("treaty")


class Figure(msgspec.Struct, frozen=True):
    """What is kept of a run. `seconds`: of the whole audit, by the clock; `mirror`, `replay`: the parts of it; `processor`:
    seconds of all processors, `mirror_processor` to mirror and `replay_processor` to replay; `again`, `again_processor`: of the
    second audit; `snapshot_mib`: what it read; `baseline`: for the signatures
    alone; `ratio`: the replay's to that. `peak`: MiB, all processes."""

    leaves: int
    signatures: int
    decisions: int
    seconds: float
    mirror: float
    replay: float
    statements_a_second: float
    mirror_processor: float
    replay_processor: float
    again: float
    again_processor: float
    snapshot_mib: float
    baseline: float
    ratio: float
    peak: float
    log_mib: float
    bar_seconds: int
    bar_mib: int
    met: bool
    machine: str
    measured: str


@dataclass(frozen=True)
class _Run:
    """Seconds by the clock, and of processors, for both parts."""

    mirror: tuple[float, float]
    replay: tuple[float, float]
    peak: float
    said: dict[str, Any]


def measure(folder: Path, log: Path, tell: Callable[[str], None]) -> Figure:
    """Measure audits of the log in `log`, with `folder` for all else. Raises `SceneFailed` unless they end well."""
    with ExitStack() as stack:
        port, printed = free_port(), folder / "server.log"
        command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(log)]
        server = stack.enter_context(running([*command, "--protocol", "HTTP/1.1"], printed))
        asyncio.run(ready(server, printed, lambda: listens(port)))
        name = f"http://127.0.0.1:{port}#{long_log.LOG_KEY.verifier}"
        tell("the audit")
        run = _audit(name, folder / "home")
        tell("the audit once more")
        again = _audit(name, folder / "home")
        if again.said["resumed"] != run.said["size"]:
            raise SceneFailed("the second audit did not resume the first one's replay")
    tell("the signatures alone")
    leaves = run.said["size"]
    signatures, baseline = _baseline(log, leaves)
    (mirror, mirror_processor), (replay, replay_processor) = run.mirror, run.replay
    return Figure(
        leaves=leaves,
        signatures=signatures,
        decisions=len(run.said["decisions"]),
        seconds=round(mirror + replay, 1),
        mirror=round(mirror, 1),
        replay=round(replay, 1),
        statements_a_second=round(leaves / replay),
        mirror_processor=round(mirror_processor, 1),
        replay_processor=round(replay_processor, 1),
        again=round(again.mirror[0] + again.replay[0], 1),
        again_processor=round(again.mirror[1] + again.replay[1], 1),
        snapshot_mib=round((folder / "home" / "audit" / long_log.ORIGIN / "replay").stat().st_size / 2**20, 1),
        baseline=round(baseline, 1),
        ratio=round(replay_processor / baseline, 2),
        peak=round(run.peak, 1),
        log_mib=round(sum(file.stat().st_size for file in (log / "tile").rglob("*") if file.is_file()) / 2**20, 1),
        bar_seconds=BAR_SECONDS,
        bar_mib=BAR_MIB,
        met=mirror + replay <= BAR_SECONDS and run.peak <= BAR_MIB,
        machine=report.machine(),
        measured=time.strftime("%Y-%m-%d", time.gmtime()),
    )


def _audit(name: str, home: Path) -> _Run:
    begun, mirrored = time.monotonic(), None
    output, checkpoint = home.with_suffix(".json"), home / "audit" / long_log.ORIGIN / "checkpoint"
    with output.open("wb") as file:
        process = subprocess.Popen([_PROGRAM, "audit", name, "--home", str(home), "--json"], stdout=file)
    memory = Memory(process.pid)
    try:
        while True:
            if mirrored is None and checkpoint.exists():
                mirrored = time.monotonic() - begun, _processor(process.pid)
            memory.read()
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(0.5)
    except BaseException:
        process.kill()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SceneFailed(f"the audit ended with {process.returncode}: {output.read_text()}")
    assert mirrored is not None
    seconds, processor = mirrored
    rest = time.monotonic() - begun - seconds, usage.ru_utime + usage.ru_stime - processor
    return _Run(mirrored, rest, memory.peak[0] / 1024, json.loads(output.read_bytes()))


def _processor(pid: int) -> float:
    """Seconds of processors that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _baseline(log: Path, size: int) -> tuple[int, float]:
    """How many signatures there are, and the processor time to verify them."""
    keys: dict[str, Ed25519PublicKey] = {}
    number, spent = 0, 0.0
    for leaves in _bundles(log, size):
        made = [statement.parse(leaf) for leaf in leaves]
        for one in made:
            if isinstance(one.body, Identity):
                keys |= {key.id: _loaded(key.multikey) for key in one.body.keys}
            keys |= {key_id: _loaded(did.text.removeprefix("did:key:")) for key_id, did in _self_named(one) if key_id not in keys}
        signed = [
            (keys[key_id], signature, statement.pre_authentication_encoding(one.payload))
            for one in made
            for key_id, signature in zip(one.by, one.signatures, strict=True)
        ]
        begun = time.process_time()
        for key, signature, message in signed:
            key.verify(signature, message)
        spent += time.process_time() - begun
        number += len(signed)
    return number, spent


def _self_named(made: statement.Statement) -> Iterator[tuple[str, Did]]:
    return ((key_id, did) for key_id, did in zip(made.by, made.authors, strict=True) if did.method == "key")


def _loaded(multikey: str) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(decode_multikey(multikey))


def _bundles(log: Path, size: int) -> Iterator[list[bytes]]:
    for index in range(-(-size // TILE_WIDTH)):
        bundle = Bundle(index, min(TILE_WIDTH, size - index * TILE_WIDTH))
        yield decode_bundle((log / bundle.path.removeprefix("/")).read_bytes(), bundle.width)


def main(arguments: list[str]) -> int:
    """Run, show the figure and keep it; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench audit", description=__doc__)
    parser.add_argument("--number", type=int, default=LEAVES, help=f"how many leaves (default: {LEAVES})")
    parser.add_argument("--log", type=Path, metavar="FOLDER", help="where the log is, or is to be built and kept")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that every process that was started is ended
    console = Console(highlight=False, emoji=False)
    with console.status("the scene") as status, workspace() as folder:
        log = chosen.log or folder / "log"
        if not (log / "checkpoint").exists():
            log.mkdir(parents=True, exist_ok=True)
            long_log.build(log, chosen.number, lambda done: status.update(f"the log: {done:,} leaves"))
        figure = measure(folder, log, status.update)
    RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(figure), indent=2) + b"\n")
    verdict = "[green]met[/]" if figure.met else "[red]missed[/]"
    console.print(
        f"{figure.leaves:,} leaves in {figure.seconds:,} s ({figure.mirror:,} s to mirror, {figure.replay:,} s to replay), "
        f"{figure.peak:,} MiB at most; bar {figure.bar_seconds} s, {figure.bar_mib:,} MiB, {verdict}"
    )
    console.print(
        f"{figure.statements_a_second:,} statements a second; {figure.replay_processor:,} s of processors to replay, "
        f"{figure.baseline:,} s for {figure.signatures:,} signatures alone: {figure.ratio} times as much"
    )
    console.print(
        f"the second audit: {figure.again:,} s, {figure.again_processor:,} s of processors, from {figure.snapshot_mib:,} MiB"
    )
    return 0
