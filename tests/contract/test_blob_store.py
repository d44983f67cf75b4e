"""The contract of blob stores, held against each kind that needs no other machine."""

from __future__ import annotations

import asyncio
import hashlib
import stat
from pathlib import Path

import pytest

from treaty_consensus.errors import Malformed, Unavailable
from treaty_registry.storage.blobs import BlobStore


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(params=["folder", "file-url", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    url = {"folder": None, "file-url": f"file://{tmp_path}/elsewhere", "memory": "memory:///"}[request.param]
    return BlobStore.open(tmp_path / "blobs", url)


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * 100, b"y" * 5_000_000])
async def test_what_is_put_comes_back(store: BlobStore, data: bytes) -> None:
    await store.put(digest(data), data)
    assert await store.get(digest(data)) == data
    await store.put(digest(data), data)
    assert await store.get(digest(data)) == data


async def test_what_was_not_put_is_none(store: BlobStore) -> None:
    assert await store.get(digest(b"never")) is None


async def test_deleting_leaves_the_others_and_may_be_repeated(store: BlobStore) -> None:
    for data in (b"one", b"two"):
        await store.put(digest(data), data)
    await store.delete(digest(b"one"))
    await store.delete(digest(b"one"))
    assert await store.get(digest(b"one")) is None
    assert await store.get(digest(b"two")) == b"two"


async def test_concurrent_writers_of_the_same_bytes_do_no_harm(store: BlobStore) -> None:
    data = b"z" * 300_000
    await asyncio.gather(*(store.put(digest(data), data) for _ in range(16)))
    assert await store.get(digest(data)) == data


async def test_the_folder_is_its_owners_and_keeps_what_it_has(tmp_path: Path) -> None:
    await BlobStore.open(tmp_path / "blobs", None).put(digest(b"kept"), b"kept")
    assert stat.S_IMODE((tmp_path / "blobs").stat().st_mode) == 0o700
    assert await BlobStore.open(tmp_path / "blobs", None).get(digest(b"kept")) == b"kept"


async def test_a_store_that_fails_is_unavailable(tmp_path: Path) -> None:
    store = BlobStore.open(tmp_path / "blobs", None)
    (tmp_path / "blobs" / "sha256").write_text("in the way")
    with pytest.raises(Unavailable) as refused:
        await store.put(digest(b"x"), b"x")
    assert refused.value.code == "blobs.unavailable"


@pytest.mark.parametrize("url", ["nonsense", "gopher://example", "s3:"])
def test_an_unknown_kind_of_store_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(Malformed) as refused:
        BlobStore.open(tmp_path, url)
    assert refused.value.code == "settings.value"
