"""Read, write and replay vectors: recorded sessions that a handler must reproduce.

A vector is one session in one role, or the same session in each of several roles. docs/specification/handler-packages.md, section
"The project folder", has the format. For example, a vector of one step:

    {"title": "An unknown product", "role": "provider",
     "steps": [{"event": {"received": {"data": {"json": {"messageId": "msg002"}}}},
                "effects": [{"invoke": {"call": "1", "operation": "getProductInfo", "arguments": {"productId": "P99999"}}}]}]}

Each vector is replayed twice. The second time the session moves by snapshot after every step; the effects must be the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import msgspec

from treaty_consensus.canonical import b64decode, b64encode
from treaty_consensus.errors import Malformed, TooLarge, TreatyError
from treaty_consensus.handler import MAX_ROLES, HandlerPackage
from treaty_handler import Effect, Event, Failure, Opened, Value, decode_json, encode_json
from treaty_io.codes import VectorCode

from .worker.framing import EFFECTS, EVENTS

if TYPE_CHECKING:
    from .interface import LoadedHandler, LoadedSession
    from .pool import SandboxPool

LOCAL, PEER = "did:example:local", "did:example:peer"
NO_SEED = "0" * 32
# Checked before parsing, because the parsed objects are many times larger than the bytes.
MAX_VECTOR = 1024 * 1024

_Fields = dict[str, Any]


class _Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    event: dict[str, _Fields]
    effects: list[dict[str, _Fields]]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    steps: list[_Step]
    role: str | None = None
    roles: list[str] | None = None
    parameters: dict[str, Any] = {}
    seed: str = NO_SEED


@dataclass(frozen=True, slots=True)
class VectorStep:
    """An event and its expected effects, each a tag and all fields, with bytes in one of the three notations.

    `number`: its place in the file, from 1; 0 for the `opened` that the file leaves out.
    """

    number: int
    event: Event
    effects: tuple[tuple[str, Mapping[str, Value]], ...]


@dataclass(frozen=True, slots=True)
class Vector:
    """A parsed vector. `name`: the name of its file, for reports. `roles`: it holds in each of them. `data`: the bytes of the
    file."""

    name: str
    title: str
    roles: tuple[str, ...]
    parameters: Mapping[str, Value]
    seed: str
    steps: tuple[VectorStep, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first difference between a handler and a vector.

    `step`: as its author counts, from 1; 0 is the `opened` that the file leaves out. `expected`, `actual`: effects as in the
    file. `error`: the handler's failure in the place of `actual`, or "". `moved`: the session had been moved by snapshot.
    `role`: where the vector has several, or "".
    """

    vector: str
    step: int
    expected: Sequence[Mapping[str, Value]]
    actual: Sequence[Mapping[str, Value]] = ()
    error: str = ""
    moved: bool = False
    role: str = ""

    @property
    def place(self) -> str:
        """The file and the step, for a report."""
        step = f"step {self.step}" if self.step else "the opening"
        return f"{self.vector}{f' as {self.role}' if self.role else ''}, {step}{' after a snapshot' if self.moved else ''}"

    def __str__(self) -> str:
        return f"{self.place}: expected {_text(self.expected)}, got {self.error or _text(self.actual)}"


def parse_vector(name: str, data: bytes) -> Vector:
    """Parse the bytes of a file. `name` is its name for errors and reports. Raises `TooLarge` or `Malformed` (`vector.…`)."""
    if len(data) > MAX_VECTOR:
        raise TooLarge(VectorCode.FORM, f"{name} has {len(data)} bytes; a vector has at most {MAX_VECTOR}.")
    try:
        file = msgspec.convert(decode_json(data), _File)
        roles = _roles(file)
        steps = [_step(step, number) for number, step in enumerate(file.steps, 1)]
    except (ValueError, TreatyError) as error:
        raise _malformed(name, str(error).rstrip(".")) from error
    if not steps:
        raise _malformed(name, "it has no steps")
    if not isinstance(steps[0].event, Opened):
        steps.insert(0, VectorStep(0, Opened(), ()))
    return Vector(name, file.title, roles, file.parameters, file.seed, tuple(steps), data)


def published_vectors(package: HandlerPackage) -> tuple[Vector, ...]:
    """Return the vectors that a package contains. Raises `TooLarge` or `Malformed` (`vector.…`)."""
    return tuple(parse_vector(name, data) for name, data in sorted(package.vectors.items()))


def format_vector(title: str, role: str, steps: Sequence[tuple[Event, Sequence[Effect]]]) -> bytes:
    """Write these events and their effects as a file for `parse_vector`. Fields with their default are left out."""
    return join_vector(title, role, [format_step(event, effects) for event, effects in steps])


def join_vector(title: str, role: str, steps: Sequence[Mapping[str, Any]], *, seed: str = NO_SEED) -> bytes:
    """Write steps of `format_step` as a file for `parse_vector`."""
    file: dict[str, Any] = {"title": title, "role": role}
    file |= {} if seed == NO_SEED else {"seed": seed}
    file["steps"] = list(steps)
    return json.dumps(file, ensure_ascii=False, indent=2).encode("utf-8") + b"\n"


def format_step(event: Event, effects: Sequence[Effect]) -> dict[str, Any]:
    """Return a step as in a file."""
    effects_shown = (_shown(effect, None) for effect in effects)
    return {"event": _brief(_written(event), EVENTS), "effects": [_brief(effect, EFFECTS) for effect in effects_shown]}


async def run_vectors(pool: SandboxPool, package: HandlerPackage, vectors: Sequence[Vector]) -> list[Mismatch]:
    """Replay all vectors, and return the differences; an empty list if there are none.

    Raises `Unavailable` (`sandbox.unavailable`) if there is no sandbox, and `Refused` if the package cannot be loaded.
    """
    mismatches: dict[str, Mismatch] = {}
    worker: LoadedHandler | None = None
    try:
        # A handler whose snapshot loses part of its state would fail only in a busy agent, whose sessions rest. Here it fails for
        # its author.
        for moving in (False, True):
            for vector in vectors:
                for role in vector.roles:
                    if vector.name in mismatches:  # one report of a vector is enough
                        break
                    # One worker for all vectors saves starts. Another one starts only after a vector that ended it.
                    if worker is None or not worker.alive:
                        worker = await pool.load(package, local=LOCAL, peers=[PEER])
                    mismatch = await _replay(worker, vector, role, moving)
                    if mismatch is not None:
                        mismatches[vector.name] = replace(mismatch, role=role) if len(vector.roles) > 1 else mismatch
                    if not worker.alive:
                        await worker.close()
    finally:
        if worker is not None:
            await worker.close()
    return list(mismatches.values())


async def _replay(worker: LoadedHandler, vector: Vector, role: str, moving: bool) -> Mismatch | None:
    session: LoadedSession | None = None
    for step in vector.steps:
        expected = [{tag: dict(effect_fields)} for tag, effect_fields in step.effects]
        try:
            if session is None:
                session = await worker.open(role, vector.parameters, seed=vector.seed)
            elif moving:
                await session.move(worker)
            effects = await session.handle(step.event)
        except TreatyError as error:
            failure = f"the error {error.code}: {error.message}"
            return Mismatch(vector.name, step.number, expected, error=failure, moved=moving)
        except ValueError as error:  # no host gives this event here, such as a Result without an Invoke
            if session is not None:
                await session.close()
            return Mismatch(vector.name, step.number, expected, error=f"an event that cannot occur: {error}", moved=moving)
        styles = [_style(effect_fields) for _, effect_fields in step.effects] + [None] * len(effects)
        actual = [_shown(effect, style) for effect, style in zip(effects, styles, strict=False)]
        # As texts, because Python's == takes 1, 1.0 and true for equal.
        if _text(actual) != _text(expected):
            return Mismatch(vector.name, step.number, expected, actual, moved=moving)
    if session is not None:
        await session.close()
    return None


def _malformed(name: str, fault: str) -> Malformed:
    form = 'The form is {"title", "role" or "roles", "steps": [{"event": {…}, "effects": […]}]}'
    fix = f'{form}; see "The project folder" of the specification.'
    return Malformed(VectorCode.FORM, f"{name} is no test vector: {fault}.", fix=fix)


def _roles(file: _File) -> tuple[str, ...]:
    if file.role is not None and file.roles is None:
        return (file.role,)
    # Each role is a replay and a row of the coverage, so a foreign file has no more of them than a manifest.
    if file.role is not None or file.roles is None or not 2 <= len(file.roles) <= MAX_ROLES:
        raise ValueError(f'it has neither a "role" nor 2 to {MAX_ROLES} "roles"')
    if len(set(file.roles)) < len(file.roles):
        raise ValueError("it names a role twice")
    return tuple(file.roles)


def _step(step: _Step, number: int) -> VectorStep:
    where = f"step {number}"
    tag, event_fields = _single(step.event, where)
    if tag not in EVENTS:
        raise ValueError(f"{where} has the event {tag!r}; it is one of {', '.join(EVENTS)}")
    full = _complete(EVENTS[tag], event_fields, where)
    if "data" in full:
        full["data"] = _bytes(full["data"], where)
    if "stored" in full:
        full["stored"] = {key: _bytes(notation, where) for key, notation in dict(full["stored"]).items()}
    event: Event = msgspec.convert(full, type=EVENTS[tag])
    effects = [_expected(effect, f"{where}, effect {number},") for number, effect in enumerate(step.effects, 1)]
    return VectorStep(number, event, tuple(effects))


def _expected(effect: dict[str, _Fields], where: str) -> tuple[str, _Fields]:
    tag, effect_fields = _single(effect, where)
    if tag not in EFFECTS:
        raise ValueError(f"{where} is {tag!r}; it is one of {', '.join(EFFECTS)}")
    full = _complete(EFFECTS[tag], effect_fields, where)
    if tag == "settimer" and type(full["seconds"]) is int:
        full["seconds"] = float(full["seconds"])
    in_bytes = {"send": "data", "persist": "value"}.get(tag)
    if in_bytes is not None and full[in_bytes] is not None:
        _bytes(full[in_bytes], where)  # reports bad notation here instead of during the replay
    return tag, full


def _single(item: dict[str, _Fields], where: str) -> tuple[str, _Fields]:
    if len(item) != 1:
        raise ValueError(f"{where} is not an object with one name")
    [(tag, tag_fields)] = item.items()
    return tag, tag_fields


def _complete(kind: type, members: _Fields, where: str) -> _Fields:
    """Return all fields of a class, defaults included. Raises `ValueError` for an unknown or a missing field."""
    full: _Fields = {}
    if unknown := members.keys() - {field.name for field in fields(kind)}:
        raise ValueError(f"{where} has no field {min(unknown)}")
    for field in fields(kind):
        if field.name in members:
            full[field.name] = members[field.name]
        elif field.name == "peer":
            full[field.name] = PEER
        elif field.default is not MISSING:
            full[field.name] = field.default
        elif field.default_factory is MISSING:
            raise ValueError(f"{where} lacks {field.name}")
    if isinstance(full.get("error"), dict):
        full["error"] = {"message": "", **full["error"]}
    return full


def _bytes(notation: object, where: str) -> bytes:
    if isinstance(notation, dict) and len(notation) == 1:
        [(style, value)] = notation.items()
        if style == "json":
            return encode_json(value)
        if style == "text" and isinstance(value, str):
            return value.encode("utf-8")
        if style == "base64" and isinstance(value, str):
            return b64decode(value, limit=MAX_VECTOR)
    raise ValueError(f'{where} has bytes that are not {{"json": …}}, {{"text": …}} or {{"base64": …}}')


def _style(schema: Mapping[str, Value]) -> str | None:
    """Return the notation of the bytes in an expected effect."""
    for name in ("data", "value"):
        if isinstance(schema.get(name), dict) and len(schema[name]) == 1:
            return str(next(iter(schema[name])))
    return None


def _shown(effect: Effect | Event, style: str | None) -> dict[str, _Fields]:
    """Write an effect as in a vector, with its bytes in this notation if possible."""
    shown_fields: _Fields = {}
    for field in fields(effect):
        value = getattr(effect, field.name)
        if isinstance(value, bytes):
            value = _notation(value, style)
        elif isinstance(value, Failure):
            value = {"code": value.code, "message": value.message}
        shown_fields[field.name] = value
    return {type(effect).__name__.lower(): shown_fields}


def _written(event: Event) -> dict[str, _Fields]:
    """Write an event as in a vector. Bytes are written as JSON only if they are compact JSON, so that a replay restores them."""
    [(tag, event_fields)] = _shown(event, "text").items()
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(value, bytes):
            event_fields[field.name] = _exact(value)
    if isinstance(event, Opened):
        event_fields["stored"] = {key: _exact(stored) for key, stored in event.stored.items()}
        if not event.parameters:  # so that vectors of a protocol without parameters stay as they were
            del event_fields["parameters"]
    return {tag: event_fields}


def _brief(tagged: dict[str, _Fields], kinds: Mapping[str, type]) -> dict[str, _Fields]:
    """Leave the fields out that `_complete` adds."""
    [(tag, event_fields)] = tagged.items()
    usual = {field.name: PEER if field.name == "peer" else field.default for field in fields(kinds[tag])}
    # The class too: 0, 0.0 and false are equal for Python.
    unusual = {
        name: value for name, value in event_fields.items() if type(usual[name]) is not type(value) or usual[name] != value
    }
    return {tag: {name: value for name, value in unusual.items() if not (name in ("stored", "parameters") and not value)}}


def _exact(data: bytes) -> dict[str, Value]:
    notation = _notation(data, "json")
    return notation if "json" not in notation or encode_json(notation["json"]) == data else _notation(data, "text")


def _notation(data: bytes, style: str | None) -> dict[str, Value]:
    if style in ("json", None):
        try:
            return {"json": decode_json(data)}
        except ValueError:
            style = "text"
    if style == "text":
        try:
            return {"text": data.decode("utf-8")}
        except UnicodeDecodeError:
            pass
    return {"base64": b64encode(data)}


def _text(effects: Sequence[Mapping[str, Value]]) -> str:
    """Return a printable text that differs for different values; 1, 1.0 and true differ."""
    return json.dumps(effects, sort_keys=True)
