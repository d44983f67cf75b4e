"""Anchors of one's own: the file that names them is read strictly."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rejections import rejection

from treaty_client.audit.auditor import MAX_FILE, parse_anchors, read_anchors
from treaty_consensus.errors import Malformed, NotFound, TooLarge, TreatyError
from treaty_consensus.kinds import MAX_ANCHORS


def test_domains_are_read_one_a_line_beside_comments(tmp_path: Path) -> None:
    path = tmp_path / "anchors"
    path.write_bytes("# whom I know\n\nzoo.example\r\n\talpha.example   # Größe\nxn--bcher-kva.example".encode())
    assert read_anchors(path) == ("alpha.example", "xn--bcher-kva.example", "zoo.example")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "anchors.file: no anchor"),
        (b"# nobody\n\n", "anchors.file: no anchor"),
        (b"alpha.example bravo.example", "anchors.file: UTF-8|no domain|once more"),
        (b"alpha.example,bravo.example", "anchors.file: UTF-8|no domain|once more"),
        (b"Alpha.example", "anchors.file: UTF-8|no domain|once more"),
        ("bücher.example".encode(), "anchors.file: UTF-8|no domain|once more"),
        (b"localhost", "anchors.file: UTF-8|no domain|once more"),
        (b"alpha.example.", "anchors.file: UTF-8|no domain|once more"),
        (b"https://alpha.example", "anchors.file: UTF-8|no domain|once more"),
        (b"alpha.example:443", "anchors.file: UTF-8|no domain|once more"),
        (b"did:wba:alpha.example", "anchors.file: UTF-8|no domain|once more"),
        (b"alpha.example\x00", "anchors.file: UTF-8|no domain|once more"),
        (b"alpha.example\x0bbravo.example", "anchors.file: UTF-8|no domain|once more"),
        (b"alpha.example\nbravo.example\nalpha.example", "anchors.file: UTF-8|no domain|once more"),
        (b"\xff\xfe", "anchors.file: UTF-8|no domain|once more"),
        (b"\xef\xbb\xbfalpha.example", "anchors.file: UTF-8|no domain|once more"),
    ],
)
def test_anything_else_is_refused(data: bytes, code: str) -> None:
    with pytest.raises(Malformed) as refusal:
        parse_anchors(data)
    assert rejection(refusal.value, code) == code


def test_a_line_is_named_by_its_number() -> None:
    with pytest.raises(Malformed, match="Line 3 "):
        parse_anchors(b"alpha.example\n\nnothing\n")


def test_there_are_only_so_many_of_them() -> None:
    most = [f"d{number}.example" for number in range(MAX_ANCHORS)]
    assert parse_anchors("\n".join(most).encode()) == tuple(sorted(most))
    with pytest.raises(TooLarge):
        parse_anchors("\n".join([*most, "more.example"]).encode())


def test_a_file_is_read_no_further_than_its_cap(tmp_path: Path) -> None:
    path = tmp_path / "anchors"
    path.write_bytes(b"#" * MAX_FILE)
    with pytest.raises(Malformed):
        read_anchors(path)
    path.write_bytes(b"#" * (MAX_FILE + 1))
    with pytest.raises(TooLarge):
        read_anchors(path)
    for absent in (tmp_path / "absent", tmp_path):
        with pytest.raises(NotFound) as refusal:
            read_anchors(absent)
        assert refusal.value.code == "anchors.file"


@given(st.binary(max_size=200) | st.text("ab.-#\n \t", max_size=60).map(str.encode))
def test_what_is_read_is_distinct_domains_in_order(data: bytes) -> None:
    try:
        anchors = parse_anchors(data)
    except TreatyError:
        return
    assert anchors == tuple(sorted(set(anchors))) and anchors
    assert parse_anchors("\n".join(anchors).encode()) == anchors
