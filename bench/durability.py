"""What a receipt costs that promises more than one disk: latency with copies and with a standby, against that without.

    .venv/bin/python -m bench durability              # three minutes

One registry a level, each on an empty database, with its blobs and head record in an object store (VersityGW, built from source
by Go). The level without any promise has all of them too, so the ratio is that of the promise. Every process is on loopback: add
a round trip to the store, or to the standby, to each latency.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from . import RESULTS
from .nodes import ORIGIN, Writer
from .servers import free_port, ready, running, workspace

REPOSITORY = Path(__file__).parents[1]
sys.path.append(str(REPOSITORY / "tests" / "support"))  # the object store and the pair of databases are the tests' own

import go_programs  # noqa: E402
from object_server import object_server  # noqa: E402
from postgres_pair import postgres_pair  # noqa: E402

LEVELS = {
    "one disk": (),
    "1 of 1 copies": ("--copies", "1"),
    "1 of 2 copies": ("--tiles", "s3://treaty/second", "--copies", "1"),
    "2 of 2 copies": ("--tiles", "s3://treaty/second", "--copies", "2"),
    "1 standby": ("--standbys", "1"),
}
"""Options of each level. All have `--tiles s3://treaty/tiles` first."""
SINGLE = 200
"""Statements that one writer sends, each after the receipt of the one before."""
ROUNDS = 4
RESULT, TABLE = RESULTS / "durability.json", RESULTS / "durability.md"
_PROGRAM = Path(sys.executable).with_name("treaty-registry")


@asynccontextmanager
async def registry(folder: Path, options: Sequence[str]) -> AsyncIterator[str]:
    """The URL of a registry with a new log and a primary database with one standby, which commits wait for if it is promised."""
    await asyncio.to_thread(folder.mkdir)
    await asyncio.to_thread(folder.chmod, 0o755)
    async with postgres_pair(folder, synchronous="--standbys" in options) as pair:
        name, port = folder.name, free_port()
        shared = ["--database", pair.primary.url, "--blobs", f"s3://treaty/{name}/blobs", "--head", f"s3://treaty/{name}/head"]
        own = ["--data", str(folder / "registry"), "--origin", ORIGIN]
        await asyncio.to_thread(subprocess.run, [str(_PROGRAM), "init", *shared, *own], check=True, capture_output=True)
        stores = [option.replace("s3://treaty", f"s3://treaty/{name}") for option in ("--tiles", "s3://treaty/tiles", *options)]
        log = folder / "registry.log"
        command = [str(_PROGRAM), "serve", *shared, *own, "--port", str(port), "--quota", "100000", "--json", *stores]
        with running(command, log) as process:
            await ready(process, log, lambda: b'{"origin"' in log.read_bytes())
            yield f"http://127.0.0.1:{port}/statements"


async def latency(url: str) -> float:
    """Seconds from a statement to its receipt, as the median of one writer."""
    writer, times = Writer(), []
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        for _ in range(SINGLE):
            leaf, began = writer.leaf(), time.perf_counter()
            answer = await http.post(url, content=leaf, headers={"Content-Type": "application/json"})
            assert answer.status_code == 201, answer.text
            times.append(time.perf_counter() - began)
    return statistics.median(times)


async def measured(folder: Path) -> dict[str, dict[str, float]]:
    """Each level beside the one without a promise, turn by turn."""
    found: dict[str, dict[str, float]] = {}
    for number, (level, options) in enumerate(LEVELS.items()):
        times: dict[str, list[float]] = {"latency": [], "plain latency": []}
        async with registry(folder / f"level{number}", options) as url, registry(folder / f"plain{number}", ()) as plain:
            for turn in range(ROUNDS):
                sides = [("", url), ("plain ", plain)]
                for side, where in sides if turn % 2 else sides[::-1]:
                    times[f"{side}latency"].append(await latency(where))
        middle = {name: statistics.median(values) for name, values in times.items()}
        found[level] = {
            "latency_ms": round(middle["latency"] * 1000, 1),
            "latency_ratio": round(middle["latency"] / middle["plain latency"], 2),
        }
        print(level, json.dumps(found[level]), flush=True)
    return found


def main(arguments: Sequence[str]) -> int:
    """Measure, and write the results."""
    argparse.ArgumentParser(prog="python -m bench durability", description=__doc__).parse_args(arguments)
    with workspace() as folder:
        cache = REPOSITORY / ".pytest_cache" / "d" / "go"
        cache.mkdir(parents=True, exist_ok=True)
        (folder / "store").mkdir()
        with object_server(folder / "store", go_programs.build("s3", cache) / "versitygw"):
            found: dict[str, Any] = {"processors": os.cpu_count(), "levels": asyncio.run(measured(folder))}
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    TABLE.write_text(_table(found))
    return 0


def _table(found: dict[str, Any]) -> str:
    rows = "".join(
        f"| {level} | {item['latency_ms']} ms | {item['latency_ratio']} |\n" for level, item in found["levels"].items()
    )
    return f"""# Durability of a receipt

`.venv/bin/python -m bench durability`, on {found["processors"]} processors, which all processes share.

| a receipt promises | latency | against one disk |
|---|---|---|
{rows}
*latency*: from a statement to its receipt, the median of one writer. Each level was measured in turns with a registry that
promises nothing and has the same stores.
"""
