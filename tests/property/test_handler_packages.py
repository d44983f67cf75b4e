"""Whatever is done to the bytes of a handler package, it is refused with a TreatyError or is the same package."""

from __future__ import annotations

import io
import json
import tempfile
import tokenize
import zipfile
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from depth import examples
from handler_packages import FILENAME, MANIFEST, PACKAGE, metadata, package, with_record, zipped
from hypothesis import given, settings
from hypothesis import strategies as st

from treaty_consensus.errors import TreatyError
from treaty_consensus.handler import TAGS, build_wheel, parse_filename, parse_manifest, read_wheel
from treaty_consensus.handler.archive import read_archive, write_archive
from treaty_handler import decode_json, encode_json
from treaty_sandbox import parse_vector

_, BUILT = build_wheel({"__init__.py": b"handler = 1\n"}, metadata())
FILES = dict(read_wheel(FILENAME, BUILT).files)
DEFLATED = zipped(FILES, zipfile.ZIP_DEFLATED)

VECTORS = [path.read_text() for path in (Path(__file__).parents[2] / "protocols" / "product-info").glob("1.*/vectors/*.json")]

names = st.from_regex(r"[A-Za-z0-9._+-]{1,8}(/[A-Za-z0-9._+-]{1,8}){0,2}", fullmatch=True)
short_names = st.from_regex(r"([abAB]|con|__init__)(/[abAB]){0,2}(\.py|\.)?", fullmatch=True)
MODULES = ["a.py", "a/__init__.py", "a/b.py", "a/b/__init__.py", "a/b/c.py", "A.py", "b.py", "b", "a/b.txt", "a/b/x.txt"]
words = st.sampled_from(
    ["#", "coding", ":", "=", " ", "\t", "\f", "\r", "\n", "\r\n", "\ufeff", "utf-8", "utf-7", "latin-1", "x", "\u2028"]
)
comments = st.sampled_from(["\n# coding: utf-7\n", "# coding: utf-8\n", "# coding=latin-1", "#\n", "x\n"])
headings = st.lists(words | comments, max_size=16).map(lambda parts: "".join(parts).encode())
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize("wheel", [BUILT, DEFLATED], ids=["stored", "deflated"])
def test_every_byte_matters_or_changes_nothing(wheel: bytes) -> None:
    accepted = 0
    for position in range(len(wheel)):
        for flip in (0x01, 0x80):
            changed = bytearray(wheel)
            changed[position] ^= flip
            try:
                read = read_wheel(FILENAME, bytes(changed))
            except TreatyError:
                continue
            accepted += 1
            assert read.files == FILES
    # Per entry the maker's version, whether it is text, its date and its permissions say nothing to us.
    assert 0 < accepted < 8 * 2 * len(FILES)


@pytest.mark.parametrize("wheel", [BUILT, DEFLATED], ids=["stored", "deflated"])
def test_every_prefix_is_refused(wheel: bytes) -> None:
    for length in range(len(wheel)):
        with pytest.raises(TreatyError):
            read_wheel(FILENAME, wheel[:length])


@settings(max_examples=examples(400), deadline=None)
@given(st.data())
def test_spliced_wheels(data: st.DataObject) -> None:
    wheel = data.draw(st.sampled_from([BUILT, DEFLATED]))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(wheel)))
        stop = data.draw(st.integers(start, min(len(wheel), start + 64)))
        piece = data.draw(st.binary(max_size=48) | st.just(wheel[start : start + 46]))
        wheel = wheel[:start] + piece + wheel[stop:]
    with suppress(TreatyError):
        assert read_wheel(FILENAME, wheel).files == FILES


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda tail: b"PK\3\4" + tail + b"PK\5\6" + bytes(18)))
def test_any_bytes(data: bytes) -> None:
    with suppress(TreatyError):
        read_archive(data)
    with pytest.raises(TreatyError):
        read_wheel(FILENAME, data)


@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=60) | st.from_regex(r"treaty_handler_[a-z_.-]{1,6}-[0-9.a-z!+]{1,8}-(py3|wasm)-none-any\.whl"))
def test_any_file_name(filename: str) -> None:
    try:
        name, version, runtime = parse_filename(filename)
    except TreatyError:
        return
    assert f"{name.replace('-', '_')}-{version}-{TAGS[runtime]}.whl" == filename


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(names | short_names, st.binary(max_size=200), max_size=8))
def test_archives_round_trip_where_case_is_folded(files: dict[str, bytes]) -> None:
    try:
        data = write_archive(files)
    except TreatyError as error:
        assert error.code == "handler.package"
        return
    assert read_archive(data) == files
    places: dict[str, set[tuple[str, bool]]] = {}
    for name in files:
        parts = name.split("/")
        assert all(part[0] not in ".+-" and part[-1] != "." and part.split(".")[0].lower() != "con" for part in parts)
        for depth in range(1, len(parts) + 1):
            place = "/".join(parts[:depth])
            places.setdefault(place.casefold(), set()).add((place, depth == len(parts)))
    assert all(len(spellings) == 1 for spellings in places.values()), "one spelling, and a file or a folder"


@pytest.mark.threat(40)
@settings(max_examples=examples(400), deadline=None)
@given(headings | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_a_source_that_is_accepted_is_utf_8_for_every_reader(source: bytes) -> None:
    try:
        read_wheel(FILENAME, zipped(with_record({**FILES, f"{PACKAGE}/other.py": source})))
    except TreatyError as error:
        assert error.code == "handler.package"
        return
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    assert encoding == "utf-8"
    lines = source.decode().replace("\r\n", "\n").split("\n")
    assert source.decode().splitlines() == (lines[:-1] if not lines[-1] else lines), "all agree where lines end"


@pytest.mark.threat(39)
@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(st.sampled_from(MODULES), st.just(b""), max_size=6))
def test_every_module_has_one_file(files: dict[str, bytes]) -> None:
    inside = {f"{PACKAGE}/{name}": data for name, data in files.items()}
    try:
        read = read_wheel(FILENAME, zipped(with_record({**FILES, **inside})))
    except TreatyError:
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, data in read.files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for name in read.files:
            if name.endswith(".py"):
                module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                parent, _, _ = module.rpartition(".")
                where = str(Path(folder, *parent.split("."))) if parent else folder
                spec = PathFinder.find_spec(module, [where])
                assert spec is not None
                assert spec.origin == str(Path(folder, name))
                for above in Path(name).parents[:-1]:
                    assert f"{above.as_posix()}/__init__.py" in read.files, "packages all the way"


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_any_manifest(data: st.DataObject) -> None:
    whole = {"interface": 1, "protocol": {"uri": package().manifest.protocol_uri, "sha256": "0" * 64}, **MANIFEST}
    text = json.dumps(whole)
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 40)))
    piece = data.draw(st.sampled_from(["", "{}", "[]", "null", '"$ref":', "#/$defs/x", "1e5", "true,"]) | st.text(max_size=10))
    with suppress(TreatyError):
        parse_manifest((text[:start] + piece + text[stop:]).encode("utf-8", "surrogatepass"))


@settings(max_examples=examples(300), deadline=None)
@given(json_values)
def test_json_that_handlers_read_round_trips(value: object) -> None:
    assert decode_json(encode_json(value)) == value


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=100) | st.text(max_size=100).map(str.encode) | json_values.map(lambda v: json.dumps(v).encode()))
def test_json_that_anybody_wrote_is_a_value_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        assert decode_json(encode_json(decode_json(data))) == decode_json(data)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_any_vector(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(VECTORS))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(len(text), start + 30)))
        piece = data.draw(st.sampled_from(["", "{}", "[]", "null", '"peer":1,', "1e999", '"base64":"=",']) | st.text(max_size=8))
        text = text[:start] + piece + text[stop:]
    with suppress(TreatyError):
        assert parse_vector("x.json", text.encode("utf-8", "surrogatepass")).steps
