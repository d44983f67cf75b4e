"""Run a template: a process that is a worker in all but its restrictions, and forks a worker for each request.

Starting an interpreter with the modules of a worker takes 50 milliseconds, a fork of it one. The template reads no data of a
handler. Descriptor 0 is a socket to the host. The template writes one byte, "+", when it is ready. A request is one byte with
one descriptor, the pipe of the new worker. Its answer is "+" with a pidfd of the worker, or "-" and the number of an error.
"""

from __future__ import annotations

import _socket
import array
import gc
import os
import signal
from collections.abc import Callable

from .confinement import PIPE, ForkedConfinement


def run(confinement: ForkedConfinement, serve: Callable[[], None]) -> None:
    """Fork workers until the host closes the socket. `serve`: what each worker runs, with its pipe as descriptor 0."""
    # The kernel then collects the workers that end, those of other parents too where this is process 1.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Objects that exist now are never collected, so a worker's collector does not touch, and copy, their memory.
    gc.freeze()
    control = _socket.socket(fileno=PIPE)
    control.send(b"+")
    while True:
        message, ancillary, *_ = control.recvmsg(1, _socket.CMSG_SPACE(array.array("i").itemsize))
        if not message:
            return
        pipe = array.array("i", ancillary[0][2])[0]
        try:
            confinement.fork(control, pipe, serve)
        except OSError as error:
            # A limit on processes or memory is reached. The other workers go on: they would end with this process.
            control.send(b"-%d" % (error.errno or 0))
        os.close(pipe)
