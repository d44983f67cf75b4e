"""The log of a registry, as far as reports need it: over the fetcher's HTTP client, with the checkpoints that it has verified."""

from __future__ import annotations

from collections.abc import Mapping

from treaty_consensus.did import Did, decode_multikey, did_key_id, parse_key_id, public_key_of
from treaty_consensus.errors import Malformed, NotFound, Refused, Unavailable
from treaty_consensus.statement import Statement

from ..fetch import Fetcher
from ..network.egress import EgressGuard
from ..network.resolver import fetch_did_document
from .rules import OpenEpoch, undated


class RegistryLog:
    """Implements `reporter.ReportLog`."""

    def __init__(self, fetcher: Fetcher, guard: EgressGuard, origin: str) -> None:
        """Raises `Untrusted` when the registry of this origin is not trusted."""
        self._registries, self._guard, self._origin = fetcher.registries, guard, origin
        self._client, self._head = fetcher.client(origin), fetcher.head(origin)
        self._key = fetcher.registries.get(origin).name.key

    async def epoch(self) -> OpenEpoch:
        log = await self._client.log()
        return OpenEpoch(log.epoch, log.opened)

    def newest_seen(self) -> bytes:
        seen = self._registries.get(self._origin).seen
        if seen is None:
            raise Unavailable("report.no-checkpoint", f"No checkpoint of {self._origin} was seen yet.")
        return undated(seen, self._key)

    async def observe(self, note: bytes) -> None:
        if note != undated(note, self._key):
            raise Refused("report.checkpoint", "The checkpoint in the report says when it was signed.")
        await self._head.observe(note)

    async def keys(self, did: Did) -> Mapping[str, bytes]:
        """What the registry says of keys is not proved here: it is to the same registry that the report goes, which verifies both
        signatures by what it has logged."""
        if did.method == "key":
            key = public_key_of(did)
            return {did_key_id(key): key}
        try:
            listed = (await self._client.identity(did.text)).get("keys")
        except NotFound:
            return (await fetch_did_document(did, self._guard)).keys
        if not isinstance(listed, dict):
            raise Malformed("registry.answer", "The registry's answer does not list keys.")
        return {key_id: decode_multikey(str(multikey)) for key_id, multikey in listed.items() if parse_key_id(key_id)[0] == did}

    async def submit(self, report: Statement) -> None:
        await self._head.accept_receipt(await self._client.submit(report), report)
