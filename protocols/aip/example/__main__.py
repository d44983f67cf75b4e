"""`python protocols/aip/example`: three agents, two tools and a gateway exchange texts, images and sounds.

Each node is a process of its own. It tells which contents it sent and received, with their digests. The two sides are compared
here, and the exit status is 0 if every content arrived byte for byte. `--json` prints the comparison as JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

NODES = ("draw", "average", "painter", "singer", "editor")
SCRIPT = Path(__file__).with_name("nodes.py")


class Node:
    """A process. It ends when its standard input ends, also if this process is killed."""

    def __init__(self, name: str, gateway: str = "") -> None:
        """Start it, and wait for its address. Raises RuntimeError if it ends before."""
        command = [sys.executable, str(SCRIPT), name, gateway]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
        assert self._process.stdin
        assert self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        first = self._stdout.readline()
        if not first:
            raise RuntimeError(f"{name} did not start: its error is above.")
        self.address: str = json.loads(first)["address"]

    def events(self) -> list[dict[str, Any]]:
        """Return the lines that it writes from now on, to its "done" or its end."""
        events: list[dict[str, Any]] = []
        for line in self._stdout:
            events.append(json.loads(line))
            if "done" in events[-1]:
                break
        return events

    def end(self) -> list[dict[str, Any]]:
        """End it, and return the rest of its lines."""
        self._stdin.close()
        rest = self.events()
        self._process.wait(timeout=30)
        return rest


def play() -> dict[str, Any]:
    """Start all nodes, wait for the editor, end them in the other order, and return the report."""
    started: dict[str, Node] = {}
    events: list[dict[str, Any]] = []
    try:
        started["gateway"] = Node("gateway")
        for name in NODES:
            started[name] = Node(name, started["gateway"].address)
        events += started["editor"].events()
    finally:
        for node in reversed(started.values()):
            events += node.end()
    return {
        "nodes": {name: node.address for name, node in started.items()},
        "exchanged": compared(events),
        "average": next((event["average"] for event in events if "average" in event), None),
        "done": any("done" in event for event in events),
    }


def compared(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each content that was sent or received. `intact`: the same bytes were sent by one side and received by the other."""
    sides: dict[str, Counter[str]] = {"sent": Counter(), "received": Counter()}
    for event in events:
        for side, count in sides.items():
            if side in event:
                count[json.dumps(event[side], sort_keys=True)] += 1
    sent, received = sides["sent"], sides["received"]
    intact = {key: number <= min(sent[key], received[key]) for key, number in (sent | received).items()}
    rows = [{**json.loads(key), "intact": intact[key]} for key in (sent | received).elements()]
    return sorted(rows, key=lambda each: (each["from"], each["to"], each["mode"], each["sha256"]))


def show(report: dict[str, Any]) -> None:
    """Print the report for a reader."""
    console = Console()
    nodes = Table("node", "address", title="Nodes")
    for name, address in report["nodes"].items():
        nodes.add_row(name, address)
    exchanged = Table("from", "to", "mode", "bytes", "SHA-256", "text", "arrived", title="Exchanged")
    for each in report["exchanged"]:
        arrived = "byte for byte" if each["intact"] else "[red]changed or lost[/]"
        digest, size = each["sha256"][:12], str(each["bytes"])
        exchanged.add_row(each["from"], each["to"], each["mode"], size, digest, each.get("text", ""), arrived)
    console.print(nodes, exchanged)
    console.print(f"The tool average answered {report['average']}.")


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="python protocols/aip/example", description="Text, images and sounds through AIP.")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    as_json = parser.parse_args().json
    try:
        report = play()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        show(report)
    return 0 if report["done"] and all(each["intact"] for each in report["exchanged"]) else 1


if __name__ == "__main__":
    sys.exit(main())
