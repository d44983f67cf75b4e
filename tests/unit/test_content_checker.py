"""Checking contents in processes with limits: what they cost, how they end, and who comes when."""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from handler_packages import DIST_INFO, FILENAME, PACKAGE, URI, metadata, with_record, zipped
from registries import blob

from treaty_consensus import kinds
from treaty_consensus.errors import Malformed, Refused, TooLarge, TreatyError, Unavailable
from treaty_consensus.handler import build_wheel, read_wheel
from treaty_registry.admission import content_worker
from treaty_registry.admission.content_checker import ContentChecker
from treaty_registry.admission.content_process import ContentLimits
from treaty_registry.admission.contents import check_contents
from treaty_registry.catalogue.comparison import Comparison, compare
from treaty_registry.catalogue.packages import PackageView, read_package
from treaty_registry.catalogue.readers import ReaderKind

_, SMALL = build_wheel({"__init__.py": b"handler = 1\n"}, metadata())
_, LARGE = build_wheel({"__init__.py": b"handler = 1\n", "table.py": b"# a comment\n" * 160_000}, metadata())
FILES = dict(read_wheel(FILENAME, SMALL).files)
DOCUMENT, CARD = b"# Probe\n", b'{"summary":"","title":"Probe"}'


def handler(wheel: bytes, bundle: bytes = b"{}", **changes: str) -> tuple[kinds.Handler, dict[str, bytes]]:
    fields = {"uri": URI, "document": "0" * 64, "filename": FILENAME, "entry_point": f"{PACKAGE}:handler", **changes}
    body = kinds.Handler(**fields, wheel=blob(wheel), bundle=blob(bundle))
    return body, {body.wheel.sha256: wheel, body.bundle.sha256: bundle}


def publish(document: bytes, card: bytes) -> tuple[kinds.Publish, dict[str, bytes]]:
    body = kinds.Publish(URI, "probe", blob(document), blob(card), "negotiated")
    return body, {body.document.sha256: document, body.card.sha256: card}


async def check(
    checker: ContentChecker, job: tuple[kinds.Publish | kinds.Handler, Mapping[str, bytes]], source: str = "192.0.2.1"
) -> None:
    async def load() -> Mapping[str, bytes]:
        return job[1]

    await checker.check(job[0], load, source)


def processes() -> set[int]:
    """The processes that this one started and that are not gone yet. Python's tracker of resources, which another test may have
    started, is left out."""
    tasks = Path("/proc/self/task").glob("*/children")
    pids = {int(pid) for task in tasks for pid in task.read_text().split()}
    return {pid for pid in pids if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.fixture
def children() -> Callable[[], set[int]]:
    """Return the processes that a test started. Those of fixtures of the whole run, such as a browser, are left out."""
    others = processes()
    return lambda: processes() - others


@pytest.fixture
async def checker() -> AsyncIterator[ContentChecker]:
    checker = ContentChecker(processes=2)
    yield checker
    await checker.close()


JOBS = [
    handler(SMALL),
    handler(LARGE),
    publish(DOCUMENT, CARD),
    handler(b"PK"),
    handler(SMALL, b"[" * 50_000),
    handler(SMALL, b'{"a":1,"a":2}'),
    handler(SMALL, entry_point="elsewhere:handler"),
    handler(SMALL, filename="other.whl"),
    handler(zipped(with_record({**FILES, f"{DIST_INFO}/entry_points.txt": b"[treaty.handlers]\n" + b"x\n" * 4_000_000}), 8)),
    handler(zipped(with_record({**FILES, f"{PACKAGE}/a.py": b"# coding: utf-7\n"}))),
    handler(zipped({**FILES, f"{PACKAGE}/manifest.json": '{"interface": "\u202e\\n"}'.encode()})),
    publish(b"\xff", CARD),
    publish(DOCUMENT, b'{"title": "Probe"}'),
    publish(b"x" * (256 * 1024 + 1), CARD),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("job", JOBS, ids=range(len(JOBS)))
async def test_a_process_says_what_the_check_itself_says(
    checker: ContentChecker, job: tuple[kinds.Publish | kinds.Handler, dict[str, bytes]]
) -> None:
    expected: TreatyError | None = None
    try:
        check_contents(*job)
    except TreatyError as error:
        expected = error
    if expected is None:
        await check(checker, job)
        return
    with pytest.raises(TreatyError) as caught:
        await check(checker, job)
    said = caught.value
    assert isinstance(expected, type(said)) and type(said) in (Malformed, TooLarge, Refused)
    assert (said.code, said.message, said.fix) == (expected.code, expected.message, expected.fix)


@pytest.mark.sample(1)
@pytest.mark.threat(73)
@pytest.mark.parametrize("limits", [ContentLimits(processor=0.003), ContentLimits(memory=1024 * 1024)], ids=["time", "memory"])
async def test_what_costs_too_much_is_refused_and_the_next_is_checked(
    limits: ContentLimits, children: Callable[[], set[int]]
) -> None:
    checker = ContentChecker(limits, processes=1)
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            await check(checker, handler(LARGE))
        assert caught.value.code == "content.too-costly"
    await checker.close()
    patient = ContentChecker(processes=1)
    await check(patient, handler(LARGE))
    await patient.close()
    assert not children()


async def test_a_process_that_hangs_costs_one_answer(children: Callable[[], set[int]]) -> None:
    checker = ContentChecker(ContentLimits(patience=1), processes=1)
    checker.prepare()
    (pid,) = children()
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(Unavailable) as caught:
        await check(checker, publish(DOCUMENT, CARD))
    assert caught.value.code == "registry.busy"
    assert not children()
    checked = False
    for _ in range(60):  # a busy machine may not start the next one within a second
        with suppress(Unavailable):
            await check(checker, publish(DOCUMENT, CARD))
            checked = True
            break
    assert checked
    await checker.close()
    assert not children()


async def test_a_process_that_died_is_replaced(checker: ContentChecker, children: Callable[[], set[int]]) -> None:
    await check(checker, publish(DOCUMENT, CARD))
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    assert ends(pid)
    await check(checker, publish(DOCUMENT, CARD))
    assert len(children() - {pid}) == 1


async def test_closing_ends_what_is_under_way_at_once(children: Callable[[], set[int]]) -> None:
    checker = ContentChecker(ContentLimits(patience=300), processes=1)
    await check(checker, publish(DOCUMENT, CARD))
    (pid,) = children()
    os.kill(pid, signal.SIGSTOP)  # as slow as can be
    waiting = [asyncio.create_task(check(checker, publish(DOCUMENT, CARD))) for _ in range(5)]
    await asyncio.sleep(0.05)
    async with asyncio.timeout(30):
        await checker.close()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {outcome.code for outcome in outcomes if isinstance(outcome, Unavailable)} == {"registry.busy"}
    assert len(outcomes) == 5 and not children()
    with pytest.raises(Unavailable):
        await check(checker, publish(DOCUMENT, CARD))
    checker.prepare()
    assert not children()


async def test_a_caller_that_goes_away_costs_no_process(checker: ContentChecker, children: Callable[[], set[int]]) -> None:
    await check(checker, publish(DOCUMENT, CARD))
    before = children()
    for _ in range(20):
        task = asyncio.create_task(check(checker, handler(SMALL)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await check(checker, handler(SMALL))
    assert before <= children()
    await asyncio.gather(*(check(checker, handler(SMALL)) for _ in range(8)))  # every turn was given back


async def test_a_process_has_nothing_of_its_parent_but_the_socket(
    checker: ContentChecker, monkeypatch: pytest.MonkeyPatch, children: Callable[[], set[int]]
) -> None:
    monkeypatch.setenv("TREATY_SECRET", "hidden")
    with Path(os.devnull).open() as inherited:  # noqa: ASYNC230
        os.set_inheritable(inherited.fileno(), True)
        await check(checker, publish(DOCUMENT, CARD))
    (pid,) = children()
    process = Path(f"/proc/{pid}")
    assert (process / "environ").read_bytes() == b""
    targets = sorted(str(descriptor.readlink()) for descriptor in (process / "fd").iterdir())
    assert targets[:2] == [os.devnull] * 2 and targets[2].startswith("socket:") and len(targets) == 3
    limits = (process / "limits").read_text()
    assert f"{ContentLimits().memory}" in limits


def test_a_process_ends_when_its_parent_is_killed() -> None:
    program = (
        "import os, time\n"
        "from pathlib import Path\n"
        "from treaty_registry.admission.content_process import ContentLimits, ContentProcess\n"
        "process = ContentProcess.start(ContentLimits())\n"
        "print(Path('/proc/self/task', str(os.getpid()), 'children').read_text(), flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    assert ends(pid)
    parent.communicate()


@pytest.mark.parametrize(
    ("processor", "patience", "ending"), [(60, 0.001, signal.SIGALRM), (0.001, 60, signal.SIGPROF)], ids=["alarm", "processor"]
)
def test_a_process_ends_itself_when_a_job_takes_too_long(processor: float, patience: float, ending: signal.Signals) -> None:
    ours, theirs = socket.socketpair()
    program = "from treaty_registry.admission.content_worker import main; main()"
    arguments = [str(processor), str(patience), str(ContentLimits().memory)]
    job = content_worker.encode_job(content_worker.check_job(*handler(LARGE)))
    with subprocess.Popen([sys.executable, "-c", program, *arguments], stdin=theirs.fileno()) as process, ours:
        theirs.close()
        # The system looks at processor time every few milliseconds, about as long as a job takes; so one job may escape it.
        with suppress(ConnectionError):
            for _ in range(200):
                ours.sendall(job)
            ours.shutdown(socket.SHUT_WR)  # a process that is still there ends now, with another status
        assert process.wait(60) == -ending


def ends(pid: int) -> bool:
    """Wait for the end of a process, which may be another's child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 60)[0])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        pickle.dumps(Refused("a.b", "c")),
        msgspec.msgpack.encode({"type": "done"}),
        msgspec.msgpack.encode({"type": "accepted", "more": 1}),
        msgspec.msgpack.encode({"type": "rejected", "family": "Unavailable", "code": "a.b", "message": "", "fix": ""}),
        msgspec.msgpack.encode({"type": "rejected", "family": "Refused", "code": "a.b\nc", "message": "", "fix": ""}),
        msgspec.msgpack.encode({"type": "rejected", "family": "Refused", "code": "a.b", "message": b"", "fix": ""}),
        msgspec.msgpack.encode({"type": "rejected", "family": "Refused", "code": "a.b", "message": ""}),
        msgspec.msgpack.encode({"type": "accepted"}) + b"\0",
    ],
)
def test_a_verdict_of_another_form_is_none(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        content_worker.decode_verdict(data)


async def read(checker: ContentChecker, kind: ReaderKind, *blobs: bytes, name: str = "") -> bytes:
    async def load() -> list[bytes]:
        return [*blobs]

    return await checker.read(kind, name, load, "192.0.2.1")


async def test_a_reader_answers_from_the_process(checker: ContentChecker) -> None:
    text = msgspec.msgpack.decode(await read(checker, "package", SMALL, name=FILENAME), type=PackageView)
    assert text == read_package(FILENAME, SMALL) and text.operations
    differs = msgspec.msgpack.decode(await read(checker, "comparison", b"a\n", b"b\n"), type=Comparison)
    assert differs == compare(b"a\n", b"b\n") and differs.added == differs.removed == 1


async def test_a_reader_refuses_by_the_rules_and_answers_the_next(checker: ContentChecker) -> None:
    for kind, blob_, code in (("package", b"PK", "handler.package"), ("signature", b"{}", "handler.package")):
        with pytest.raises(Malformed) as caught:
            await read(checker, kind, blob_, name=FILENAME)  # type: ignore[arg-type]
        assert caught.value.code == code
    await check(checker, handler(SMALL))


@pytest.mark.threat(73)
async def test_a_costly_reading_ends_with_its_process(children: Callable[[], set[int]]) -> None:
    checker = ContentChecker(ContentLimits(processor=0.003), processes=1)
    with pytest.raises(Refused) as caught:
        await read(checker, "package", LARGE, name=FILENAME)
    assert caught.value.code == "content.too-costly"
    await checker.close()
    assert not children()
