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


def _results(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "bench" / f"{name}.json").read_text(encoding="utf-8"))
    return found


GENERATORS.update({"install-sizes": sizes, "burst": burst})
