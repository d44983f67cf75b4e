"""`python -m bench calling`: one small agent as a plain HTTP service, with the MCP SDK, with the A2A SDK, and with Treaty.

    call       a call over a connection that is kept open, against plain HTTP
    opening    connect, call and close, against MCP
    first      the same with Treaty, at an address where nothing is remembered

Each is measured one at a time and 32 at once. All forms return the same JSON. Server, caller and registry are processes of their
own on the same processors. The forms take turns, in the opposite order each time. A ratio is the median of the turns' ratios of
p50; the one of p99 is made of all samples. The openings of a turn follow each other without a pause, so sandboxes that were
started in advance serve the first one only.

The other forms use their packages as PyPI has them, in an environment of their own (`calls/rivals.lock`).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import msgspec
from rich.console import Console

from treaty_agent import Identity
from treaty_client.registries.trust import TrustedRegistries, parse_registry_name

from . import RESULTS, report
from .publishing import PRODUCT_INFO, Author, author
from .servers import REPOSITORY, Registry, SceneFailed, free_port, listens, ready, registry, running, workspace

sys.path.append(str(REPOSITORY / "tests" / "support"))  # the handler with code is the tests' own
from sandboxed import sandboxed_product_info

FOLDER = Path(__file__).parent / "calls"
LOCK = FOLDER / "rivals.lock"
RESULT, TABLE = RESULTS / "calling.json", RESULTS / "calling.md"
REST = 0.5
"""Seconds after openings, in which both sides of a form finish what they do in the background."""


@dataclass(frozen=True)
class Form:
    """A way to make the agent. `name`: of its files; `kind`: of Treaty's handler, or "" for the others."""

    title: str
    name: str
    kind: str = ""


FORMS = (
    Form("plain HTTP", "http"),
    Form("MCP", "mcp"),
    Form("A2A SDK", "a2a"),
    Form("Treaty", "treaty", "declarative"),
    Form("Treaty, sandboxed", "treaty", "sandboxed"),
)


@dataclass(frozen=True)
class Measure:
    """The forms have `turns` turns in a round, each of `number` groups of `at_once` samples. `bar`: the most that Treaty's p50
    may be of the baseline's; 0 for none."""

    name: str
    at_once: int
    number: int
    turns: int
    baseline: str
    bar: float = 0.0

    @property
    def title(self) -> str:
        """As the table names it."""
        return f"{self.name}, {'one at a time' if self.at_once == 1 else f'{self.at_once} at once'}"


MEASURES = (
    Measure("call", 1, 50, 4, "plain HTTP", 1.1),
    Measure("call", 32, 2, 3, "plain HTTP", 1.1),
    Measure("opening", 1, 12, 1, "MCP", 2),
    Measure("opening", 32, 1, 1, "MCP", 2),
    Measure("first", 1, 12, 1, "MCP", 2),
)


class Line(msgspec.Struct, frozen=True):
    """What is kept of a form in a measure. Milliseconds of all samples; `together`: until all that began at once were done, the
    median. `ratio`, half of the turns between `low` and `high`, and `ratio99`: against the baseline."""

    measure: str
    form: str
    baseline: str
    p50: float
    p99: float
    together: float
    ratio: float
    low: float
    high: float
    ratio99: float
    bar: float
    met: bool


class Size(msgspec.Struct, frozen=True):
    """Lines of a form's files that are neither blank nor comments. `protocol`: of the document and the manifest, which its
    publisher writes, and the agents do not."""

    form: str
    server: int
    caller: int
    protocol: int


class Figures(msgspec.Struct, frozen=True):
    """What is kept of a run."""

    lines: list[Line]
    sizes: list[Size]
    rounds: int
    machine: str
    measured: str


@dataclass
class Driver:
    """The process that calls a form's server."""

    process: asyncio.subprocess.Process

    async def take(self, measure: Measure) -> list[list[float]]:
        """The samples of one turn, a list for each group. Raises `SceneFailed`."""
        assert self.process.stdin is not None
        order = {"measure": measure.name, "number": measure.number, "at_once": measure.at_once}
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        answer = await self.answer()
        if measure.name != "call":
            await asyncio.sleep(REST)
        return [list(map(float, group)) for group in answer]

    async def answer(self) -> Any:
        """The next line. Raises `SceneFailed` when the process ended."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise SceneFailed("a driver ended")
        return json.loads(line)


def environment() -> Path:
    """The interpreter of the other forms, whose environment is made once for each state of the lock."""
    folder = Path(sys.prefix) / "rivals" / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
        install = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--require-hashes")
        subprocess.run([*install, "--python", str(python), "-r", str(LOCK)], check=True)
        (folder / "complete").touch()
    return python


@asynccontextmanager
async def scene(forms: Sequence[Form], rivals: Path) -> AsyncIterator[dict[Form, Driver]]:
    """The servers of all forms and a driver for each. `rivals`: the interpreter of the other forms."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(workspace())
        served = await stack.enter_async_context(registry(folder))
        writer = await stack.enter_async_context(author(served, folder))
        drivers = {}
        for form in forms:
            python, port = Path(sys.executable) if form.kind else rivals, free_port()
            at_server, at_caller = [], []
            if form.kind:
                uri = await _publish(writer, form.kind)
                at_server, at_caller = ([str(new_home(folder, served, writer)), uri] for _ in range(2))
            log = folder / f"{form.title}.log"
            command = [str(python), str(FOLDER / f"{form.name}_server.py"), str(port), *at_server]
            process = stack.enter_context(running(command, log))
            await ready(process, log, lambda port=port: listens(port))  # type: ignore[misc]
            url = f"{'ws' if form.kind else 'http'}://127.0.0.1:{port}"
            drivers[form] = await stack.enter_async_context(_driver([str(python), form.name, url, *at_caller], log))
        yield drivers


@asynccontextmanager
async def _driver(command: list[str], log: Path) -> AsyncIterator[Driver]:
    python, name, *arguments = command
    pipe = asyncio.subprocess.PIPE
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(python, str(FOLDER / "driver.py"), f"{name}_caller", *arguments),
            stdin=pipe,
            stdout=pipe,
            stderr=output,
            limit=1 << 22,
        )
    driver = Driver(process)
    try:
        try:
            await driver.answer()
        except SceneFailed as error:
            raise SceneFailed(f"{name}: {await asyncio.to_thread(log.read_text)}") from error
        yield driver
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def _publish(writer: Author, kind: str) -> str:
    if kind == "declarative":
        return await writer.publish("1.1")
    # Another document, because an agreement is remembered by the hash of its document.
    coded = sandboxed_product_info("1.1", name="product-info-coded")
    return await writer.publish_project(replace(coded, document=coded.document + b"\nWith code.\n"))


def new_home(folder: Path, served: Registry, writer: Author) -> Path:
    """A new agent's home."""
    home = folder / f"home-{len(list(folder.glob('home-*')))}"
    home.mkdir(mode=0o700)
    Identity.create().save(home / "identity.json")
    TrustedRegistries(home).add(parse_registry_name(served.name))
    (home / "policy.toml").write_text(f"publishers = {json.dumps([writer.identity.did])}\n")
    return home


Samples = dict[tuple[str, str], list[list[list[float]]]]
"""By the titles of measure and form: for each turn its groups."""


async def measure(
    forms: Sequence[Form], measures: Sequence[Measure], rounds: int, rivals: Path, console: Console | None = None
) -> Samples:
    """All samples."""
    samples: Samples = {}
    async with scene(forms, rivals) as drivers:
        for number in range(rounds):
            for one, turn in [(each, turn) for each in measures for turn in range(each.turns)]:
                for form in forms if (number + turn) % 2 == 0 else reversed(forms):
                    # Only Treaty knows a difference between the first meeting and the next one.
                    if one.name != "first" or form.kind or form.title == one.baseline:
                        asked = replace(one, name="opening") if one.name == "first" and not form.kind else one
                        samples.setdefault((one.title, form.title), []).append(await drivers[form].take(asked))
            if console is not None:
                console.print(f"round {number + 1} of {rounds}")
    return samples


def judge(samples: Samples, measures: Sequence[Measure]) -> list[Line]:
    """The figures of all samples, beside their baselines."""
    lines = []
    for one in measures:
        baseline = samples.get((one.title, one.baseline))
        for (title, form), turns in samples.items():
            if title != one.title:
                continue
            against = baseline or turns
            ratios = [_p(50, mine) / _p(50, other) for mine, other in zip(turns, against, strict=True)]
            low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
            p50, p99 = (_p(share, _flat(turns)) for share in (50, 99))
            bar = one.bar if form.startswith("Treaty") else 0.0
            together = median(max(group) for groups in turns for group in groups)
            low, high, p50, p99 = (round(figure, 3) for figure in (low, high, p50, p99))
            ratio, ratio99 = round(median(ratios), 3), round(p99 / _p(99, _flat(against)), 3)
            met = not bar or ratio <= bar
            lines.append(Line(one.title, form, one.baseline, p50, p99, round(together, 3), ratio, low, high, ratio99, bar, met))
    return lines


def _flat(turns: list[list[list[float]]]) -> list[list[float]]:
    return [group for groups in turns for group in groups]


def _p(share: int, groups: list[list[float]]) -> float:
    samples = sorted(sample for group in groups for sample in group)
    return samples[min(len(samples) - 1, len(samples) * share // 100)]


def sizes(forms: Sequence[Form]) -> list[Size]:
    """The lines of each form."""
    parts = [PRODUCT_INFO / "1.1" / name for name in ("document.md", "manifest.json")]
    return [
        Size(
            form.title,
            _lines(FOLDER / f"{form.name}_server.py"),
            _lines(FOLDER / f"{form.name}_caller.py"),
            sum(map(_lines, parts)) if form.kind == "declarative" else 0,
        )
        for form in forms
        if form.kind != "sandboxed"  # the same files
    ]


def _lines(path: Path) -> int:
    marks = "#" if path.suffix == ".py" else "\0"
    return sum(1 for line in path.read_text().splitlines() if line.strip() and not line.strip().startswith(marks))


def main(arguments: list[str]) -> int:
    """Run, show the table and keep it; the exit status is 0. With `--form` nothing is kept."""
    parser = argparse.ArgumentParser(prog="python -m bench calling", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="rounds (default: 10)")
    titles = [form.title for form in FORMS]
    parser.add_argument("--form", action="append", choices=titles, help="this form; may be repeated; nothing is kept")
    parser.add_argument("--measure", action="append", choices=[one.title for one in MEASURES], help="this measure; likewise")
    chosen = parser.parse_args(arguments)
    forms = [form for form in FORMS if form.title in (chosen.form or titles)]
    measures = [one for one in MEASURES if one.title in (chosen.measure or [one.title])]
    console = Console(highlight=False, emoji=False, width=130)
    samples = asyncio.run(measure(forms, measures, chosen.rounds, environment(), console))
    measured = time.strftime("%Y-%m-%d", time.gmtime())
    figures = Figures(judge(samples, measures), sizes(FORMS), chosen.rounds, report.machine(), measured)
    text = markdown(figures)
    console.print(text, markup=False)
    if not chosen.form and not chosen.measure:
        RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
        TABLE.write_text(text, encoding="utf-8")
    return 0


def markdown(figures: Figures) -> str:
    """The tables."""
    where = f"{figures.rounds} rounds by `python -m bench calling`; {figures.machine}, {figures.measured}. Milliseconds."
    lines = [f"{where} What is measured is in README.md, section Calls beside other protocols.", ""]
    lines += ["| measure | form | p50 | p99 | all of a group | p50 against | half of the turns | p99 against | bar | |"]
    lines += ["|---|---|--:|--:|--:|--:|--:|--:|--:|---|"]
    for line in figures.lines:
        verdict = ("met" if line.met else "**missed**") if line.bar else ""
        bar = f"≤ {line.bar:g} × {line.baseline}" if line.bar else ""
        ratios = (f"{line.ratio:.2f}", f"{line.low:.2f}–{line.high:.2f}", f"{line.ratio99:.2f}")
        times = (f"{line.p50:.2f}", f"{line.p99:.2f}", f"{line.together:.1f}")
        lines.append(f"| {' | '.join((line.measure, line.form, *times, *ratios, bar, verdict))} |")
    lines += ["", "| lines | server | caller | protocol |", "|---|--:|--:|--:|"]
    lines += [f"| {size.form} | {size.server} | {size.caller} | {size.protocol or ''} |" for size in figures.sizes]
    return "\n".join([*lines, ""])
