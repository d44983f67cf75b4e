"""A file of parameters: strict, capped, filled up with what holds where nothing is said."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec
import pytest
from open_electorates import ANCHORS, SUFFIX_LIST, draft, write
from rejections import rejection

from treaty_consensus.canonical import hex_digest
from treaty_consensus.election.defaults import development_parameters, open_parameters
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError
from treaty_consensus.kinds import MAX_SUFFIX_LIST, Blob, Witnesses
from treaty_consensus.log.note import KeyType, SignerKey
from treaty_registry.operator.parameters import MAX_FILE, ParametersDraft, read_draft


def stated(folder: Path, text: str) -> ParametersDraft:
    file = folder / "parameters.toml"
    file.write_text(text)
    return read_draft(file)


def anchors(*hosts: str) -> str:
    return f"anchors = [{', '.join(map(repr, hosts))}]\n"


def test_an_empty_file_is_a_development_electorate(tmp_path: Path) -> None:
    assert stated(tmp_path, "") == ParametersDraft(development_parameters())


def test_what_is_said_stands_and_the_rest_is_filled_up(tmp_path: Path) -> None:
    statement = stated(tmp_path, "horizon_epochs = 7\nover_none = [3, 1]\n[credit]\npairs = 9\n")
    credit = msgspec.structs.replace(development_parameters().credit, pairs=9)
    expected = msgspec.structs.replace(development_parameters(), horizon_epochs=7, over_none=(3, 1), credit=credit)
    assert statement == ParametersDraft(expected)
    assert read_draft(write(tmp_path, 500)) == draft(500)


def test_the_installed_suffix_list_is_the_default(tmp_path: Path) -> None:
    statement = stated(tmp_path, f'electorate = "open"\n[reputation]\n{anchors(*ANCHORS)}')
    installed = resources.files("publicsuffixlist").joinpath("public_suffix_list.dat").read_bytes()
    assert statement == ParametersDraft(open_parameters(ANCHORS, Blob(hex_digest(installed), len(installed))), installed)


def test_witnesses_are_listed(tmp_path: Path) -> None:
    key = str(SignerKey("witness.example", KeyType.COSIGNATURE, bytes(32)).verifier)
    statement = stated(tmp_path, f'[witnesses]\nkeys = ["{key}"]\nquorum = 1\n')
    assert statement.parameters.witnesses == Witnesses((key,), 1)


@pytest.mark.parametrize(
    ("text", "family", "code"),
    [
        ("horizon_epochs = ", Malformed, "parameters.value: valid parameters"),
        ("horizon_epochs = 0", Malformed, "parameters.value: valid parameters"),
        ("horizon_epochs = 1.5", Malformed, "parameters.value: valid parameters"),
        ("horizon_epochs = true", Malformed, "parameters.value: valid parameters"),
        ("horizons = 3", Malformed, "parameters.value: valid parameters"),
        ("[credit]\npears = 3", Malformed, "parameters.value: valid parameters"),
        ("credit = 3", Malformed, "parameters.value: valid parameters"),
        ('rule = "another"', Malformed, "parameters.value: valid parameters"),
        ('electorate = "closed"', Malformed, "parameters.value: valid parameters"),
        ("electorate = []", Malformed, "parameters.value: valid parameters"),
        ("epoch_seconds = 60", Malformed, "parameters.value"),
        ('electorate = "open"', Malformed, "parameters.value: valid parameters"),
        ('electorate = "open"\nreputation = 3', Malformed, "parameters.value: valid parameters"),
        (
            f'electorate = "open"\n[reputation]\n{anchors(*ANCHORS[:15])}',
            Malformed,
            "parameters.value: valid parameters",
        ),
        (
            f'electorate = "open"\n[reputation]\nsuffix_list = 3\n{anchors(*ANCHORS)}',
            Malformed,
            "parameters.value: valid parameters",
        ),
        (f'electorate = "open"\n[reputation]\n{anchors(*ANCHORS, ANCHORS[0])}', Malformed, "parameters.value"),
        (f'electorate = "open"\n[reputation]\n{anchors(*ANCHORS, "localhost")}', Malformed, "parameters.value"),
        (f'electorate = "open"\n[reputation]\n{anchors(*ANCHORS, "shop.alpha.com")}', Refused, "parameters.value"),
        (f'electorate = "open"\n[reputation]\n{anchors(*ANCHORS, "co.uk")}', Refused, "parameters.value"),
        (
            f'electorate = "open"\n[reputation]\nsuffix_list = "none.dat"\n{anchors(*ANCHORS)}',
            Malformed,
            "parameters.value",
        ),
        (
            f'electorate = "open"\n[reputation]\nsuffix_list = "long.dat"\n{anchors(*ANCHORS)}',
            TooLarge,
            "parameters.value: more than",
        ),
        ("#" * (MAX_FILE + 1), TooLarge, "parameters.value: more than"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, family: type[TreatyError], code: str) -> None:
    (tmp_path / "none.dat").write_bytes(b"\xffnot a list")
    (tmp_path / "long.dat").write_bytes(SUFFIX_LIST.ljust(MAX_SUFFIX_LIST + 1, b"\n"))
    with pytest.raises(TreatyError) as refusal:
        stated(tmp_path, text)
    assert (type(refusal.value), rejection(refusal.value, code)) == (family, code)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "parameters.toml").write_bytes(b"\xff")
    with pytest.raises(Malformed) as refusal:
        read_draft(tmp_path / "parameters.toml")
    assert refusal.value.code == "parameters.value"
