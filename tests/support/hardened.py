"""Run a program as a hardened host does: `python hardened.py [--no-landlock] PROGRAM ARGUMENT…`.

A filter of system calls denies what the default profiles of containers deny: new namespaces, mounts, tracing. With
`--no-landlock` the kernel also seems to have no Landlock.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

LOAD, EQUAL, ANY, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, DENY, MISSING = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
NAMESPACES = 0x7E020000  # CLONE_NEW…
# clone, clone3; unshare setns mount pivot_root chroot ptrace; landlock_*
CLONE, CLONE3, OTHERS = {
    "x86_64": (56, 435, (272, 308, 165, 155, 161, 101)),
    "aarch64": (220, 435, (97, 268, 40, 41, 51, 117)),
}[os.uname().machine]
LANDLOCK = (444, 445, 446)


def rules(*, landlock: bool) -> list[tuple[int, int, int, int]]:
    """The program, in the form of `treaty_sandbox.worker.seccomp`."""
    program = [(LOAD, 0, 0, 0)]
    for number in OTHERS:
        program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, DENY)]
    # Its flags are in memory, which a filter cannot read. C libraries then use clone.
    for number in (CLONE3, *(() if landlock else LANDLOCK)):
        program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, MISSING)]
    program += [(EQUAL, 0, 3, CLONE), (LOAD, 0, 0, 16), (ANY, 0, 1, NAMESPACES), (RETURN, 0, 0, DENY)]
    return [*program, (RETURN, 0, 0, ALLOW)]


def harden(*, landlock: bool) -> None:
    """Install the filter for this process and all below it."""
    program = b"".join(struct.pack("<HBBI", *rule) for rule in rules(landlock=landlock))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    libc, zero = ctypes.CDLL(None, use_errno=True), ctypes.c_ulong(0)
    descriptor = ctypes.byref(Program(len(program) // 8, program))
    for call in ((38, ctypes.c_ulong(1), zero, zero, zero), (22, ctypes.c_ulong(2), descriptor, zero, zero)):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    line = sys.argv[1:]
    harden(landlock="--no-landlock" not in line)
    line = [word for word in line if word != "--no-landlock"]
    os.execv(line[0], line)
