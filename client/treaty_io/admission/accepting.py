"""Accept the connections of a port, and set them up in turns of the networks.

The kernel hands connections out in the order in which they came. To accept one costs a server a tenth of its set-up: a transport,
the parser of its first request, its end, a TLS handshake. A stranger opens thousands at once, and opens them again when they are
ended. If each were set up as it is accepted, everybody would wait for all of them.

On Linux a connection is set up when its client has spoken, which it does first, in HTTP as in TLS. A silent one is a descriptor
in an epoll object. It has no timer, no task and no object that the garbage collection visits, except its socket. The
`ConnectionGuard` of the port ends it.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import ssl
import sys
from collections.abc import Callable, Sequence

from ..line_limit import limit_lines
from ..network.turns import asker_at
from ..task_set import TaskSet
from .rounds import Rounds

# In a row, accepted ones or those that speak. Other work of the loop comes between: the selector tells again that there are more.
_IN_A_ROW = 64
# Seconds without an accept after one that failed: no file is free, and the next one would fail as well.
_RETRY = 1.0

_log = logging.getLogger(__name__)
limit_lines(__name__)  # one a minute: while no file is free, each attempt fails


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
        """Begin to accept. `listening`: they are closed at the end. `protocol`: one in which the client speaks first.
        `handshake`: seconds for one of TLS."""
        self._protocol, self._rounds, self._tls, self._handshake = protocol, rounds, tls, handshake
        self._loop, self._listening = asyncio.get_running_loop(), list(listening)
        self._waiting = TaskSet[None]()
        self._accepted = dict[int, socket.socket]()  # by descriptor; those that are not set up
        self.port = int(listening[0].getsockname()[1])
        if sys.platform == "linux":
            # One reader of the loop for all of them. A reader for each would cost more than to accept it.
            self._speaking = select.epoll()
            self._loop.add_reader(self._speaking, self._hear)
        for each in listening:
            each.setblocking(False)
            self._begin(each)

    def close(self) -> None:
        """Accept no further ones. Those that were accepted go on."""
        while self._listening:
            listening = self._listening.pop()
            if sys.platform != "win32":
                self._loop.remove_reader(listening)
            listening.close()

    async def aclose(self) -> None:
        """Also end those that are not set up."""
        self.close()
        if sys.platform == "linux" and not self._speaking.closed:
            self._loop.remove_reader(self._speaking)
            self._speaking.close()
        await self._waiting.cancel()
        while self._accepted:
            self._accepted.popitem()[1].close()

    def _begin(self, listening: socket.socket) -> None:
        if listening not in self._listening:
            return  # it was closed during a pause
        # A task would register and remove the port for each connection. The event loop of Windows has no other way.
        if sys.platform == "win32":
            self._waiting.start(self._accept_each(listening))
        else:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            for _ in range(_IN_A_ROW):
                self._take(*listening.accept())
        except BlockingIOError:  # no further one waits
            pass
        except OSError as error:
            self._loop.remove_reader(listening)
            self._pause(listening, error)

    async def _accept_each(self, listening: socket.socket) -> None:
        try:
            while True:
                self._take(*await self._loop.sock_accept(listening))
        except OSError as error:
            self._pause(listening, error)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        only_one = isinstance(error, ConnectionAbortedError)  # this connection alone has failed
        if not only_one and listening in self._listening:
            _log.warning("A connection was not accepted: %s", error)
        self._loop.call_later(0 if only_one else _RETRY, self._begin, listening)

    def _take(self, connection: socket.socket, _: object) -> None:
        connection.setblocking(False)
        if sys.platform == "linux":
            self._speaking.register(connection, select.EPOLLIN)
        else:
            self._waiting.start(self._set_up(connection))
        self._accepted[connection.fileno()] = connection

    def _hear(self) -> None:
        """Set up connections that speak, and close those that ended without a word."""
        if sys.platform != "linux":
            return
        for descriptor, _ in self._speaking.poll(0, _IN_A_ROW):
            self._speaking.unregister(descriptor)
            connection = self._accepted[descriptor]
            try:
                has_spoken = connection.recv(1, socket.MSG_PEEK)
            except OSError:  # the peer has reset it
                has_spoken = b""
            if has_spoken:
                self._waiting.start(self._set_up(connection))
            else:
                self._accepted.pop(descriptor).close()

    async def _set_up(self, connection: socket.socket) -> None:
        loop, handshake = asyncio.get_running_loop(), self._handshake if self._tls else None
        try:
            network = asker_at(connection.getpeername()[0])
            if not self._rounds.take(network):
                await self._rounds.wait(network)
                connection.getpeername()  # fails when the peer or the guard has ended it meanwhile
            # From here on the transport closes it, and its number may be another connection's.
            del self._accepted[connection.fileno()]
            await loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=handshake)
        # Also a handshake of TLS that fails: a stranger's fault, and no line of the log.
        except OSError:
            self._accepted.pop(connection.fileno(), None)
            connection.close()
