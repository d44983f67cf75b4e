"""The workflow in `examples/publish.yml`: its steps, with the variables of a runner, publish from a tag with nothing hosted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from ports import free_port
from registry_process import Server
from treaty_process import finished, start
from workflow_issuer import HOST, WorkflowIssuer

ROOT = Path(__file__).parents[2]
DID = "did:treaty:github.com:octo-org"
NEW = ("--name", "weather-report", "--topic", "science/weather", "--summary", "Ask a station.", "--kind", "request")


def run_step(command: str, folder: Path, variables: Mapping[str, str]) -> str:
    """Run a step of a job as a runner does: in bash, which stops at the first failure."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("TREATY_", "ACTIONS_", "GITHUB_"))}
    environment = {**plain, "PATH": path, "HOME": str(folder), "TREATY_HOME": str(folder / "home"), **variables}
    done = subprocess.run(
        ["/bin/bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def treaty(*arguments: str, home: Path) -> tuple[int, dict[str, object]]:
    status, out, err = finished(start(*arguments, "--json", "--home", str(home)))
    assert out, err
    return status, json.loads(out)


@pytest.mark.deep
async def test_a_tag_publishes_with_nothing_hosted(tmp_path: Path, database: str) -> None:
    workflow = yaml.safe_load((ROOT / "examples" / "publish.yml").read_text())
    (job,) = workflow["jobs"].values()
    # Without `id-token: write` the platform has no token to give; with more, a step could do more.
    assert (workflow["permissions"], job["permissions"]) == ({}, {"contents": "read", "id-token": "write"})
    assert {name: [*on] for name, on in workflow[True].items()} == {"push": ["tags"]}
    steps = [step["run"] for step in job["steps"] if "run" in step]
    assert steps.pop(0) == 'pip install "$TREATY"'
    assert (await treaty("new", str(tmp_path / "protocol"), *NEW, home=tmp_path / "none"))[0] == 0
    with WorkflowIssuer().serving(tmp_path) as issuer:
        issuing = f"--resolve={HOST}=127.0.0.1:{issuer.port}", f"--ca={issuer.authority}"
        options = ("--database", database, "--validate", "oidc", *issuing)
        server = Server(tmp_path / "registry", free_port(), options=options)
        await server.start()
        try:
            assert await server.ready()
            variables = {"REGISTRY": server.about["name"], **issuer.environment}
            for step in steps:
                run_step(step, tmp_path, variables)
            uri = f"https://{server.about['origin']}/protocols/github.com:octo-org/weather-report/1.0"
            # A stranger reads it with all proofs, and sees who says so; the policy decides about the code.
            reader = tmp_path / "reader"
            assert (await treaty("trust", "add", variables["REGISTRY"], "--yes", home=reader))[0] == 0
            _, shown = await treaty("info", uri, home=reader)
            assert (shown["publisher"], shown["validated"]) == (DID, "oidc")
            _, built = await treaty("provenance", uri, home=reader)
            (statement,) = cast(list[dict[str, Any]], built["statements"])
            predicate = statement["predicate"]
            assert predicate["buildDefinition"]["resolvedDependencies"][0]["digest"] == {"gitCommit": "ab" * 20}
            assert predicate["runDetails"]["metadata"]["invocationId"].endswith(
                "/Octo-Org/protocols/actions/runs/1234/attempts/1"
            )
            status, _ = await treaty("fetch", uri, "--publisher", DID, home=reader)
            assert status == 0
            # The same version again, from another run, is found and not published twice.
            assert "found published" in run_step(steps[-1], tmp_path, variables).replace("-", " ")
            (reader / "policy.toml").write_text(f'publishers = ["{DID}"]\nvalidated = []\n')
            status, refusal = await treaty("fetch", uri, home=reader)
            assert status != 0 and "policy.refused" in json.dumps(refusal)
            # Another run, with another key, takes it back.
            run_step(f"treaty yank {uri} --oidc", tmp_path, variables)
            assert (await treaty("info", uri, home=reader))[1]["status"] == "yanked"
            # Outside a workflow there is no token.
            status, refusal = await treaty("publish", str(tmp_path / "protocol"), "--oidc", home=reader)
            assert status != 0 and "identity.missing" in json.dumps(refusal)
        finally:
            await server.stop()
