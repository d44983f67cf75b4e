"""The configuration of an agent: one frozen tree of everything that its owner may choose, from Python or from HOME/agent.toml.

    AgentConfig(Policy(publishers=["did:wba:example.com"]), timeouts=SessionTimeouts(idle=60), transcripts=Path("sessions"))
    AgentConfig.load(home)          # HOME/policy.toml and HOME/agent.toml

docs/specification/home.md lists the keys of the file with their defaults.

The tree has waits, amounts and choices. Three sorts of numbers are constants in the modules that enforce them:

- Sizes and counts of a wire format, such as the bytes of a message. Both sides must have the same.
- Caps on the data of strangers: data kept for a peer, sizes in a document, requests to a host, differences of clocks. A larger
  value opens an attack, and a smaller value refuses honest peers.
- Sizes of caches and files below HOME.

Functions and connections to the outside are no settings: they are arguments of `Agent`, and a `Network` has its own.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from treaty_anp.hello_profile.core import Limits
from treaty_client.policy import Policy, load_policy
from treaty_consensus.errors import Malformed, TooLarge, Unavailable
from treaty_io.codes import ConfigCode
from treaty_io.home import default_home
from treaty_sandbox.limits import SandboxLimits
from treaty_sandbox.passivation import Passivation

from .sessions.flow_context import FlowSettings
from .sessions.interfaces import PATIENT, Capacity, PeerSettings, SessionTimeouts

FILE, POLICY_FILE = "agent.toml", "policy.toml"
# Far above an honest file. A wrong path, such as a device, does not fill the memory.
MAX_FILE = 64 * 1024
MAX_NUMBER = 2**53
"""The largest value of a number. Larger ones overflow in the kernel or in a timer."""

_ELSEWHERE = {
    "policy": f"Move these keys to {POLICY_FILE}.",
    "home": "Remove it: the file belongs to the home in which it lies.",
    "flow.resolvers": "Give resolvers in Python: AgentConfig(flow=FlowSettings(resolvers={…})).",
    "flow.strategy": "Give a strategy in Python: AgentConfig(flow=FlowSettings(strategy=…)).",
    "flow.adaptation": "Give an adaptation in Python: AgentConfig(flow=FlowSettings(adaptation=…)).",
}
"""Fields of the tree that the file does not set, and the fix for each."""
_MAY_BE_ZERO = frozenset(
    (
        "capacity.negotiations",
        "flow.limits.renegotiations",
        "flow.timeouts.renew",
        "flow.thresholds.patience",
        "flow.thresholds.pause",
        "limits.early_frames",
        "limits.fix_rounds",
        "limits.questions",
        "limits.test_rounds",
    )
)
_HIGHEST: Mapping[str, float] = {"limits.rounds": 10, "limits.test_rounds": 10, "flow.thresholds.failures": 1}
"""The source specification allows ten messages of a negotiation."""


@dataclass(frozen=True)
class AgentConfig:
    """Everything that an agent's owner chooses. Immutable.

    `policy`: whose code runs here; the default runs none. `timeouts`: of sessions; None for `SessionTimeouts()`, with negotiators
    `PATIENT`. `limits`: of messages in a session of the Hello profile. `flow`: of the flow profile. `capacity`: how much is done
    at once. `peers`: how `Agent.peer` keeps sessions. `workers`: how sessions share sandboxed workers. `sandbox`: the memory and
    time of a worker. `transcripts`: a folder for a transcript of every session, business data included; None for none.
    `recordings`: a folder for the session of every handler as a vector, for `treaty record`; None for none. `home`: the agent's
    folder; None for $TREATY_HOME or ~/.treaty.

    Raises `Malformed` (`config.file`) for a number out of its range and for a part of another class.
    """

    policy: Policy = field(default_factory=Policy)
    timeouts: SessionTimeouts | None = None
    limits: Limits = field(default_factory=Limits)
    flow: FlowSettings = field(default_factory=FlowSettings)
    capacity: Capacity = field(default_factory=Capacity)
    peers: PeerSettings = field(default_factory=PeerSettings)
    workers: Passivation = field(default_factory=Passivation)
    sandbox: SandboxLimits = field(default_factory=SandboxLimits)
    transcripts: Path | None = None
    recordings: Path | None = None
    home: Path | None = None

    def __post_init__(self) -> None:
        # Without this check a mapping in place of a policy would fail much later, when a handler is to run.
        _check_type("policy", self.policy, Policy)
        for key, value in settings(self):
            _check_number(key, value)
        # Judged here, not in a session: an agent that answers too late by its own settings would fail with every peer.
        waits = self.flow.timeouts
        if waits.work >= waits.reply:
            raise Malformed(
                ConfigCode.FILE,
                f"`flow.timeouts.work` is {waits.work:g}; the peer waits only `flow.timeouts.reply`, {waits.reply:g} seconds.",
                fix="Choose a smaller `work` or a larger `reply`.",
            )

    @classmethod
    def load(cls, home: Path, *, negotiates: bool = False) -> AgentConfig:
        """Read HOME/policy.toml and HOME/agent.toml; an absent file is an empty one. `negotiates`: the defaults of `timeouts`
        are those of an agent with negotiators.

        Raises `Malformed`, `TooLarge` and `Unavailable` (`config.file`, `policy.file`, and the other codes of `load_policy`).
        """
        base = cls(load_policy(home / POLICY_FILE), PATIENT if negotiates else SessionTimeouts(), home=home)
        path = home / FILE
        config: AgentConfig = _with_table(base, _parse(path), "", path)
        return config


def effective(
    config: AgentConfig | Policy | None, home: Path | None, *, negotiates: bool
) -> tuple[AgentConfig, Path, SessionTimeouts]:
    """Return the configuration of an agent with the defaults of its home and timeouts, and these two. A policy is one without
    other choices. Raises `Malformed` (`config.file`) for a `home` beside a whole configuration."""
    if not isinstance(config, AgentConfig):
        config = AgentConfig(config or Policy(), home=home)
    elif home is not None:
        fix = "Put it into the configuration: AgentConfig(home=…)."
        raise Malformed(ConfigCode.FILE, "`home` is an argument only beside a policy.", fix=fix)
    home, timeouts = config.home or default_home(), config.timeouts or (PATIENT if negotiates else SessionTimeouts())
    return dataclasses.replace(config, home=home, timeouts=timeouts), home, timeouts


def settings(config: AgentConfig) -> Iterator[tuple[str, Any]]:
    """Yield each key of agent.toml with its value in a configuration, in the order of the tree. Raises `Malformed`
    (`config.file`) where a part of the tree has another type."""
    return _settings(config, "")


def _settings(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, hint in _hints(type(tree)).items():
        key, value, kind = f"{prefix}{name}", getattr(tree, name), _table_kind(hint)
        if key in _ELSEWHERE:
            continue
        if kind is None:
            yield key, value
            continue
        part = kind() if value is None and NoneType in get_args(hint) else value
        _check_type(key, part, kind)
        yield from _settings(part, f"{key}.")


def _parse(path: Path) -> dict[str, Any]:
    """The tables of a file, read up to its cap."""
    try:
        with path.open("rb") as file:
            # One byte more than the cap shows that the file is over it, without a look at its size, which may change in between.
            data = file.read(MAX_FILE + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Unavailable(ConfigCode.FILE, f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_FILE:
        raise TooLarge(ConfigCode.FILE, f"{path} is over {MAX_FILE:,} bytes.", fix="Shorten it: absent keys have their defaults.")
    try:
        return tomllib.loads(data.decode())
    # RecursionError: nested brackets exhaust the parser's stack.
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(ConfigCode.FILE, f"{path} is not TOML: {error}.", fix="Correct the line that is named.") from error


def _with_table(base: Any, table: Mapping[str, object], prefix: str, path: Path) -> Any:
    """Return a part of the tree with the values of its table. The base stays as it is."""
    hints, values = _hints(type(base)), dict[str, Any]()
    for name, value in table.items():
        key = f"{prefix}{name}"
        if key in _ELSEWHERE:
            raise Malformed(ConfigCode.FILE, f"`{key}` is not set in {path}.", fix=_ELSEWHERE[key])
        # An unknown key is refused: a misspelt limit would leave its default in force without a word.
        if name not in hints:
            names = ", ".join(names for names in hints if f"{prefix}{names}" not in _ELSEWHERE)
            fix = f"Remove it, or use a key of {f'[{prefix[:-1]}]' if prefix else 'the file'}: {names}."
            raise Malformed(ConfigCode.FILE, f"{path} has the unknown key `{key}`.", fix=fix)
        kind, now = _table_kind(hints[name]), getattr(base, name)
        if kind is None:
            values[name] = _value(hints[name], value, key, now, path)
        elif isinstance(value, Mapping):
            values[name] = _with_table(kind() if now is None else now, value, f"{key}.", path)
        else:
            raise Malformed(ConfigCode.FILE, f"`{key}` of {path} is not a table.", fix=f"Write its keys below [{key}].")
    replace = msgspec.structs.replace if isinstance(base, msgspec.Struct) else dataclasses.replace
    return replace(base, **values)


def _value(hint: Any, value: object, key: str, default: object, path: Path) -> Any:
    """A value of the file in its type. A path is relative to the folder of the file."""
    is_path = Path in get_args(hint)
    try:
        converted = msgspec.convert(value, str if is_path else hint)
    except msgspec.ValidationError as error:
        fix = f"Write a value such as {_toml(default)}." if default not in (None, ()) else "See docs/specification/home.md."
        raise Malformed(ConfigCode.FILE, f"`{key}` of {path} has a bad value: {error}.", fix=fix) from error
    return path.parent / converted if is_path else converted


def _check_type(key: str, value: object, kind: type[Any]) -> None:
    """Raise `Malformed` (`config.file`) for a part of the tree of another class."""
    if not isinstance(value, kind):
        raise Malformed(ConfigCode.FILE, f"`{key}` is a {type(value).__name__}.", fix=f"Give it a {kind.__name__}.")


def _check_number(key: str, value: object) -> None:
    """Raise `Malformed` (`config.file`) for a number out of its range."""
    # bool first, because Python counts it among the integers.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    highest = _HIGHEST.get(key, MAX_NUMBER)
    whole = isinstance(value, int)
    low = value < 0 if key in _MAY_BE_ZERO else value <= 0
    if low or value > highest or math.isnan(value):
        lowest = "0" if key in _MAY_BE_ZERO else "1" if whole else "above 0"
        raise Malformed(ConfigCode.FILE, f"`{key}` is {value:g}.", fix=f"Choose a number from {lowest} to {highest:g}.")


def _hints(kind: Any) -> Mapping[str, Any]:
    """The types of the fields of a part of the tree, in order."""
    names = kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else [field_.name for field_ in dataclasses.fields(kind)]
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in names}


def _table_kind(hint: Any) -> type[Any] | None:
    """The class of a field that is a part of the tree itself, optional or not."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return next((kind for kind in kinds if dataclasses.is_dataclass(kind) or _is_struct(kind)), None)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
