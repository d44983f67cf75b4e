"""Call the kernel for the things that Python has no function for."""

from __future__ import annotations

import ctypes
import errno
import resource
from collections.abc import Iterable

PR_CAPBSET_DROP = 24
_CAPABILITY_VERSION = 0x20080522
_PROT_READ_EXEC = 5  # not of the module mmap, which handlers must not have
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


def forbid_writes(functions: Iterable[object]) -> None:
    """Make the pages in which these functions of ctypes begin readable and executable, and no more. Raises `OSError`.

    Where libffi has no static trampolines, those of callbacks are in a page that is both written and run.
    """
    size = resource.getpagesize()
    for page in {(ctypes.cast(function, ctypes.c_void_p).value or 0) // size * size for function in functions}:  # type: ignore[arg-type]
        if LIBC.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(size), _PROT_READ_EXEC) != 0:
            raise failure("mprotect")


def failure(call: str) -> OSError:
    """Return the error of the last call."""
    code = ctypes.get_errno()
    return OSError(code, f"{call}: {errno.errorcode.get(code, code)}")
