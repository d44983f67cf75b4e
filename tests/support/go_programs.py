"""Go programs of the interoperability tests: built once from the modules below `tests/interop/go`, and run as processes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from build_cache import kept

MODULES = Path(__file__).parents[1] / "interop" / "go"


def needs_go(what: str) -> pytest.MarkDecorator:
    """Skip the tests of a module where there is no Go. `what`: the code that is not run then; the run's summary shows it."""
    return pytest.mark.skipif(shutil.which("go") is None, reason=f"there is no go command, so these were not run: {what}")


def build(module: str, cache: Path, folder: Path = MODULES) -> Path:
    """Return a folder with the programs of a module in `folder`: its own, and the tools that its go.mod names.

    They are built once for each state of the module and version of Go, and kept in `cache`. `go.sum` pins every dependency.
    """
    source = folder / module
    digest = hashlib.sha256(subprocess.run(["go", "version"], check=True, capture_output=True).stdout)
    for file in sorted(source.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    own = [".", "tool"] if any(source.glob("*.go")) else ["tool"]

    def compile_programs(folder: Path) -> None:
        command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", f"{folder}{os.sep}", *own]
        built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stderr

    return kept(cache / module / digest.hexdigest()[:16], compile_programs)


async def run(program: str | Path, *arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
    """Run a program to its end: its exit status, and what it printed to standard output and standard error."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(program, *map(str, arguments), stdin=pipe, stdout=pipe, stderr=pipe)
    out, errors = await process.communicate(stdin)
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


def b64(data: bytes) -> str:
    """Bytes as an argument of a program."""
    return base64.b64encode(data).decode("ascii")


async def result(program: str | Path, *arguments: object, stdin: bytes = b"") -> Any:
    """The JSON value that a program prints. It is expected to succeed."""
    status, out, errors = await run(program, *arguments, stdin=stdin)
    assert status == 0, errors
    return json.loads(out)


async def refusal(program: Path, *arguments: object, stdin: bytes = b"") -> str:
    """The words in which a program fails. It is expected to fail."""
    status, out, errors = await run(program, *arguments, stdin=stdin)
    assert status == 1, out + errors
    return errors


@asynccontextmanager
async def serving(program: str | Path, *arguments: object) -> AsyncIterator[Any]:
    """A program that serves until its standard input ends: the JSON value that it prints when it is ready."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(program, *map(str, arguments), stdin=pipe, stdout=pipe)
    assert process.stdin and process.stdout
    try:
        yield json.loads(await process.stdout.readline())
    finally:
        process.stdin.close()
        await process.wait()
