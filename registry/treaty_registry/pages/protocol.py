"""The page of one version of a protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from treaty_consensus.errors import Gone

from ..catalogue.resources import Record
from . import prose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..serving.views import Views


async def context(views: Views, uri: str) -> Mapping[str, object]:
    """Return what the page of a version shows. Raises `NotFound`, `Malformed`."""
    stored = await views.catalogue.record(uri)
    record = msgspec.json.decode(stored.json, type=Record)
    try:
        document = prose.render(await views.registry.blob(record.hash))
    except Gone:
        document = None
    return {
        "record": record,
        "document": document,
        "versions": (await views.catalogue.versions(record.namespace, record.name)).versions,
        "speakers": (await views.standings.speakers(record.hash, None, None)).speakers,
    }
