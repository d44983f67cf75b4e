"""Read and write the zip archive of a handler package: a strict subset of PKWARE's APPNOTE.TXT 6.3.10 that accounts for every
byte.

    archive  = entry* directory* end
    entry    = local header (30 bytes), name, data
    directory= central header (46 bytes), name
    end      = end of central directory record (22 bytes)

No bytes lie before, between or after these parts. Central headers are in the order of their entries, and each repeats its
local header exactly. So every zip reader sees the same files. Extra fields, comments, data descriptors, encryption, multiple
disks, links and folders are refused. `docs/specification/handler-packages.md`, "The wheel", lists all rules.

Written archives are stored, dated 1980-01-01 and sorted by name: the output of a compressor differs among its versions, and a
rebuilt package must have the same digest.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from ..codes import HandlerCode
from ..errors import Malformed, Refused, TooLarge
from .paths import MAX_NAME, check_tree, parse_path

# A registry keeps packages in memory while it checks them; a protocol handler is a few files of source.
MAX_ARCHIVE = 2 * 1024 * 1024
MAX_FILES = 256
# Bounds a decompression bomb: deflate can expand 1,000 times.
MAX_CONTENT = 8 * 1024 * 1024

# APPNOTE 4.3.7, 4.3.12 and 4.3.16, without the variable parts.
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")

_STORED, _DEFLATE = 0, 8
# Classic encryption, strong encryption, and masked header values (APPNOTE 4.4.4).
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_HARMLESS_FLAGS = 0x0002 | 0x0004 | 0x0800  # the compression level, and "the name is UTF-8"
_EPOCH = 0x0021  # 1980-01-01, the earliest date that MS-DOS can write
_PERMISSIONS = 0o777
_OWNER_READS = 0o400
_DOS_ATTRIBUTES = 0x01 | 0x20  # read-only, archive
_MAKERS = (0, 3)  # MS-DOS, as Python writes on Windows, and Unix; other makers define attributes differently


@dataclass(frozen=True, slots=True)
class _Entry:
    """Hold the fields that local and central header share, and the offset of the entry."""

    shared: tuple[int, ...]  # version needed, flags, method, time, date, CRC-32, compressed size, size
    name: bytes
    offset: int

    @property
    def method(self) -> int:
        return self.shared[2]

    @property
    def crc(self) -> int:
        return self.shared[5]

    @property
    def stored_size(self) -> int:
        return self.shared[6]

    @property
    def size(self) -> int:
        return self.shared[7]


def read_archive(data: bytes) -> dict[str, bytes]:
    """Return file name → content, in the archive's order. Raises `TooLarge`, `Malformed` or `Refused` (`handler.*`)."""
    # Before parsing, as every cap.
    if len(data) > MAX_ARCHIVE:
        raise TooLarge(HandlerCode.PACKAGE, f"A handler package has at most {MAX_ARCHIVE} bytes, this one has {len(data)}.")
    entries, directory_at = _read_directory(data)
    names = [parse_path(entry.name) for entry in entries]
    check_tree(names)
    files: dict[str, bytes] = {}
    budget = MAX_CONTENT
    at = 0
    for name, entry in zip(names, entries, strict=True):
        # Checked before inflating, so that a bomb costs nothing.
        if entry.size > budget:
            raise TooLarge(HandlerCode.PACKAGE, f"The files of a handler package have at most {MAX_CONTENT} bytes together.")
        budget -= entry.size
        # Entries follow each other without gaps: hidden bytes between them could be another archive.
        if entry.offset != at:
            raise Malformed(HandlerCode.PACKAGE, f"{name} does not begin where the entry before it ends.")
        at = _check_local(data, entry, directory_at)
        files[name] = _content(data[at - entry.stored_size : at], entry, name)
    if at != directory_at:
        raise Malformed(HandlerCode.PACKAGE, "There are bytes between the last entry and the central directory.")
    return files


def write_archive(files: Mapping[str, bytes]) -> bytes:
    """Return the archive of these files: the same bytes on every machine. Raises the errors of `read_archive` for names and
    sizes.
    """
    entries, directory = bytearray(), bytearray()
    for name in sorted(files):
        content, raw = files[name], parse_path(name.encode("utf-8")).encode("ascii")
        shared = (20, 0, _STORED, 0, _EPOCH, zlib.crc32(content), len(content), len(content))
        made_by_unix, mode = 3 << 8 | 20, (stat.S_IFREG | 0o644) << 16
        directory += _CENTRAL.pack(b"PK\1\2", made_by_unix, *shared, len(raw), 0, 0, 0, 0, mode, len(entries)) + raw
        entries += _LOCAL.pack(b"PK\3\4", *shared, len(raw), 0) + raw + content
    end = _END.pack(b"PK\5\6", 0, 0, len(files), len(files), len(directory), len(entries), 0)
    data = bytes(entries + directory + end)
    read_archive(data)  # applies the caps and the rules for names
    return data


def _read_directory(data: bytes) -> tuple[list[_Entry], int]:
    """Return the entries of the central directory, and its offset."""
    end_at = len(data) - _END.size
    # Without a comment the end record has one place. Readers that search for it from the end find the same one.
    if end_at < 0 or not data.startswith(b"PK\5\6", end_at):
        raise Malformed(HandlerCode.PACKAGE, "This is not a zip archive with a plain end record.", fix=_REBUILD)
    _, disk, first_disk, here, count, size, start, comment = _END.unpack_from(data, end_at)
    if disk or first_disk or here != count or comment or start + size != end_at:
        raise Malformed(HandlerCode.PACKAGE, "The archive's end record does not describe the bytes before it.")
    # Before the loop, because the number comes from the archive.
    if count > MAX_FILES:
        raise TooLarge(HandlerCode.PACKAGE, f"A handler package has at most {MAX_FILES} files, this one has {count}.")
    entries = []
    at = start
    for _ in range(count):
        if at + _CENTRAL.size > end_at:
            raise Malformed(HandlerCode.PACKAGE, "The central directory ends in the middle of an entry.")
        entry, at = _read_central(data, at, end_at)
        entries.append(entry)
    if at != end_at:
        raise Malformed(HandlerCode.PACKAGE, "There are bytes between the central directory and the end record.")
    return entries, start


def _read_central(data: bytes, at: int, end_at: int) -> tuple[_Entry, int]:
    signature, made_by, *shared, name_length, extra, comment, disk, internal, attributes, offset = _CENTRAL.unpack_from(data, at)
    at += _CENTRAL.size
    if signature != b"PK\1\2" or disk or comment or at + name_length > end_at:
        raise Malformed(HandlerCode.PACKAGE, "The central directory has an entry that is not plain.")
    if extra:
        raise Refused(HandlerCode.PACKAGE, "A handler package has no extra fields in its zip headers.", fix=_REBUILD)
    if name_length > MAX_NAME:
        raise TooLarge(HandlerCode.PACKAGE, f"A file name has at most {MAX_NAME} characters.")
    needed, flags, method = shared[:3]
    if flags & _ENCRYPTED:
        raise Refused(HandlerCode.PACKAGE, "A handler package is not encrypted.")
    # Version 1.0 or 2.0 of the format (APPNOTE 4.4.3). 4.5 would be ZIP64, with sizes in extra fields.
    if flags & ~_HARMLESS_FLAGS or needed not in (10, 20):
        raise Refused(HandlerCode.PACKAGE, "The archive uses a zip feature beyond stored and deflated files.", fix=_REBUILD)
    if method not in (_STORED, _DEFLATE):
        raise Refused(HandlerCode.PACKAGE, "Files in a handler package are stored or deflated.", fix=_REBUILD)
    _check_attributes(made_by >> 8, internal, attributes)
    return _Entry(tuple(shared), data[at : at + name_length], offset), at + name_length


def _check_attributes(maker: int, internal: int, attributes: int) -> None:
    mode = attributes >> 16
    # A link could lead an installer out of its folder. 0x10 is the folder attribute of MS-DOS.
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG) or attributes & 0x10:
        raise Refused(HandlerCode.PACKAGE, "A handler package holds regular files only: no links, folders or devices.")
    # No set-user-ID bits, and no file that its owner cannot read.
    if mode & ~(stat.S_IFREG | _PERMISSIONS) or (mode and not mode & _OWNER_READS) or attributes & 0xFFFF & ~_DOS_ATTRIBUTES:
        raise Refused(
            HandlerCode.PACKAGE,
            f"A file in the archive has the attributes {attributes:#x}, which no plain file has.",
            fix=_REBUILD,
        )
    if maker not in _MAKERS or internal & ~1:  # bit 0 says that the file is text
        raise Refused(HandlerCode.PACKAGE, "The archive was not made for MS-DOS or Unix.", fix=_REBUILD)


def _check_local(data: bytes, entry: _Entry, limit: int) -> int:
    """Compare the local header with its central header; return the offset after the entry's data."""
    header_end = entry.offset + _LOCAL.size
    if header_end > limit:
        raise Malformed(HandlerCode.PACKAGE, "An entry runs into the central directory.")
    signature, *shared, name_length, extra = _LOCAL.unpack_from(data, entry.offset)
    data_at: int = header_end + name_length
    same_name = data[header_end : header_end + name_length] == entry.name
    # Some readers use the local header, others the central one. Both must say the same.
    if signature != b"PK\3\4" or tuple(shared) != entry.shared or not same_name or extra:
        raise Malformed(HandlerCode.PACKAGE, "A local header differs from the central directory's.")
    if data_at + entry.stored_size > limit:
        raise Malformed(HandlerCode.PACKAGE, "An entry runs into the central directory.")
    return data_at + entry.stored_size


def _content(raw: bytes, entry: _Entry, name: str) -> bytes:
    if entry.method == _STORED:
        content, complete = raw, True
    else:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            # One byte more than declared: a longer stream then fails the size check below, without being inflated.
            content = inflater.decompress(raw, entry.size + 1)
        except zlib.error as error:
            raise Malformed(HandlerCode.PACKAGE, f"{name} is not valid deflate data.") from error
        # Bytes after the end of the stream would be hidden content.
        complete = inflater.eof and not inflater.unused_data
    if not complete or len(content) != entry.size or zlib.crc32(content) != entry.crc:
        raise Malformed(HandlerCode.PACKAGE, f"{name} differs from its header in size or checksum.")
    return content


_REBUILD = "Rebuild it with `treaty publish`, or with a builder that writes plain zip files."
