"""Check a project as publishing would, and report all of its problems at once.

    1 files       protocol.toml, document.md, manifest.json, sources and vectors, each by itself
    2 wheel       the rules for packages, when no file has a fault of its own
    3 vectors     replayed in the sandbox, twice
    4 coverage    of the vectors that hold
    5 hostile     the vectors again, with the messages of a hostile peer: a handler must survive each
    6 document    its generated part and its prose, when the vectors hold, because its examples are theirs

A check with problems in one part does not begin the next one. Nothing is sent.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from treaty_consensus.codes import HandlerCode
from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.handler import VECTORS, HandlerPackage
from treaty_consensus.printable import printable
from treaty_io.codes import ClientHandlerCode, VectorCode
from treaty_sandbox import Mismatch, SandboxPool, Vector, run_vectors
from treaty_sandbox.hostile import HostileFinding, HostileRun, run_hostile
from treaty_sandbox.vectors import LOCAL, PEER, published_vectors

from ..protocols.project import MANIFEST, HandlerSource, Project, ProjectFiles, examine_project
from ..protocols.project_file import TOML, ProjectProblem, package_of
from .building import build
from .coverage import Coverage, check_coverage, measure_coverage
from .document import document_problems
from .manifest import manifest_problems

_HARMLESS = {
    "operations": {"operation": {"arguments": {"type": "object"}, "result": {}, "errors": {}, "idempotent": True, "timeout": 1}},
    "roles": {"role": {"peer": "role", "calls": [], "invokes": []}},
}


@dataclass(frozen=True, slots=True)
class ProtocolCheck:
    """The result of a check. `package`: None without a handler, and when it could not be built. `coverage`: None when the vectors
    were not replayed. `hostile`: None when the vectors do not hold."""

    problems: tuple[ProjectProblem, ...]
    package: HandlerPackage | None = None
    vectors: tuple[Vector, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    coverage: Coverage | None = None
    hostile: HostileRun | None = None

    @property
    def passed(self) -> bool:
        """Whether publishing would accept it."""
        return not self.problems and not self.mismatches


async def check_project(folder: Path, *, allow_uncovered: bool = False) -> ProtocolCheck:
    """Check a folder. `allow_uncovered`: an operation that no vector reaches is no problem.

    Raises `Unavailable` (`sandbox.unavailable`) if vectors cannot be replayed on this machine.
    """
    files = examine_project(folder)
    project, package = files.project, None
    problems = [
        *files.problems,
        *_syntax_problems(files),
        *_role_problems(files),
        *manifest_problems(_HARMLESS if files.manifest is None else files.manifest),
    ]
    if project is not None and project.handler is not None:
        try:
            package = build(project)
        except TreatyError as error:
            problems += _package_problems(project, project.handler)
            # A fault between files, such as a package that is too large, has no file of its own.
            problems = problems or [ProjectProblem(TOML if error.code == HandlerCode.ENTRY_POINT else "", "", error)]
    if problems or project is None:
        return ProtocolCheck(tuple(problems), vectors=files.vectors)
    check = ProtocolCheck(())
    if package is not None:
        check = await _replay(package, project.vectors, allow_uncovered=allow_uncovered)
        if check.coverage is None or check.mismatches:
            return check
    return replace(check, problems=(*check.problems, *document_problems(project, package)))


async def check_package(package: HandlerPackage, *, allow_uncovered: bool = False) -> ProtocolCheck:
    """Check a published package by the vectors in it. Raises the errors of `published_vectors` and `check_project`."""
    return await _replay(package, published_vectors(package), allow_uncovered=allow_uncovered)


async def _replay(package: HandlerPackage, vectors: Sequence[Vector], *, allow_uncovered: bool) -> ProtocolCheck:
    problems: list[ProjectProblem] = []
    mismatches: list[Mismatch] = []
    # Always in a sandbox, as readers run it. The policy's `isolation` does not count here.
    async with SandboxPool(size=1) as pool:
        try:
            # By itself first, so that a handler that does not import is reported once, not for each vector.
            await (await pool.load(package, local=LOCAL, peers=[PEER])).close()
            mismatches = await run_vectors(pool, package, vectors)
        except Refused as error:
            problems.append(ProjectProblem("handler", "", error))
            return ProtocolCheck(tuple(problems), package, tuple(vectors))
        hostile = None if mismatches else await run_hostile(pool, package, vectors)
    failed = {mismatch.vector for mismatch in mismatches}
    coverage = measure_coverage(package.manifest, (vector for vector in vectors if vector.name not in failed))
    # A failed vector reaches nothing, so its operations would be reported a second time.
    if not mismatches and not allow_uncovered:
        try:
            check_coverage(coverage, len(vectors))
        except Refused as error:
            problems.append(ProjectProblem(VECTORS, "", error))
    problems += map(_hostile_problem, hostile.findings if hostile is not None else ())
    return ProtocolCheck(tuple(problems), package, tuple(vectors), tuple(mismatches), coverage, hostile)


def _hostile_problem(finding: HostileFinding) -> ProjectProblem:
    fault = f"as {finding.role}, with {finding.change}: {finding.error}"
    fix = "Foreign bytes never raise: check each member before its use, and answer, note or ignore what does not conform."
    error = Refused(ClientHandlerCode.FAILED, printable(fault, 1_000), fix=fix)
    return ProjectProblem(f"{VECTORS}/{finding.vector}", f"step {finding.step}", error)


def _package_problems(project: Project, handler: HandlerSource) -> Iterator[ProjectProblem]:
    """Build a package of each source and each vector alone, so that every fault is reported with its file."""
    bare = replace(handler, entry_point=f"{package_of(project.name)}:handler", sources={"__init__.py": b""}, manifest=_HARMLESS)
    for path, content in handler.sources.items():
        # A source in a folder needs the folder's `__init__.py`, which may be another file.
        inits = {name: b"" for name in handler.sources if name.endswith("__init__.py")}
        alone = replace(bare, sources={**bare.sources, **inits, path: content})
        yield from _built(replace(project, handler=alone, vectors=()), f"{handler.folder}/{path}")
    for vector in project.vectors:
        yield from _built(replace(project, handler=bare, vectors=(vector,)), f"{VECTORS}/{vector.name}")


def _built(project: Project, file: str) -> Iterator[ProjectProblem]:
    try:
        build(project)
    except TreatyError as error:
        yield ProjectProblem(file, "", error)


def _syntax_problems(project: ProjectFiles) -> Iterator[ProjectProblem]:
    for path, content in (project.sources or {}).items():
        file = f"{project.folder}/{path}"
        if not path.endswith(".py"):
            continue
        try:
            ast.parse(content)
        except SyntaxError as error:
            fault = f"{file}, line {error.lineno}: {error.msg}."
            yield ProjectProblem(file, f"line {error.lineno}", Refused(ClientHandlerCode.FAILED, fault, fix="Correct the line."))
        except (ValueError, RecursionError, MemoryError) as error:
            yield ProjectProblem(file, "", Refused(ClientHandlerCode.FAILED, f"{file} does not parse: {error}."))


def _role_problems(project: ProjectFiles) -> Iterator[ProjectProblem]:
    roles = (project.manifest or {}).get("roles")
    if not isinstance(roles, dict):
        return
    for name, role in ((vector.name, role) for vector in project.vectors for role in vector.roles):
        if role not in roles:
            fault = f"role = {role!a:.80} is not a role of {MANIFEST}."
            error = Refused(VectorCode.FORM, fault, fix=f"The roles are {', '.join(map(str, roles))}.")
            yield ProjectProblem(f"{VECTORS}/{name}", "role", error)
