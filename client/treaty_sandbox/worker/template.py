"""Run a template: a process that is a worker in all but its restrictions, and forks a worker for each request.

Starting an interpreter with the modules of a worker takes 50 milliseconds, a fork of it one. The template reads no data of a
handler. Descriptor 0 is a socket to the host. The template writes one byte, "+", when it is ready. A request is one byte with
one descriptor, the pipe of the new worker. Its answer is "+" with a pidfd of the worker, or "-" and the number of an error.

    template                     process 1 of the sandbox, with the capabilities that a new namespace needs
      └ fork                     enters new namespaces for the next one, sends its pidfd, and ends
          └ worker               process 1 of its own pid namespace; drops all capabilities, then restricts itself as any worker

So workers share nothing but the user namespace, in which they have no capability, and memory that is copied when it is written.
"""

from __future__ import annotations

import _socket
import array
import ctypes
import gc
import os
import signal
from collections.abc import Callable
from typing import NoReturn

_CONTROL = 0
# CLONE_NEWNS, …CGROUP, …UTS, …IPC, …PID, …NET: all but the user namespace, which --disable-userns forbids.
_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
_PR_CAPBSET_DROP = 24
_CAPABILITIES = (8, 21)  # CAP_SETPCAP, CAP_SYS_ADMIN: those of the template
_CAPABILITY_VERSION = 0x20080522


def run(serve: Callable[[], None]) -> None:
    """Fork workers until the host closes the socket. `serve`: what each worker runs, with its pipe as descriptor 0."""
    # The kernel then collects ended workers, which are this process's children: it is process 1.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Objects that exist now are never collected, so a worker's collector does not touch, and copy, their memory.
    gc.freeze()
    control = _socket.socket(fileno=_CONTROL)
    control.send(b"+")
    while True:
        message, ancillary, *_ = control.recvmsg(1, _socket.CMSG_SPACE(array.array("i").itemsize))
        if not message:
            return
        pipe = array.array("i", ancillary[0][2])[0]
        try:
            if os.fork() == 0:
                _beget(control, pipe, serve)
        except OSError as error:
            # A limit on processes or memory is reached. The other workers go on: they would end with this process.
            control.send(b"-%d" % (error.errno or 0))
        os.close(pipe)


def _beget(control: _socket.socket, pipe: int, serve: Callable[[], None]) -> None:
    """Start the worker in namespaces of its own, answer the host, and end. In the worker: serve."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_NAMESPACES) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        worker = os.fork()
        if worker == 0:
            _become_worker(libc, pipe, serve)
        handle = array.array("i", [os.pidfd_open(worker)])
        control.sendmsg([b"+"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, handle)])
    except OSError as error:
        control.send(b"-%d" % (error.errno or 0))
    finally:
        os._exit(0)


def _become_worker(libc: ctypes.CDLL, pipe: int, serve: Callable[[], None]) -> NoReturn:
    try:
        _drop_capabilities(libc)
        os.dup2(pipe, _CONTROL)  # `serve` closes all others
        serve()
    except BaseException as error:
        os.write(2, repr(error).encode())  # the host tells it, if the worker was not ready yet
    finally:
        # It must never return into the template's loop.
        os._exit(0)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Give up all capabilities, for this process and any program that it could run. Raises `OSError`."""
    zero = ctypes.c_ulong(0)
    for capability in _CAPABILITIES:
        if libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), zero, zero, zero) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
    # Last: dropping from the bounding set takes CAP_SETPCAP. With the permitted set the ambient one goes too.
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capset")
