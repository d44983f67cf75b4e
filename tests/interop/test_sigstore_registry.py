"""The guide to the stock `sigstore` command, run as it is written against a registry that really serves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guides/sigstore.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def run(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder), **variables}
    return subprocess.run(["bash", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.deep
def test_the_stock_command_signs_and_verifies_with_a_did(real_registry: str, tmp_path: Path) -> None:
    make, download, sign, verify = re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)[0].splitlines()
    (tmp_path / "FILE").write_bytes(b"a handler")
    origin = f"{real_registry.rpartition(':')[2]}.localhost"
    names = {"REGISTRY": real_registry, "ORIGIN": origin, "TREATY_HOME": str(tmp_path / "home"), "DID": ""}
    done = run(f"treaty trust add {real_registry} --yes\n{make}\n{download}\n{sign}", tmp_path, **names)
    assert done.returncode == 0, done.stdout + done.stderr
    output = run(
        "treaty identity show --json | python -c 'import json, sys; print(json.load(sys.stdin)[\"did\"])'", tmp_path, **names
    )
    names["DID"] = output.stdout.strip()
    good = run(verify, tmp_path, **names)
    assert good.returncode == 0, good.stderr
    assert run(verify, tmp_path, **{**names, "DID": "did:wba:other.example"}).returncode != 0
    (tmp_path / "FILE").write_bytes(b"a handler, tampered with")
    assert run(verify, tmp_path, **names).returncode != 0
