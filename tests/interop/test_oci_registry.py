"""A layout of `treaty oci export` through a registry of containers in Go, with its referrers, and back by oras-py."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import go_programs
import httpx
import pytest
from fetching import fetcher
from go_programs import needs_go
from simulated_registry import ALICE, uri_of, with_echo

from treaty_client.policy import Policy
from treaty_client.protocols.export import verify_layout
from treaty_client.protocols.oci import SIGSTORE_TYPE, write_layout
from treaty_client.registries.bundle import MEDIA_TYPE
from treaty_client.registries.trust import TrustedRegistries

pytestmark = [needs_go("go-containerregistry"), pytest.mark.deep]
REPOSITORY = "/v2/protocols/echo"


async def push(http: httpx.AsyncClient, layout: Path) -> list[dict[str, Any]]:
    """Push a layout as any OCI tool does: all blobs, then the manifests. Return the entries of its index."""
    entries: list[dict[str, Any]] = json.loads((layout / "index.json").read_bytes())["manifests"]
    for blob in (layout / "blobs" / "sha256").iterdir():
        begun = await http.post(f"{REPOSITORY}/blobs/uploads/")
        assert begun.status_code == 202
        done = await http.put(begun.headers["location"], params={"digest": f"sha256:{blob.name}"}, content=blob.read_bytes())
        assert done.status_code == 201, done.text
    for entry in entries:
        name = entry.get("annotations", {}).get("org.opencontainers.image.ref.name", entry["digest"])
        data = (layout / "blobs" / "sha256" / entry["digest"][7:]).read_bytes()
        answer = await http.put(f"{REPOSITORY}/manifests/{name}", content=data, headers={"Content-Type": entry["mediaType"]})
        assert answer.status_code == 201, answer.text
    return entries


async def pull(http: httpx.AsyncClient, entries: list[dict[str, Any]], layout: Path) -> None:
    """Pull the manifests, and the blobs that they name, as a layout."""
    (layout / "blobs" / "sha256").mkdir(parents=True)
    for entry in entries:
        manifest = (await http.get(f"{REPOSITORY}/manifests/{entry['digest']}", headers={"Accept": entry["mediaType"]})).content
        (layout / "blobs" / "sha256" / entry["digest"][7:]).write_bytes(manifest)
        for layer in json.loads(manifest)["layers"]:
            data = (await http.get(f"{REPOSITORY}/blobs/{layer['digest']}")).content
            (layout / "blobs" / "sha256" / layer["digest"][7:]).write_bytes(data)
    (layout / "index.json").write_text(json.dumps({"manifests": entries}))


async def test_a_registry_of_containers_carries_a_protocol(go_oci: Path, oras_python: Path, tmp_path: Path) -> None:
    async with fetcher(with_echo(), tmp_path / "home") as agent:
        verified = await agent.fetch(uri_of())
    digest = write_layout(verified, tmp_path / "layout")
    async with go_programs.serving(go_oci / "oci") as address, httpx.AsyncClient(base_url=f"http://{address}") as http:
        entries = await push(http, tmp_path / "layout")
        referrers = (await http.get(f"{REPOSITORY}/referrers/{digest}")).json()["manifests"]
        assert {each["artifactType"] for each in referrers} == {MEDIA_TYPE, SIGSTORE_TYPE}
        await pull(http, entries, tmp_path / "pulled")
        script = Path(__file__).parent / "sdk" / "oras_pull.py"
        command = [str(oras_python), str(script), f"{address}/protocols/echo:1.0", str(tmp_path / "oras")]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
    assert verify_layout(tmp_path / "pulled", TrustedRegistries(tmp_path / "home"), Policy([ALICE.did])) == verified
    names = (Path(path).name for path in json.loads(out))
    files = {name: await asyncio.to_thread((tmp_path / "oras" / name).read_bytes) for name in names}
    assert (files["document.md"], files[verified.package.filename]) == (verified.document, verified.wheel)
