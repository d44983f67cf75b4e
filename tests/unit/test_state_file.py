"""A small JSON file of a home: its form, its damage, and when it is parsed again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from treaty_consensus.errors import Malformed
from treaty_io.state_file import StateFile


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    number: int = 0


def named(path: Path, code: str = "x.file") -> StateFile[Named]:
    return StateFile(path, Named, limit=100, code=code, fix="Move it away.")


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = named(tmp_path / "home" / "named.json")
    assert file.read() is None
    file.write(Named("é", 2))
    assert file.path.read_text(encoding="utf-8") == '{\n  "name": "\\u00e9",\n  "number": 2\n}\n'
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.read() == named(file.path).latest() == Named("é", 2)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"name":1}',
        b'{"name":"a","other":1}',
        b'{"name":"a","name":"b"}',
        b'{"name":"' + b"a" * 90 + b'"}',  # one byte more than the limit
    ],
)
def test_a_damaged_file_is_refused_and_left_or_counts_as_absent(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "named.json"
    path.write_bytes(data)
    with pytest.raises(Malformed) as refused:
        named(path).read()
    assert (refused.value.code, refused.value.fix) == ("x.file", "Move it away.")
    assert str(path) in str(refused.value)
    assert named(path, code="").read() is None
    assert path.read_bytes() == data


def test_only_a_changed_file_is_parsed_again(tmp_path: Path) -> None:
    file = named(tmp_path / "named.json")
    file.write(Named("a"))
    first = file.latest()
    assert file.latest() is first
    named(file.path).write(Named("b"))
    assert file.latest() == Named("b")
    assert file.read() is not file.read(), "a change begins with the file itself"


def test_an_unreadable_file_is_an_error_or_absent(tmp_path: Path) -> None:
    (tmp_path / "named.json").mkdir()
    with pytest.raises(OSError, match=r"named\.json"):
        named(tmp_path / "named.json").read()
    assert named(tmp_path / "named.json", code="").read() is None
