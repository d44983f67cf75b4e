"""The commands of `treaty` and `treaty-registry`.

A command has one sentence, and so has an option of `treaty-registry`, which is set in files. `--help` has the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce
from typing import Annotated, Any

from cyclopts import App, Group, Parameter

from treaty_command.commands import app as client
from treaty_command.commands import describe
from treaty_command.context import Options as ClientOptions
from treaty_registry.cli.commands import app as registry
from treaty_registry.cli.options import Options as RegistryOptions

from . import SITE

_PROGRAMS: dict[str, tuple[App, Any]] = {"treaty": (client, ClientOptions), "treaty-registry": (registry, RegistryOptions)}
_COMMON = "**Options of every command**"
_CONTENTS = re.compile(r"^#+ Table of Contents\n.*?(?=^\*\*)", re.DOTALL | re.MULTILINE)
_USAGE = re.compile(r"(?P<head>^#+ (?P<command>treaty[\w -]*)\n(?:(?!^#).*\n)*?)```console\n[^\n]*\n```\n", re.MULTILINE)
"""The usage of a command. The list of its arguments and its example say the same."""
_HOME = re.compile(r"\[default: /[^]]*/(\.treaty[\w-]*)\]")
_GROUP = re.compile(r"^(\*\*[^*\n]+\*\*:)\n+((?:\* \[`.*\n)+)", re.MULTILINE)
"""A list of commands. Each one's section has its sentence."""
_LINK = re.compile(r"\[`[^]]*`\]\([^)]*\)")
_NOISE = re.compile(r"^\*\*(?:Arguments|Parameters)\*\*:\n+|, --empty-[\w-]+(?=`)", re.MULTILINE)
"""Headings that need no words, and options that undo others."""
_REST = re.compile(r"(?<=[^.]\.) (?=[A-Z`]).*|(?: \*\[(?:default|choices): [^]]*\]\*)+", re.DOTALL)
"""Of a text the sentences after the first, and the lists of choices and defaults."""
_VARIABLE = re.compile(r"\*\[env: (\w+)\]\*")


def commands(program: str) -> str:
    """All commands of a program, each with its help, and the options of every command once."""
    app, options = _PROGRAMS[program]
    if app is client:
        _describe_all(app, ())
    text, common = _markdown(app), _common_options(options)
    own, _, rest = text.replace(f"{common}\n", "").partition("\n### ")
    note = "A command that lists some of them has only those.\n\n" if any(line in rest for line in common.splitlines()) else ""
    text = f"{own}\n{_COMMON}:\n\n{note}{common}\n\n### {rest}"
    text = _NOISE.sub("", _GROUP.sub(_in_one_line, _USAGE.sub(_with_example, text)))
    own, *others = re.split(r"\n(?=#{2,4} )", re.sub(r"\n{3,}", "\n\n", text.strip()))
    items = _names if app is client else _meanings
    return "\n\n".join((_shortened(own, _meanings), *(_shortened(section, items) for section in others)))


def _shortened(section: str, items: Callable[[str], str]) -> str:
    """A section with its example and its groups, and a sentence of its meaning. `items`: the form of arguments and options."""
    parts, is_told = list[str](), False
    for part in section.strip().split("\n\n"):
        if part.startswith("* "):
            parts.append(items(part))
        elif part.startswith(("#", "Example: ", "**")):
            parts.append(part)
        elif not is_told:
            parts.append(_sentence(part))
            is_told = True
    return "\n\n".join(parts)


def _meanings(items: str) -> str:
    return "\n".join(_sentence(item) for item in re.split(r"\n(?=\* )", items))


def _names(items: str) -> str:
    return "- " + ", ".join(f"`{name}`" for name in re.findall(r"^\* `([\w-]+)", items, re.MULTILINE))


def _sentence(text: str) -> str:
    """The first sentence of a text, and the environment variable that it names."""
    variable, required = _VARIABLE.search(text), "**[required]**" in text
    first = _REST.sub("", " ".join(text.replace("**[required]**", "").split())).rstrip()
    first = _VARIABLE.sub("", first).rstrip()
    return first + (" **[required]**" if required else "") + (f" {variable[0]}" if variable else "")


def _markdown(app: App) -> str:
    text = app.generate_docs(output_format="markdown", recursive=True, heading_level=2)
    text = _HOME.sub(r"[default: ~/\1]", _CONTENTS.sub("", text))
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def _describe_all(app: App, names: tuple[str, ...]) -> None:
    for name in [name for name in app if not name.startswith("-")]:
        describe((*names, name))
        _describe_all(app[name], (*names, name))


def _common_options(options: Any) -> str:
    """The list of the options that every command takes, as the command's own are shown."""
    shown = App(name="treaty", default_parameter=Parameter(negative=()))

    def every(*, options: Any = None) -> None: ...

    every.__annotations__["options"] = Annotated[options, Parameter(group=Group(_COMMON))]
    shown.default(every)
    return "\n".join(item[0] for item in re.finditer(r"^\* `.*(?:\n    .*)*", _markdown(shown), re.MULTILINE))


def _with_example(section: re.Match[str]) -> str:
    if not section["command"].startswith("treaty "):
        return section["head"]
    command = reduce(App.__getitem__, section["command"].split()[1:], client)
    example = (command.help_epilogue or "").partition("\n")[0]
    return f"{section['head']}\n{example}\n" if command.default_command else section["head"]


def _in_one_line(group: re.Match[str]) -> str:
    return f"{group[1]} {', '.join(_LINK.findall(group[2]))}\n"


SITE.update(
    {
        "commands-treaty": lambda: commands("treaty"),
        "commands-registry": lambda: commands("treaty-registry"),
    }
)
