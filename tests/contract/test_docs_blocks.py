"""Every fenced block of the documentation is run, checked, or shown.

| language | meaning |
|---|---|
| `sh`, `python`, `toml` | a test runs or reads every block of the page (`RUN`) |
| `json` | on a guide: a test uses it (`RUN`); on a page of the specification: a form |
| `console` | commands that need more than a test has, such as a domain or ten minutes: each line is checked here |
| `text`, `markdown`, none | an output or a form, no command |
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections import Counter
from typing import NamedTuple

import bench.__main__ as bench_program
import pytest
from cyclopts import App, CycloptsError
from docs.generate import ROOT

from treaty_command.commands import app as treaty
from treaty_registry.cli.commands import app as treaty_registry

PATTERNS = ("*.md", "bench/README.md", "docs/**/*.md", "protocols/*/README.md", "examples/*/README.md")
LIST = "docs/site/"
"""The list of the site's pages."""

LANGUAGES = {"sh", "python", "python sessions", "toml", "json", "console", "text", "markdown", "{toctree}", ""}
STORY = "end_to_end/test_quickstarts.py"
RUN = {
    ("README.md", "sh"): (5, "end_to_end/test_readme.py"),
    ("README.md", "python"): (2, "end_to_end/test_readme.py"),
    ("docs/guides/a2a.md", "python"): (1, "unit/test_guide_a2a.py"),
    ("docs/guides/mcp.md", "python"): (1, "unit/test_mcp_agent_door.py"),
    ("docs/guides/packages.md", "toml"): (1, "interop/test_package_index.py"),
    ("docs/guides/ucp.md", "python"): (1, "unit/test_guide_ucp.py"),
    ("docs/guides/aip.md", "python"): (6, "unit/test_guide_aip.py"),
    ("docs/guides/calling.md", "python"): (5, "unit/test_guide_calling.py"),
    ("docs/guides/command-line.md", "sh"): (2, STORY),
    ("docs/guides/contradictions.md", "sh"): (1, STORY),
    ("docs/guides/contradictions.md", "toml"): (2, "unit/test_client_policy.py"),
    ("docs/guides/deploying.md", "sh"): (8, "deploy/test_guide.py"),
    ("docs/guides/electorate.md", "sh"): (3, "unit/test_guide_electorate.py"),
    ("docs/guides/electorate.md", "toml"): (1, "unit/test_guide_electorate.py"),
    ("docs/guides/errors.md", "python"): (2, "unit/test_guide_errors.py"),
    ("docs/guides/handlers.md", "json"): (1, "unit/test_guide_handlers.py"),
    ("docs/guides/handlers.md", "python"): (5, "unit/test_guide_handlers.py"),
    ("docs/guides/handlers.md", "sh"): (5, "unit/test_guide_handlers.py"),
    ("docs/guides/handoff.md", "python"): (7, "unit/test_guide_handoff.py"),
    ("docs/guides/importing.md", "json"): (1, "unit/test_importing.py"),
    ("docs/guides/importing.md", "sh"): (1, "unit/test_importing.py"),
    ("docs/guides/mcp.md", "json"): (1, "unit/test_guide_mcp.py"),
    ("docs/guides/mcp.md", "sh"): (1, "unit/test_guide_mcp.py"),
    ("docs/guides/middleware.md", "python"): (5, "unit/test_guide_middleware.py"),
    ("docs/guides/negotiation.md", "python"): (8, "unit/test_guide_negotiation.py"),
    ("docs/guides/operating.md", "sh"): (3, "unit/test_guide_operating.py"),
    ("docs/guides/profiles.md", "python"): (2, "unit/test_guide_profiles.py"),
    ("docs/guides/profiles.md", "toml"): (1, "unit/test_guide_profiles.py"),
    ("docs/guides/serving.md", "python"): (9, "unit/test_guide_serving.py"),
    ("docs/guides/serving.md", "sh"): (1, STORY),
    ("docs/guides/sigstore.md", "sh"): (1, "interop/test_sigstore_registry.py"),
    ("docs/guides/testing.md", "python"): (4, "unit/test_guide_testing.py"),
    ("docs/guides/mirroring.md", "sh"): (2, "unit/test_guide_mirroring.py"),
    ("docs/guides/routing.md", "python"): (3, "unit/test_guide_routing.py"),
    ("docs/guides/mirroring.md", "toml"): (1, "unit/test_guide_mirroring.py"),
    ("docs/guides/watching.md", "sh"): (1, "unit/test_guide_watching.py"),
    ("docs/guides/several-nodes.md", "toml"): (1, "unit/test_static_site.py"),
    ("docs/guides/watching.md", "toml"): (1, "unit/test_guide_watching.py"),
    ("docs/guides/witnessing.md", "sh"): (3, "unit/test_guide_witnessing.py"),
    ("docs/guides/witnessing.md", "toml"): (3, "unit/test_guide_witnessing.py"),
    ("docs/quickstarts/audit.md", "sh"): (1, STORY),
    ("docs/quickstarts/publish.md", "sh"): (3, STORY),
    ("docs/quickstarts/run.md", "sh"): (1, STORY),
    ("docs/quickstarts/use.md", "python"): (1, STORY),
    ("docs/quickstarts/use.md", "sh"): (2, STORY),
    ("docs/quickstarts/vote.md", "sh"): (5, STORY),
    ("docs/specification/home.md", "toml"): (2, "unit/test_config.py"),
    ("protocols/aip/README.md", "python"): (1, "unit/test_guide_aip.py"),
    ("protocols/aip/README.md", "python sessions"): (1, "end_to_end/test_aip_members.py"),
    ("protocols/message-routing/README.md", "python"): (1, "unit/test_message_routing.py"),
}
"""The blocks of a page that are run: their number, and the test module. A new block is another number: its test runs it first."""
FOREIGN = {
    "cosign",
    "curl",
    "jq",
    "npx",
    "sigstore",
    "docker",
    "install",
    "systemctl",
    "cd",
    "python3",
    "sed",
    "/opt/treaty/bin/pip",
    "uvx",
}
"""Programs of others. Tests of tests/interop and tests/deploy run the first ones; the last ones change a whole machine."""


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str, text: str) -> list[Block]:
    """The fenced blocks of a page. A block within a block, as in an example of Markdown, is text."""
    blocks, opened, start = list[Block](), "", 0
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        fence = re.match(r"\s*(`{3,})(.*)$", line)
        if fence and not opened:
            opened, start, language = fence[1], number, fence[2].strip()
        elif fence and len(fence[1]) >= len(opened) and not fence[2].strip():
            blocks.append(Block(page, start, language, "\n".join(lines[start : number - 1])))
            opened = ""
    assert not opened, f"{page}: the block of line {start} is not closed"
    return blocks


BLOCKS = [
    block
    for path in sorted({path for pattern in PATTERNS for path in ROOT.glob(pattern)})
    if not (name := path.relative_to(ROOT).as_posix()).startswith(LIST)
    for block in blocks_of(name, path.read_text(encoding="utf-8"))
]
CONSOLE = [(block, line) for block in BLOCKS if block.language == "console" for line in block.text.splitlines()]


def is_run(block: Block) -> bool:
    return block.language in ("sh", "python", "python sessions", "toml") or (
        block.language == "json" and block.page.startswith("docs/guides/")
    )


def test_every_block_that_runs_has_a_test() -> None:
    counter = Counter((block.page, block.language) for block in BLOCKS if is_run(block))
    assert dict(counter) == {key: number for key, (number, _) in RUN.items()}


@pytest.mark.parametrize(("page", "language"), RUN, ids=map(str, RUN))
def test_the_test_reads_the_page(page: str, language: str) -> None:
    text = (ROOT / "tests" / RUN[page, language][1]).read_text(encoding="utf-8")
    name = page.rpartition("/")[2]
    assert name in text or f'"{name.removesuffix(".md")}"' in text


def test_every_block_has_a_language_that_means_something() -> None:
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []


def test_a_shown_text_is_no_command() -> None:
    blocks = [block for block in BLOCKS if block.language in ("text", "markdown", "")]
    assert [str(block) for block in blocks if any(is_command(line) for line in block.text.splitlines())] == []


def test_no_command_stands_outside_a_block() -> None:
    pages = {block.page for block in BLOCKS}
    texts = {page: re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE) for page in pages}
    assert [page for page, text in texts.items() if re.search(r"^ {4}(treaty|make|python|pip) ", text, re.MULTILINE)] == []


@pytest.mark.parametrize(("block", "line"), CONSOLE, ids=[line[:60] for _, line in CONSOLE])
def test_a_command_that_is_not_run_exists(block: Block, line: str) -> None:
    words = shlex.split(line, comments=True)
    if words:
        check(words)


def is_command(line: str) -> bool:
    first = re.match(r"(?:\$ )?(\S+) ", f"{line} ")
    return first is not None and first[1] in (
        "treaty",
        "treaty-registry",
        "make",
        "python",
        "pip",
        ".venv/bin/python",
        "async",
        "from",
    )


def check(words: list[str]) -> None:
    """Check a command without running it. Raises an error of the parser, or `AssertionError`."""
    match words:
        case ["treaty", *tokens]:
            parse(treaty, tokens)
        case ["treaty-registry", *tokens]:
            parse(treaty_registry, tokens)
        case ["make", target, *_]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
        case ["pip", "install", target]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert set(re.findall(r"\w+", target)) <= set(extras)
        case ["pip", "install", *options] if "--index-url" in options:
            # tests/interop/test_package_index.py runs the real pip on such an index.
            index = options[options.index("--index-url") + 1]
            assert re.fullmatch(r"https://registry\.example/index/[a-z.]+/simple/", index)
        case ["pip", "install", *libraries]:
            # Libraries for a peer of another make: those with which the tests run one.
            locked = (ROOT / "requirements-dev.lock").read_text()
            assert [name for name in libraries if not re.search(rf"^{re.escape(name)}==", locked, re.MULTILINE)] == []
        case ["python" | ".venv/bin/python", "-m", "pytest", *paths]:
            assert [path for path in paths if not (ROOT / path).exists()] == []
        case ["python" | ".venv/bin/python", "-m", "bench", *rest]:
            assert rest[0].startswith("--") or rest[0] in bench_program.PARTS, rest
        case ["python" | ".venv/bin/python", "-m", module, *_]:
            assert importlib.util.find_spec(module) is not None, module
        case ["python", path, *_]:
            assert (ROOT / path).exists(), path
        case _:
            assert words[0] in FOREIGN, words


def parse(app: App, tokens: list[str]) -> None:
    _, _, unused = app.parse_known_args(tokens)[:3]
    assert not unused, unused


@pytest.mark.parametrize(
    "line",
    [
        "treaty fly",
        "treaty topic a/b --explane",
        "treaty-registry serve --date x",
        "make coffee",
        "pip install '.[wings]'",
        "pip install grpcio no-such-library",
        "python -m bench flying",
        "python absent.py",
        ".venv/bin/python -m pytest tests/absent.py",
        "rm -rf /",
    ],
)
def test_a_wrong_command_is_found(line: str) -> None:
    with pytest.raises((AssertionError, CycloptsError)):
        check(shlex.split(line))


def test_a_block_within_a_block_is_text() -> None:
    blocks = blocks_of("x.md", "````\n```sh\nrm\n```\n````\n```sh\nls\n```\n")
    assert [(block.line, block.language, block.text) for block in blocks] == [(1, "", "```sh\nrm\n```"), (6, "sh", "ls")]
