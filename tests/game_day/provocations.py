"""The faults of a game day: what is done to the processes, and the alerts that it provokes. Leaving a block mends the fault."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
from ports import free_port
from registry_process import PROGRAM, Server

from .monitoring import Monitoring
from .senders import publish, send_batches
from .stage import Stage, away, back, children, clear, pid_of, tell


@dataclass
class Day:
    """The processes, and those that watch them. `targets`: what is scraped now."""

    stage: Stage
    monitoring: Monitoring
    targets: dict[str, list[int]]

    def scrape(self) -> None:
        """Scrape the targets as they are now."""
        self.monitoring.scrape(self.targets)


@dataclass(frozen=True)
class Provocation:
    """`alerts`: the name and the job of each alert that fires, "" for none. `how`: for the table. `one_page`: the only page
    that Alertmanager may send for the job of the first alert meanwhile."""

    how: str
    alerts: tuple[tuple[str, str], ...]
    run: Callable[[Day], AbstractAsyncContextManager[None]]
    one_page: str = ""


ALONE, NODES, SECURE, MIRROR = "treaty-alone", "treaty-nodes", "treaty-secure", "treaty-mirror"


@asynccontextmanager
async def hung_database(day: Day) -> AsyncIterator[None]:
    day.stage.alone.database.suspend()
    try:
        yield
    finally:
        day.stage.alone.database.resume()


@asynccontextmanager
async def wrong_clock(day: Day) -> AsyncIterator[None]:
    day.stage.alone.calls.set(ahead=7200)
    try:
        yield
    finally:
        day.stage.alone.calls.set(ahead=0)


@asynccontextmanager
async def silent_witnesses(day: Day) -> AsyncIterator[None]:
    pids = [pid_of(witness.process) for witness in day.stage.witnesses]
    tell(signal.SIGSTOP, *pids)
    try:
        yield
    finally:
        tell(signal.SIGCONT, *pids)


@asynccontextmanager
async def lying_witness(day: Day) -> AsyncIterator[None]:
    day.stage.door.lies = True
    try:
        yield
    finally:
        day.stage.door.lies = False


@asynccontextmanager
async def no_place_for_tiles(day: Day) -> AsyncIterator[None]:
    tiles = day.stage.folder / "tiles"
    away(tiles)
    try:
        yield
    finally:
        back(tiles)


@asynccontextmanager
async def full_disk(day: Day) -> AsyncIterator[None]:
    filler = day.stage.disk / "filler"

    def fill() -> None:
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1024 * 1024))

    await asyncio.to_thread(fill)
    try:
        yield
    finally:
        filler.unlink()


@asynccontextmanager
async def locked_table(day: Day) -> AsyncIterator[None]:
    connection = await asyncpg.connect(day.stage.nodes.database)
    try:
        async with connection.transaction():
            await connection.execute("lock table words in access exclusive mode")
            yield
    finally:
        connection.terminate()


@asynccontextmanager
async def missing_table(day: Day) -> AsyncIterator[None]:
    connection = await asyncpg.connect(day.stage.nodes.database)
    await connection.execute("alter table words rename to words_away")
    # A statement that a connection has prepared goes on with the renamed table.
    others = "backend_type = 'client backend' and pid <> pg_backend_pid()"
    await connection.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {others}")
    try:
        yield
    finally:
        await connection.execute("alter table words_away rename to words")
        await connection.close()


@asynccontextmanager
async def silent_store(day: Day) -> AsyncIterator[None]:
    tell(signal.SIGSTOP, day.stage.store)
    try:
        yield
    finally:
        tell(signal.SIGCONT, day.stage.store)


@asynccontextmanager
async def cut_node(day: Day) -> AsyncIterator[None]:
    day.stage.relay.cut = True
    day.stage.relay.reset()
    try:
        yield
    finally:
        day.stage.relay.cut = False


@asynccontextmanager
async def lost_leaders(day: Day) -> AsyncIterator[None]:
    async def end_again() -> None:
        connection = await asyncpg.connect(day.stage.nodes.database)
        try:
            while True:
                await connection.execute("select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and granted")
                await asyncio.sleep(3)
        finally:
            connection.terminate()

    ending = asyncio.create_task(end_again())
    try:
        yield
    finally:
        ending.cancel()


@asynccontextmanager
async def two_logs_in_one_job(day: Day) -> AsyncIterator[None]:
    day.targets[NODES] += day.targets[SECURE]
    day.targets[SECURE] = []
    day.scrape()
    try:
        yield
    finally:
        day.targets[SECURE] = [day.targets[NODES].pop()]
        day.scrape()


@asynccontextmanager
async def old_certificate(day: Day) -> AsyncIterator[None]:
    authority = day.stage.authority
    before = authority.certificate.read_bytes()
    soon = datetime.now(UTC) + timedelta(days=1)
    short = authority.authority.issue_cert("127.0.0.1", not_after=soon)
    authority.certificate.write_bytes(short.cert_chain_pems[0].bytes())
    try:
        yield
    finally:
        authority.certificate.write_bytes(before)


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@asynccontextmanager
async def few_descriptors(day: Day) -> AsyncIterator[None]:
    pid = pid_of(day.stage.secure.process)
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (_descriptors(pid) + 4, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def starved_process(day: Day) -> AsyncIterator[None]:
    pid = pid_of(day.stage.secure.process)

    async def starve() -> None:
        while True:
            tell(signal.SIGSTOP, pid)
            await asyncio.sleep(0.9)
            tell(signal.SIGCONT, pid)
            await asyncio.sleep(0.4)

    starving = asyncio.create_task(starve())
    try:
        yield
    finally:
        starving.cancel()
        tell(signal.SIGCONT, pid)


@asynccontextmanager
async def stopped_process(day: Day) -> AsyncIterator[None]:
    pid = pid_of(day.stage.secure.process)
    tell(signal.SIGSTOP, pid)
    try:
        yield
    finally:
        tell(signal.SIGCONT, pid)


@asynccontextmanager
async def no_backup(day: Day) -> AsyncIterator[None]:
    yield  # there was none since the start
    (day.stage.folder / "backup").mkdir(exist_ok=True)
    await day.stage.secure.run("backup", str(day.stage.folder / "backup"))


@asynccontextmanager
async def second_signer(day: Day) -> AsyncIterator[None]:
    """An old backup is restored and served beside the registry."""
    stage, metrics, data = day.stage, free_port(), day.stage.folder / "copy"
    copy = Server(data, free_port())
    size = (await stage.secure.run("backup", str(stage.folder / "backup")))["size"]
    await asyncio.sleep(3)  # for the registry to grow
    command = (PROGRAM, "restore", str(stage.folder / "backup"), "--accept-size", str(size), "--data", str(data))
    restoring = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    assert await restoring.wait() == 0
    here = f"https://127.0.0.1:{stage.secure.port}"
    copy.options = ("--base-url", here, "--ca", str(stage.authority.ca), "--metrics-address", str(metrics))
    # A copy that finds the registry alive does not start at all.
    tell(signal.SIGSTOP, pid_of(stage.secure.process))
    await copy.start()
    began = await copy.ready()
    tell(signal.SIGCONT, pid_of(stage.secure.process))
    assert began
    day.targets["treaty-copy"] = [metrics]
    day.scrape()
    try:
        yield
    finally:
        await copy.stop()
        del day.targets["treaty-copy"]
        day.scrape()
        clear(data)


@asynccontextmanager
async def lost_workers(day: Day) -> AsyncIterator[None]:
    """Each process that checks contents is killed while publications arrive."""
    machine = day.stage.alone

    async def kill() -> None:
        while True:
            tell(signal.SIGKILL, *children(machine.pid))
            await asyncio.sleep(0.05)

    killing = asyncio.create_task(kill())
    publishing = [asyncio.create_task(publish(machine.server, name)) for name in ("one", "two", "three")]
    try:
        yield
    finally:
        for task in (killing, *publishing):
            task.cancel()


@asynccontextmanager
async def flood(day: Day) -> AsyncIterator[None]:
    """Batches arrive faster than they are committed."""
    machine = day.stage.alone
    machine.calls.set(slow=1500)
    sending = [asyncio.create_task(send_batches(machine.server, f"flood {number}")) for number in range(24)]
    try:
        yield
    finally:
        for task in sending:
            task.cancel()
        machine.calls.set(slow=0)


@asynccontextmanager
async def no_blobs(day: Day) -> AsyncIterator[None]:
    blobs = day.stage.secure.data / "blobs"
    away(blobs)
    try:
        yield
    finally:
        back(blobs)


@asynccontextmanager
async def proof_at_the_mirror(day: Day) -> AsyncIterator[None]:
    mirror = day.stage.mirror
    evidence = mirror.data / "evidence"
    evidence.mkdir(exist_ok=True)
    proof = evidence / "game-day.equivocation.json"
    proof.write_text("A proof that a log signed two histories.\n")
    try:
        yield
    finally:
        proof.unlink()
        await mirror.stop()
        await mirror.start()
        assert await mirror.ready()


@asynccontextmanager
async def no_targets(day: Day) -> AsyncIterator[None]:
    day.monitoring.scrape({})
    try:
        yield
    finally:
        day.scrape()


def _all(job: str, *names: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"Treaty{name}", job) for name in names)


_UNWITNESSED = "TreatyUnwitnessed"
_DATABASE = _all(ALONE, "DatabaseSilent", "NoLeader", "WritesFail", "CheckpointStale", "PoolExhausted", "Sheds")
TOGETHER: tuple[tuple[Provocation, ...], ...] = (
    (
        Provocation("SIGSTOP to every process of PostgreSQL", _DATABASE, hung_database, "TreatyDatabaseSilent"),
        Provocation("the clock of the registry 2 hours ahead", _all(ALONE, "ClockWrong"), wrong_clock, "TreatyClockWrong"),
        Provocation(
            "SIGSTOP to both witnesses", _all(ALONE, "Unwitnessed", "WitnessFailing"), silent_witnesses, "TreatyUnwitnessed"
        ),
        Provocation("a witness answers 409 with more leaves than the log has", _all(ALONE, "WitnessDisagrees"), lying_witness),
        Provocation("a file in the place of the folder of the tiles", _all(ALONE, "TilesOld"), no_place_for_tiles),
        Provocation("the disk of the blobs filled", _all(ALONE, "DiskFull", "DiskLow"), full_disk, "TreatyDiskFull"),
        Provocation("processes that check contents killed", _all(ALONE, "WorkersLost"), lost_workers),
        Provocation("batches while each write to the disk takes 1.5 s", _all(ALONE, "QueueLong", "CommitSlow"), flood),
    ),
    (
        Provocation("SIGSTOP to the object store", _all(NODES, "StoreSilent"), silent_store, "TreatyStoreSilent"),
        Provocation("a node is cut from PostgreSQL", _all(NODES, "NodeBehind"), cut_node),
        Provocation("pg_terminate_backend of the leader each 3 s", _all(NODES, "LeadershipUnstable"), lost_leaders),
        Provocation("a lock on a table that reads need", _all(NODES, "ReadsSlow"), locked_table),
        Provocation("a table renamed that reads need", _all(NODES, "Errors"), missing_table),
    ),
    (
        Provocation("no backup since the start; then treaty-registry backup", _all(SECURE, "BackupOld"), no_backup),
        Provocation("a certificate that ends tomorrow", _all(SECURE, "CertificateEnds", "CertificateOld"), old_certificate),
        Provocation(
            "an old backup served; the registry stood still at its start",
            _all("treaty-copy", "SignedElsewhere"),
            second_signer,
        ),
        Provocation("an epoch is due and the blobs cannot be read", _all(SECURE, "EpochLate"), no_blobs),
        Provocation("a limit of file descriptors just above those in use", _all(SECURE, "DescriptorsLow"), few_descriptors),
        Provocation("SIGSTOP for 0.9 of each 1.3 seconds", _all(SECURE, "LoopBlocked"), starved_process),
        Provocation(
            "SIGSTOP to the registry", (*_all(SECURE, "Down"), *_all(MIRROR, "MirrorFailing")), stopped_process, "TreatyDown"
        ),
        Provocation("a file in the mirror's folder evidence", _all(MIRROR, "MirrorStopped", "ForkProved"), proof_at_the_mirror),
    ),
)
"""Those of one group run one after the other; the groups run at once, on registries of their own."""
ALONE_AT_LAST = (
    Provocation("two logs in one job of Prometheus", _all(NODES, "TwoLeaders"), two_logs_in_one_job),
    Provocation("no target is scraped", (("TreatyAbsent", ""),), no_targets),
)
"""These change what is scraped."""
