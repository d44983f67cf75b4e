"""`python -m example`: start all nodes, print the lines of the editor, and end them.

`python -m example NAME GATEWAY` is one of the nodes.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

from .nodes import run

NODES = ("draw", "average", "painter", "singer", "editor")


def start(name: str, gateway: str = "") -> tuple[subprocess.Popen[str], str]:
    """Start a node; its process, and its address. It ends when its standard input ends, also if this process is killed."""
    command = [sys.executable, "-m", __spec__.parent if __spec__ else "example", name, gateway]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
    assert process.stdout
    return process, process.stdout.readline().strip()


def main() -> int:
    """Return the exit status: 0 if the editor got all it asked for."""
    processes = []
    try:
        gateway, address = start("gateway")
        processes.append(gateway)
        print(f"The gateway is at {address}.", flush=True)
        for name in NODES:
            process, place = start(name, address)
            processes.append(process)
            print(f"{name} is at {place}.", flush=True)
        told = processes[-1].stdout
        assert told
        for line in told:
            print("editor:", line.strip(), flush=True)
            if line.strip() == "done":
                return 0
        return 1
    finally:
        for process in reversed(processes):
            assert process.stdin
            process.stdin.close()
            process.wait(timeout=30)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(run(*sys.argv[1:]))
    else:
        sys.exit(main())
