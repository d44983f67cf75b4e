"""`treaty config`: the configuration of this home, after both of its files were checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Column, Table

from treaty_agent.config import FILE, POLICY_FILE, AgentConfig, settings
from treaty_agent.sessions.interfaces import PATIENT, SessionTimeouts
from treaty_client.policy import Policy
from treaty_consensus.log.policy import WitnessPolicy
from treaty_consensus.log.witness import Quorum

from .context import Options


def config(*, negotiates: Annotated[bool, Parameter()] = False, options: Options = Options()) -> None:
    """Check policy.toml and agent.toml, and show every key with its value.

    Parameters
    ----------
    negotiates
        Show the defaults of an agent with negotiators. Its sessions wait longer.
    """
    agent = AgentConfig.load(options.home, negotiates=negotiates)
    usual = AgentConfig(timeouts=PATIENT if negotiates else SessionTimeouts())
    files = [name for name in (POLICY_FILE, FILE) if (options.home / name).exists()]
    table, value, defaults = (
        Table("key", Column("value", overflow="fold"), "default", box=None),
        dict[str, Any](),
        dict(_rows(usual)),
    )
    for key, now in _rows(agent):
        _put(value, key, now)
        table.add_row(escape(key), escape(_text(now)), "" if now == defaults[key] else escape(_text(defaults[key])))
    files_line = (
        f"[green]✓[/] {escape(str(options.home))} has {' and '.join(files) if files else 'neither file: all are defaults'}."
    )
    options.output.result({"home": str(options.home), "files": files, "config": value}, files_line, table)


def _rows(agent: AgentConfig) -> Iterator[tuple[str, Any]]:
    """Each key with its value, as JSON has it."""
    for policy_field in dataclasses.fields(Policy):
        yield f"policy.{policy_field.name}", _plain(getattr(agent.policy, policy_field.name))
    for key, value in settings(agent):
        yield key, _plain(value)


def _plain(value: Any) -> Any:
    match value:
        case Quorum():
            return {"quorum": value.needed, "keys": [str(key) for key in value.keys]}
        case WitnessPolicy():
            return {"policy": value.format().decode("utf-8", "replace").splitlines()}
        case Path():
            return str(value)
        case Mapping():
            return {name: _plain(part) for name, part in value.items()}
        case tuple():
            return [_plain(part) for part in value]
    return value


def _text(value: Any) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,g}"
        case list():
            return ", ".join(map(_text, value)) or "–"
        case dict():
            return ", ".join(f"{name} = {_text(part)}" for name, part in value.items()) or "–"
    return str(value)


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *parts, name = key.split(".")
    for part in parts:
        tree = tree.setdefault(part, {})
    tree[name] = value
