"""Add recorded sessions to a project as vectors.

An agent writes each session of a handler as a vector if `recordings` of agent.toml names a folder (`treaty_sandbox.recorder`). A
recording becomes a vector of a project when the project's handler repeats it in the sandbox:

    add_recordings(Path("my-protocol"), [Path("recordings/my-protocol-1.0-provider-1.json")])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treaty_consensus.codes import SystemCode
from treaty_consensus.errors import Conflict, NotFound, Refused
from treaty_consensus.handler import VECTORS
from treaty_io import durable
from treaty_io.codes import ProjectCode, VectorCode
from treaty_sandbox import SandboxPool, Vector, parse_vector, run_vectors
from treaty_sandbox.vectors import MAX_VECTOR

from ..protocols.project import load_project
from .building import build
from .coverage import Coverage, measure_coverage


@dataclass(frozen=True, slots=True)
class AddedVectors:
    """The new files, and the coverage of the project's vectors before and with them."""

    files: tuple[Path, ...]
    before: Coverage
    after: Coverage


async def add_recordings(folder: Path, recordings: Sequence[Path]) -> AddedVectors:
    """Write recordings into the project's `vectors/`, under their own names. All of them are checked before one is written.

    Raises `NotFound` (`project.file`), `Malformed` (`vector.form`), `Refused` (`vector.form`, `vector.differs` when the handler
    does not repeat a recording), `Conflict` (`system.exists`), and the errors of `load_project`, `build` and the sandbox.
    """
    project = load_project(folder)
    package = build(project)
    vectors = [_read(path) for path in recordings]
    for vector in vectors:
        for role in vector.roles:
            if role not in package.manifest.roles:
                fix = f"The roles are {', '.join(package.manifest.roles)}."
                raise Refused(VectorCode.FORM, f"{vector.name} is of the role {role!a:.80}, which the protocol lacks.", fix=fix)
    async with SandboxPool(size=1) as pool:
        mismatches = await run_vectors(pool, package, vectors)
    if mismatches:
        fix = "Record it again with this version of the handler."
        raise Refused(VectorCode.DIFFERS, f"The handler does not repeat the recording: {mismatches[0]}.", fix=fix)
    files = [folder / VECTORS / vector.name for vector in vectors]
    for path in files:
        if path.exists():
            raise Conflict(SystemCode.EXISTS, f"{path} exists.", fix="Rename the recording.")
    for path, vector in zip(files, vectors, strict=True):
        durable.create(path, vector.data)
    before = measure_coverage(package.manifest, project.vectors)
    return AddedVectors(tuple(files), before, measure_coverage(package.manifest, [*project.vectors, *vectors]))


def _read(path: Path) -> Vector:
    try:
        with path.open("rb") as file:
            # One byte more than the cap shows that the file is too large.
            return parse_vector(path.name, file.read(MAX_VECTOR + 1))
    except OSError as error:
        fix = "Name a file of the folder that `recordings` of agent.toml names."
        raise NotFound(ProjectCode.FILE, f"{path}: {error.strerror or 'it cannot be read'}.", fix=fix) from error
