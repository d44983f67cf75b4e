"""Audit a registry: mirror its log, replay every rule, recompute every decision. It needs the registry's URL and its key.

A replay that held is saved (`snapshot`), and the next one begins where it ended. An audit with other anchors, or of a topic,
begins at leaf 0: it shows results of earlier epochs.

An audit can recompute the decisions with other trust anchors. They are read from a file of UTF-8 lines, at most 64 KiB: one
registrable domain a line, in lower-case A-labels; empty lines and comments after `#` are ignored. 1 to 512 domains, each once.
The suffix list of the electorate decides which domains are registrable. Other domains, and those unknown to the log, have no
effect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from treaty_consensus.audit import Replay
from treaty_consensus.did import is_host
from treaty_consensus.election.closing import DueDecision
from treaty_consensus.errors import Malformed, NotFound, TooLarge, Untrusted
from treaty_consensus.facts import Facts, identity_key
from treaty_consensus.kinds import MAX_ANCHORS, MAX_ROLL, Blob
from treaty_consensus.log.checkpoint import LogKeys, SignedCheckpoint
from treaty_consensus.stamped import LeftOut, Stamped
from treaty_io.codes import AnchorsCode, ClientAuditCode
from treaty_io.network.hosts import Network

from ..protocols.store import Store
from ..registries.api import RegistryClient
from ..registries.trust import RegistryName
from .cluster import WorkerCluster
from .constitution import ConstitutionHistory
from .mirror import Mirror
from .parallel_verification import ParallelVerifier, Workers
from .replay import WORTH_PROCESSES, AuditedDecision, AuditedReplay, replayed
from .replay_store import ReplayStore
from .snapshot import Snapshots

Progress = Callable[[str, int, int], None]
"""Gets the phase (`mirror`, `replay`), the number of leaves that are done, and of all."""

# A log with more wrong decisions is not read on: each of them is a message.
_MAX_DIFFERENCES = 100


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit in which every check held.

    `checkpoint`: of exactly the audited leaves; `checkpoint.time` is the clock's, in Unix seconds, if it cosigned. `leaves`:
    their number by type. `witnesses`: the number of reports and ballots with a checkpoint that agrees with the log. `newest`: the
    newest decision of the requested topic, recomputed, with its transcript and roll. `known`: the given anchors of which the log
    has an identity. `is_open`: whether any electorate was open. `constitution`: the changes of its
    parameters, and its epochs. `resumed`: the number of leaves that an earlier audit replayed. `logged`: the stamped statements
    that the log has.
    """

    origin: str
    checkpoint: SignedCheckpoint
    leaves: Mapping[str, int]
    decisions: tuple[AuditedDecision, ...]
    witnesses: int
    newest: DueDecision | None
    known: tuple[str, ...]
    is_open: bool
    constitution: ConstitutionHistory
    resumed: int = field(default=0, compare=False)
    logged: tuple[Stamped, ...] = ()


@dataclass(frozen=True)
class AuditOptions:
    """Options of an audit.

    `anchors`: the anchors from which trust starts instead; decisions are then recomputed with them and not compared. `topic`: the
    topic whose newest decision is reported in full. `dask`: the address of a Dask scheduler, whose workers verify and count; None
    uses processes of this machine. `from_start`: replay from leaf 0, whatever an earlier audit saved.
    `stamped`: statements that must be in the log (`treaty_consensus.stamped`). Epochs that an earlier audit replayed are not
    searched for them, unless `from_start` is set.
    """

    anchors: Sequence[str] | None = None
    topic: str | None = None
    dask: str | None = None
    from_start: bool = False
    stamped: Sequence[Stamped] = ()


@dataclass
class Differences:
    """Collects the decisions of a log that differ from their recomputation."""

    errors: list[Untrusted] = field(default_factory=list)

    def add(self, error: Untrusted) -> None:
        """Keep a difference. Raises it when there are too many already."""
        if len(self.errors) >= _MAX_DIFFERENCES:
            raise error
        self.errors.append(error)

    def check(self, left_out: Sequence[LeftOut]) -> None:
        """Raise `Untrusted` (`audit.decision`) with all differences, if there are any, else (`audit.left-out`) with the
        statements that the log left out."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            listed_errors = "".join(f" ({number}) {error.message}" for number, error in enumerate(self.errors, 1))
            fix, cause = self.errors[0].fix, self.errors[0]
            raise Untrusted(cause.code, f"{len(self.errors)} decisions differ:{listed_errors}", fix=fix) from cause
        if left_out:
            listed = "; ".join(map(str, left_out[:_MAX_DIFFERENCES]))
            raise Untrusted(
                ClientAuditCode.LEFT_OUT,
                f"The log left out {len(left_out)} statements that its witnesses had stamped in time: {listed}.",
                fix="Publish the stamped statements: with the log they prove it to everyone (treaty audit --stamped FILE). Yours "
                "are in HOME/stamped; move them elsewhere to audit the log without them.",
            )


async def audit(
    registry: RegistryName,
    folder: Path,
    evidence: Path,
    network: Network,
    *,
    progress: Progress,
    options: AuditOptions = AuditOptions(),
    keys: LogKeys | None = None,
    own_key: Path | None = None,
    now: Callable[[], float] = time.time,
) -> AuditReport:
    """Audit a log into `folder`, which later audits continue. A proof of two histories is written into `evidence`.

    `keys`: all keys of the log that the reader knows, if they are more than the one in `registry`.
    `own_key`: the file of the auditor's key for snapshots, outside of `folder`; None saves none, and begins at leaf 0.
    `now`: Unix seconds; a log that is ahead of them is refused.

    Raises `Untrusted` (`mirror.*`, `audit.*`) at the first check that fails, or, for decisions that differ from their
    recomputation, one error with all of them at the end. Raises `Unavailable` if the registry does not answer or the
    disk fails, and `NotFound` or `Gone` if it does not serve a suffix list. Memory grows with the data that the election counts.
    The facts of every leaf are on disk in `folder` while it runs.
    """
    trusted = keys or LogKeys.pinned(registry.key)
    mirror = Mirror(folder, trusted, evidence)
    # Other anchors change results of all epochs, so nothing of such a replay is another one's.
    snapshots = Snapshots(folder, own_key) if own_key is not None and options.anchors is None else None
    async with RegistryClient(registry.base_url, network) as client, client.advising():
        signed = await mirror.update(client, lambda done, total: progress("mirror", done, total))
        blobs = _Blobs(Store(folder), client, asyncio.get_running_loop())
        workers: Workers = WorkerCluster(options.dask) if options.dask else ParallelVerifier()
        with ReplayStore(folder) as scratch, workers:
            is_wanted = snapshots is not None and options.topic is None and not options.from_start
            resumed = snapshots.resume(registry.origin, mirror, evidence, scratch) if snapshots and is_wanted else None
            differences = Differences()
            replay = Replay(
                blobs.get,
                facts=scratch.facts,
                digests=scratch.digests,
                anchors=options.anchors,
                differing=differences.add,
                each=workers.each,
                resumed=resumed.replay if resumed else None,
            )
            notes = resumed.notes if resumed else None
            run = AuditedReplay(trusted, mirror, replay, evidence, options.topic, resumed=notes, stamped=options.stamped)
            begun, leaves = replay.size, signed.checkpoint.size
            worth = options.dask is not None or leaves - begun >= WORTH_PROCESSES
            async for done in replayed(run, workers if worth else None):
                progress("replay", done, leaves)
            # After the replay: with another root than the signed one, leaves were changed between mirror and replay.
            replay.check_checkpoint(signed.checkpoint)
            differences.check(run.left_out)
            # Opened again: the clock's key, and later keys of the log, are known only after the replay.
            signed = run.check_keys().open(signed.note)
            run.check_clock(signed, now())
            if snapshots:
                # The work from the start replaces what is there, which it did not use.
                await asyncio.to_thread(snapshots.save, run, signed.note, scratch, before=begun)
            return _reported(run, signed, _known(replay.facts, options.anchors or ()), begun)


def _reported(run: AuditedReplay, signed: SignedCheckpoint, keys: tuple[str, ...], begun: int) -> AuditReport:
    decisions = tuple(run.decisions)
    return AuditReport(
        signed.checkpoint.origin,
        signed,
        dict(run.leaves),
        decisions,
        run.witnesses,
        run.newest,
        keys,
        run.is_open,
        run.constitution,
        begun,
        tuple(each for each in run.stamped if run.replay.has_logged(each.statement.id)),
    )


@dataclass(frozen=True)
class _Blobs:
    """The blobs of a replay, from the mirror's folder or else from the registry. `get` is called from threads."""

    store: Store
    client: RegistryClient
    loop: asyncio.AbstractEventLoop

    def get(self, sha256: str) -> bytes:
        data = self.store.get(sha256)
        if data is None:
            data = self._wait_for(self.client.blob(Blob(sha256, MAX_ROLL)))
            # Stored for the next audit; the replay compares it with the digest in the log.
            self.store.put(data)
        return data

    def _wait_for(self, answer: Coroutine[object, object, bytes]) -> bytes:
        # The replay runs in a thread, and the HTTP client belongs to the loop, which is free meanwhile.
        return asyncio.run_coroutine_threadsafe(answer, self.loop).result()


def _known(facts: Facts, anchors: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        domain for domain in anchors if any(identity_key(f"did:{method}:{domain}") in facts for method in ("wba", "web"))
    )


MAX_FILE = 64 * 1024


def read_anchors(path: Path) -> tuple[str, ...]:
    """Return the anchors in a file, sorted. Raises `NotFound` (`anchors.file`), and the errors of `parse_anchors`."""
    try:
        with path.open("rb") as file:
            # One byte more than the limit shows that the file is too large.
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise NotFound(AnchorsCode.FILE, f"{path} cannot be read: {error.strerror}.") from error
    return parse_anchors(data)


def parse_anchors(data: bytes) -> tuple[str, ...]:
    """Return the anchors in a file's bytes, sorted. Raises `TooLarge` (`anchors.file`), `Malformed` (`anchors.file`)."""
    if len(data) > MAX_FILE:
        raise TooLarge(AnchorsCode.FILE, f"A file of anchors has at most {MAX_FILE} bytes.")
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise Malformed(AnchorsCode.FILE, "A file of anchors is UTF-8 text.") from error
    # A dictionary finds repetitions without comparing each line with all others.
    anchors: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        domain = line.partition("#")[0].strip(" \t\r")
        if not domain:
            continue
        if "." not in domain or not is_host(domain):
            raise Malformed(AnchorsCode.FILE, f"Line {number} is no domain such as example.com.")
        # A repeated domain is a mistake in a list that decides where trust starts. It must not pass silently.
        if domain in anchors:
            raise Malformed(AnchorsCode.FILE, f"Line {number} names {domain} once more.")
        anchors[domain] = None
    if not anchors:
        raise Malformed(AnchorsCode.FILE, "The file names no anchor. Name at least one domain.")
    if len(anchors) > MAX_ANCHORS:
        raise TooLarge(AnchorsCode.FILE, f"There are at most {MAX_ANCHORS} anchors.")
    return tuple(sorted(anchors))
