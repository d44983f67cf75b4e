"""The help of `treaty`: groups, one example for each command, common options once; and the values that a shell completes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from treaty_process import treaty_here

from treaty_command.commands import app, common_options

ROOT = Path(__file__).parents[2]
LOCK = {
    "lock": 1,
    "protocols": {
        "https://registry.example/protocols/acme.example/hotel": {
            "publisher": "did:wba:acme.example",
            "tenure": 1,
            "signer": {"identity": "did:wba:acme.example", "issuer": "https://registry.example/sigstore"},
            "versions": {"1.0": {}, "2.0": {}},
        }
    },
}
URIS = [f"https://registry.example/protocols/acme.example/hotel/{version}" for version in ("1.0", "2.0")]
TOPICS = {"topics": [{"origin": "registry.example", "topic": "travel/hotel", "bundle": "0" * 64}]}


def commands() -> Iterator[tuple[str, ...]]:
    """Each command that runs, in the order of its name."""
    for name in (name for name in app if not name.startswith("-")):
        if app[name].default_command is not None:
            yield (name,)
        else:
            yield from ((name, each) for each in app[name] if not each.startswith("-"))


def shown(*command: str) -> str:
    status, out, err = treaty_here(*command, "--help")
    assert (status, err) == (0, "")
    return " ".join(out.split())


def test_commands_are_grouped_and_common_options_listed_once() -> None:
    listed = treaty_here("--help")[1]
    groups = ["Find and fetch", "Write and publish", "Elect", "Meet other", "Check a registry", "Set up", "Options of every"]
    assert [listed.index(group) for group in groups] == sorted(listed.index(group) for group in groups)
    order = re.findall(r"^│ ([a-z-]+) ", listed, re.MULTILINE)
    assert order.index("search") < order.index("fetch") < order.index("publish") < order.index("vote") < order.index("doctor")
    assert all(f"--{option}: " in listed for option in common_options())
    assert list(common_options()) == ["home", "registry", "resolve", "ca", "json", "verbose"]
    for command in ("fetch", "vote", "identity new"):
        assert all(meaning not in shown(*command.split()) for meaning in common_options().values())


@pytest.mark.parametrize("command", [*commands()], ids=" ".join)
def test_each_command_shows_an_example_that_is_one(command: tuple[str, ...]) -> None:
    text = shown(*command)
    example = re.search(r"Example: (treaty .*?) treaty --help has the options", text)
    assert example is not None, text
    words = shlex.split(example[1])[1:]
    assert tuple(words[: len(command)]) == command
    words = words[: words.index(">")] if ">" in words else words
    app.parse_args(words, exit_on_error=False, print_error=False)


def test_the_help_of_a_command_is_all_of_its_docstring() -> None:
    assert "A changed vote counts half at first." in shown("vote")


@pytest.mark.deep
def test_a_typo_is_a_usage_error_without_agent_libraries() -> None:
    """The library compares it with all commands, and imports them."""
    hidden = "import sys\nfrom treaty_io.extras import EXTRA_OF\nsys.modules |= dict.fromkeys(EXTRA_OF)\n"
    code = f"{hidden}from treaty_command.main import main\nmain(['fetc', '--json'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "system.usage"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("TREATY_HOME", str(home))
    (home / "treaty.lock").write_text(json.dumps(LOCK))
    (home / "topics.json").write_text(json.dumps(TOPICS))
    (home / "policy.toml").write_text('publishers = ["did:wba:friend.example"]\n')
    (home / "registries.json").write_text(json.dumps({"registries": {"registry.example": {}}}))
    return home


def completed(*words: str) -> list[str]:
    """What a shell is told for the last word."""
    status, out, err = treaty_here("__complete", *words)
    assert (status, err) == (0, "")
    return [line.partition("\t")[0] for line in out.partition("\x1fbegin\n")[2].splitlines()]


def test_a_shell_completes_what_the_home_names(home: Path) -> None:
    dids = ["did:wba:friend.example", "did:wba:acme.example"]
    assert completed("fetch", "") == completed("open", "") == [*URIS, "travel/hotel", *dids]
    assert completed("verify", "") == completed("yank", "") == completed("diff", URIS[0], "") == URIS
    assert completed("topic", "") == completed("withdraw", "vote", "") == ["travel/hotel"]
    assert completed("vote", "travel/hotel", URIS[0], "") == URIS
    assert completed("grant", "") == completed("policy", "allow", "") == dids
    assert completed("search", "--registry", "") == completed("trust", "remove", "") == ["registry.example"]


def test_an_empty_home_and_a_damaged_file_complete_nothing(home: Path, tmp_path: Path) -> None:
    assert completed("fetch", "--home", str(tmp_path / "nowhere"), "") == []
    assert not (tmp_path / "nowhere").exists()
    (home / "treaty.lock").write_text("{")
    assert completed("verify", "") == []


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_values_and_topics(home: Path) -> None:
    """`search --state` has the values of the registry's search."""
    script = treaty_here("completion", "bash")[1]
    program = f"treaty() {{ {shlex.quote(sys.executable)} -c 'from treaty_command import main; main()' \"$@\"; }}\n"
    ask = """
complete_line() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMPREPLY=()
    $(complete -p treaty | sed 's/.*-F \\([^ ]*\\).*/\\1/'); echo "${COMPREPLY[@]}"
}
complete_line treaty fe
complete_line treaty search --state ca
complete_line treaty topic tra
complete_line treaty fetch --js
"""
    environment = {"PATH": "/usr/bin:/bin", "TREATY_HOME": str(home)}
    done = subprocess.run(["bash"], input=program + script + ask, capture_output=True, text=True, check=True, env=environment)
    assert [line.split() for line in done.stdout.splitlines()] == [["fetch"], ["candidate"], ["travel/hotel"], ["--json"]]


def test_the_values_of_the_search_are_those_of_the_registry() -> None:
    page = (ROOT / "docs" / "specification" / "http.md").read_text(encoding="utf-8")
    _, out, _ = treaty_here("search", "--help")
    listed = " ".join(re.sub("[│╭╮╰╯─]", " ", out).split())
    for option in ("state", "origin", "signed", "coverage"):
        (row,) = re.findall(rf"^\| `{option}` \|[^|]*\|([^|]*)\|$", page, re.MULTILINE)
        (choices,) = re.findall(rf"--{option} .*?\[choices: ([^]]*)\]", listed)
        assert choices.split(", ") == re.findall("`([a-z-]+)`", row), option
