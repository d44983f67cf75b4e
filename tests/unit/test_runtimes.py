"""A protocol with handlers of several runtimes: the policy and the machine choose, and an error names the extra."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from rejections import rejection
from sandboxed import wasm_package

from treaty_client.policy import Policy, load_policy
from treaty_client.protocols.verification.records import OfferedHandler
from treaty_client.protocols.verification.ten_steps import choose
from treaty_consensus.errors import TreatyError
from treaty_consensus.kinds import Blob, Handler
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


def test_the_runtimes_of_a_policy(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('runtimes = ["wasm"]\n')
    assert load_policy(file).runtimes == ("wasm",)
    for wrong in ("[]", '["wasm", "wasm"]', '["jvm"]'):
        file.write_text(f"runtimes = {wrong}\n")
        with pytest.raises(TreatyError) as caught:
            load_policy(file)
        assert rejection(caught.value, "policy.file: runtimes") == "policy.file: runtimes"
