"""`make screens`: pictures of the command line and of the pages, of real runs: docs/screens/*.svg and *.png.

    python tools/screens.py [--port 8080] [--web-port 8443]

A registry with the first-party catalogue and three domains is started in a temporary folder (`demo/run.py`). The story of the
quick starts is played there, and after it `RIVAL`: a second protocol stands for election and loses. Then each command of
`COMMANDS` is run as on a terminal, and each page of `PAGES` is opened in Chromium, at two widths, light and dark. Two runs give
equal pictures, except of pages that show new keys, hashes or times.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.sax.saxutils import escape

from PIL import Image  # of matplotlib, which the development group names
from playwright.sync_api import Page, expect, sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
SCREENS = ROOT / "docs" / "screens"
STORY = ("publish", "vote")
"""The quick starts that are played first."""

COMMANDS = {
    "search": "treaty search 'product information' --home agents/alice",
    "fetch": 'treaty fetch "$URI" --home agents/dora',
    "topic": "treaty topic social/greeting --explain --home agents/bob",
    "audit": "treaty audit --home agents/carol",
}
"""The commands by the names of their pictures."""

URI = "https://8080.localhost/protocols/alice.example/greeting/1.0"
RIVAL = """
RIVAL=https://8080.localhost/protocols/bob.example/salutation/1.0
cp -r examples/greeting salutation
sed -i 's/^name = .*/name = "salutation"/; s/^title = .*/title = "Salutation"/' salutation/protocol.toml
sed -i 's/^# Greeting/# Salutation/' salutation/document.md
treaty document salutation
treaty publish salutation --home agents/bob
for name in alice bob carol; do treaty policy allow did:wba:bob.example --home agents/$name; done
python examples/agents.py agents/alice agents/bob "$RIVAL"
python examples/agents.py agents/bob agents/carol "$RIVAL"
python examples/agents.py agents/carol agents/alice "$RIVAL"
for name in alice carol; do treaty vote social/greeting "$URI" "$RIVAL" none --home agents/$name; done
treaty vote social/greeting "$RIVAL" "$URI" none --home agents/bob
treaty-registry decide --data .treaty-registry
treaty-registry decide --data .treaty-registry
"""
"""A second protocol of the topic. Its reports are of a later epoch: in one epoch one report of a pair counts."""

_GREETING = "/protocols/alice.example/greeting/1.0"
PAGES: dict[str, tuple[str, str]] = {
    "home": ("/", ""),
    "search": ("/protocols?q=greeting", ""),
    "topics": ("/topics", ""),
    "protocol": (_GREETING, ""),
    "operations": (_GREETING, "#operations"),
    "try": (_GREETING, "#try"),
    "trust": (_GREETING, "#steps"),
    "topic": ("/topics/social/greeting", ""),
    "matrix": ("/topics/social/greeting", "#matrix"),
    "agent": ("/identities/did:wba:bob.example", ""),
    "ballot": ("/ballots?topic=social/greeting&did=did:wba:carol.example", "#order"),
    "log": ("/log", ""),
    "proof": ("", "#checked"),
    "replay": ("/replay?example=agreed", ""),
    "docs": ("/docs/", ""),
    "docs-concept": ("/docs/concept.html", ""),
    "docs-search": ("/docs/search.html?q=sandbox", ""),
}
"""The pages by the names of their pictures: the path, and the element at the top. A proof is of the newest decision."""

WIDTHS, HEIGHT = (360, 1440), 900
CHROMIUM = Path("/usr/bin/chromium")
_COLUMNS = 110
_READY = "README.md goes on"
# As rich's own format, without its font from the network.
_FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img" \
aria-label="TITLE">
<style>.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; \
font-size: {char_height}px; line-height: {line_height}px; }} {styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


# The pictures show the port of the documents, whichever the run had.
_RENAME = """([port, shown]) => {
    const names = new RegExp(String.raw`(127\\.0\\.0\\.1:)${port}\\b|\\b${port}(?=\\.localhost)`, "g");
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode());) node.data = node.data.replace(names, (_, host) => (host ?? "") + shown);
}"""


def main() -> int:
    """Renew all pictures; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--web-port", type=int, default=8443)
    arguments = parser.parse_args()
    # A termination unwinds as Ctrl-C does, so that the registry ends too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    SCREENS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="treaty-screens-") as folder:
        work = Path(folder)
        for name in (".venv", "examples"):
            (work / name).symlink_to(ROOT / name)
        log = work / "run.log"
        ports = ["--port", str(arguments.port), "--web-port", str(arguments.web_port)]
        command = [sys.executable, str(ROOT / "demo/run.py"), *ports, "--data", str(work / ".treaty-registry")]
        with log.open("wb") as output:
            run = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        try:
            while _READY not in log.read_text():
                if run.poll() is not None:
                    print(log.read_text(), file=sys.stderr)
                    return 1
                time.sleep(0.2)
            _play(work, arguments.port)
            _commands(work, arguments.port)
            _pages(arguments.port)
        finally:
            run.terminate()
            run.wait(60)
    return 0


def _play(work: Path, port: int) -> None:
    texts = [(ROOT / "docs" / "quickstarts" / f"{name}.md").read_text(encoding="utf-8") for name in STORY]
    blocks = [block for text in texts for block in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    # An agent that has seen nothing yet, so that its `fetch` shows all ten steps.
    blocks.append(f"URI={URI}\n{RIVAL}")
    blocks.append("treaty trust add http://127.0.0.1:8080 --yes --home agents/dora; cp examples/policy.toml agents/dora")
    _shell(work, port, "\n".join(blocks), {})


def _shell(work: Path, port: int, script: str, environment: dict[str, str]) -> str:
    """Run a script of the documents with the ports of this run; its output."""
    script = script.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("https://8080.localhost", f"https://{port}.localhost")
    known = {key: value for key, value in os.environ.items() if not key.startswith("TREATY_")}
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=work,
        env={**known, "HOME": str(work), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


def _commands(work: Path, port: int) -> None:
    before = f". .venv/bin/activate\n. .treaty-registry/environment\nURI={URI}\n"
    for name, command in COMMANDS.items():
        output = _shell(work, port, before + command, {"FORCE_COLOR": "1", "COLUMNS": str(_COLUMNS), "TERM": "xterm-256color"})
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123
            console = Console(record=True, width=_COLUMNS, file=nowhere, force_terminal=True)
            console.print(Text(f"$ {command}", style="bold"))
            console.print(Text.from_ansi(_kept(output).replace(f"{port}.localhost", "8080.localhost")))
            # One id for each picture, so that an equal output gives an equal file.
            picture = console.export_svg(
                title=command,
                theme=MONOKAI,
                code_format=_FORMAT.replace("TITLE", escape(command, {'"': "&quot;"})),
                unique_id=f"screen-{name}",
            )
        (SCREENS / f"{name}.svg").write_text(picture, encoding="utf-8")


def _kept(output: str) -> str:
    """The output without the bars of its progress, of which a terminal shows the last alone."""
    return "\n".join(line for line in output.splitlines() if "━" not in line).strip()


def _pages(port: int) -> None:
    base = f"http://127.0.0.1:{port}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                context = browser.new_context(
                    viewport={"width": width, "height": HEIGHT},
                    color_scheme="light" if scheme == "light" else "dark",
                    reduced_motion="reduce",
                )
                page = context.new_page()
                for name, (path, top) in PAGES.items():
                    _show(page, base, name, path)
                    page.evaluate(_RENAME, [str(port), "8080"])
                    _picture(page, top, SCREENS / f"{name}-{width}-{scheme}.png")
                context.close()
        browser.close()


def _show(page: Page, base: str, name: str, path: str) -> None:
    """Open a page, and do on it what a person does first."""
    if name == "proof":
        page.goto(f"{base}/topics/social/greeting")
        page.get_by_role("link", name="leaf").first.click()
        page.get_by_role("button", name="Check that this entry is in the log").click()
        expect(page.locator(".outcome.good")).to_be_visible()
        return
    page.goto(base + path)
    page.wait_for_load_state("networkidle")
    if name == "try":
        page.get_by_role("button", name="Send").click()
        page.evaluate("document.activeElement.blur()")


def _picture(page: Page, top: str, file: Path) -> None:
    """Take a picture that begins a little above an element, in a palette: a quarter of the bytes, and no difference to see."""
    if top:
        page.evaluate("top => window.scrollTo(0, document.querySelector(top).getBoundingClientRect().top + scrollY - 24)", top)
    page.screenshot(path=file)
    with Image.open(file) as picture:
        flat = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    flat.save(file, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
