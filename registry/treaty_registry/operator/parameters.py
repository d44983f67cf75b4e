"""Read and write the constants of the election: the operator's file, and the logged statement.

A file is TOML, at most 64 KiB. It has the fields of a `parameters` statement (`kinds.Parameters`), with these differences:

- Missing fields are as in `election.defaults`. Only the anchors of an open electorate have no default; they come in any order.
- `reputation.suffix_list` is the path of a Public Suffix List, relative to the file. Without it, the list of the installed
  package `publicsuffixlist` is used.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from treaty_consensus import statement
from treaty_consensus.amendment import constitution_of
from treaty_consensus.canonical import hex_digest
from treaty_consensus.codes import ParametersCode
from treaty_consensus.election.defaults import development_parameters, open_parameters
from treaty_consensus.errors import Malformed, TooLarge
from treaty_consensus.facts import CONSTITUTION, LOG, ConstitutionFact, LogFact
from treaty_consensus.kinds import MAX_SUFFIX_LIST, Blob, Parameters

from ..admission.statements import check_anchors
from ..log.tables import read_fact, read_leaves
from ..storage.postgres import Pool
from .schedule import Timetable, read_timetable

# Read completely before it is parsed, so a wrong path must not load a huge file.
MAX_FILE = 64 * 1024


class ParametersDraft(msgspec.Struct, frozen=True):
    """Parameters that are not logged yet, and the suffix list that they name. A development electorate has no suffix list."""

    parameters: Parameters
    suffix_list: bytes | None = None

    @property
    def blobs(self) -> dict[str, bytes]:
        """Return the blobs that the statement names, by digest."""
        return {} if self.suffix_list is None else {hex_digest(self.suffix_list): self.suffix_list}

    def check(self) -> None:
        """Raise the errors of admission: `Malformed`, `TooLarge` or `Refused`."""
        self.parameters.check()
        check_anchors(self.parameters, self.blobs)


@dataclass(frozen=True)
class LoggedParameters:
    """Logged parameters: the statement's id, its leaf, and its content."""

    statement: str
    index: int
    parameters: Parameters


@dataclass(frozen=True)
class ParametersStatus:
    """The parameters of the open epoch, and those announced for a later one.

    `closes`: when the schedule closes the epoch, Unix seconds; None where the operator closes it. `constitution`: the digest of
    the parameters in force. `holds`: the time from which an epoch opens with the announced ones; None for the next epoch.
    """

    epoch: int
    closes: int | None
    constitution: str
    in_force: LoggedParameters
    announced: LoggedParameters | None
    holds: int | None


@dataclass(frozen=True)
class Announced:
    """Announced parameters: the statement's id and its leaf.

    `epoch`: the first epoch that they decide, where it is known. `holds`: else the time from which an epoch opens with them,
    Unix seconds. Both are None if the announcement took another one back.
    """

    statement: str
    index: int
    epoch: int | None
    holds: int | None


def read_draft(path: Path) -> ParametersDraft:
    """Read a file of parameters. Raises `Malformed` or `TooLarge` (`parameters.*`), the errors of `Draft.check`, and OSError."""
    data = _read(path, MAX_FILE, "file of parameters")
    try:
        tables = tomllib.loads(data.decode("utf-8"))
        suffix_list = _suffix_list(tables, path.parent) if tables.get("electorate") == "open" else None
        parameters = _in_order(msgspec.convert(_filled(tables, suffix_list), Parameters))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise Malformed(
            ParametersCode.VALUE,
            f"{path} does not contain valid parameters: {error}.",
            fix="Compare it with the example in the guide “From development to an open electorate”.",
        ) from error
    draft = ParametersDraft(parameters, suffix_list)
    draft.check()
    return draft


async def read_parameters_status(pool: Pool) -> ParametersStatus:
    """Return the parameters in force and the announced ones, as of the newest commit."""
    log = await read_fact(pool, LOG)
    assert isinstance(log, LogFact) and log.parameters is not None, "a registry that is open has its first leaves"
    timetable: Timetable | None = await read_timetable(pool)
    announced = await _read_logged(pool, log.announced) if log.announced is not None else None
    in_force = await _read_logged(pool, log.parameters)
    constitution = await read_fact(pool, CONSTITUTION) if announced else None
    holds = constitution.holds if isinstance(constitution, ConstitutionFact) else None
    digest = constitution_of(in_force.parameters)
    return ParametersStatus(log.epoch, timetable.due if timetable else None, digest, in_force, announced, holds)


async def _read_logged(pool: Pool, id_: str) -> LoggedParameters:
    index = await pool.fetchval("select index from leaves where statement = $1", bytes.fromhex(id_))
    body = statement.understand((await read_leaves(pool, [index]))[index]).body
    assert isinstance(body, Parameters)
    return LoggedParameters(id_, index, body)


def _suffix_list(terms_file: dict[str, Any], folder: Path) -> bytes:
    """Return the suffix list of an open electorate, and remove its path from `terms_file`."""
    terms = terms_file.get("reputation", {})
    named = terms.pop("suffix_list", None) if isinstance(terms, dict) else None
    if named is None:
        return resources.files("publicsuffixlist").joinpath("public_suffix_list.dat").read_bytes()
    return _read(folder / msgspec.convert(named, str), MAX_SUFFIX_LIST, "Public Suffix List")


def _filled(parameters: Mapping[str, Any], suffix_list: bytes | None) -> dict[str, Any]:
    """Return the given values, with defaults for the missing ones."""
    defaults = development_parameters()
    if suffix_list is not None:
        defaults = open_parameters((), Blob(hex_digest(suffix_list), len(suffix_list)))
    filled = {**msgspec.to_builtins(defaults), **parameters}
    for name, value in msgspec.to_builtins(defaults).items():
        if isinstance(value, dict) and isinstance(filled[name], dict):
            filled[name] = {**value, **filled[name]}
    return filled


def _in_order(parameters: Parameters) -> Parameters:
    if parameters.reputation is None:
        return parameters
    # A statement has one spelling, in which anchors are sorted.
    terms = msgspec.structs.replace(parameters.reputation, anchors=tuple(sorted(parameters.reputation.anchors)))
    return msgspec.structs.replace(parameters, reputation=terms)


def _read(path: Path, limit: int, what: str) -> bytes:
    with path.open("rb") as file:
        # One byte more than allowed shows that the file is too large, without reading all of it.
        data = file.read(limit + 1)
    if len(data) > limit:
        raise TooLarge(ParametersCode.VALUE, f"{path} has more than the {limit} bytes of a {what}.")
    return data
