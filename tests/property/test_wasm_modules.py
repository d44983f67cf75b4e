"""The check of modules is total, and lets only such modules through as compile within the limits of a worker."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from depth import SEED, examples
from handler_packages import LOCAL, PEER
from hypothesis import given, settings
from hypothesis import strategies as st
from sandboxed import MODULE, sandboxed_package, wasm_package
from wasm_modules import I32, I64, body, handler, leb, number, replying, section, vector

from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import MODULE_NAME
from treaty_consensus.handler.archive import MAX_ARCHIVE, read_archive, write_archive
from treaty_consensus.handler.wasm import check_module
from treaty_sandbox import SandboxPool

BUILT = (MODULE / MODULE_NAME).read_bytes()
SMALL = replying(b"\x92\xa7effects\x90")
# Pieces that are often valid where they land.
PIECES = (
    *(
        b"\x02\x40\x0b",
        b"\x03\x40\x0b",
        b"\x20\x00\x04\x40\x05\x0b",
        b"\x20\x00\x0d\x00",
        b"\x10\x00\x1a",
        b"\x20\x00\x11\x00\x00\x1a",
    ),
    *(
        b"\x20\x00\x28\x02\x00\x1a",
        b"\x41\x01\x21\x00",
        b"\x20\x00\x41\x07\x6c\x21\x00",
        b"\x42\x01\x21\x01",
        b"\x20\x01\x50\x1a",
    ),
    *(
        b"\x20\x00\x0e\x01\x00\x00",
        b"\x41\x00\x41\x00\x41\x10\xfc\x0b\x00",
        b"\x3f\x00\x1a",
        b"\x20\x00\x40\x00\x1a",
        b"\x00",
        b"\x0f",
    ),
)
# Compiles what standard input brings, one module after the other, within the limits of a worker; prints "." for each.
COMPILER = """
import resource, struct, sys
sys.path[:0] = sys.argv[1:]
from worker.wasm import Engine
engine = Engine.prepare()
resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20))
while size := sys.stdin.buffer.read(4):
    try:
        engine.compile(sys.stdin.buffer.read(struct.unpack("<I", size)[0]))
    except SyntaxError:
        pass
    print(".", flush=True)
"""


@settings(max_examples=examples(1_000), deadline=None)
@given(st.binary(max_size=300), st.integers(0, len(SMALL)), st.integers(0, 40))
def test_any_bytes_in_a_module(data: bytes, at: int, gone: int) -> None:
    for module in (data, SMALL[:8] + data, SMALL[:at] + data + SMALL[at + gone :]):
        with suppress(TreatyError):
            check_module(module)


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=400))
def test_any_code(data: bytes) -> None:
    with suppress(TreatyError):
        check_module(handler([body(data, locals=[(4, I32), (4, I64)])]))


def hostile(random: random.Random) -> bytes:
    """A module: a built one with some bytes changed, or one whose functions are many of some pieces, nested and repeated."""
    kind = random.randrange(4)
    if kind < 2:
        module = bytearray(BUILT if kind else SMALL)
        for _ in range(random.choice((1, 1, 2, 8))):
            at = random.randrange(8, len(module))
            match random.randrange(4):
                case 0:
                    module[at] = random.randrange(256)
                case 1:
                    module[at : at + random.randrange(9)] = leb(
                        random.choice((0, 127, 2**14, 2**31, 2**32 - 1)), size=random.choice((1, 5))
                    )
                case 2:
                    del module[at : at + random.randrange(1, 60)]
                case _:
                    module[at:at] = random.choice(PIECES) * random.randrange(1, 30)
        return bytes(module)
    locals = random.choice((2, 8, 30, 100, 500))
    bodies = []
    for _ in range(random.choice((1, 1, 3, 20))):
        loops = random.choice((0, 0, 5, 50, 300))
        code = random.choice((b"\x02\x40", b"\x03\x40")) * loops
        for _ in range(random.randrange(1, 40)):
            piece = random.choice(PIECES)
            if piece[0] == 0x20 and random.randrange(2):
                piece = b"\x20" + leb(random.randrange(locals)) + number(1) + b"\x6a\x21" + leb(random.randrange(locals))
            code += piece * random.choice((1, 1, 10, 100))
        bodies.append(body(code + b"\x0b" * loops, locals=[(locals, I32), (2, I64)]))
    return handler(bodies, table=section(4, vector([b"\x70\x00\x0a"])))


@pytest.mark.deep
@pytest.mark.threat(463)
def test_10_000_hostile_modules_and_archives_stay_within_their_caps() -> None:
    """Each check takes at most a second of a processor, and each compilation ten, with 256 MiB."""
    source = random.Random(SEED or "wasm")
    paths = [str(Path(__file__).parents[2] / "client" / "treaty_sandbox"), *filter(None, sys.path)]
    with subprocess.Popen([sys.executable, "-c", COMPILER, *paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as compiler:
        assert compiler.stdin is not None
        assert compiler.stdout is not None
        accepted, worst_check, worst_compilation = 0, 0.0, 0.0
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for index in range(10_000):
            module = hostile(source)
            started = time.process_time()
            with suppress(TreatyError):
                archive = write_archive({MODULE_NAME: module}) if len(module) < MAX_ARCHIVE - 200 else module
                flipped = bytearray(archive)
                flipped[source.randrange(len(flipped))] ^= 1 << source.randrange(8)
                with suppress(TreatyError):
                    read_archive(bytes(flipped))
            try:
                check_module(module)
            except TreatyError:
                continue
            finally:
                worst_check = max(worst_check, time.process_time() - started)
            accepted += 1
            started = time.monotonic()
            compiler.stdin.write(len(module).to_bytes(4, "little") + module)
            compiler.stdin.flush()
            assert compiler.stdout.readline() == b".\n", f"module {index} of this seed ended the compiler"
            worst_compilation = max(worst_compilation, time.monotonic() - started)
        compiler.stdin.close()
    print(f"{accepted} accepted; worst check {worst_check:.3f} s, worst compilation {worst_compilation:.2f} s")
    assert accepted > 500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024
    assert worst_check < 1


MESSAGES = (
    b'{"messageId":"m","type":"REQUEST","n":[1,2.5,-3e2,true,null,{"a":"\\u00e9\\ud83d\\ude00"}]}',
    '{"価":"高性能","x":1299.99,"y":-0.0,"z":9007199254740991}'.encode(),
)
INSERTED = (b'"', b"\\u", b"\\ud800", b"1e400", b"[[[[", b"00", b"\xed\xa0\x80", b"\t", b"12345678901234567", b"-", b".5")


@pytest.mark.deep
async def test_the_module_reads_the_same_json_as_python() -> None:
    source = random.Random(SEED or "json")
    async with SandboxPool(size=0) as pool:
        readers = [await pool.load(package("1.0"), local=LOCAL, peers=[PEER]) for package in (sandboxed_package, wasm_package)]
        for _ in range(3_000):
            data = bytearray(source.choice(MESSAGES))
            for _ in range(source.choice((0, 1, 1, 2, 3))):
                at = source.randrange(len(data))
                data[at : at + source.randrange(3)] = source.choice(
                    (bytes([source.choice(b'{}[],:"\\0123456789.eE+-tfnu \0\xff')]), *INSERTED)
                )
            results = []
            for reader in readers:
                try:
                    results.append(repr(await reader.decode(bytes(data))))
                except TreatyError as error:
                    results.append(str(error.code))
            assert results[0] == results[1], bytes(data)
