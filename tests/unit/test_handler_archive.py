"""What the headers of an archive can lie about: one file, written field by field."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import pytest
from rejections import rejection

from treaty_consensus.errors import Malformed, TreatyError
from treaty_consensus.handler.archive import read_archive, write_archive

LOCAL, CENTRAL, END = struct.Struct("<4s5H3L2H"), struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s4H2LH")
CONTENT = b"hello" * 20


def one_file(
    *,
    name: bytes = b"a/b.txt",
    local_name: bytes | None = None,
    flags: int = 0,
    method: int = 0,
    needed: int = 20,
    raw: bytes = CONTENT,
    size: int = len(CONTENT),
    crc: int = zlib.crc32(CONTENT),
    local: dict[int, int] | None = None,
    extra: bytes = b"",
    local_extra: bytes = b"",
    comment: bytes = b"",
    attributes: int = 0o100644 << 16,
    internal: int = 0,
    maker: int = 3,
    disk: int = 0,
    offset: int = 0,
    before: bytes = b"",
    between: bytes = b"",
    after: bytes = b"",
    end: Callable[[list[int]], list[int]] = lambda fields: fields,
) -> bytes:
    shared = [needed, flags, method, 0, 33, crc, len(raw), size]
    lied = [(local or {}).get(index, value) for index, value in enumerate(shared)]
    first = name if local_name is None else local_name
    entry = before + LOCAL.pack(b"PK\3\4", *lied, len(first), len(local_extra)) + first + local_extra + raw + between
    header = CENTRAL.pack(
        b"PK\1\2", maker << 8 | 20, *shared, len(name), len(extra), len(comment), disk, internal, attributes, offset
    )
    directory = header + name + extra + comment + after
    fields = end([0, 0, 1, 1, len(directory) - len(after), len(entry), 0])
    return entry + directory + END.pack(b"PK\5\6", *fields)


def test_the_plain_archive_reads() -> None:
    assert read_archive(one_file()) == {"a/b.txt": CONTENT}
    packer = zlib.compressobj(wbits=-15)
    deflated = packer.compress(CONTENT) + packer.flush()
    assert read_archive(one_file(raw=deflated, method=8)) == {"a/b.txt": CONTENT}
    assert read_archive(write_archive({})) == {}
    for attributes in (0, 0x21, 0o644 << 16, 0o100400 << 16, 0o100777 << 16 | 0x01):
        assert read_archive(one_file(attributes=attributes, internal=1, maker=0)) == {"a/b.txt": CONTENT}


def deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.threat(38)
@pytest.mark.parametrize(
    ("archive", "code"),
    [
        (b"", "handler.package: end record|central directory"),
        (b"PK\5\6", "handler.package: end record|central directory"),
        (one_file()[:-1], "handler.package: end record|central directory"),
        (one_file() + b"\n", "handler.package: end record|central directory"),
        (one_file(after=b"x"), "handler.package: end record|central directory"),
        (one_file(end=lambda f: [*f[:2], 2, 2, *f[4:]]), "handler.package: end record|central directory"),
        (one_file(end=lambda f: [*f[:2], 0, 0, *f[4:]]), "handler.package: end record|central directory"),
        (one_file(end=lambda f: [*f[:3], 0, *f[4:]]), "handler.package: end record|central directory"),
        (one_file(end=lambda f: [1, *f[1:]]), "handler.package: end record|central directory"),
        (one_file(end=lambda f: [0, 1, *f[2:]]), "handler.package: end record|central directory"),
        (one_file(end=lambda f: [*f[:5], f[5] - 1, 0]), "handler.package: end record|central directory"),
        (one_file(end=lambda f: [*f[:6], 3]), "handler.package: end record|central directory"),
        (one_file(end=lambda f: [*f[:2], 300, 300, *f[4:]]), "handler.package: files, this one"),
        (one_file(disk=1), "handler.package: end record|central directory"),
        (one_file(comment=b"hi"), "handler.package: end record|central directory"),
        (one_file(extra=b"\1\0\0\0"), "handler.package: extra fields"),
        (one_file(local_extra=b"up\0\0"), "handler.package: local header"),
        (one_file(flags=1), "handler.package: not encrypted"),
        (one_file(flags=0x41), "handler.package: not encrypted"),
        (one_file(flags=8), "handler.package: zip feature|MS-DOS"),
        (one_file(flags=0x20), "handler.package: zip feature|MS-DOS"),
        (one_file(needed=45), "handler.package: zip feature|MS-DOS"),
        (one_file(method=12), "handler.package: stored or deflated"),
        (one_file(method=14), "handler.package: stored or deflated"),
        (one_file(method=93), "handler.package: stored or deflated"),
        (one_file(attributes=0o120777 << 16), "handler.package: regular files"),
        (one_file(attributes=0o040755 << 16), "handler.package: regular files"),
        (one_file(attributes=0o020666 << 16), "handler.package: regular files"),
        (one_file(attributes=0x10), "handler.package: regular files"),
        *(
            (one_file(attributes=mode << 16), "handler.package: attributes")
            for mode in (0o104755, 0o102755, 0o101644, 0o100000, 0o100044, 0o4755)
        ),
        *(
            (one_file(attributes=0o100644 << 16 | dos), "handler.package: attributes")
            for dos in (0x02, 0x04, 0x08, 0x40, 0x80, 0x8000)
        ),
        (one_file(internal=2), "handler.package: zip feature|MS-DOS"),
        *((one_file(maker=maker), "handler.package: zip feature|MS-DOS") for maker in (1, 2, 7, 19, 255)),
        (one_file(local_name=b"a/c.txt"), "handler.package: local header"),
        (one_file(local_name=b"a/b.txtx"), "handler.package: local header"),
        *((one_file(local={index: 10}), "handler.package: local header") for index in range(8)),
        (one_file(before=b"#!/bin/sh\n", offset=10), "handler.package: does not begin|between the last|runs into"),
        (one_file(offset=1), "handler.package: does not begin|between the last|runs into"),
        (one_file(between=b"hidden"), "handler.package: does not begin|between the last|runs into"),
        (one_file(raw=CONTENT[:-1]), "handler.package: deflate data|checksum"),
        (one_file(crc=1), "handler.package: deflate data|checksum"),
        (one_file(size=5), "handler.package: deflate data|checksum"),
        (one_file(method=8, raw=deflate(CONTENT), size=5, crc=zlib.crc32(b"hello")), "handler.package: deflate data|checksum"),
        (one_file(method=8, raw=deflate(CONTENT) + b"tail"), "handler.package: deflate data|checksum"),
        (one_file(method=8, raw=deflate(CONTENT)[:-2]), "handler.package: deflate data|checksum"),
        (one_file(method=8, raw=b"\xff" * 10), "handler.package: deflate data|checksum"),
        (one_file(name=b""), "handler.package: file name"),
        (one_file(name=b"a/b\0c"), "handler.package: file name"),
        (one_file(name=b"a/\xff"), "handler.package: file name"),
        (one_file(name=b"x" * 300), "handler.package: file name"),
    ],
)
def test_what_headers_can_lie_about(archive: bytes, code: str) -> None:
    with pytest.raises(TreatyError) as caught:
        read_archive(archive)
    assert rejection(caught.value, code) == code, caught.value


@pytest.mark.threat(38)
def test_two_entries_cannot_share_bytes() -> None:
    # Both central headers name the first entry: the classic quine and bomb layout.
    plain = write_archive({"a": b"1", "b": b"1"})
    second = plain.rindex(b"PK\1\2")
    overlapping = bytearray(plain)
    overlapping[second + 42 : second + 46] = struct.pack("<L", 0)
    with pytest.raises(Malformed) as caught:
        read_archive(bytes(overlapping))
    assert caught.value.code == "handler.package"
    assert "does not begin" in caught.value.message


@pytest.mark.parametrize("name", ["../x", "a//b", "caf\u00e9", "", "a b"])
def test_the_writer_refuses_what_the_reader_does(name: str) -> None:
    with pytest.raises(TreatyError) as caught:
        write_archive({name: b""})
    assert rejection(caught.value, "handler.package: file name") == "handler.package: file name"
