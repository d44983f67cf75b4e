"""The guide to watching: its command is one of `treaty watch`, and its file is read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from treaty_client.watching.watches import parse_watches, read_watch_file
from treaty_command.commands import app

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "watching.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (example,) = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    assert isinstance(example, str)
    return example


def test_the_command_watches_a_did_and_a_namespace() -> None:
    program, *arguments = shlex.split(block("sh"))
    assert program == "treaty"
    command, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    assert command.__name__ == "watch"
    watch_list = parse_watches(bound.arguments["did"], bound.arguments["namespace"])
    assert [str(watch) for watch in watch_list.watches] == ["did did:wba:example.com", "namespace example.com"]


def test_the_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "home" / "watch.toml"
    path.parent.mkdir()
    path.write_text(block("toml"), encoding="utf-8")
    read = read_watch_file(path)
    assert [str(watch) for watch in read.watches] == ["namespace example.com", "constitution"]
    assert [file.resolve() for file in read.expected] == [tmp_path / "build-machine" / "signed.txt"]
    (webhook,) = read.webhooks
    assert (webhook.url, webhook.secret_file) == ("https://alarm.example/treaty", path.parent / "webhook.secret")
