"""The part of systemd that a unit of `Type=notify` with `FileDescriptorStoreMax=1` has: it hears, and it keeps a socket."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

from registry_process import PROGRAM

_PASS = """
kept=$1
shift
if [ "$kept" -ne 3 ]; then exec 3<&"$kept" {kept}<&-; fi
LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=http exec "$@"
"""
"""The descriptor gets its number and the process its own id before the program of the service is there."""


class PlayedSystemd:
    """Starts one service again and again. `said`: what it told since its last start, in turn."""

    def __init__(self, folder: Path, *command: str, watchdog: float | None = None) -> None:
        self._folder = folder
        self.command = command
        self.said: list[str] = []
        self.kept: list[int] = []
        self.process: asyncio.subprocess.Process | None = None
        self._watchdog = watchdog
        self._news = asyncio.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Of the abstract namespace, as of a manager in a container. The kernel chooses the name.
        self._socket.bind("")
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._hear)

    async def start(self) -> None:
        """Start the service with the socket that it had, and wait until it says that it is ready."""
        self.said.clear()
        address = self._socket.getsockname().decode().replace("\0", "@")
        variables = {**os.environ, "NOTIFY_SOCKET": address}
        if self._watchdog:
            variables["WATCHDOG_USEC"] = str(int(self._watchdog * 1_000_000))
        command = [str(PROGRAM), *self.command]
        if self.kept:
            command = ["bash", "-c", _PASS, "sh", str(self.kept[0]), *command]
        with (self._folder / "service.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, env=variables, stdout=log, stderr=log, pass_fds=self.kept
            )
        await self.hears("READY=1")

    async def hears(self, state: str) -> None:
        """Wait until the service says this."""
        async with asyncio.timeout(60):
            while state not in self.said:
                self._news.clear()
                await self._news.wait()

    async def stop(self) -> int:
        """End the process, as `systemctl restart` does before it starts another one. Returns its exit status."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.terminate()
        return await self.process.wait()

    async def end(self) -> None:
        """Stop the service, and let its socket go."""
        if self.process is not None:
            await self.stop()
        self._let_go()
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _let_go(self) -> None:
        for descriptor in self.kept:
            os.close(descriptor)
        self.kept.clear()

    def _hear(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._socket, 4096, 4)
        lines = data.decode().splitlines()
        if "FDSTOREREMOVE=1" in lines:
            self._let_go()
        self.kept += descriptors
        self.said += lines
        self._news.set()
