"""A verified protocol as files, and again from those files without a network."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from fetching import fetcher
from simulated_registry import ALICE, BOB, NAME, TOPIC, flipped, uri_of, with_echo

from treaty_client.policy import Policy
from treaty_client.protocols.export import BUNDLE, DOCUMENT, TRUSTED_ROOT, export, verify_directory
from treaty_client.protocols.verification.records import VerifiedProtocol
from treaty_client.protocols.verification.steps import VerificationFailed
from treaty_client.registries.trust import TrustedRegistries
from treaty_command.main import main
from treaty_consensus import kinds
from treaty_consensus.errors import NotFound, Refused

POLICY = Policy([ALICE.did])
WHEEL = "treaty_handler_echo-1-py3-none-any.whl"


async def exported(tmp_path: Path) -> VerifiedProtocol:
    async with fetcher(with_echo(), tmp_path / "home") as agent:
        verified = await agent.fetch(uri_of())
    files = export(verified, tmp_path / "out")
    assert {path.name for path in files} == {path.name for path in (tmp_path / "out").iterdir()}
    return verified


async def test_the_files_are_the_protocol_and_prove_it_years_later(tmp_path: Path) -> None:
    verified = await exported(tmp_path)
    out, registries = tmp_path / "out", TrustedRegistries(tmp_path / "home")
    assert (out / DOCUMENT).read_bytes() == verified.document
    assert (out / WHEEL).read_bytes() == verified.wheel
    assert (out / f"{WHEEL}.sigstore.json").read_bytes() == verified.attestation
    assert verify_directory(out, registries, POLICY) == verified


async def test_exporting_again_replaces(tmp_path: Path) -> None:
    verified = await exported(tmp_path)
    (tmp_path / "out" / DOCUMENT).write_text("old")
    export(verified, tmp_path / "out")
    assert (tmp_path / "out" / DOCUMENT).read_bytes() == verified.document


@pytest.mark.parametrize("is_export", [False, True])
async def test_a_folder_with_another_document_is_left_as_it_is(tmp_path: Path, is_export: bool) -> None:
    """The project of an author, or another protocol that was fetched into the same folder."""
    verified = await exported(tmp_path)
    out = tmp_path / "out"
    (out / DOCUMENT).write_text("# Another")
    if not is_export:
        (out / BUNDLE).unlink()
    else:
        data = (out / BUNDLE).read_bytes()
        (out / BUNDLE).write_bytes(data.replace(b"/echo/1", b"/etho/1"))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(Refused) as refused:
        export(verified, out)
    assert refused.value.code == "system.exists"
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


async def test_an_export_that_a_crash_cut_short_is_completed(tmp_path: Path) -> None:
    verified = await exported(tmp_path)
    (tmp_path / "out" / BUNDLE).unlink()
    export(verified, tmp_path / "out")
    assert (tmp_path / "out" / BUNDLE).read_bytes() == verified.bundle


@pytest.mark.parametrize("name, step", [(DOCUMENT, 5), (WHEEL, 7), (f"{WHEEL}.sigstore.json", 8), (TRUSTED_ROOT, 8)])
async def test_a_changed_file_fails_its_step(tmp_path: Path, name: str, step: int) -> None:
    await exported(tmp_path)
    path = tmp_path / "out" / name
    for data in (flipped(path.read_bytes(), 10), path.read_bytes() + b"\n", b""):
        path.write_bytes(data)
        with pytest.raises(VerificationFailed) as failure:
            verify_directory(tmp_path / "out", TrustedRegistries(tmp_path / "home"), POLICY)
        assert failure.value.step == step


@pytest.mark.parametrize("name", [BUNDLE, DOCUMENT, WHEEL, TRUSTED_ROOT, f"{WHEEL}.sigstore.json"])
async def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    await exported(tmp_path)
    (tmp_path / "out" / name).unlink()
    with pytest.raises((NotFound, VerificationFailed), match=name):
        verify_directory(tmp_path / "out", TrustedRegistries(tmp_path / "home"), POLICY)


async def test_the_policy_and_the_trusted_key_count_offline_too(tmp_path: Path) -> None:
    await exported(tmp_path)
    registries = TrustedRegistries(tmp_path / "home")
    with pytest.raises(VerificationFailed) as failure:
        verify_directory(tmp_path / "out", registries, Policy([BOB.did]))
    assert failure.value.step == 6
    registries.remove(NAME.origin)
    with pytest.raises(VerificationFailed) as failure:
        verify_directory(tmp_path / "out", registries, POLICY)
    assert (failure.value.step, failure.value.code) == (1, "registry.not-trusted")


async def test_what_was_seen_since_counts_offline_too(tmp_path: Path) -> None:
    registry = with_echo()
    async with fetcher(registry, tmp_path / "home") as agent:
        verified = await agent.fetch(uri_of())
        export(verified, tmp_path / "out")
        registry.add(kinds.Status(uri_of(), "deprecated"), ALICE)
        await agent.topic(TOPIC)
        registries = TrustedRegistries(tmp_path / "home")
        again = verify_directory(tmp_path / "out", registries, POLICY)
        assert again.warnings == (f"Since then, at leaf {registry.size - 1}, {ALICE.did} says that {uri_of()} is deprecated.",)
        registry.add(kinds.Status(uri_of(), "revoked"), ALICE)
        await agent.topic(TOPIC)
    with pytest.raises(VerificationFailed) as failure:
        verify_directory(tmp_path / "out", registries, POLICY)
    assert (failure.value.step, failure.value.code) == (9, "status.revoked")


async def test_a_folder_that_leaves_out_what_was_seen_is_refused(tmp_path: Path) -> None:
    registry = with_echo()
    registry.attach(release="2")
    async with fetcher(registry, tmp_path / "home") as agent:
        await agent.fetch(uri_of())
    (newest,) = [i for i, statement in registry.statements() if isinstance(statement.body, kinds.Handler)][1:]
    registry.left_out = {newest}
    async with fetcher(registry, tmp_path / "other") as agent:
        export(await agent.fetch(uri_of()), tmp_path / "out")
    with pytest.raises(VerificationFailed) as failure:
        verify_directory(tmp_path / "out", TrustedRegistries(tmp_path / "home"), POLICY)
    assert (failure.value.step, failure.value.code) == (10, "memory.contradicted")


async def test_the_command_shows_what_the_vectors_cover(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await exported(tmp_path)
    options = ["--publisher", ALICE.did, "--home", str(tmp_path / "home")]
    main(["verify", str(tmp_path / "out"), *options, "--json"])
    assert json.loads(capsys.readouterr().out)["coverage"] == {"vectors": 0, "outcomes": 2, "reached": 0}
    main(["verify", str(tmp_path / "out"), *options])
    command = shlex.join(["treaty", "test", uri_of(), *options])
    assert f"0 vectors, for 0 of 2 outcomes; replay them: {command}" in capsys.readouterr().out.replace("\n", " ")
