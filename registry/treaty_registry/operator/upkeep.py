"""Know what grows old without a failed request: the newest backup, and the certificates.

The metrics and `treaty-registry status` show them. They are read each minute, because a scrape asks PostgreSQL nothing, and
because another node or another process may have made the backup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cryptography import x509

from treaty_consensus.errors import TreatyError

from ..sigstore_authority.keys import AuthorityKeys
from ..storage.postgres import DATABASE_ERRORS, Pool
from .acts import Acts

_PERIOD = 60.0  # seconds
_PATIENCE = 3.0  # seconds for the database


class Upkeep:
    """The times, in Unix seconds, as they were read last. For one event loop; `read` may be called concurrently."""

    def __init__(self, pool: Pool, tls_cert: Path | None, authority: Callable[[], AuthorityKeys]) -> None:
        """`tls_cert`: that of HTTPS, where this process serves it. `authority`: return the Sigstore authority in force."""
        self._acts = Acts(pool)
        self._tls_cert = tls_cert
        self._authority = authority
        self.backup: int | None = None
        """When the newest backup was made; None for none, as far as the database goes back."""
        self.certificates: dict[str, int] = {}
        """The end of the validity of each certificate; 0 for one that cannot be read, so that a restart would fail."""

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(_PERIOD)

    async def read(self) -> None:
        """Read the times now. Never raises: while PostgreSQL does not answer, the last known time of a backup stays."""
        self.certificates = await asyncio.to_thread(self._read_certificates)
        with suppress(TreatyError, TimeoutError, *DATABASE_ERRORS):
            async with asyncio.timeout(_PATIENCE):
                self.backup = await self._acts.last("backup")

    def _read_certificates(self) -> dict[str, int]:
        ends: dict[str, int] = {}
        if self._tls_cert is not None:
            ends["https"] = _end_of(self._tls_cert)
        with suppress(TreatyError):
            ends["Sigstore authority"] = int(self._authority().ca_certificate.not_valid_after_utc.timestamp())
        return ends


def _end_of(path: Path) -> int:
    try:
        return int(x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp())
    except (OSError, ValueError):
        return 0
