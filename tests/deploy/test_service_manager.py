"""What a service and systemd say to each other, with real processes: it serves, it lives, and a restart refuses no read."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from depth import FULL
from played_systemd import PlayedSystemd
from ports import free_port
from signers import ORIGIN
from steady_readers import answered, steady_readers

from treaty_registry.service_manager import ServiceManager

RESTARTS = 8 if FULL else 1


@asynccontextmanager
async def witness(folder: Path, port: int, watchdog: float | None = None) -> AsyncIterator[PlayedSystemd]:
    command = ("witness", "--data", str(folder / "witness"), "--name", "w1.example", "--port", str(port))
    service = PlayedSystemd(folder, *command, watchdog=watchdog)
    try:
        yield service
    finally:
        await service.end()


async def test_a_restart_refuses_no_read_and_a_stop_refuses_all(tmp_path: Path) -> None:
    port = free_port()
    async with witness(tmp_path, port) as service:
        await service.start()
        # Before it is ready, nobody sends it anything.
        assert service.said == ["FDSTORE=1", "FDNAME=http", "READY=1"]
        async with steady_readers(port, "/unknown/checkpoint") as seen:
            for _ in range(RESTARTS):
                await answered(seen)
                assert service.process is not None
                service.process.terminate()
                await service.hears("STOPPING=1")
                # Who connects while it ends waits for the next process, however late the request comes.
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                assert await service.stop() == 0
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                await service.start()
                assert service.said == ["READY=1"]
                assert (await reader.read()).startswith(b"HTTP/1.1 404 ")
                writer.close()
            await answered(seen)
            assert set(seen) == {"answered"}
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


@pytest.mark.deep
async def test_after_a_crash_nobody_is_refused_either(tmp_path: Path) -> None:
    port = free_port()
    async with witness(tmp_path, port) as service:
        await service.start()
        async with steady_readers(port, "/unknown/checkpoint") as seen:
            await answered(seen)
            assert service.process is not None
            service.process.kill()
            await service.process.wait()
            await service.start()
            await answered(seen)
            # Those whom it was answering are cut off. All others wait.
            assert not seen["ConnectionRefusedError"]


@pytest.mark.deep
async def test_another_port_replaces_the_kept_socket(tmp_path: Path) -> None:
    first, second = free_port(), free_port()
    async with witness(tmp_path, first) as service:
        await service.start()
        await service.stop()
        service.command = (*service.command[:-1], str(second))
        await service.start()
        assert service.said == ["FDSTOREREMOVE=1", "FDNAME=http", "FDSTORE=1", "FDNAME=http", "READY=1"]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", first)
        _, writer = await asyncio.open_connection("127.0.0.1", second)
        writer.close()


@pytest.mark.deep
async def test_a_process_that_hangs_gives_no_sign_of_life(tmp_path: Path) -> None:
    async with witness(tmp_path, free_port(), watchdog=0.3) as service:
        await service.start()
        assert service.process is not None
        await service.hears("WATCHDOG=1")
        service.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.3)
        service.said.clear()
        await asyncio.sleep(0.6)
        assert service.said == []
        service.process.send_signal(signal.SIGCONT)
        await service.hears("WATCHDOG=1")


@pytest.mark.deep
async def test_a_registry_whose_database_hangs_gives_signs_of_life(data: Path) -> None:
    port = free_port()
    command = ("serve", "--new", "--origin", ORIGIN, "--data", str(data / "registry"), "--port", str(port))
    service = PlayedSystemd(data, *command, watchdog=0.3)
    try:
        await service.start()
        postmaster = int((data / "registry/postgres/postmaster.pid").read_text().split("\n")[0])
        children = (Path("/proc") / str(postmaster) / "task" / str(postmaster) / "children").read_text()
        processes = [postmaster, *map(int, children.split())]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            async with (
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as api,
                asyncio.timeout(60),
            ):
                while (await api.get("/health/ready")).status_code != 503:  # noqa: ASYNC110 (another process notices)
                    await asyncio.sleep(0.1)
                service.said.clear()
                await service.hears("WATCHDOG=1")
                assert (await api.get("/health/live")).status_code == 200
        finally:
            for process in processes:
                os.kill(process, signal.SIGCONT)
        # What it passes on to PostgreSQL says nothing of the manager.
        environment = (Path("/proc") / str(postmaster) / "environ").read_bytes()
        assert not [name for name in (b"NOTIFY_SOCKET", b"LISTEN_FDS", b"WATCHDOG_USEC") if name in environment]
    finally:
        await service.end()


async def test_an_event_loop_that_hangs_gives_no_sign_of_life(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(ServiceManager(str(tmp_path / "notify"), 0.15, []).show_life())
        assert await loop.sock_recv(manager, 100) == b"WATCHDOG=1"
        assert await loop.sock_recv(manager, 100) == b"WATCHDOG=1"
        time.sleep(0.3)  # noqa: ASYNC251 (it hangs)
        with pytest.raises(BlockingIOError):
            manager.recv(100)
        task.cancel()


def test_what_is_for_another_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        variables = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getppid()), "WATCHDOG_USEC": "1", "WATCHDOG_PID": str(os.getppid())}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert ServiceManager.of_process().take(listening.getsockname()) is None
        assert not variables.keys() & os.environ.keys()


async def test_a_manager_that_is_gone_is_no_fault_of_the_service(tmp_path: Path) -> None:
    ServiceManager(str(tmp_path / "nobody"), None, []).ready()
