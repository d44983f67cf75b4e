"""Filter the system calls of a worker: allow those that an interpreter needs to compute, and deny all others.

A call that is not listed fails with EPERM. A call through a foreign system call table (32-bit calls on a 64-bit kernel) kills
the process. There is no fork, exec, socket, signal, timer, ptrace, memfd or fresh randomness. Memory is never executable, so no
native code can be loaded afterwards, not even by an import. A clock is one of the system's: the clock of another process would
tell that it runs. In namespaces files open for reading only, and the mounts are read-only too; without them no call has a path.

A filter is a program in classic BPF (linux/filter.h): 8 bytes an instruction, `code:u16 jt:u8 jf:u8 k:u32`, run at each
system call over `struct seccomp_data {int nr; u32 arch; u64 instruction_pointer; u64 args[6];}`. Five instructions suffice:

    LOAD k          accumulator = the 32-bit word at offset k
    EQUAL k jt jf   skip jt instructions if the accumulator is k, else jf
    ANY k jt jf     skip jt instructions if the accumulator has any bit of k, else jf
    RETURN k        the decision

The program is

    LOAD arch; EQUAL this machine's, 1, 0; RETURN kill;  LOAD nr
    for each free call:     EQUAL nr, 0, 1; RETURN allow
    for each bounded call:  EQUAL nr, 0, 4; LOAD argument; ANY forbidden bits, 0, 1; RETURN deny; RETURN allow
    RETURN deny

Words are little-endian on both machines, so the low half of an argument is at the argument's offset. All forbidden bits are in
that half. See seccomp(2) and Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from typing import NamedTuple

from .kernel import prctl

_LOAD, _EQUAL, _ANY, _RETURN = 0x20, 0x15, 0x45, 0x06
_NR, _ARCH, _ARGUMENT = 0, 4, 16
# SECCOMP_RET_KILL_PROCESS, …_ALLOW and …_ERRNO. A denied call gets EPERM instead of death, because libraries try calls and go on
# without them.
_KILL, _ALLOW, _DENY = 0x80000000, 0x7FFF0000, 0x00050000 | errno.EPERM

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2

_PROT_EXEC = 0x4
_OTHER_CLOCKS = ~0xF & 0xFFFFFFFF  # the system's clocks have the numbers below 16; those of processes are negative
_O_WRITING = 0o3 | 0o100 | 0o1000 | 0o20000000  # write-only or read-write, O_CREAT, O_TRUNC, __O_TMPFILE


_Bounded = tuple[int, int, int]


class _Machine(NamedTuple):
    """A system call table: its AUDIT_ARCH, the free calls, and (call, argument, forbidden bits) for the bounded ones. Then those
    that a worker needs to read files."""

    arch: int
    free: tuple[int, ...]
    bounded: tuple[_Bounded, ...]
    free_of_files: tuple[int, ...]
    bounded_of_files: tuple[_Bounded, ...]


# read write close munmap brk rt_sigreturn mremap madvise sched_yield futex exit exit_group; bounded: mmap mprotect clock_gettime.
# For files: fstat lseek pread64 getdents64 newfstatat, on x86-64 the older stat and lstat; bounded: openat, on x86-64 open.
_MACHINES = {
    "x86_64": _Machine(
        0xC000003E,
        (0, 1, 3, 11, 12, 15, 24, 25, 28, 60, 202, 231),
        ((9, 2, _PROT_EXEC), (10, 2, _PROT_EXEC), (228, 0, _OTHER_CLOCKS)),
        (4, 5, 6, 8, 17, 217, 262),
        ((257, 2, _O_WRITING), (2, 1, _O_WRITING)),
    ),
    "aarch64": _Machine(
        0xC00000B7,
        (63, 64, 57, 215, 214, 139, 216, 233, 124, 98, 93, 94),
        ((222, 2, _PROT_EXEC), (226, 2, _PROT_EXEC), (113, 0, _OTHER_CLOCKS)),
        (80, 62, 67, 61, 79),
        ((56, 2, _O_WRITING),),
    ),
}


def assemble(machine: str, *, files: bool) -> bytes:
    """Return the filter program for `x86_64` or `aarch64`. `files`: with the calls that read files. Raises `OSError` for another
    machine."""
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no system call filter for {machine}; x86_64 and aarch64 have one")
    arch, free, bounded, free_of_files, bounded_of_files = _MACHINES[machine]
    if files:
        free, bounded = free + free_of_files, bounded + bounded_of_files
    # The table first: the same number is another call in another table. The x32 calls have this machine's arch, but bit 30 in
    # their number, so they are not listed.
    program = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NR)]
    for number in free:
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for number, argument, forbidden in bounded:
        program += [
            (_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, _ARGUMENT + 8 * argument),
            (_ANY, 0, 1, forbidden),
            (_RETURN, 0, 0, _DENY),
            (_RETURN, 0, 0, _ALLOW),
        ]
    program.append((_RETURN, 0, 0, _DENY))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def install(machine: str, *, files: bool) -> None:
    """Install the filter for the rest of this process, which must have one thread. Raises `OSError`."""
    program = assemble(machine, files=files)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    # First: without it the kernel lets only root install a filter.
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(Program(len(program) // 8, program)))
