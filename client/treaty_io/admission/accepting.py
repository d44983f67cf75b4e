"""Accept the connections of a port, and set them up in turns of the networks.

The kernel hands connections out in the order in which they came. To accept one costs a server a tenth of its set-up: a transport,
the parser of its first request, its end, a TLS handshake. A stranger opens thousands at once, and opens them again when they are
ended. If each were set up as it is accepted, everybody would wait for all of them.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial

from ..line_limit import limited_logger
from ..network.turns import asker_at
from ..task_set import TaskSet
from .rounds import Rounds

# In a row. Other work of the loop comes between: the selector tells again that there are more.
_ACCEPTS = 64
# Seconds without an accept after one that failed: no file is free, and the next one would fail as well.
_RETRY = 1.0

_log = limited_logger(__name__)


class Accepting:
    """The connections of listening sockets. For one event loop."""

    def __init__(
        self,
        listening: Sequence[socket.socket],
        protocol: Callable[[], asyncio.Protocol],
        rounds: Rounds,
        *,
        tls: ssl.SSLContext | None = None,
        handshake: float,
    ) -> None:
        """Begin to accept. `listening`: they are closed at the end. `handshake`: seconds for one of TLS."""
        self._protocol, self._rounds, self._tls, self._handshake = protocol, rounds, tls, handshake
        self._loop, self._listening = asyncio.get_running_loop(), list(listening)
        self._waiting = TaskSet[None]()
        self.port = int(listening[0].getsockname()[1])
        for each in listening:
            each.setblocking(False)
            self._loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        """Accept no further ones. Those that were accepted go on."""
        while self._listening:
            listening = self._listening.pop()
            self._loop.remove_reader(listening)
            listening.close()

    async def aclose(self) -> None:
        """Also end those that are not set up."""
        self.close()
        await self._waiting.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            try:
                connection, address = listening.accept()
            except BlockingIOError:  # no further one waits
                return
            except ConnectionAbortedError:  # only this connection has failed
                continue
            except OSError as error:
                _log.warning("A connection was not accepted: %s", error)
                self._loop.remove_reader(listening)
                self._loop.call_later(_RETRY, self._go_on, listening)
                return
            connection.setblocking(False)
            task = self._waiting.start(self._set_up(connection, asker_at(address[0])))
            task.add_done_callback(partial(_end_cancelled, connection))

    def _go_on(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening, self._accept, listening)

    async def _set_up(self, connection: socket.socket, network: str) -> None:
        loop, handshake = asyncio.get_running_loop(), self._handshake if self._tls else None
        try:
            if not self._rounds.take(network):
                await self._rounds.wait(network)
            connection.getpeername()  # fails when the peer or the guard has ended it meanwhile
            await loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=handshake)
        # Also a handshake of TLS that fails: a stranger's fault, and no line of the log.
        except OSError:
            connection.close()


def _end_cancelled(connection: socket.socket, task: asyncio.Task[None]) -> None:
    if task.cancelled():
        connection.close()
