"""Refuse files, network, and the world outside of this process by Landlock, as far as the kernel has it.

A second wall behind the filter of `seccomp`, which holds alone: many kernels have no Landlock, or one that is off. See
landlock(7) and linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import os

from .kernel import LIBC

# The same numbers on all machines: landlock_create_ruleset, landlock_restrict_self.
_CREATE, _RESTRICT = ctypes.c_long(444), ctypes.c_long(446)
_ZERO, _VERSION = ctypes.c_long(0), ctypes.c_long(1)  # the flag LANDLOCK_CREATE_RULESET_VERSION
# The highest right on files by version: 1 has 13 rights, 2 adds REFER, 3 TRUNCATE, 5 IOCTL_DEV.
_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NETWORK = {4: 0b11}  # TCP: bind, connect
_SCOPES = {6: 0b11}  # abstract sockets, signals


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


def restrict() -> int:
    """Refuse all that this kernel can refuse, for the rest of this process, which gets no new privileges.

    Returns the version of Landlock that was applied. 0: the kernel has none, or its layers are used up.
    """
    version = LIBC.syscall(_CREATE, None, _ZERO, _VERSION)
    if version < 1:
        return 0
    handled = _Ruleset(*(_known(rights, version) for rights in (_FILES, _NETWORK, _SCOPES)))
    # Without a rule nothing of it is allowed. An old kernel takes a longer structure whose end is zero.
    ruleset = LIBC.syscall(_CREATE, ctypes.byref(handled), ctypes.c_size_t(ctypes.sizeof(handled)), _ZERO)
    if ruleset < 0:
        return 0
    is_applied = LIBC.syscall(_RESTRICT, ctypes.c_long(ruleset), _ZERO) == 0
    os.close(ruleset)
    return int(version) if is_applied else 0


def _known(rights: dict[int, int], version: int) -> int:
    return max((mask for since, mask in rights.items() if since <= version), default=0)
