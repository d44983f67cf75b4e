"""A verified protocol as an OCI image layout, and again from it without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fetching import fetcher
from simulated_registry import ALICE, uri_of, with_echo

from treaty_client.policy import Policy
from treaty_client.protocols.export import verify_layout
from treaty_client.protocols.oci import PROTOCOL_TYPE, SIGSTORE_TYPE, WHEEL_TYPE, write_layout
from treaty_client.protocols.verification.records import VerifiedProtocol
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_client.registries.bundle import MEDIA_TYPE
from treaty_client.registries.trust import TrustedRegistries
from treaty_command.main import main
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import NotFound, Refused, Untrusted

POLICY = Policy([ALICE.did])


@pytest.fixture
async def verified(tmp_path: Path) -> VerifiedProtocol:
    async with fetcher(with_echo(), tmp_path / "home") as agent:
        return await agent.fetch(uri_of())


def verify(tmp_path: Path, folder: Path) -> VerifiedProtocol:
    return verify_layout(folder, TrustedRegistries(tmp_path / "home"), POLICY)


def test_a_layout_is_the_protocol_and_proves_it(verified: VerifiedProtocol, tmp_path: Path) -> None:
    digest = write_layout(verified, tmp_path / "a")
    assert digest == write_layout(verified, tmp_path / "b"), "the same bytes on every machine"
    index = json.loads((tmp_path / "a" / "index.json").read_bytes())
    assert [entry["artifactType"] for entry in index["manifests"]] == [PROTOCOL_TYPE, MEDIA_TYPE, SIGSTORE_TYPE]
    blobs = tmp_path / "a" / "blobs" / "sha256"
    assert all(hex_digest(path.read_bytes()) == path.name for path in blobs.iterdir())
    manifests = [json.loads((blobs / entry["digest"][7:]).read_bytes()) for entry in index["manifests"]]
    assert manifests[0]["config"]["mediaType"] == PROTOCOL_TYPE, "some registries report it as the type of the artifact"
    assert {other["subject"]["digest"] for other in manifests[1:]} == {digest}
    titles = [layer["annotations"]["org.opencontainers.image.title"] for layer in manifests[0]["layers"]]
    assert titles == ["document.md", "manifest.json", verified.package.filename]
    assert verify(tmp_path, tmp_path / "a") == verified


def test_the_commands_carry_it(verified: VerifiedProtocol, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout, out = tmp_path / "layout", tmp_path / "out"
    write_layout(verified, layout)
    home = ["--home", str(tmp_path / "home"), "--publisher", ALICE.did, "--json"]
    main(["oci", "import", str(layout), str(out), *home])
    assert json.loads(capsys.readouterr().out)["hash"] == verified.hash
    main(["verify", str(out), *home])
    assert (out / "document.md").read_bytes() == verified.document


def test_a_folder_with_files_is_left_alone(verified: VerifiedProtocol, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "mine").write_text("x")
    with pytest.raises(Refused) as refusal:
        write_layout(verified, folder)
    assert refusal.value.code == "system.exists" and [path.name for path in folder.iterdir()] == ["mine"]


@pytest.mark.threat(30)
def test_no_byte_of_a_layout_is_trusted(verified: VerifiedProtocol, tmp_path: Path) -> None:
    write_layout(verified, tmp_path / "a")
    refused = set()
    for name in sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()):
        data = (tmp_path / "a" / name).read_bytes()
        (tmp_path / "a" / name).write_bytes(
            data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        )
        try:
            assert verify(tmp_path, tmp_path / "a") == verified, "a part that is not read"
        except (Untrusted, VerificationFailed, NotFound):
            refused.add(name.name)
        (tmp_path / "a" / name).write_bytes(data)
    assert {hex_digest(verified.wheel), hex_digest(verified.bundle)} < refused
    assert len(refused) >= 5, "the manifests of the protocol and of its referrers too"


@pytest.mark.parametrize("change", ["no protocol", "two protocols", "a path", "no wheel", "no proofs"])
def test_another_form_is_refused(verified: VerifiedProtocol, tmp_path: Path, change: str) -> None:
    write_layout(verified, tmp_path / "a")
    path = tmp_path / "a" / "index.json"
    index = json.loads(path.read_bytes())
    protocol, bundle, _ = index["manifests"]
    blobs = tmp_path / "a" / "blobs" / "sha256"
    if change == "no wheel":
        manifest = json.loads((blobs / protocol["digest"][7:]).read_bytes())
        manifest["layers"] = [layer for layer in manifest["layers"] if layer["mediaType"] != WHEEL_TYPE]
        data = json.dumps(manifest).encode()
        (blobs / hex_digest(data)).write_bytes(data)
        protocol = {**protocol, "digest": f"sha256:{hex_digest(data)}"}
    changed = {
        "no protocol": [bundle],
        "two protocols": [protocol, protocol, bundle],
        "a path": [{**protocol, "digest": "sha256:../../../index.json"}, bundle],
        "no wheel": [protocol, bundle],
        "no proofs": [protocol],
    }
    path.write_text(json.dumps({**index, "manifests": changed[change]}))
    with pytest.raises(Untrusted) as refusal:
        verify(tmp_path, tmp_path / "a")
    assert refusal.value.code == "directory.changed"
