"""The commands of `treaty` and `treaty-registry`, and their environment variables."""

from __future__ import annotations

import re
from functools import cache

from cyclopts import App

from treaty_command.commands import app as client
from treaty_registry.cli.commands import app as registry

from . import SITE
from .limits import table

_PROGRAMS: dict[str, App] = {"treaty": client, "treaty-registry": registry}
_CONTENTS = re.compile(r"^#+ Table of Contents\n.*?(?=^\*\*Commands\*\*)", re.DOTALL | re.MULTILINE)
_HOME = re.compile(r"\[default: /[^]]*/(\.treaty[\w-]*)\]")
_USAGE = re.compile(
    r"(?P<before>^#+ (?P<command>treaty[\w -]*)\n(?:(?!^#).*\n)*?```console\n)[^\n]*?(?P<rest>(?: (?:\[|[A-Z])[^\n]*)?)(?=\n)",
    re.MULTILINE,
)
"""The usage of a command. Cyclopts writes the name of the running program into it, which here is another one."""
_VARIABLE = re.compile(r"\*\[env: (\w+)\]\*")
_DEFAULT = re.compile(r"\[default: ([^]]*)\]")
_ITEM = re.compile(r"^\* `(?P<names>[^`]+)`: (?P<text>.*)$", re.MULTILINE)


@cache
def commands(program: str) -> str:
    """All commands of a program, each with its help. Cached for `environment`, as it takes a second."""
    text = _PROGRAMS[program].generate_docs(output_format="markdown", recursive=True, heading_level=2)
    text = _HOME.sub(r"[default: ~/\1]", _CONTENTS.sub("", text))
    text = _USAGE.sub(r"\g<before>\g<command>\g<rest>", text)
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def environment() -> str:
    """Each environment variable that an option reads. A default that the meaning tells, or an empty one, has no entry."""
    found = dict[str, tuple[str, str, str]]()
    for text in map(commands, _PROGRAMS):
        for item in _ITEM.finditer(text):
            for variable in _VARIABLE.findall(item["text"]):
                meaning = re.sub(r" ?\*+\[[^]]*\]\*+", "", item["text"]).strip()
                default = _DEFAULT.search(item["text"])
                shown = f"`{default[1]}`" if default and default[1] not in ("()", "None") and "Default:" not in meaning else ""
                found.setdefault(variable, (item["names"].split(",")[0].split(" ")[0], shown, meaning))
    rows = ((f"`{name}`", f"`{option}`", default, meaning) for name, (option, default, meaning) in sorted(found.items()))
    return table(("variable", "option", "default", "meaning"), rows)


SITE.update(
    {
        "commands-treaty": lambda: commands("treaty"),
        "commands-registry": lambda: commands("treaty-registry"),
        "environment": environment,
    }
)
