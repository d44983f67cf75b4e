"""Run handlers in the process of the test: no sandbox, no worker, no start-up time.

Events and effects are checked as in the sandbox. Code is imported and runs with all rights of the test, so use it only for
handlers that you would import yourself.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from treaty_consensus.errors import Refused
from treaty_consensus.handler import HandlerPackage, Runtime
from treaty_handler import Handler
from treaty_io.codes import AgentCode
from treaty_sandbox.in_process import CompiledPackage, DeclarativePackage, LocalWorker
from treaty_sandbox.interface import RunningHandler, WorkerMetrics
from treaty_sandbox.kept_session import KeptSession
from treaty_sandbox.operation_schemas import Operations

_numbers = itertools.count()


class InlineRuntime:
    """Implement `Runtime` in this process. Each package is imported once, also when several runtimes use it."""

    _compiled: dict[str, CompiledPackage] = {}  # noqa: RUF012  # shared on purpose: an import cannot be undone

    async def warm(self) -> None:
        """Do nothing."""

    async def preload(self, package: HandlerPackage, *, local: str) -> None:
        """Import a package."""
        self._load(package)

    async def open(
        self,
        package: HandlerPackage,
        role: str,
        *,
        local: str,
        peer: str,
        seed: str | None = None,
        kept: KeptSession | None = None,
    ) -> RunningHandler:
        """Open a session. Raises `Refused` (`session.role`)."""
        return await LocalWorker(self._load(package), local, [peer]).open(role, seed=seed, kept=kept)

    def metrics(self) -> WorkerMetrics:
        """Return zeros: there are no workers."""
        return WorkerMetrics()

    async def close(self) -> None:
        """Do nothing."""

    def _load(self, package: HandlerPackage) -> CompiledPackage:
        if package.manifest.runtime is Runtime.WASM:
            raise Refused(AgentCode.SETTINGS, "No test runs a WebAssembly module in its own process. Use SandboxRuntime.")
        if package.digest not in self._compiled:
            operations = Operations(package.manifest)
            self._compiled[package.digest] = (
                DeclarativePackage(package, operations)
                if package.is_declarative
                else CompiledPackage(package, operations, _imported(package))
            )
        return self._compiled[package.digest]


def _imported(package: HandlerPackage) -> Handler:
    """Import the package under a name of its own, so that two versions do not share modules."""
    name = f"{package.package}_{next(_numbers)}"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, package.package)
        _write(package.files, Path(folder))
        spec = importlib.util.spec_from_file_location(name, root / "__init__.py", submodule_search_locations=[str(root)])
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        owner = package.entry_point.module.replace(package.package, name, 1)
        handler: Handler = getattr(importlib.import_module(owner), package.entry_point.attribute)
    return handler


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
