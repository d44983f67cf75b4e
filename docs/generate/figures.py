"""The measured figures in the documentation, from the last runs of bench/."""

from __future__ import annotations

import json
import re
from typing import Any

from . import GENERATORS, ROOT, DriftError, present
from .limits import table

_ROW = re.compile(r"^\| `(?:\.|'\.\[(?P<extras>[\w,]+)\]')` \| .+ \| .+ \| (?P<purpose>.+) \|$", re.MULTILINE)


def sizes() -> str:
    """Each extra, its size and its packages. A person writes the last column. Raises `DriftError` for an extra without a row."""
    measured = _results("installing")
    purposes = {row["extras"] or "": row["purpose"] for row in _ROW.finditer(present("install-sizes"))}
    if list(purposes) != [item["extras"] for item in measured]:
        raise DriftError("the rows of install-sizes are not those of bench/installing.json, in that order")
    lines = ["| `pip install` | size | packages | for |", "|---|--:|--:|---|"]
    for item in measured:
        name = f"'.[{item['extras']}]'" if item["extras"] else "."
        lines.append(f"| `{name}` | {item['megabytes']} MB | {item['packages']} | {purposes[item['extras']]} |")
    return "\n".join(lines)


def burst() -> str:
    """The openings of many sessions at once."""
    rows = (
        (
            item["handler"],
            item["sessions"],
            f"{item['median']} s",
            f"{item['last']} s",
            f"{item['shop']} MiB",
            f"{item['buyer']} MiB",
        )
        for item in _results("burst")
    )
    heads = (
        "handler",
        "sessions",
        "half of them are open after",
        "the last after",
        "memory of the side that serves",
        "that calls",
    )
    return table(heads, rows)


def capacity() -> str:
    """What one machine can do, and its name. All of it is one run, so that the figures fit each other."""
    run = _results("capacity")
    rate = {name: f"{value:,}/s" for name, value in run["per_second"].items()}
    per_version = {name: f"{run[f'{name}_bytes_per_statement'] / 1024:.1f} KiB" for name in ("database", "backup")}
    memory = f"{run['registry_resident_bytes'] / 2**20:.0f} MiB"
    disk = f"{run['database_bytes_per_statement'] * 1_000_000 / 2**30:.0f} GiB for a million, plus its write-ahead log"
    rows = (
        ("documents, from memory", rate["document"], ""),
        ("searches, from memory", rate["search"], ""),
        ("records, from PostgreSQL", rate["record"], ""),
        ("single statements", rate["vote"], _half(run["per_second"]["vote"])),
        ("statements in batches of 64", rate["batch"], _half(run["per_second"]["batch"])),
        ("PostgreSQL, for each published version", per_version["database"], disk),
        ("backup, for each published version", per_version["backup"] + ", without the blobs", ""),
        ("memory of the registry", memory, "1 GiB"),
        (f"backup of {run['versions']:,} versions", f"{run['backup_seconds']:.1f} s", ""),
        ("their restore, with the start of its PostgreSQL", f"{run['restore_seconds']:.1f} s", ""),
    )
    about = f"On {run['machine']}; {run['measured']}, with a load of {run['load_before']} of other programs before."
    return f"{about}\n\n" + table(("", "figure", "plan"), rows)


def _half(rate: int) -> str:
    """Half of a measured rate, as a round number: other work, and the growth of the log, need the rest."""
    return f"{rate // 2 // 50 * 50:,}/s"


def _results(name: str) -> Any:
    return json.loads((ROOT / "bench" / f"{name}.json").read_text(encoding="utf-8"))


GENERATORS.update({"install-sizes": sizes, "burst": burst, "capacity": capacity})
