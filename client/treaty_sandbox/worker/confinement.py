"""A level of isolation, as the worker applies it to itself."""

from __future__ import annotations

import _socket
import array
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NoReturn

PIPE = 0
"""The descriptor of the socket to the host: standard input, because the host's Popen passes it without a further option."""


class Confinement:
    """No isolation: the limits of `main` alone."""

    def prepare(self) -> None:
        """Do once, when all native code is mapped, the things that hold for the workers of a template too. Raises `OSError`."""

    def restrict(self) -> None:
        """Give up all that a handler must not have. Nothing of it comes back. Raises `OSError`."""


class ForkedConfinement(Confinement, ABC):
    """A level whose workers are forked from a template."""

    def __init__(self, machine: str) -> None:
        """`machine`: whose system calls are filtered (`seccomp`)."""
        self._machine = machine

    @abstractmethod
    def fork(self, control: _socket.socket, pipe: int, serve: Callable[[], None]) -> None:
        """Fork a worker with this pipe, which calls `serve`, and answer the host. Raises `OSError` without an answer."""


def answer(control: _socket.socket, worker: int) -> None:
    """Send the host a pidfd of a worker. Raises `OSError`."""
    handle = array.array("i", [os.pidfd_open(worker)])
    control.sendmsg([b"+"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, handle)])


def be_worker(begin: Callable[[], None], pipe: int, serve: Callable[[], None]) -> NoReturn:
    """Go on as a worker in a fork of the template: `begin`, then `serve` with the pipe as descriptor 0."""
    try:
        begin()
        os.dup2(pipe, PIPE)  # `serve` closes all others
        serve()
    except BaseException as error:
        os.write(2, repr(error).encode())  # the host tells it, if the worker was not ready yet
    finally:
        # It must never return into the template's loop.
        os._exit(0)
