"""Name the readers of foreign blobs. They run in a separate process with limits (`admission.content_worker`).

A reader takes a name and blobs, and returns a struct in which every text and every list is cut. It raises `Malformed`, `TooLarge`
or `Refused` when a blob breaks its rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import msgspec

ReaderKind: TypeAlias = Literal["package", "signature", "comparison", "compatibility", "metadata", "provenance"]


class CoreMetadata(msgspec.Struct, frozen=True):
    """The METADATA of a wheel, which is small in every wheel that was admitted."""

    text: bytes


def _package(name: str, wheel: bytes) -> msgspec.Struct:
    # Imported here: a process that only checks statements needs neither vectors nor certificates.
    from .packages import read_package

    return read_package(name, wheel)


def _signature(name: str, bundle: bytes) -> msgspec.Struct:
    del name
    from .signatures import read_signature

    return read_signature(bundle)


def _comparison(name: str, old: bytes, new: bytes) -> msgspec.Struct:
    del name
    from .comparison import compare

    return compare(old, new)


def _metadata(name: str, wheel: bytes) -> msgspec.Struct:
    from treaty_consensus.handler import read_wheel

    return CoreMetadata(read_wheel(name, wheel).metadata)


def _provenance(name: str, bundle: bytes) -> msgspec.Struct:
    from .provenance import read_provenance

    return read_provenance(name, bundle)


def _compatibility(names: str, old: bytes, new: bytes) -> msgspec.Struct:
    from .predecessors import read_compatibility

    return read_compatibility(names, old, new)


READERS: Mapping[ReaderKind, Callable[..., msgspec.Struct]] = {
    "package": _package,
    "signature": _signature,
    "comparison": _comparison,
    "metadata": _metadata,
    "provenance": _provenance,
    "compatibility": _compatibility,
}
