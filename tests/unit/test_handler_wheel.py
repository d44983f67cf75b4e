"""Every refusal of a handler package, by a wheel crafted to earn it, and what an honest wheel says."""

from __future__ import annotations

import io
import zipfile

import pytest
from handler_packages import DIST_INFO, FILENAME, MANIFEST, PACKAGE, PROBE, URI, metadata, with_record, zipped

from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError
from treaty_consensus.handler import build_wheel, dist_info, parse_filename, read_wheel
from treaty_consensus.handler.archive import MAX_ARCHIVE, MAX_CONTENT, MAX_FILES
from treaty_consensus.handler.paths import MAX_NAME

_, WHEEL = build_wheel({"__init__.py": PROBE.encode(), "text.txt": b"data\n"}, metadata())
FILES = dict(read_wheel(FILENAME, WHEEL).files)
RECORD = f"{DIST_INFO}/RECORD"


def refused(data: bytes, code: str, kind: type[TreatyError] = TreatyError, filename: str = FILENAME) -> None:
    with pytest.raises(kind) as caught:
        read_wheel(filename, data)
    assert caught.value.code == code, caught.value


def refused_with(code: str, files: dict[str, bytes], kind: type[TreatyError] = TreatyError) -> None:
    refused(zipped(with_record(files)), code, kind)


def test_an_honest_wheel_is_read_whole() -> None:
    package = read_wheel(FILENAME, WHEEL)
    assert (package.name, package.version, package.package) == ("treaty-handler-probe", "1.0", PACKAGE)
    assert (str(package.entry_point), package.entry_point.name) == (f"{PACKAGE}:handler", "probe")
    assert (package.size, package.filename) == (len(WHEEL), FILENAME)
    assert (package.manifest.protocol_uri, package.manifest.protocol_hash) == (URI, "0" * 64)
    assert package.manifest.roles["client"].calls.keys() == {"ask"}
    assert package.files[f"{PACKAGE}/text.txt"] == b"data\n"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_other_builders_write_is_read_alike(method: int) -> None:
    data = zipped(FILES, method)
    assert data != WHEEL
    assert read_wheel(FILENAME, data).files == FILES


def test_the_standard_library_reads_what_is_built() -> None:
    with zipfile.ZipFile(io.BytesIO(WHEEL)) as archive:
        assert {info.filename: archive.read(info) for info in archive.infolist()} == FILES


def test_building_is_deterministic_and_ignores_order() -> None:
    sources = {"__init__.py": b"handler = 1\n", "a.py": b"", "b.py": b""}
    backwards = dict(reversed(sources.items()))
    assert build_wheel(sources, metadata()) == build_wheel(backwards, metadata())
    assert build_wheel(sources, metadata()) != build_wheel({**sources, "b.py": b"\n"}, metadata())


@pytest.mark.parametrize(
    ("filename", "code"),
    [
        ("probe-1.0-py3-none-any.whl", "handler.filename"),
        ("treaty_handler-1.0-py3-none-any.whl", "handler.filename"),
        ("treaty-handler-probe-1.0-py3-none-any.whl", "handler.filename"),
        ("Treaty_Handler_probe-1.0-py3-none-any.whl", "handler.filename"),
        ("treaty_handler_probe-1.0.0.0-py3-none-any.whl", "handler.metadata"),
        ("treaty_handler_probe-01.0-py3-none-any.whl", "handler.filename"),
        ("treaty_handler_probe-1.0-1-py3-none-any.whl", "handler.filename"),
        ("treaty_handler_probe-1.0-py2.py3-none-any.whl", "handler.filename"),
        ("treaty_handler_probe-1.0-cp311-none-any.whl", "handler.filename"),
        ("treaty_handler_probe-1.0-py3-none-linux_x86_64.whl", "handler.filename"),
        ("treaty_handler_probe-1.0-py3-none-any.zip", "handler.filename"),
        ("../treaty_handler_probe-1.0-py3-none-any.whl", "handler.filename"),
        (f"treaty_handler_{'x' * 200}-1.0-py3-none-any.whl", "handler.filename"),
        ("", "handler.filename"),
    ],
)
def test_file_names(filename: str, code: str) -> None:
    if code == "handler.filename":
        with pytest.raises(TreatyError) as caught:
            parse_filename(filename)
        assert caught.value.code == code
    else:
        refused(WHEEL, "handler.top-level", Refused, filename)


@pytest.mark.threat(39, 42)
@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"{PACKAGE}/start.pth", "handler.pth"),
        ("start.PTH", "handler.pth"),
        (f"{PACKAGE}-1.0.data/scripts/run.py", "handler.data"),
        (f"{PACKAGE}-1.0.data/data/etc/passwd", "handler.data"),
        (f"{PACKAGE}/__pycache__/x.cpython-311.pyc", "handler.bytecode"),
        (f"{PACKAGE}/__pycache__/x.txt", "handler.bytecode"),
        (f"{PACKAGE}/x.pyc", "handler.bytecode"),
        (f"{PACKAGE}/x.PyO", "handler.bytecode"),
        (f"{PACKAGE}/x.so", "handler.native"),
        (f"{PACKAGE}/x.cpython-311-x86_64-linux-gnu.so", "handler.native"),
        (f"{PACKAGE}/libx.so.1", "handler.native"),
        (f"{PACKAGE}/x.pyd", "handler.native"),
        (f"{PACKAGE}/x.dll", "handler.native"),
        (f"{PACKAGE}/x.dylib", "handler.native"),
        ("other/__init__.py", "handler.top-level"),
        ("msgspec/__init__.py", "handler.top-level"),
        (f"{PACKAGE}.py", "handler.top-level"),
        (PACKAGE, "handler.zip-duplicate"),
        ("other", "handler.top-level"),
        (f"{PACKAGE}_more/__init__.py", "handler.top-level"),
        (f"{PACKAGE}-2.0.dist-info/METADATA", "handler.top-level"),
        (f"{DIST_INFO}/RECORD.jws", "handler.dist-info"),
        (f"{DIST_INFO}/INSTALLER", "handler.dist-info"),
        (f"{DIST_INFO}/direct_url.json", "handler.dist-info"),
        (f"../{PACKAGE}/x.py", "handler.zip-name"),
        (f"{PACKAGE}/../x.py", "handler.zip-name"),
        (f"{PACKAGE}/./x.py", "handler.zip-name"),
        (f"{PACKAGE}//x.py", "handler.zip-name"),
        (f"/{PACKAGE}/x.py", "handler.zip-name"),
        (f"{PACKAGE}\\x.py", "handler.zip-name"),
        (f"C:{PACKAGE}/x.py", "handler.zip-name"),
        (f"{PACKAGE}/x .py", "handler.zip-name"),
        (f"{PACKAGE}/x\n.py", "handler.zip-name"),
        (f"{PACKAGE}/", "handler.zip-name"),
        (f"{PACKAGE}/caf\u00e9.py", "handler.zip-name"),
        (f"{PACKAGE}/cafe\u0301.py", "handler.zip-name"),
        (f"{PACKAGE}/{'x' * 200}.py", "handler.zip-name"),
        *(
            (f"{PACKAGE}/{name}", "handler.zip-name")
            for name in ("CON.py", "aux.txt", "com1", "Lpt9.tar.gz", "nul/x.txt", "PRN", "sub/con.x/y.txt", "COM0.py")
        ),
        *(
            (f"{PACKAGE}/{name}", "handler.zip-name")
            for name in (
                ".hidden",
                "x.",
                "sub./x.txt",
                "-x",
                "+x",
                "x:stream",
                "x~1",
                "x\u200d.txt",
                "\u212a.py",
                "x\x7f.py",
                "...",
            )
        ),
        (f"{PACKAGE}/x.pyw", "handler.source-name"),
        (f"{PACKAGE}/x.PYW", "handler.source-name"),
        (f"{PACKAGE}/x.pyz", "handler.source-name"),
        (f"{PACKAGE}/x.PY", "handler.source-name"),
        (f"{PACKAGE}/x.Py", "handler.source-name"),
        (f"{PACKAGE}/x-y.py", "handler.source-name"),
        (f"{PACKAGE}/1.py", "handler.source-name"),
        (f"{PACKAGE}/x.cpython-311.py", "handler.source-name"),
        (f"{PACKAGE}/sub-folder/__init__.py", "handler.source-name"),
        (f"{DIST_INFO}/licenses/x.py", "handler.source-name"),
        (f"{PACKAGE}/sub/x.py", "handler.no-package"),
        (f"{PACKAGE}/__init__/x.txt", "handler.module-twice"),
        (f"{PACKAGE}/__INIT__/x.txt", "handler.module-twice"),
        (f"{PACKAGE}/X.so.txt", "handler.native"),
        (f"{PACKAGE}/__PYCACHE__/x.txt", "handler.bytecode"),
        (f"{DIST_INFO}/licences/x.txt", "handler.dist-info"),
        (f"{DIST_INFO}/metadata", "handler.zip-duplicate"),
    ],
)
def test_a_file_that_has_no_place(path: str, code: str) -> None:
    refused_with(code, {**FILES, path: b""})


@pytest.mark.parametrize("content", [b"\x7fELF\0\0\0\0", b"a\0b", b"\xff\xfe", "caf\u00e9".encode("latin-1")])
def test_content_that_is_no_text(content: bytes) -> None:
    refused_with("handler.binary", {**FILES, f"{PACKAGE}/data.txt": content}, Refused)


@pytest.mark.parametrize("other", [f"{PACKAGE}/TEXT.txt", f"{PACKAGE}/text.TXT"])
def test_names_equal_when_case_is_folded(other: str) -> None:
    refused_with("handler.zip-duplicate", {**FILES, other: b"x"}, Refused)


def test_one_name_twice() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in FILES.items():
            archive.writestr(name, data)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr(f"{PACKAGE}/__init__.py", b"import this\n")
    refused(buffer.getvalue(), "handler.zip-duplicate", Refused)


@pytest.mark.parametrize(
    "missing", [f"{PACKAGE}/__init__.py", f"{PACKAGE}/manifest.json", *(f"{DIST_INFO}/{n}" for n in ("METADATA", "WHEEL"))]
)
def test_a_part_is_missing(missing: str) -> None:
    refused_with("handler.missing", {name: data for name, data in FILES.items() if name != missing}, Malformed)


def test_the_record_is_missing() -> None:
    refused(zipped({name: data for name, data in FILES.items() if name != RECORD}), "handler.missing", Malformed)


def test_a_file_that_record_does_not_list() -> None:
    refused(zipped({**FILES, f"{PACKAGE}/extra.py": b""}), "handler.record", Refused)


def test_a_record_that_lists_more_than_there_is() -> None:
    record = FILES[RECORD] + f"{PACKAGE}/ghost.py,sha256=x,0\n".encode()
    refused(zipped({**FILES, RECORD: record}), "handler.record", Refused)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (b"sha256=", b"sha512=", "handler.record-hash"),
        (b"sha256=", b"md5=", "handler.record-hash"),
        (b",5\n", b",6\n", "handler.record-hash"),
        (b",5\n", b",05\n", "handler.record-hash"),
        (b"RECORD,,", b"RECORD,sha256=,0", "handler.record-hash"),
        (b",5\n", b",5,x\n", "handler.record"),
        (b",5\n", b',"5\n', "handler.record-hash"),
        (b",5\n", b',"5"\n', "handler.record-hash"),
        (b",5\n", b",5\r", "handler.text"),
        (b"RECORD,,\n", b"RECORD,,\n\n", "handler.record"),
        (b"RECORD,,\n", f"RECORD,,\n{RECORD},,\n".encode(), "handler.record"),
    ],
)
def test_a_record_that_is_wrong(old: bytes, new: bytes, code: str) -> None:
    assert old in FILES[RECORD]
    refused(zipped({**FILES, RECORD: FILES[RECORD].replace(old, new, 1)}), code)


def test_content_that_record_does_not_know() -> None:
    refused(zipped({**FILES, f"{PACKAGE}/text.txt": b"Data\n"}), "handler.record-hash", Refused)


@pytest.mark.parametrize(
    ("name", "old", "new", "code"),
    [
        ("WHEEL", b"Wheel-Version: 1.0", b"Wheel-Version: 2.0", "handler.wheel"),
        ("WHEEL", b"Wheel-Version: 1.0\n", b"Wheel-Version: 1.0\nWheel-Version: 2.0\n", "handler.wheel"),
        ("WHEEL", b"Purelib: true", b"Purelib: false", "handler.wheel"),
        ("WHEEL", b"py3-none-any", b"cp311-cp311-linux_x86_64", "handler.wheel"),
        ("WHEEL", b"Tag: py3-none-any", b"Tag: py3-none-any\nTag: py2-none-any", "handler.wheel"),
        ("WHEEL", b"Tag:", b"Build: 1\nTag:", "handler.wheel"),
        ("METADATA", b"Name: treaty-handler-probe", b"Name: treaty-handler-other", "handler.metadata"),
        ("METADATA", b"\nVersion: 1.0", b"\nVersion: 1.1", "handler.metadata"),
        ("METADATA", b"\nVersion: 1.0", b"\nVersion: 1.0\nVersion: 1.0", "handler.metadata"),
        ("METADATA", b"\nSummary:", b"\nRequires-Dist: requests\nSummary:", "handler.requires"),
        ("METADATA", b"\nSummary:", b'\nRequires-Dist: x; extra == "y"\nSummary:', "handler.requires"),
        ("METADATA", b"\nSummary:", b"\nRequires-External: libc\nSummary:", "handler.requires"),
        ("METADATA", b"\nSummary:", b"\nrequires-DIST:\n requests\nSummary:", "handler.requires"),
        ("METADATA", b"\nSummary:", b"\nRequires-Dist : requests\nSummary:", "handler.metadata"),
        ("METADATA", b"\nSummary:", b"\n Requires-Dist\nNo header\nSummary:", "handler.metadata"),
        ("METADATA", b"\nSummary:", b"\nInstaller: evil\nSummary:", "handler.metadata"),
        ("METADATA", b"\nSummary:", b"\nsummary: another\nSummary:", "handler.metadata"),
        ("METADATA", b"\nVersion: 1.0", b"\nVersion: 1.0\n .1", "handler.metadata"),
        ("METADATA", b"\nSummary:", b"\nImport-Name: os\nSummary:", "handler.metadata"),
        ("METADATA", b"\nSummary:", b"\nImport-Namespace: os\nSummary:", "handler.metadata"),
        ("METADATA", b"\nSummary: ", b"\nSummary: \rRequires-Dist: requests", "handler.text"),
        ("METADATA", b"\nSummary: ", "\nSummary: \x85Requires-Dist: requests".encode(), "handler.text"),
        ("METADATA", b"\nSummary: ", "\nSummary: \u2028Requires-Dist: requests".encode(), "handler.text"),
        ("METADATA", b"Metadata-Version: 2.4", b"\nMetadata-Version: 2.4", "handler.metadata"),
        ("METADATA", b"Metadata-Version: 2.4", b"Metadata-Version: 3.0", "handler.metadata"),
        ("METADATA", b"Metadata-Version: 2.4", b"\xef\xbb\xbfMetadata-Version: 2.4", "handler.text"),
        ("METADATA", b"Metadata-Version: 2.4\n", b"", "handler.metadata"),
        ("METADATA", b"\nSummary:", b"\nPlatform: x" * 6000 + b"\nSummary:", "handler.too-large"),
        ("WHEEL", b"Generator:", b"Install-Paths-To: /\nGenerator:", "handler.wheel"),
        ("WHEEL", b"Generator: treaty", b"Generator: treaty\n\nTag: cp311-cp311-linux_x86_64", "handler.wheel"),
        ("WHEEL", b"Generator: treaty", b"Generator: " + b"x" * 1000, "handler.too-large"),
        ("entry_points.txt", b"[treaty.handlers]", b"[console_scripts]", "handler.script"),
        ("entry_points.txt", b"[treaty.handlers]", b"[console_scripts]  ", "handler.script"),
        ("entry_points.txt", b"[treaty.handlers]", b"[DEFAULT]\nx = a:b\n[treaty.handlers]", "handler.entry-point"),
        ("entry_points.txt", b":handler\n", b":handler\n  second\n", "handler.entry-point"),
        ("entry_points.txt", b":handler\n", b":handler # a comment\n", "handler.entry-point"),
        ("entry_points.txt", b":handler\n", b":handler\rx = os:system\n", "handler.text"),
        ("entry_points.txt", b":handler\n", b":handler\n" + b"\n" * 1024, "handler.too-large"),
        ("entry_points.txt", b"[treaty", b"[gui_scripts]\nx = a:b\n[treaty", "handler.script"),
        ("entry_points.txt", b"[treaty.handlers]", b"[pytest11]", "handler.entry-point"),
        ("entry_points.txt", b"[treaty", b"[pytest11]\nx = a:b\n[treaty", "handler.entry-point"),
        ("entry_points.txt", b":handler\n", b":handler\nsecond = treaty_handler_probe:handler\n", "handler.entry-point"),
        ("entry_points.txt", b":handler\n", b":handler\nprobe = treaty_handler_probe:other\n", "handler.entry-point"),
        ("entry_points.txt", b"probe = treaty_handler_probe:handler\n", b"", "handler.entry-point"),
        ("entry_points.txt", b"treaty_handler_probe:handler", b"os:system", "handler.entry-point"),
        ("entry_points.txt", b"treaty_handler_probe:handler", b"treaty_handler_probe.none:handler", "handler.entry-point"),
        ("entry_points.txt", b"treaty_handler_probe:handler", b"treaty_handler_probe", "handler.entry-point"),
        ("entry_points.txt", b"treaty_handler_probe:handler", b"treaty_handler_probe:a.b", "handler.entry-point"),
        ("entry_points.txt", b":handler", b":handler [extra]", "handler.entry-point"),
        ("entry_points.txt", b"probe =", b"\n no section", "handler.entry-point"),
    ],
)
def test_metadata_that_says_something_else(name: str, old: bytes, new: bytes, code: str) -> None:
    content = FILES[f"{DIST_INFO}/{name}"]
    assert old in content
    refused_with(code, {**FILES, f"{DIST_INFO}/{name}": content.replace(old, new, 1)})


@pytest.mark.parametrize("text", [b"os\n", f"{PACKAGE}\nos\n".encode(), b"", f"{PACKAGE} \n".encode()])
def test_a_top_level_file_that_names_something_else(text: bytes) -> None:
    refused_with("handler.top-level", {**FILES, f"{DIST_INFO}/top_level.txt": text}, Refused)


def test_what_build_tools_write_is_read() -> None:
    metadata = FILES[f"{DIST_INFO}/METADATA"].replace(b"treaty-handler-probe", b"Treaty_Handler.Probe")
    metadata += b"License: One line,\n        and another\nClassifier: A\nClassifier: B\nImport-Name: " + PACKAGE.encode()
    others = {
        f"{DIST_INFO}/METADATA": metadata + "\n\n# Probe\n\nRequires-Dist: is but text here. \u4f60\u597d\n".encode(),
        f"{DIST_INFO}/WHEEL": FILES[f"{DIST_INFO}/WHEEL"].replace(b"\n", b"\r\n") + b"\r\n",
        f"{DIST_INFO}/entry_points.txt": f"[treaty.handlers]\nprobe={PACKAGE}:handler\n\n".encode(),
        f"{DIST_INFO}/top_level.txt": f"{PACKAGE}\n".encode(),
        f"{DIST_INFO}/licenses/LICENSE": b"Apache\f",
        f"{PACKAGE}/py.typed": b"",
        f"{PACKAGE}/stub.pyi": b"",
        f"{PACKAGE}/Sub_1/__init__.py": b"",
        f"{PACKAGE}/Sub_1/con_.py": b"",
        f"{PACKAGE}/Sub_1/table+x.1-2.csv": "\ufeffa\u2028b".encode(),
    }
    files = with_record({**FILES, **others})
    files[RECORD] = files[RECORD].replace(b"\n", b"\r\n")
    package = read_wheel(FILENAME, zipped(files))
    assert package.files == files
    assert str(package.entry_point) == f"{PACKAGE}:handler"


@pytest.mark.threat(39)
@pytest.mark.parametrize(
    ("others", "code"),
    [
        (("a", "a/b.txt"), "handler.zip-duplicate"),
        (("a/b.txt", "a"), "handler.zip-duplicate"),
        (("a", "A/b.txt"), "handler.zip-duplicate"),
        (("a/b", "a/B/c/d.txt"), "handler.zip-duplicate"),
        (("a/x.txt", "A/y.txt"), "handler.zip-duplicate"),
        (("a/b/x.txt", "a/B/y.txt"), "handler.zip-duplicate"),
        (("a.py", "a/__init__.py"), "handler.module-twice"),
        (("a/__init__.py", "A.py"), "handler.module-twice"),
        (("a.py", "a/data.txt"), "handler.module-twice"),
        (("a.py", "A/data.txt"), "handler.module-twice"),
        (("a/__init__.py", "a/b.py", "a/b/c.txt"), "handler.module-twice"),
        (("a/__init__.py", "a/b/c.py"), "handler.no-package"),
        (("a/__INIT__.py", "a/b.py"), "handler.no-package"),
    ],
)
def test_two_paths_that_are_one_somewhere(others: tuple[str, ...], code: str) -> None:
    refused_with(code, {**FILES, **{f"{PACKAGE}/{path}": b"" for path in others}}, Refused)


@pytest.mark.threat(40)
@pytest.mark.parametrize(
    ("source", "code"),
    [
        (b"# coding: utf-7\n# +AAo-import os\n", "handler.coding"),
        (b"# -*- coding: latin-1 -*-\n", "handler.coding"),
        (b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\n", "handler.coding"),
        (b"\n\t # coding=ascii\n", "handler.coding"),
        (b"# coding: coding: utf-16\n", "handler.coding"),
        (b"# coding: utf-8 coding: utf-7\n", "handler.coding"),
        (b"# coding: utf-8\n# coding: utf-7\n", "handler.coding"),
        (b"# coding: utf-8\n# coding: utf-8\n", "handler.coding"),
        (b"# coding: utf-8-sig\n", "handler.coding"),
        (b"x = 1  # coding: utf-7\n", "handler.coding"),
        (b"# coding: utf-7\r\n", "handler.coding"),
        (b"# harmless\rimport os\n", "handler.text"),
        (b"# 1\r# 2\r# coding: utf-7\n", "handler.text"),
        (b"\x0c# coding: utf-7\n", "handler.text"),
        (b"\x0b\n", "handler.text"),
        (b"\x1a\n", "handler.text"),
        (b"\x1b[2K\n", "handler.text"),
        (b"\xef\xbb\xbfhandler = 1\n", "handler.text"),
        ("x = '\ufeff'\n".encode(), "handler.text"),
        ("# a\x85b\n".encode(), "handler.text"),
        ("# a\u2028b\n".encode(), "handler.text"),
        ("# a\u2029b\n".encode(), "handler.text"),
        ("# \u202e } \u2066if admin\u2069\n".encode(), "handler.text"),
        (b"# \xed\xa0\x80\n", "handler.binary"),
        (b"# \xc0\x80\n", "handler.binary"),
        ("handler = 1\n".encode("utf-16"), "handler.binary"),
        (b"#\0coding: utf-7\n", "handler.binary"),
    ],
)
def test_a_source_with_two_readings(source: bytes, code: str) -> None:
    refused_with(code, {**FILES, f"{PACKAGE}/other.py": source}, Refused)


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"\r\nif 1:\r\n\tx = 1\r\n",
        b"# -*- coding: UTF_8 -*-\n",
        b"#!x\n# vim: fileencoding=utf8\n",
        b"x = 1\n\n# coding: utf-7\n",
        b"f(encoding=name)\n",
        "# \u4e2d\u6587 \u3000 \u00a0 \U0001f600 \u200d \ufffd\n".encode(),
    ],
)
def test_a_source_with_one_reading(source: bytes) -> None:
    files = with_record({**FILES, f"{PACKAGE}/other.py": source})
    assert read_wheel(FILENAME, zipped(files)).files == files
    compile(source, "other.py", "exec")


@pytest.mark.threat(41)
@pytest.mark.parametrize(
    ("path", "cap"),
    [
        (f"{DIST_INFO}/METADATA", dist_info.MAX_METADATA),
        (f"{DIST_INFO}/WHEEL", dist_info.MAX_WHEEL_FILE),
        (f"{DIST_INFO}/entry_points.txt", dist_info.MAX_ENTRY_POINTS),
        (f"{DIST_INFO}/top_level.txt", MAX_NAME),
    ],
)
def test_what_is_parsed_has_a_cap_of_its_own(path: str, cap: int) -> None:
    refused_with("handler.too-large", {**FILES, path: b"x" * (cap + 1)}, TooLarge)
    with pytest.raises(TreatyError) as caught:
        read_wheel(FILENAME, zipped(with_record({**FILES, path: b"x" * cap})))
    assert caught.value.code != "handler.too-large"


def test_a_record_of_as_many_and_as_long_paths_as_there_may_be_fits_its_cap() -> None:
    names = [f"{PACKAGE}/{number:03}".ljust(MAX_NAME, "x") for number in range(MAX_FILES - len(FILES))]
    files = with_record({**FILES, **dict.fromkeys(names, b"")})
    assert len(files[RECORD]) <= dist_info.MAX_RECORD
    assert read_wheel(FILENAME, zipped(files)).files == files
    refused(zipped({**FILES, RECORD: b"x" * (dist_info.MAX_RECORD + 1)}), "handler.too-large", TooLarge)


def test_a_manifest_that_does_not_parse() -> None:
    refused_with("handler.manifest", {**FILES, f"{PACKAGE}/manifest.json": b"{}"}, TreatyError)


@pytest.mark.threat(38)
def test_caps() -> None:
    refused(b"PK" + bytes(MAX_ARCHIVE), "handler.too-large", TooLarge)
    many = {f"{PACKAGE}/f{number}.txt": b"" for number in range(MAX_FILES)}
    refused_with("handler.too-many-files", {**FILES, **many}, TooLarge)
    bomb = {**FILES, f"{PACKAGE}/zeros.txt": b"0" * (MAX_CONTENT + 1)}
    small = zipped(with_record(bomb), zipfile.ZIP_DEFLATED)
    assert len(small) < 100_000
    refused(small, "handler.too-large", TooLarge)
    spread = {**FILES, **{f"{PACKAGE}/z{number}.txt": b"0" * (MAX_CONTENT // 4) for number in range(5)}}
    refused(zipped(with_record(spread), zipfile.ZIP_DEFLATED), "handler.too-large", TooLarge)


def test_the_builder_refuses_what_is_not_its_own() -> None:
    for sources, changes, code in (
        ({"__init__.py": b"", "manifest.json": b"{}"}, {}, "handler.manifest"),
        ({"__init__.py": b"", "x.so": b""}, {}, "handler.native"),
        ({}, {}, "handler.missing"),
        ({"__init__.py": b""}, {"version": "one"}, "handler.version"),
        ({"__init__.py": b""}, {"summary": "a\nRequires-Dist: evil"}, "handler.metadata"),
        ({"__init__.py": b""}, {"name": "a--b"}, "handler.filename"),
        ({"__init__.py": b""}, {"entry_point": "os:system"}, "handler.entry-point"),
        ({"__init__.py": b""}, {"protocol_uri": "http://x"}, "handler.manifest"),
        ({"__init__.py": b""}, {"manifest": {**MANIFEST, "protocol": {}}}, "handler.manifest"),
        ({"__init__.py": b""}, {"manifest": {**MANIFEST, "interface": 4}}, "handler.interface"),
    ):
        honest = metadata()
        fields = {name: getattr(honest, name) for name in honest.__slots__}
        with pytest.raises(TreatyError) as caught:
            build_wheel(sources, type(honest)(**{**fields, **changes}))
        assert caught.value.code == code, caught.value


@pytest.mark.parametrize(
    ("extra", "kind", "interface"),
    [({}, {}, 1), ({}, {"kind": "stream"}, 2), ({"interface": 2}, {}, 2)],
)
def test_the_builder_names_the_lowest_interface_that_the_manifest_needs(
    extra: dict[str, object], kind: dict[str, str], interface: int
) -> None:
    operations = {**MANIFEST["operations"], "ask": {**MANIFEST["operations"]["ask"], **kind}}
    honest = metadata()
    fields = {name: getattr(honest, name) for name in honest.__slots__}
    filename, data = build_wheel(
        {"__init__.py": b""}, type(honest)(**{**fields, "manifest": {**MANIFEST, "operations": operations, **extra}})
    )
    assert read_wheel(filename, data).manifest.interface == interface
