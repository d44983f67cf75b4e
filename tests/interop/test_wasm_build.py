"""The module in this repository is the one that its source compiles to."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sandboxed import MODULE

from treaty_consensus.handler import MODULE_NAME


@pytest.mark.deep
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed: pip install ziglang==0.17.1")
def test_the_compiler_writes_the_committed_module(tmp_path: Path) -> None:
    for source in MODULE.glob("*.[ch]"):
        shutil.copy(source, tmp_path)
    # As the source itself says.
    said = re.search(r"zig (cc [^*]*)", (MODULE / "handler.c").read_text())
    assert said is not None
    command = said[1].replace("\\\n", " ").split()
    subprocess.run([sys.executable, "-m", "ziglang", *command], cwd=tmp_path, check=True)
    assert (tmp_path / MODULE_NAME).read_bytes() == (MODULE / MODULE_NAME).read_bytes()
