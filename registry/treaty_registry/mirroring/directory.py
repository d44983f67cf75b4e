"""Keep the files of a mirror's data directory.

    DATA/mirror.json      {"base_url": URL, "upstream": BASE_URL#VKEY}: the registry that is mirrored, and the URL that pages name
    DATA/log/             the verified copy of the log, as static files (`treaty_client.audit.mirror`)
    DATA/checkpoint       the signed note that is served, as it was received
    DATA/replay           the state of the replay of its first leaves (`treaty_client.audit.snapshot`)
    DATA/replay.key       the key by which that file counts here alone
    DATA/trusted-root     the trusted root that the genesis pins
    DATA/evidence/        proofs that the log signed two histories. While there is one, the mirror follows no further
    DATA/blobs/, DATA/postgres/    as in the data directory of a registry

Files are replaced whole. All but `evidence` can be had again from the registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from treaty_client.audit.mirror import Mirror
from treaty_client.audit.snapshot import Snapshots
from treaty_client.registries.trust import RegistryName, parse_registry_name
from treaty_consensus import canonical
from treaty_consensus.errors import Conflict, TreatyError
from treaty_consensus.log.checkpoint import LogKeys, SignedCheckpoint, open_checkpoint
from treaty_consensus.log.equivocation import SUFFIX
from treaty_consensus.log.note import VerifierKey
from treaty_io import durable

from ..codes import SettingsCode
from ..settings import MIRROR_MARK as MARK

_MAX_MARK = 4096


class _Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    upstream: str
    base_url: str


class MirrorDirectory:
    """The data directory of a mirror."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.log = data / "log"
        self.snapshots = Snapshots(data, data / "replay.key")
        self.evidence = data / "evidence"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the directory: one process may use it. Raises `Conflict` (`settings.directory`)."""
        try:
            with durable.exclusive(self._data / "mirror.lock", wait=False):
                yield
        except BlockingIOError as error:
            raise Conflict(SettingsCode.DIRECTORY, f"Another process mirrors into {self._data}.", fix="Stop it first.") from error

    def begin(self, upstream: RegistryName) -> str:
        """Return the URL that pages name, and mark the directory as a mirror of `upstream`.

        Raises `Conflict` when a registry or the mirror of another log is in it. Another key of the same log is for `renew`.
        """
        if (self._data / "keys").exists():
            raise Conflict(SettingsCode.DIRECTORY, f"{self._data} has the keys of a registry.", fix="Choose an empty directory.")
        mark = self.mark
        if mark is None:
            self.name(upstream, upstream.base_url)
            return upstream.base_url
        if mark[0].origin != upstream.origin:
            raise self._other(mark[0])
        return mark[1]

    def renew(self, upstream: RegistryName, keys: LogKeys | None) -> None:
        """Keep the present name of the mirrored registry. Raises `Conflict` when its key is of another log.

        `keys`: those of the stored leaves. After a rotation people may name the registry by its new key.
        """
        mark = self.mark
        assert mark is not None, "`begin` made it"
        if mark[0].key == upstream.key:
            return
        if keys is None or not {mark[0].key, upstream.key} <= {term.log for term in keys.terms}:
            raise self._other(mark[0])
        self.name(upstream, mark[1])

    def _other(self, registry: RegistryName) -> Conflict:
        return Conflict(
            SettingsCode.DIRECTORY,
            f"{self._data} is a mirror of {registry.origin}, with the key {registry.key}.",
            fix="Choose an empty directory for the mirror of another log.",
        )

    @property
    def mark(self) -> tuple[RegistryName, str] | None:
        """Return the mirrored registry, and the URL that pages name; None when this is no mirror."""
        try:
            data = (self._data / MARK).read_bytes()
        except FileNotFoundError:
            return None
        try:
            mark = msgspec.convert(canonical.parse_json(data, limit=_MAX_MARK, name=MARK), _Mark)
            return parse_registry_name(mark.upstream), mark.base_url
        except (TreatyError, msgspec.ValidationError) as error:
            raise Conflict(
                SettingsCode.DIRECTORY, f"{self._data / MARK} is damaged.", fix="Delete it and start the mirror again."
            ) from error

    def name(self, upstream: RegistryName, base_url: str) -> None:
        """Store the mirrored registry, and the URL that pages name."""
        durable.write(self._data / MARK, canonical.dumps({"base_url": base_url, "upstream": str(upstream)}))

    def release(self) -> None:
        """End the mirror: the directory is one of a registry from now on."""
        (self._data / MARK).unlink()
        durable.sync_directory(self._data)

    def show(self, note: bytes) -> None:
        """Store the note that is served. Durable on return; raises OSError."""
        durable.write(self._data / "checkpoint", note)

    def shown(self, key: VerifierKey | LogKeys, size: int) -> SignedCheckpoint | None:
        """Return the newest stored checkpoint of at most `size` leaves, without its time.

        After a crash the tables may be ahead of the note that was served last. The copy of the log then has theirs.
        """
        checkpoints = []
        for path in (self._data / "checkpoint", self.log / "checkpoint"):
            # A damaged or absent note is fetched again.
            with suppress(FileNotFoundError, TreatyError):
                checkpoints.append(open_checkpoint(path.read_bytes(), key))
        fitting = [signed for signed in checkpoints if signed.checkpoint.size <= size]
        # The served one comes first, and stays when both have one size: it may have more cosignatures.
        return max(fitting, key=lambda signed: signed.checkpoint.size, default=None)

    def copy(self, key: VerifierKey | LogKeys) -> Mirror:
        """Return the verified copy of the log."""
        return Mirror(self.log, key, self.evidence)

    def copied(self, key: VerifierKey | LogKeys) -> SignedCheckpoint | None:
        """Return the checkpoint of the verified copy, or None."""
        with suppress(FileNotFoundError, TreatyError):
            return open_checkpoint((self.log / "checkpoint").read_bytes(), key)
        return None

    def keep_trusted_root(self, data: bytes) -> None:
        """Store the trusted root."""
        durable.write(self._data / "trusted-root", data)

    def trusted_root(self) -> bytes | None:
        """Return the stored trusted root, or None."""
        with suppress(FileNotFoundError):
            return (self._data / "trusted-root").read_bytes()
        return None

    def proofs(self) -> list[Path]:
        """Return the proofs that the log signed two histories."""
        return sorted(self.evidence.glob(f"*{SUFFIX}"))
