"""The program `treaty`, as a process of its own or in this one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout

from treaty_command.main import main

# A shell that started the tests in the background lets them ignore Ctrl-C, and a child inherits that.
START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
{before}
sys.argv = ["treaty", *sys.argv[1:]]
from treaty_command import main
main()
"""
# Ctrl-C in the midst of the import of one module.
DURING_IMPORT = """
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


def start(*arguments: str, before: str = "", environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a command in a process group of its own. `before`: code that runs first."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TREATY_", "NO_COLOR", "FORCE_COLOR"))}
    return subprocess.Popen(
        [sys.executable, "-c", START.format(before=before), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean, **(environment or {})},
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for its end: exit status, standard output, standard error."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def treaty(*arguments: str, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Run a command to its end: exit status, standard output, standard error."""
    return finished(start(*arguments, environment=environment))


def treaty_here(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process, which has imported it: exit status, standard output, standard error."""
    # Files, because a command may flush what it printed to the disk.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        with redirect_stdout(out), redirect_stderr(errors):
            try:
                main(arguments)
                status = 0
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
        out.seek(0)
        errors.seek(0)
        return status, out.read(), errors.read()
