"""Every refusal of a handler package, by a wheel crafted to earn it, and what an honest wheel says."""

from __future__ import annotations

import io
import zipfile

import pytest
from handler_packages import DIST_INFO, FILENAME, MANIFEST, PACKAGE, PROBE, URI, metadata, with_record, zipped
from rejections import rejection

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
    assert rejection(caught.value, code) == code, caught.value


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
        ("probe-1.0-py3-none-any.whl", "handler.package: form|PEP 440|at most"),
        ("treaty_handler-1.0-py3-none-any.whl", "handler.package: form|PEP 440|at most"),
        ("treaty-handler-probe-1.0-py3-none-any.whl", "handler.package: form|PEP 440|at most"),
        ("Treaty_Handler_probe-1.0-py3-none-any.whl", "handler.package: form|PEP 440|at most"),
        ("treaty_handler_probe-1.0.0.0-py3-none-any.whl", "handler.package: METADATA"),
        ("treaty_handler_probe-01.0-py3-none-any.whl", "handler.package: form|PEP 440|at most"),
        ("treaty_handler_probe-1.0-1-py3-none-any.whl", "handler.package: form|PEP 440|at most"),
        ("treaty_handler_probe-1.0-py2.py3-none-any.whl", "handler.package: form|PEP 440|at most"),
        ("treaty_handler_probe-1.0-cp311-none-any.whl", "handler.package: form|PEP 440|at most"),
        ("treaty_handler_probe-1.0-py3-none-linux_x86_64.whl", "handler.package: form|PEP 440|at most"),
        ("treaty_handler_probe-1.0-py3-none-any.zip", "handler.package: form|PEP 440|at most"),
        ("../treaty_handler_probe-1.0-py3-none-any.whl", "handler.package: form|PEP 440|at most"),
        (f"treaty_handler_{'x' * 200}-1.0-py3-none-any.whl", "handler.package: form|PEP 440|at most"),
        ("", "handler.package: form|PEP 440|at most"),
    ],
)
def test_file_names(filename: str, code: str) -> None:
    if code.startswith("handler.package: form"):
        with pytest.raises(TreatyError) as caught:
            parse_filename(filename)
        assert rejection(caught.value, code) == code
    else:
        refused(WHEEL, "handler.package: top_level.txt|is outside", Refused, filename)


@pytest.mark.threat(39, 42)
@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"{PACKAGE}/start.pth", "handler.package: run code"),
        ("start.PTH", "handler.package: run code"),
        (f"{PACKAGE}-1.0.data/scripts/run.py", "handler.package: installed outside"),
        (f"{PACKAGE}-1.0.data/data/etc/passwd", "handler.package: installed outside"),
        (f"{PACKAGE}/__pycache__/x.cpython-311.pyc", "handler.package: bytecode"),
        (f"{PACKAGE}/__pycache__/x.txt", "handler.package: bytecode"),
        (f"{PACKAGE}/x.pyc", "handler.package: bytecode"),
        (f"{PACKAGE}/x.PyO", "handler.package: bytecode"),
        (f"{PACKAGE}/x.so", "handler.package: native code"),
        (f"{PACKAGE}/x.cpython-311-x86_64-linux-gnu.so", "handler.package: native code"),
        (f"{PACKAGE}/libx.so.1", "handler.package: native code"),
        (f"{PACKAGE}/x.pyd", "handler.package: native code"),
        (f"{PACKAGE}/x.dll", "handler.package: native code"),
        (f"{PACKAGE}/x.dylib", "handler.package: native code"),
        ("other/__init__.py", "handler.package: top_level.txt|is outside"),
        ("msgspec/__init__.py", "handler.package: top_level.txt|is outside"),
        (f"{PACKAGE}.py", "handler.package: top_level.txt|is outside"),
        (PACKAGE, "handler.package: occurs twice"),
        ("other", "handler.package: top_level.txt|is outside"),
        (f"{PACKAGE}_more/__init__.py", "handler.package: top_level.txt|is outside"),
        (f"{PACKAGE}-2.0.dist-info/METADATA", "handler.package: top_level.txt|is outside"),
        (f"{DIST_INFO}/RECORD.jws", "handler.package: not allowed in"),
        (f"{DIST_INFO}/INSTALLER", "handler.package: not allowed in"),
        (f"{DIST_INFO}/direct_url.json", "handler.package: not allowed in"),
        (f"../{PACKAGE}/x.py", "handler.package: file name"),
        (f"{PACKAGE}/../x.py", "handler.package: file name"),
        (f"{PACKAGE}/./x.py", "handler.package: file name"),
        (f"{PACKAGE}//x.py", "handler.package: file name"),
        (f"/{PACKAGE}/x.py", "handler.package: file name"),
        (f"{PACKAGE}\\x.py", "handler.package: file name"),
        (f"C:{PACKAGE}/x.py", "handler.package: file name"),
        (f"{PACKAGE}/x .py", "handler.package: file name"),
        (f"{PACKAGE}/x\n.py", "handler.package: file name"),
        (f"{PACKAGE}/", "handler.package: file name"),
        (f"{PACKAGE}/caf\u00e9.py", "handler.package: file name"),
        (f"{PACKAGE}/cafe\u0301.py", "handler.package: file name"),
        (f"{PACKAGE}/{'x' * 200}.py", "handler.package: file name"),
        *(
            (f"{PACKAGE}/{name}", "handler.package: file name")
            for name in ("CON.py", "aux.txt", "com1", "Lpt9.tar.gz", "nul/x.txt", "PRN", "sub/con.x/y.txt", "COM0.py")
        ),
        *(
            (f"{PACKAGE}/{name}", "handler.package: file name")
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
        (f"{PACKAGE}/x.pyw", "handler.package: some interpreters|cannot import"),
        (f"{PACKAGE}/x.PYW", "handler.package: some interpreters|cannot import"),
        (f"{PACKAGE}/x.pyz", "handler.package: some interpreters|cannot import"),
        (f"{PACKAGE}/x.PY", "handler.package: some interpreters|cannot import"),
        (f"{PACKAGE}/x.Py", "handler.package: some interpreters|cannot import"),
        (f"{PACKAGE}/x-y.py", "handler.package: some interpreters|cannot import"),
        (f"{PACKAGE}/1.py", "handler.package: some interpreters|cannot import"),
        (f"{PACKAGE}/x.cpython-311.py", "handler.package: some interpreters|cannot import"),
        (f"{PACKAGE}/sub-folder/__init__.py", "handler.package: some interpreters|cannot import"),
        (f"{DIST_INFO}/licenses/x.py", "handler.package: some interpreters|cannot import"),
        (f"{PACKAGE}/sub/x.py", "handler.package: holds sources and no"),
        (f"{PACKAGE}/__init__/x.txt", "handler.package: one module name"),
        (f"{PACKAGE}/__INIT__/x.txt", "handler.package: one module name"),
        (f"{PACKAGE}/X.so.txt", "handler.package: native code"),
        (f"{PACKAGE}/__PYCACHE__/x.txt", "handler.package: bytecode"),
        (f"{DIST_INFO}/licences/x.txt", "handler.package: not allowed in"),
        (f"{DIST_INFO}/metadata", "handler.package: occurs twice"),
    ],
)
def test_a_file_that_has_no_place(path: str, code: str) -> None:
    refused_with(code, {**FILES, path: b""})


@pytest.mark.parametrize("content", [b"\x7fELF\0\0\0\0", b"a\0b", b"\xff\xfe", "caf\u00e9".encode("latin-1")])
def test_content_that_is_no_text(content: bytes) -> None:
    refused_with("handler.package: is not UTF-8|holds NUL", {**FILES, f"{PACKAGE}/data.txt": content}, Refused)


@pytest.mark.parametrize("other", [f"{PACKAGE}/TEXT.txt", f"{PACKAGE}/text.TXT"])
def test_names_equal_when_case_is_folded(other: str) -> None:
    refused_with("handler.package: occurs twice", {**FILES, other: b"x"}, Refused)


def test_one_name_twice() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in FILES.items():
            archive.writestr(name, data)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr(f"{PACKAGE}/__init__.py", b"import this\n")
    refused(buffer.getvalue(), "handler.package: occurs twice", Refused)


@pytest.mark.parametrize(
    "missing", [f"{PACKAGE}/__init__.py", f"{PACKAGE}/manifest.json", *(f"{DIST_INFO}/{n}" for n in ("METADATA", "WHEEL"))]
)
def test_a_part_is_missing(missing: str) -> None:
    refused_with("handler.package", {name: data for name, data in FILES.items() if name != missing}, Malformed)


def test_the_record_is_missing() -> None:
    refused(zipped({name: data for name, data in FILES.items() if name != RECORD}), "handler.package", Malformed)


def test_a_file_that_record_does_not_list() -> None:
    refused(zipped({**FILES, f"{PACKAGE}/extra.py": b""}), "handler.package: of RECORD|list the same files", Refused)


def test_a_record_that_lists_more_than_there_is() -> None:
    record = FILES[RECORD] + f"{PACKAGE}/ghost.py,sha256=x,0\n".encode()
    refused(zipped({**FILES, RECORD: record}), "handler.package: of RECORD|list the same files", Refused)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (b"sha256=", b"sha512=", "handler.package: its entry in RECORD"),
        (b"sha256=", b"md5=", "handler.package: its entry in RECORD"),
        (b",5\n", b",6\n", "handler.package: its entry in RECORD"),
        (b",5\n", b",05\n", "handler.package: its entry in RECORD"),
        (b"RECORD,,", b"RECORD,sha256=,0", "handler.package: its entry in RECORD"),
        (b",5\n", b",5,x\n", "handler.package: of RECORD|list the same files"),
        (b",5\n", b',"5\n', "handler.package: its entry in RECORD"),
        (b",5\n", b',"5"\n', "handler.package: its entry in RECORD"),
        (b",5\n", b",5\r", "handler.package: holds the character"),
        (b"RECORD,,\n", b"RECORD,,\n\n", "handler.package: of RECORD|list the same files"),
        (b"RECORD,,\n", f"RECORD,,\n{RECORD},,\n".encode(), "handler.package: of RECORD|list the same files"),
    ],
)
def test_a_record_that_is_wrong(old: bytes, new: bytes, code: str) -> None:
    assert old in FILES[RECORD]
    refused(zipped({**FILES, RECORD: FILES[RECORD].replace(old, new, 1)}), code)


def test_content_that_record_does_not_know() -> None:
    refused(zipped({**FILES, f"{PACKAGE}/text.txt": b"Data\n"}), "handler.package: its entry in RECORD", Refused)


@pytest.mark.parametrize(
    ("name", "old", "new", "code"),
    [
        ("WHEEL", b"Wheel-Version: 1.0", b"Wheel-Version: 2.0", "handler.package: WHEEL"),
        ("WHEEL", b"Wheel-Version: 1.0\n", b"Wheel-Version: 1.0\nWheel-Version: 2.0\n", "handler.package: WHEEL"),
        ("WHEEL", b"Purelib: true", b"Purelib: false", "handler.package: WHEEL"),
        ("WHEEL", b"py3-none-any", b"cp311-cp311-linux_x86_64", "handler.package: WHEEL"),
        ("WHEEL", b"Tag: py3-none-any", b"Tag: py3-none-any\nTag: py2-none-any", "handler.package: WHEEL"),
        ("WHEEL", b"Tag:", b"Build: 1\nTag:", "handler.package: WHEEL"),
        ("METADATA", b"Name: treaty-handler-probe", b"Name: treaty-handler-other", "handler.package: METADATA"),
        ("METADATA", b"\nVersion: 1.0", b"\nVersion: 1.1", "handler.package: METADATA"),
        ("METADATA", b"\nVersion: 1.0", b"\nVersion: 1.0\nVersion: 1.0", "handler.package: METADATA"),
        ("METADATA", b"\nSummary:", b"\nRequires-Dist: requests\nSummary:", "handler.package: no other distribution"),
        ("METADATA", b"\nSummary:", b'\nRequires-Dist: x; extra == "y"\nSummary:', "handler.package: no other distribution"),
        ("METADATA", b"\nSummary:", b"\nRequires-External: libc\nSummary:", "handler.package: no other distribution"),
        ("METADATA", b"\nSummary:", b"\nrequires-DIST:\n requests\nSummary:", "handler.package: no other distribution"),
        ("METADATA", b"\nSummary:", b"\nRequires-Dist : requests\nSummary:", "handler.package: of the form"),
        ("METADATA", b"\nSummary:", b"\n Requires-Dist\nNo header\nSummary:", "handler.package: of the form"),
        ("METADATA", b"\nSummary:", b"\nInstaller: evil\nSummary:", "handler.package: METADATA"),
        ("METADATA", b"\nSummary:", b"\nsummary: another\nSummary:", "handler.package: METADATA"),
        ("METADATA", b"\nVersion: 1.0", b"\nVersion: 1.0\n .1", "handler.package: METADATA"),
        ("METADATA", b"\nSummary:", b"\nImport-Name: os\nSummary:", "handler.package: METADATA"),
        ("METADATA", b"\nSummary:", b"\nImport-Namespace: os\nSummary:", "handler.package: METADATA"),
        ("METADATA", b"\nSummary: ", b"\nSummary: \rRequires-Dist: requests", "handler.package: holds the character"),
        ("METADATA", b"\nSummary: ", "\nSummary: \x85Requires-Dist: requests".encode(), "handler.package: holds the character"),
        ("METADATA", b"\nSummary: ", "\nSummary: \u2028Requires-Dist: requests".encode(), "handler.package: holds the character"),
        ("METADATA", b"Metadata-Version: 2.4", b"\nMetadata-Version: 2.4", "handler.package: of the form"),
        ("METADATA", b"Metadata-Version: 2.4", b"Metadata-Version: 3.0", "handler.package: METADATA"),
        ("METADATA", b"Metadata-Version: 2.4", b"\xef\xbb\xbfMetadata-Version: 2.4", "handler.package: holds the character"),
        ("METADATA", b"Metadata-Version: 2.4\n", b"", "handler.package: METADATA"),
        ("METADATA", b"\nSummary:", b"\nPlatform: x" * 6000 + b"\nSummary:", "handler.package: bytes"),
        ("WHEEL", b"Generator:", b"Install-Paths-To: /\nGenerator:", "handler.package: WHEEL"),
        ("WHEEL", b"Generator: treaty", b"Generator: treaty\n\nTag: cp311-cp311-linux_x86_64", "handler.package: of the form"),
        ("WHEEL", b"Generator: treaty", b"Generator: " + b"x" * 1000, "handler.package: bytes"),
        ("entry_points.txt", b"[treaty.handlers]", b"[console_scripts]", "handler.package: installs a command"),
        ("entry_points.txt", b"[treaty.handlers]", b"[console_scripts]  ", "handler.package: installs a command"),
        ("entry_points.txt", b"[treaty.handlers]", b"[DEFAULT]\nx = a:b\n[treaty.handlers]", "handler.entry-point"),
        ("entry_points.txt", b":handler\n", b":handler\n  second\n", "handler.entry-point"),
        ("entry_points.txt", b":handler\n", b":handler # a comment\n", "handler.entry-point"),
        ("entry_points.txt", b":handler\n", b":handler\rx = os:system\n", "handler.package: holds the character"),
        ("entry_points.txt", b":handler\n", b":handler\n" + b"\n" * 1024, "handler.package: bytes"),
        ("entry_points.txt", b"[treaty", b"[gui_scripts]\nx = a:b\n[treaty", "handler.package: installs a command"),
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
    refused_with("handler.package: top_level.txt|is outside", {**FILES, f"{DIST_INFO}/top_level.txt": text}, Refused)


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
        (("a", "a/b.txt"), "handler.package: occurs twice"),
        (("a/b.txt", "a"), "handler.package: occurs twice"),
        (("a", "A/b.txt"), "handler.package: occurs twice"),
        (("a/b", "a/B/c/d.txt"), "handler.package: occurs twice"),
        (("a/x.txt", "A/y.txt"), "handler.package: occurs twice"),
        (("a/b/x.txt", "a/B/y.txt"), "handler.package: occurs twice"),
        (("a.py", "a/__init__.py"), "handler.package: one module name"),
        (("a/__init__.py", "A.py"), "handler.package: one module name"),
        (("a.py", "a/data.txt"), "handler.package: one module name"),
        (("a.py", "A/data.txt"), "handler.package: one module name"),
        (("a/__init__.py", "a/b.py", "a/b/c.txt"), "handler.package: one module name"),
        (("a/__init__.py", "a/b/c.py"), "handler.package: holds sources and no"),
        (("a/__INIT__.py", "a/b.py"), "handler.package: holds sources and no"),
    ],
)
def test_two_paths_that_are_one_somewhere(others: tuple[str, ...], code: str) -> None:
    refused_with(code, {**FILES, **{f"{PACKAGE}/{path}": b"" for path in others}}, Refused)


@pytest.mark.threat(40)
@pytest.mark.parametrize(
    ("source", "code"),
    [
        (b"# coding: utf-7\n# +AAo-import os\n", "handler.package: declares the encoding"),
        (b"# -*- coding: latin-1 -*-\n", "handler.package: declares the encoding"),
        (b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\n", "handler.package: declares the encoding"),
        (b"\n\t # coding=ascii\n", "handler.package: declares the encoding"),
        (b"# coding: coding: utf-16\n", "handler.package: declares the encoding"),
        (b"# coding: utf-8 coding: utf-7\n", "handler.package: declares the encoding"),
        (b"# coding: utf-8\n# coding: utf-7\n", "handler.package: declares the encoding"),
        (b"# coding: utf-8\n# coding: utf-8\n", "handler.package: declares the encoding"),
        (b"# coding: utf-8-sig\n", "handler.package: declares the encoding"),
        (b"x = 1  # coding: utf-7\n", "handler.package: declares the encoding"),
        (b"# coding: utf-7\r\n", "handler.package: declares the encoding"),
        (b"# harmless\rimport os\n", "handler.package: holds the character"),
        (b"# 1\r# 2\r# coding: utf-7\n", "handler.package: holds the character"),
        (b"\x0c# coding: utf-7\n", "handler.package: holds the character"),
        (b"\x0b\n", "handler.package: holds the character"),
        (b"\x1a\n", "handler.package: holds the character"),
        (b"\x1b[2K\n", "handler.package: holds the character"),
        (b"\xef\xbb\xbfhandler = 1\n", "handler.package: holds the character"),
        ("x = '\ufeff'\n".encode(), "handler.package: holds the character"),
        ("# a\x85b\n".encode(), "handler.package: holds the character"),
        ("# a\u2028b\n".encode(), "handler.package: holds the character"),
        ("# a\u2029b\n".encode(), "handler.package: holds the character"),
        ("# \u202e } \u2066if admin\u2069\n".encode(), "handler.package: holds the character"),
        (b"# \xed\xa0\x80\n", "handler.package: is not UTF-8|holds NUL"),
        (b"# \xc0\x80\n", "handler.package: is not UTF-8|holds NUL"),
        ("handler = 1\n".encode("utf-16"), "handler.package: is not UTF-8|holds NUL"),
        (b"#\0coding: utf-7\n", "handler.package: is not UTF-8|holds NUL"),
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
    refused_with("handler.package: bytes", {**FILES, path: b"x" * (cap + 1)}, TooLarge)
    with pytest.raises(TreatyError) as caught:
        read_wheel(FILENAME, zipped(with_record({**FILES, path: b"x" * cap})))
    assert caught.value.code != "handler.package: bytes"


def test_a_record_of_the_largest_paths_fits_its_cap() -> None:
    names = [f"{PACKAGE}/{number:03}".ljust(MAX_NAME, "x") for number in range(MAX_FILES - len(FILES))]
    files = with_record({**FILES, **dict.fromkeys(names, b"")})
    assert len(files[RECORD]) <= dist_info.MAX_RECORD
    assert read_wheel(FILENAME, zipped(files)).files == files
    refused(zipped({**FILES, RECORD: b"x" * (dist_info.MAX_RECORD + 1)}), "handler.package: bytes", TooLarge)


def test_a_manifest_that_does_not_parse() -> None:
    refused_with("handler.manifest", {**FILES, f"{PACKAGE}/manifest.json": b"{}"}, TreatyError)


@pytest.mark.threat(38)
def test_caps() -> None:
    refused(b"PK" + bytes(MAX_ARCHIVE), "handler.package: bytes", TooLarge)
    many = {f"{PACKAGE}/f{number}.txt": b"" for number in range(MAX_FILES)}
    refused_with("handler.package: files, this one", {**FILES, **many}, TooLarge)
    bomb = {**FILES, f"{PACKAGE}/zeros.txt": b"0" * (MAX_CONTENT + 1)}
    small = zipped(with_record(bomb), zipfile.ZIP_DEFLATED)
    assert len(small) < 100_000
    refused(small, "handler.package: bytes", TooLarge)
    spread = {**FILES, **{f"{PACKAGE}/z{number}.txt": b"0" * (MAX_CONTENT // 4) for number in range(5)}}
    refused(zipped(with_record(spread), zipfile.ZIP_DEFLATED), "handler.package: bytes", TooLarge)


def test_the_builder_refuses_what_is_not_its_own() -> None:
    for sources, changes, code in (
        ({"__init__.py": b"", "manifest.json": b"{}"}, {}, "handler.manifest"),
        ({"__init__.py": b"", "x.so": b""}, {}, "handler.package: native code"),
        ({}, {}, "handler.package"),
        ({"__init__.py": b""}, {"version": "one"}, "handler.package: PEP 440"),
        ({"__init__.py": b""}, {"summary": "a\nRequires-Dist: evil"}, "handler.package: one line"),
        ({"__init__.py": b""}, {"name": "a--b"}, "handler.package: form|PEP 440|at most"),
        ({"__init__.py": b""}, {"entry_point": "os:system"}, "handler.entry-point"),
        ({"__init__.py": b""}, {"protocol_uri": "http://x"}, "handler.manifest"),
        ({"__init__.py": b""}, {"manifest": {**MANIFEST, "protocol": {}}}, "handler.manifest"),
        ({"__init__.py": b""}, {"manifest": {**MANIFEST, "interface": 7}}, "registry.newer"),
    ):
        honest = metadata()
        fields = {name: getattr(honest, name) for name in honest.__slots__}
        with pytest.raises(TreatyError) as caught:
            build_wheel(sources, type(honest)(**{**fields, **changes}))
        assert rejection(caught.value, code) == code, caught.value


@pytest.mark.parametrize(
    ("extra", "kind", "interface"),
    [({}, {}, 1), ({}, {"kind": "stream"}, 2), ({"interface": 2}, {}, 2)],
)
def test_the_builder_names_the_lowest_sufficient_interface(
    extra: dict[str, object], kind: dict[str, str], interface: int
) -> None:
    operations = {**MANIFEST["operations"], "ask": {**MANIFEST["operations"]["ask"], **kind}}
    honest = metadata()
    fields = {name: getattr(honest, name) for name in honest.__slots__}
    filename, data = build_wheel(
        {"__init__.py": b""}, type(honest)(**{**fields, "manifest": {**MANIFEST, "operations": operations, **extra}})
    )
    assert read_wheel(filename, data).manifest.interface == interface
