"""Bytecode is made and read inside the sandbox only; the host keeps it like any other bytes it cannot read."""

from __future__ import annotations

import importlib.util
import marshal
from pathlib import Path
from typing import Any, NoReturn

import pytest
from handler_packages import LOCAL, PACKAGE, PEER, PROBE, package
from sandboxes import LEVELS

from treaty_consensus.errors import TreatyError
from treaty_handler import Call, Opened, Return
from treaty_sandbox import CodeCache, SandboxPool

pytestmark = [pytest.mark.usefixtures("level"), pytest.mark.parametrize("level", LEVELS, indirect=True)]
PROBED = package(PROBE)


async def answer(cache: CodeCache | None) -> Any:
    """Load the probe and let it compute."""
    async with SandboxPool(size=0) as pool:
        worker = await pool.load(PROBED, local=LOCAL, peers=[PEER], code_cache=cache)
        session = await worker.open("client")
        await session.handle(Opened())
        [effect] = await session.handle(Call(call="1", operation="ask", arguments={"code": "value = 6 * 7"}))
        assert isinstance(effect, Return)
        return effect.value


def only_file(folder: Path) -> Path:
    [file] = folder.iterdir()
    return file


def crashing() -> bytes:
    """Code that reads a local variable which is not there, eight gigabytes away: CPython trusts its bytecode."""
    honest = compile("def f():\n    x = 1\n    return x\nf()", "x", "exec")
    inner = next(constant for constant in honest.co_consts if hasattr(constant, "co_code"))
    more, load = (__import__("opcode").opmap[name] for name in ("EXTENDED_ARG", "LOAD_FAST"))
    wild = inner.replace(co_code=bytes([more, 64, more, 0, more, 0, load, 0]))
    consts = tuple(wild if constant is inner else constant for constant in honest.co_consts)
    return marshal.dumps({f"{PACKAGE}/__init__.py": honest.replace(co_consts=consts)})


async def test_a_warm_start_uses_what_a_worker_compiled(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "code")
    assert await answer(cache) == 42
    file = only_file(tmp_path / "code")
    assert file.stat().st_mode & 0o777 == 0o600
    marked = compile(PROBE.replace('value=space["value"]', 'value="from the cache"'), "x", "exec")
    cache.put(PROBED.digest, marshal.dumps({f"{PACKAGE}/__init__.py": marked}))
    assert await answer(cache) == "from the cache"


@pytest.mark.threat(56)
async def test_the_host_neither_compiles_nor_unmarshals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the host touched a handler's code")

    # Python unmarshals a module that is imported, so all of them are imported before.
    assert await answer(CodeCache(tmp_path / "before")) == 42
    monkeypatch.setattr("treaty_sandbox.worker.importer.compile_package", never)
    monkeypatch.setattr("treaty_sandbox.worker.importer.install_package", never)
    monkeypatch.setattr(marshal, "loads", never)
    cache = CodeCache(tmp_path / "cache")
    assert await answer(cache) == 42
    assert await answer(cache) == 42
    assert importlib.util.find_spec(PACKAGE) is None


@pytest.mark.threat(56)
@pytest.mark.parametrize(
    "code",
    [b"", b"\xff" * 100, marshal.dumps([1]), marshal.dumps({"a": 1}), marshal.dumps({})[:-1], crashing()],
    ids=["empty", "garbage", "a list", "no code", "cut short", "crashes the interpreter"],
)
async def test_crafted_code_in_the_cache_is_thrown_away(code: bytes, tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    cache.put(PROBED.digest, code)
    assert await answer(cache) == 42
    kept = cache.get(PROBED.digest)
    assert kept is not None
    assert kept != code


async def test_a_rotten_file_is_no_file(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    assert await answer(cache) == 42
    file = only_file(tmp_path)
    whole = file.read_bytes()
    for position in range(0, len(whole), 97):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        file.write_bytes(damaged)
        assert cache.get(PROBED.digest) is None
    file.write_bytes(whole[:-1])
    assert cache.get(PROBED.digest) is None
    file.write_bytes(b"")
    assert cache.get(PROBED.digest) is None
    assert await answer(cache) == 42
    assert cache.get(PROBED.digest) is not None


async def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert await answer(CodeCache(tmp_path / "file" / "below")) == 42
    assert await answer(None) == 42


def test_names_are_digests_only(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    for name in ("../x", "", "A" * 64, "0" * 63):
        with pytest.raises(TreatyError):
            cache.put(name, b"")
        with pytest.raises(TreatyError):
            cache.get(name)
    assert list(tmp_path.iterdir()) == []
    cache.discard("0" * 64)
