"""The sizes of an installation in README.md, from the last run of `python -m bench installing`."""

from __future__ import annotations

import json
import re

from . import GENERATORS, ROOT, DriftError, present

_ROW = re.compile(r"^\| `(?:\.|'\.\[(?P<extras>[\w,]+)\]')` \| .+ \| .+ \| (?P<purpose>.+) \|$", re.MULTILINE)


def sizes() -> str:
    """Each extra, its size and its packages. A person writes the last column. Raises `DriftError` for an extra without a row."""
    measured = json.loads((ROOT / "bench" / "installing.json").read_text(encoding="utf-8"))
    purposes = {row["extras"] or "": row["purpose"] for row in _ROW.finditer(present("install-sizes"))}
    if list(purposes) != [item["extras"] for item in measured]:
        raise DriftError("the rows of install-sizes are not those of bench/installing.json, in that order")
    lines = ["| `pip install` | size | packages | for |", "|---|--:|--:|---|"]
    for item in measured:
        name = f"'.[{item['extras']}]'" if item["extras"] else "."
        lines.append(f"| `{name}` | {item['megabytes']} MB | {item['packages']} | {purposes[item['extras']]} |")
    return "\n".join(lines)


GENERATORS["install-sizes"] = sizes
