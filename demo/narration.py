"""Telling the story: acts, steps with their times, and the same as JSON for machines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console


@dataclass
class Step:
    """One step: `say` adds what came of it."""

    act: str
    title: str
    seconds: float = 0.0
    details: list[str] = field(default_factory=list)

    def say(self, detail: str) -> None:
        """A line below the step."""
        self.details.append(detail)


class Narrator:
    """Prints steps as they end, or collects them for `--json`."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._console = Console(stderr=as_json, highlight=False, emoji=False, soft_wrap=True)
        self._json = as_json
        self._act = ""
        self._begun = time.monotonic()
        self.steps: list[Step] = []

    def act(self, title: str) -> None:
        """Begin a new part."""
        self._act = title
        self._console.print(f"\n[bold cyan]{title}[/]")

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Time what happens inside. A step that raises is shown as failed, and the error goes on."""
        step = Step(self._act, title)
        begun = time.monotonic()
        mark = "[green]✓[/]"
        try:
            yield step
        except BaseException:
            mark = "[red]✗[/]"
            raise
        finally:
            step.seconds = time.monotonic() - begun
            self.steps.append(step)
            self._console.print(f"  {mark} {title}  [dim]{_duration(step.seconds)}[/]")
            for detail in step.details:
                self._console.print(f"      [dim]{detail}[/]", markup=True)

    def close(self, farewell: str) -> None:
        """The end: the whole time and what to try next, or all steps as JSON."""
        whole = time.monotonic() - self._begun
        self._console.print(f"\n[bold]Done in {whole:.1f} s.[/] {farewell}")
        if self._json:
            steps = [{"act": s.act, "step": s.title, "seconds": round(s.seconds, 3), "details": s.details} for s in self.steps]
            print(json.dumps({"seconds": round(whole, 3), "steps": steps}, ensure_ascii=False))


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
