"""Trusted registries: names, keys that do not change silently, and a head that only moves forward."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from simulated_registry import CLOCK_KEY, LOG_KEY, NAME

from treaty_client.registries.trust import RegistryName, TrustedRegistries, parse_registry_name
from treaty_consensus.errors import Conflict, Malformed, TreatyError, Untrusted
from treaty_consensus.log.note import KeyType, SignerKey
from treaty_io import durable
from treaty_io.base_url import parse_base_url

OTHER_KEY = SignerKey(NAME.origin, KeyType.ED25519, b"\x05" * 32).verifier


@pytest.mark.parametrize(
    "text",
    [
        "https://registry.example",
        "https://registry.example:8443",
        "https://registry.example/treaty",
        "http://127.0.0.1:8080",
        "http://localhost:8080",
        "http://[::1]:8080",
    ],
)
def test_a_registrys_url(text: str) -> None:
    assert parse_base_url(text) == parse_base_url(text + "/") == text
    assert str(parse_registry_name(f"{text}#{LOG_KEY.verifier}")) == f"{text}#{LOG_KEY.verifier}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "registry.example",
        "http://registry.example",
        "https://",
        "https://u@h.example",
        "https://h.example?x",
        "https://h:x",
        "ftp://h",
    ],
)
def test_what_is_no_registrys_url(text: str) -> None:
    with pytest.raises(Malformed):
        parse_base_url(text)


def test_a_name_has_a_log_key() -> None:
    assert parse_registry_name(str(NAME)) == NAME
    assert NAME.origin == "registry.example"
    with pytest.raises(Malformed, match="treaty trust add"):
        parse_registry_name("https://registry.example")
    for key in (str(CLOCK_KEY.verifier), "x", str(LOG_KEY.verifier)[:-4] + "AAA="):
        with pytest.raises(Malformed):
            parse_registry_name(f"https://registry.example#{key}")


def test_what_is_trusted_is_found_by_its_origin(tmp_path: Path) -> None:
    registries = TrustedRegistries(tmp_path)
    assert registries.all() == {}
    with pytest.raises(Untrusted, match="treaty trust add"):
        registries.get(NAME.origin)
    registries.add(NAME)
    assert TrustedRegistries(tmp_path).get(NAME.origin).name == NAME
    assert registries.get(NAME.origin).seen is None


def test_another_url_keeps_its_memory_unless_the_key_differs(tmp_path: Path) -> None:
    registries = TrustedRegistries(tmp_path)
    registries.add(NAME)
    assert registries.advance(NAME.origin, None, b"note")
    moved = RegistryName("http://127.0.0.1:9", NAME.key)
    registries.add(moved)
    assert (registries.get(NAME.origin).name, registries.get(NAME.origin).seen) == (moved, b"note")
    before = (tmp_path / "registries.json").read_bytes()
    with pytest.raises(Conflict, match="treaty trust remove"):
        registries.add(RegistryName(NAME.base_url, OTHER_KEY))
    assert (tmp_path / "registries.json").read_bytes() == before


def test_what_is_removed_is_forgotten(tmp_path: Path) -> None:
    registries = TrustedRegistries(tmp_path)
    registries.add(NAME)
    registries.advance(NAME.origin, None, b"note")
    registries.remove(NAME.origin)
    assert registries.all() == {}
    with pytest.raises(Untrusted):
        registries.remove(NAME.origin)
    with pytest.raises(Untrusted):
        registries.advance(NAME.origin, None, b"note")
    registries.add(RegistryName(NAME.base_url, OTHER_KEY))
    assert registries.get(NAME.origin).seen is None


def test_the_head_advances_only_from_what_was_expected(tmp_path: Path) -> None:
    registries = TrustedRegistries(tmp_path)
    registries.add(NAME)
    assert registries.advance(NAME.origin, None, b"one")
    assert not registries.advance(NAME.origin, None, b"two")
    assert registries.get(NAME.origin).seen == b"one"
    assert registries.advance(NAME.origin, b"one", b"one")
    assert registries.advance(NAME.origin, b"one", b"two")
    assert registries.get(NAME.origin).seen == b"two"


def test_of_many_writers_exactly_one_advances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TrustedRegistries(tmp_path).add(NAME)
    write = durable.write

    def slow_write(path: Path, data: bytes, *, mode: int) -> None:
        time.sleep(0.005)  # all would have read by now what nobody has replaced yet
        write(path, data, mode=mode)

    monkeypatch.setattr(durable, "write", slow_write)

    def advance(number: int) -> bool:
        return TrustedRegistries(tmp_path).advance(NAME.origin, None, b"note %d" % number)

    with ThreadPoolExecutor(8) as pool:
        won = [number for number, advanced in enumerate(pool.map(advance, range(16))) if advanced]
    assert len(won) == 1
    assert TrustedRegistries(tmp_path).get(NAME.origin).seen == b"note %d" % won[0]


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        {"registries": []},
        {"registries": {"registry.example": {}}},
        {"registries": {"registry.example": {"base_url": "x", "key": "y"}}},
        {"registries": {"other.example": {"base_url": NAME.base_url, "key": str(NAME.key)}}},
        {"registries": {NAME.origin: {"base_url": NAME.base_url, "key": str(NAME.key), "checkpoint": "!"}}},
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, value: object) -> None:
    (tmp_path / "registries.json").write_text(json.dumps(value))
    with pytest.raises(TreatyError):
        TrustedRegistries(tmp_path).all()
