"""Call the kernel for the things that Python has no function for."""

from __future__ import annotations

import ctypes
import errno

PR_CAPBSET_DROP = 24
_CAPABILITY_VERSION = 0x20080522
LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, argument: int, pointer: object = None) -> None:
    """Call prctl(2) with two arguments. Raises `OSError`."""
    zero = ctypes.c_ulong(0)  # it reads five arguments as long; an int could leave half of a register undefined
    second = zero if pointer is None else pointer
    if LIBC.prctl(option, ctypes.c_ulong(argument), second, zero, zero) != 0:
        raise failure(f"prctl({option})")


def drop_capabilities() -> None:
    """Give up all capabilities of this process. Raises `OSError`."""
    # With the permitted set the ambient one goes too.
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    if LIBC.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise failure("capset")


def failure(call: str) -> OSError:
    """Return the error of the last call."""
    code = ctypes.get_errno()
    return OSError(code, f"{call}: {errno.errorcode.get(code, code)}")
