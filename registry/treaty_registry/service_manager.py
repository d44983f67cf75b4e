"""Speak with the service manager that started this process, as systemd's sd_notify(3) and sd_listen_fds(3) specify.

The process tells its state in datagrams to `NOTIFY_SOCKET`: lines of `NAME=VALUE`. `WATCHDOG_USEC` is the time in which the next
`WATCHDOG=1` must come. Sockets that the manager opened, or kept from the process before, are the descriptors from 3 on:
`LISTEN_FDS` is their number, `LISTEN_PID` the process that they are for.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence

import structlog

_FIRST = 3  # SD_LISTEN_FDS_START
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
_STORED = "FDNAME=http"
_PATIENCE = 1.0  # seconds; a manager that is starting anew reads nothing for a moment

_log = structlog.get_logger(__name__)


class ServiceManager:
    """Holds the sockets that the manager passed, and tells it the state of this process. Without a manager it does nothing."""

    def __init__(self, address: str, watchdog: float | None, passed: Sequence[socket.socket]) -> None:
        """`address`: of its socket, or empty. `watchdog`: seconds in which it wants a sign of life."""
        self._address = address
        self._watchdog = watchdog
        self._passed = list(passed)
        self._taken: socket.socket | None = None

    @classmethod
    def of_process(cls) -> ServiceManager:
        """Take over what the manager gave to this process.

        The variables are removed and the sockets closed to children: PostgreSQL would take them for its own.
        """
        variables = {name: os.environ.pop(name, "") for name in _VARIABLES}
        own = str(os.getpid())
        sockets = []
        if variables["LISTEN_PID"] == own and variables["LISTEN_FDS"].isdecimal():
            for number in range(_FIRST, _FIRST + int(variables["LISTEN_FDS"])):
                os.set_inheritable(number, False)
                sockets.append(socket.socket(fileno=number))
        watched = variables["WATCHDOG_USEC"].isdecimal() and variables["WATCHDOG_PID"] in ("", own)
        return cls(variables["NOTIFY_SOCKET"], int(variables["WATCHDOG_USEC"]) / 1_000_000 if watched else None, sockets)

    def take(self, address: tuple[object, ...]) -> socket.socket | None:
        """Return the passed socket that listens at an address; None if there is none. All others are closed."""
        for passed in self._passed:
            if self._taken is None and passed.getsockname() == address:
                self._taken = passed
                continue
            # After a change of the port the manager still has the old one, whose clients would wait for ever.
            _log.warning("a passed socket is of no use here", address=passed.getsockname())
            self._tell("FDSTOREREMOVE=1", _STORED)
            passed.close()
        self._passed.clear()
        return self._taken

    def keep(self, listening: socket.socket) -> None:
        """Have the manager keep a listening socket for the process after this one: connections wait in it meanwhile.

        It does so as `FileDescriptorStoreMax` says, and closes the socket when the service is stopped.
        """
        if listening is not self._taken:  # of that one it has its own
            self._tell("FDSTORE=1", _STORED, descriptors=[listening.fileno()])

    def ready(self) -> None:
        """Say that the start is over."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """Say that this process is ending."""
        self._tell("STOPPING=1")

    async def show_life(self) -> None:
        """Tell the manager, as long as this task runs, that the event loop does. Nothing else is looked at: a restart mends no
        database."""
        while self._watchdog is not None:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._watchdog / 3)  # two may come late

    def _tell(self, *lines: str, descriptors: Sequence[int] = ()) -> None:
        if not self._address:
            return
        # A name that begins with @ is one of the abstract namespace (unix(7)).
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_PATIENCE)
                sender.connect(address)
                socket.send_fds(sender, ["\n".join(lines).encode()], list(descriptors))
        except OSError as error:  # the service is of more use than its manager's knowledge of it
            _log.warning("the service manager is not told", state=lines[0], error=str(error))
