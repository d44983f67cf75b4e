"""How a witness of many logs holds up: python bench/witnessing.py [--logs 40000] [--rate 100] [--seconds 60]

A real witness process, with fsync, on the disk of this directory. Each request shows it the next head of another log, with the
consistency proof. The output is one JSON value: latencies in milliseconds, the memory of the process in MiB at the beginning of
each tenth of the run, and the time of its start.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import httpx

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "support")]

from ports import free_port  # noqa: E402
from witness_process import PROGRAM  # noqa: E402
from witnesses import History, leaves  # noqa: E402

from treaty_consensus.log.note import KeyType, SignerKey  # noqa: E402

HEADS = History.of(leaves(64))


def key_of(number: int) -> SignerKey:
    name = f"log-{number}.example"
    return SignerKey(name, KeyType.ED25519, hashlib.sha256(name.encode()).digest())


def memory(pid: int) -> float:
    """The resident memory of a process in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024, 1)


async def measure(logs: int, rate: float, seconds: float, folder: Path) -> dict[str, object]:
    keys = [key_of(number) for number in range(logs)]
    (folder / "keys").write_text("".join(f"{key.verifier}\n" for key in keys))
    port, begun = free_port(), time.monotonic()
    arguments = ["witness", "--data", folder / "w", "--logs", folder / "keys", "--port", port, "--name", "w.example/1", "--json"]
    process = await asyncio.create_subprocess_exec(PROGRAM, *map(str, arguments), stdout=-1, limit=2**28)
    assert process.stdout is not None
    await process.stdout.readline()
    started = time.monotonic() - begun
    sizes, choices = [0] * logs, random.Random(7)
    latencies: list[float] = []
    samples: list[float] = []
    refused = 0

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        nonlocal refused
        old = sizes[number]
        new = old + 1 + choices.randrange(4) if old < 60 else old
        sizes[number] = new
        request = HEADS.request(old, new, keys[number]).format()
        at = time.monotonic()
        answer = await client.post("/add-checkpoint", content=request)
        latencies.append((time.monotonic() - at) * 1000)
        refused += answer.status_code != 200

    busy: set[int] = set()
    try:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, limits=limits, timeout=60) as client:
            tasks: set[asyncio.Task[None]] = set()
            begun, sent, total = time.monotonic(), 0, int(rate * seconds)
            while sent < total:
                if sent % max(1, total // 10) == 0:
                    samples.append(memory(process.pid))
                await asyncio.sleep(max(0.0, begun + sent / rate - time.monotonic()))
                # One request at a time for a log: each begins where the one before ended.
                number = choices.randrange(logs)
                while number in busy:
                    number = choices.randrange(logs)
                busy.add(number)
                task = asyncio.create_task(ask(client, number))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(lambda _, number=number: busy.discard(number))
                sent += 1
            await asyncio.gather(*tasks)
            elapsed = time.monotonic() - begun
            samples.append(memory(process.pid))
    finally:
        process.terminate()
        await process.wait()
    latencies.sort()
    places = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {
        "logs": logs,
        "requests": len(latencies),
        "refused": refused,
        "a second": round(len(latencies) / elapsed, 1),
        "ms": {name: round(latencies[min(len(latencies) - 1, int(len(latencies) * place))], 1) for name, place in places.items()},
        "MiB": samples,
        "start, seconds": round(started, 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=40_000)
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="witnessing-") as made:
        print(json.dumps(asyncio.run(measure(chosen.logs, chosen.rate, chosen.seconds, Path(made)))))
