"""The rules for a WebAssembly module and for the package around it: modules of compilers pass, each rule refuses another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handler_packages import MANIFEST, metadata
from rejections import rejection
from sandboxed import MODULE, wasm_package
from wasm_modules import (
    EXPORTS,
    HEADER,
    I32,
    I64,
    TYPES,
    body,
    export,
    handler,
    leb,
    section,
    signature,
    sized,
    vector,
)

from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import MODULE_NAME, WASM, HandlerMetadata, Runtime, build_wheel, read_wheel
from treaty_consensus.handler.wasm import check_module

BUILT = (MODULE / MODULE_NAME).read_bytes()
LOOPS = b"\x03\x40" * 512 + b"\x0b" * 512
MANY = [(64, I32)]


def refused(module: bytes) -> str:
    """The error for a module."""
    with pytest.raises(TreatyError) as caught:
        check_module(module)
    return f"{caught.value.code}: {caught.value.message}"


def test_modules_of_compilers_and_every_instruction_pass() -> None:
    check_module(BUILT)
    check_module(handler())
    every = (
        b"\x01\x02\x40\x0b\x03\x7f\x41\x00\x0b\x1a\x20\x00\x04\x40\x05\x0b\x02\x00\x0f\x0b"  # blocks
        b"\x02\x40\x0c\x00\x0b\x02\x40\x20\x00\x0d\x00\x20\x00\x0e\x02\x00\x00\x00\x0b"  # branches
        b"\x10\x00\x11\x02\x80\x80\x80\x80\x00\x1a\x1b\x1c\x01\x7f\x20\x00\x21\x00\x22\x00\x23\x00\x24\x00"  # calls; variables
        b"\x28\x02\x00\x3e\x02\xff\xff\xff\xff\x0f\x3f\x00\x40\x00"  # memory
        b"\x41\xff\xff\xff\xff\x07\x42\x80\x80\x80\x80\x80\x80\x80\x80\x80\x7f\x43\x00\x0b\x02\x03\x44\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b"
        b"\x45\x8a\xc4\xfc\x00\xfc\x07\xfc\x08\x01\x00\xfc\x09\x01\xfc\x0a\x00\x00\xfc\x0b\x00"  # numbers and copies
    )
    check_module(handler([body(every, locals=[(1, I32)])]))


@pytest.mark.threat(463)
@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (b"", "is not a WebAssembly"),
        (b"\0asm\x0d\0\1\0", "is not a WebAssembly"),  # a component
        (bytes(600_000), "at most 524288 bytes"),
        (handler()[:-1], "ends in the middle"),
        (handler() + b"\0", "ends too early"),
        (HEADER + section(2, vector([])) + handler()[8:], "has imports"),
        (handler(before_code=section(8, b"\0")), "start function"),
        (HEADER + section(13, vector([])) + handler()[8:], "has exceptions"),
        (HEADER + section(99, b"") + handler()[8:], "later version"),
        (handler(after=section(1, vector([]))), "twice or out of order"),
        (handler(after=section(0, sized(b"name") + b"x")), "custom section"),
        (handler(after=section(0, leb(2**31) + b"name")), "bytes in a name; at most"),
        (handler(after=section(0, sized(b"producers") + bytes(5_000))), "custom section"),
        (HEADER + b"\x01" + leb(2**31), "bytes in a section; at most"),
        (HEADER + b"\x01" + b"\x80" * 5 + b"\0", "longer than 32 bits"),
        (handler(types=[b"\x5e\x7f\x00", *TYPES]), "not that of a function"),
        (handler(types=[*TYPES, signature(b"\x6f", b"")]), "neither an integer"),
        (handler(types=[*TYPES, signature(I32 * 33, b"")]), "parameters or results; at most 32"),
        (handler([body(b"")], kinds=[9]), "a type that the module lacks"),
        (handler([body(b"")] * 4_095), "functions; at most 4096"),
        (handler(table=section(4, vector([b"\x6f\0\1"]))), "something else than functions"),
        (handler(table=section(4, vector([b"\x70\0\1"] * 2))), "tables; at most 1"),
        (handler(table=section(4, vector([b"\x70\0" + leb(2**32 - 1)]))), "entries in its table; at most 4096"),
        (handler(pages=b"\x00" + leb(257)), "pages of memory at its start; at most 256"),
        (handler(pages=b"\x03\x01\x02"), "shared, of 64 bits"),
        (handler(pages=b"\x05\x01\x02"), "shared, of 64 bits"),
        (handler(globals=section(6, vector([b"\x70\x00\xd0\x70\x0b"]))), "a global is neither"),
        (handler(globals=section(6, vector([b"\x7f\x00\x41\x00\x41\x00\x6a\x0b"]))), "the value of a global"),
        (handler(exports=EXPORTS[:2]), "export the function handle"),
        (handler(exports=[EXPORTS[0], EXPORTS[2]]), "export the function allocate"),
        (handler(exports=[*EXPORTS[1:]]), "its memory as memory"),
        (handler(exports=[*EXPORTS, EXPORTS[0]]), "two exports have one name"),
        (handler(exports=[*EXPORTS[:2], export("handle", 0, 0)]), "export the function handle"),
        (handler(exports=[*EXPORTS, export("x" * 65, 0, 0)]), "bytes in the name of an export"),
        (handler(before_code=section(9, vector([b"\x01\x00\x00"]))), "a segment of its table"),
        (handler(before_code=section(9, vector([b"\x00\x41\x00\x0b" + leb(5_000)]))), "entries in its table; at most 4096"),
        (handler(after=section(11, vector([b"\x02\x00\x41\x00\x0b\x00"]))), "for another memory"),
        (handler(after=section(11, vector([b"\x00\x41\x00\x0b" + leb(2**32 - 1)]))), "bytes of data; at most"),
        (handler(after=section(11, vector([b"\x01\x00"] * 1_025))), "segments of data; at most 1024"),
        (handler(handle=body(b"\xfd\x0c" + bytes(16))), "instruction 0xfd"),
        (handler(handle=body(b"\xfe\x03\x00")), "instruction 0xfe"),
        (handler(handle=body(b"\xfc\x0f\x00")), "instruction 0xfc"),
        (handler(handle=body(b"\x12\x00")), "instruction 0x12"),
        (handler(handle=body(b"\xd0\x70\x1a")), "instruction 0xd0"),
        (handler(handle=body(b"\x25\x00")), "instruction 0x25"),
        (handler(handle=body(b"\x3f\x01")), "instruction 0x3f"),
        (handler(handle=body(b"\x11\x00\x01")), "tables before one that a call uses"),
        (handler(handle=body(b"\x0b")), "bytes after its end"),
        (handler(handle=body(b"\x02\x40")), "ends in the middle"),
        (handler(handle=body(b"", locals=[(2**32 - 1, I32)])), "variables in a function; at most 512"),
        (handler(handle=body(b"", locals=[(500, I32), (20, I64)])), "522 variables"),
        (handler(handle=body(b"", locals=[(1, b"\x7b")])), "a variable is neither"),
        (handler([body(b"\x01" * 65_536)]), "bytes in a function; at most 65536"),
        (handler([body(b"\x0e" + leb(10**6) + b"\x00" * 64)]), "branches in a function; at most 4096"),
        (handler([body(b"\x02\x40" + b"\x0c\x00" * 4_097 + b"\x0b")]), "4096 branches or calls"),
        (handler([body(b"\x02\x40" * 4_097 + b"\x0b" * 4_097)]), "nested deeper"),
        (handler([body(LOOPS, locals=MANY)]), "too costly to compile"),
        (handler([body(b"\x10\x02" * 4_096)] * 9), "too costly to compile"),
        (handler([body(b"\x03\x40\x0b" * 500, locals=[(60, I32)])] * 3), "too costly to compile"),
    ],
)
def test_a_module_that_breaks_a_rule(module: bytes, expected: str) -> None:
    assert refused(module).startswith("handler.package: handler.wasm") or "A function of handler.wasm" in refused(module)
    assert expected in refused(module)


def about(manifest: dict[str, object] | None = None) -> HandlerMetadata:
    return replace(metadata(manifest or {**MANIFEST, "runtime": "wasm"}), entry_point=WASM)


def test_a_package_has_its_runtime_in_its_name_and_needs_interface_6() -> None:
    filename, wheel = build_wheel({MODULE_NAME: handler(), "handler.c": b"int x;\n"}, about())
    package = read_wheel(filename, wheel)
    assert filename == "treaty_handler_probe-1.0-wasm-none-any.whl"
    assert (package.manifest.runtime, package.manifest.interface, str(package.entry_point)) == (Runtime.WASM, 6, WASM)
    assert package.module == handler() and not package.is_declarative
    assert len(wasm_package("1.0").module) > 10_000


@pytest.mark.parametrize(
    ("sources", "changed", "expected"),
    [
        ({}, about(), "handler.package: has no treaty_handler_probe/handler.wasm"),
        ({MODULE_NAME: b"\0asm"}, about(), "handler.package: not a WebAssembly"),
        ({MODULE_NAME: handler(), "__init__.py": b""}, about(), "handler.package: is Python"),
        ({MODULE_NAME: handler(), "other.wasm": handler()}, about(), "handler.package: native code"),
        ({MODULE_NAME: handler(), "data.bin": b"\xff"}, about(), "handler.package: UTF-8"),
        ({MODULE_NAME: handler()}, replace(about(), entry_point="treaty_handler_probe:handler"), "handler.package: __init__"),
        ({"__init__.py": b""}, about(MANIFEST), "handler.manifest: different runtimes"),
        ({"__init__.py": b"", MODULE_NAME: handler()}, metadata(), "handler.package: native code"),
        ({MODULE_NAME: handler()}, about({**MANIFEST, "runtime": "wasm", "interface": 5}), "handler.manifest: runtime"),
        ({"__init__.py": b""}, metadata({**MANIFEST, "runtime": "python"}), "handler.manifest: runtime"),
        ({"__init__.py": b""}, metadata({**MANIFEST, "runtime": "jvm"}), "handler.manifest: runtime"),
    ],
)
def test_a_package_that_breaks_a_rule(sources: dict[str, bytes], changed: HandlerMetadata, expected: str) -> None:
    with pytest.raises(TreatyError) as caught:
        build_wheel(sources, changed)
    assert rejection(caught.value, expected) == expected


def test_a_name_of_another_runtime_than_the_manifests() -> None:
    filename, wheel = build_wheel({MODULE_NAME: handler()}, about())
    for name, expected in (
        (filename.replace("wasm-none", "py3-none"), "handler.package: native code"),
        (filename.replace("wasm-none", "jvm-none"), "handler.package: of the form"),
    ):
        with pytest.raises(TreatyError) as caught:
            read_wheel(name, wheel)
        assert rejection(caught.value, expected) == expected
