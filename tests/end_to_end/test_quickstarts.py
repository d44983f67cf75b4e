"""The quick starts are executed as a new user would run them, one after the other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from meetings import LAPTOP, buyer, shop
from run_process import DOMAINS_READY, make_run, run_script

from treaty_agent import Agent

DOCS = Path(__file__).parents[2] / "docs"
QUICKSTARTS = DOCS / "quickstarts"
STORY = ("use", "publish", "vote", "audit")
"""Each goes on where the one before ended, as its page says."""
GUIDES = ("command-line.md", "contradictions.md", "serving.md")
"""Their commands need no more than the first quick start has made."""


def blocks(name: str, language: str = "sh") -> list[str]:
    """The fenced blocks of a quick start, or of a guide."""
    text = (DOCS / "guides" / name if name in GUIDES else QUICKSTARTS / f"{name}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_every_page_is_run() -> None:
    assert {path.stem for path in QUICKSTARTS.glob("*.md")} == {*STORY, "install", "run"}


@pytest.mark.deep
def test_a_new_user_uses_publishes_votes_and_audits(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        run.wait_for(DOMAINS_READY)
        opening = re.search(r"^  Page:  (\S+)\n  Next:  (.+?)    \(.*\n  Stop:  Ctrl-C$", run.said(), re.MULTILINE)
        assert opening and opening[1] == f"{run.url}/"
        pages = [block for name in ("use", *GUIDES, *STORY[1:]) for block in blocks(name)]
        done = run_script(run, tmp_path / "clone", "\n".join([opening[2], *pages]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Hello, Ada!") == 3
    phrases = ("commerce/product-info", "10 lock", "key-2", "weather-report/1.0", "/greeting 1.0 is the consensus", "3 decisions")
    places = [done.stdout.index(text) for text in phrases]
    assert places == sorted(places)


@pytest.mark.deep
def test_a_log_of_ones_own_begins(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    script = "set -eu\n" + "\n".join(blocks("run"))
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "my-registry" / "keys").is_dir()
    assert "registry.example" in done.stdout


async def test_the_program_that_is_shown_calls_a_shop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = blocks("use", "python")
    seller, customer = shop(tmp_path), buyer(tmp_path)
    # The agent of a home, with a simulated registry in place of the one that the page trusts.
    monkeypatch.setattr(Agent, "from_home", lambda: customer.agent)
    async with seller.agent, seller.agent.listen("127.0.0.1", 0) as port:
        await awaited(text.replace("https://shop.example", f"ws://127.0.0.1:{port}"), "use.md")
    assert str(LAPTOP["productName"]) in capsys.readouterr().out


async def awaited(text: str, name: str) -> None:
    """Run a program with `await` at its top level."""
    space: dict[str, Any] = {}
    body = "\n".join(f"    {line}" for line in text.splitlines())
    exec(compile(f"async def main():\n{body}\n", name, "exec"), space)
    await space["main"]()
