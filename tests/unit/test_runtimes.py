"""A protocol with handlers of several runtimes: the policy and the machine choose, and an error names the extra."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest
from handler_packages import MANIFEST, metadata
from rejections import rejection
from sandboxed import wasm_package, write_project
from simulated_registry import ALICE, NAME, uri_of, with_echo
from wasm_modules import handler

from treaty_agent.testing.inline_runtime import InlineRuntime
from treaty_client.policy import Policy, load_policy
from treaty_client.protocols.attestation import Binding
from treaty_client.protocols.project import examine_project, load_project
from treaty_client.protocols.verification.records import OfferedHandler
from treaty_client.protocols.verification.ten_steps import choose, read_bundle, verify_bundle, verify_handler
from treaty_client.registries.trust import TrustedRegistry
from treaty_consensus.canonical import hex_digest
from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import MODULE_NAME, WASM, Runtime, build_wheel, read_wheel
from treaty_consensus.kinds import Blob, Handler
from treaty_consensus.protocol import parse_protocol_uri
from treaty_io import extras
from treaty_sandbox import SandboxPool

FIRST, SECOND = "did:web:first.example", "did:web:second.example"
URI = "https://registry.example/protocols/example.com/x/1.0"


def offered(index: int, tag: str, publisher: str = FIRST) -> OfferedHandler:
    blob = Blob(f"{index:064x}", 1)
    body = Handler(URI, "0" * 64, f"treaty_handler_x-1.0-{tag}-none-any.whl", blob, "x:handler", blob)
    return OfferedHandler(body, publisher, 1, index, None)


def chosen(handlers: list[OfferedHandler], **fields: object) -> int:
    return choose(handlers, Policy(publishers=[FIRST, SECOND], **fields)).index  # type: ignore[arg-type]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the extra."""
    find = importlib.util.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "wasmtime" else find(name))


def test_the_policy_orders_runtimes_and_the_newest_of_one_counts() -> None:
    both = [offered(1, "py3"), offered(2, "wasm"), offered(3, "wasm"), offered(4, "jvm1")]
    assert chosen(both) == 1
    assert chosen(both, runtimes=["wasm", "python"]) == 3
    assert chosen(both, runtimes=["wasm"]) == 3
    assert chosen([offered(1, "wasm"), offered(2, "py3", SECOND)]) == 1, "the order of publishers comes first"
    with pytest.raises(TreatyError) as caught:
        chosen(both[1:], runtimes=["python"])
    assert caught.value.code == "policy.refused"
    with pytest.raises(TreatyError) as caught:
        chosen([offered(1, "jvm1")])
    assert caught.value.code == "policy.refused"


@pytest.mark.usefixtures("without")
async def test_without_the_extra_another_runtime_is_taken_or_the_extra_is_named() -> None:
    assert chosen([offered(1, "py3"), offered(2, "wasm")], runtimes=["wasm", "python"]) == 1
    with pytest.raises(TreatyError) as caught:
        chosen([offered(2, "wasm")])
    assert (caught.value.code, ".[wasm]" in caught.value.fix) == ("system.missing", True)
    async with SandboxPool(size=0) as pool:
        with pytest.raises(TreatyError) as caught:
            await pool.load(wasm_package("1.0"), local=FIRST, peers=[SECOND])
        assert (caught.value.code, pool.loaded) == ("system.missing", 0)


def test_both_handlers_of_a_protocol_pass_the_ten_steps_under_their_policies() -> None:
    registry = with_echo()
    document = registry.document_of(uri_of()).sha256
    about = replace(metadata({**MANIFEST, "runtime": "wasm"}), entry_point=WASM, protocol_uri=uri_of(), protocol_hash=document)
    filename, wheel = build_wheel({MODULE_NAME: handler()}, about)
    bundle = registry.attest(Binding(hex_digest(wheel), uri_of(), document, WASM), filename, ALICE)
    registry.add(Handler(uri_of(), document, filename, registry.put(wheel), WASM, registry.put(bundle)), ALICE)
    data = registry.bundle(uri_of())
    for runtimes, expected in ((["python", "wasm"], Runtime.PYTHON), (["wasm", "python"], Runtime.WASM)):
        policy, uri = Policy([ALICE.did], runtimes=runtimes), parse_protocol_uri(uri_of())
        proven = verify_bundle(read_bundle(data, uri=uri_of()), uri, TrustedRegistry(NAME, None), policy, now=registry.now)
        verified = verify_handler(proven, registry.blobs[proven.handler.body.wheel.sha256], policy, bundle=data)
        assert verified.package.manifest.runtime is expected


async def test_a_simulation_refuses_a_module() -> None:
    with pytest.raises(TreatyError) as caught:
        await InlineRuntime().preload(wasm_package("1.0"), local=FIRST)
    assert caught.value.code == "agent.settings"


def test_the_runtimes_of_a_policy(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('runtimes = ["wasm"]\n')
    assert load_policy(file).runtimes == ("wasm",)
    for wrong in ("[]", '["wasm", "wasm"]', '["jvm"]'):
        file.write_text(f"runtimes = {wrong}\n")
        with pytest.raises(TreatyError) as caught:
            load_policy(file)
        assert rejection(caught.value, "policy.file: runtimes") == "policy.file: runtimes"


def test_a_project_folder_with_a_module(tmp_path: Path) -> None:
    folder = write_project(tmp_path)
    manifest, toml, module = folder / "manifest.json", folder / "protocol.toml", tmp_path / "handler" / MODULE_NAME
    manifest.write_text(manifest.read_text().replace("{", '{"runtime": "wasm",', 1))
    for source in (tmp_path / "handler").iterdir():
        source.unlink()
    assert [str(problem.error) for problem in examine_project(folder).problems if "no entry point" in problem.error.message]
    toml.write_text(re.sub(r"entry-point = .*\n", "", toml.read_text()))
    assert [problem.error.message for problem in examine_project(folder).problems] == [f"{module.parent} has no {MODULE_NAME}."]
    module.write_bytes(handler())
    (module.parent / "handler.c").write_text("int x;\n")
    filename, wheel = load_project(folder).build_wheel(
        f"https://registry.example/protocols/example.com/product-info/{folder.name}"
    )
    package = read_wheel(filename, wheel)
    assert (package.manifest.runtime, package.module) == (Runtime.WASM, handler())
    assert f"{package.package}/handler.c" in package.files
