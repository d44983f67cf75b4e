"""The system call filter, run by an interpreter of the few BPF instructions it is made of."""

from __future__ import annotations

import errno
import struct

import pytest

from treaty_sandbox.worker.seccomp import assemble

ALLOW, KILL, DENY = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
LAST_CALL = 500

# Every call that is free, and those that depend on an argument: (number, argument, an allowed word, a refused one). By
# the machine, and whether files can be read.
FREE = {
    ("x86_64", False): {0, 1, 3, 11, 12, 15, 24, 25, 28, 60, 202, 231},
    ("x86_64", True): {0, 1, 3, 4, 5, 6, 8, 11, 12, 15, 17, 24, 25, 28, 60, 202, 217, 231, 262},
    ("aarch64", False): {57, 63, 64, 93, 94, 98, 124, 139, 214, 215, 216, 233},
    ("aarch64", True): {57, 61, 62, 63, 64, 67, 79, 80, 93, 94, 98, 124, 139, 214, 215, 216, 233},
}
BOUNDED = {
    ("x86_64", False): [(9, 2, 0x3, 0x7), (10, 2, 0x1, 0x4), (228, 0, 7, 0xFFFFFFF6)],
    ("aarch64", False): [(222, 2, 0x3, 0x7), (226, 2, 0x1, 0x4), (113, 0, 7, 0xFFFFFFF6)],
}
BOUNDED |= {
    ("x86_64", True): [*BOUNDED["x86_64", False], (257, 2, 0o2000000, 0o1), (2, 1, 0, 0o2)],
    ("aarch64", True): [*BOUNDED["aarch64", False], (56, 2, 0o2000000, 0o1)],
}
each = pytest.mark.parametrize(("machine", "files"), FREE)
FORBIDDEN_OPEN_FLAGS = [0o1, 0o2, 0o3, 0o100, 0o1000, 0o20000000 | 0o200000, 0o1 | 0o2000]


def verdict(program: bytes, arch: int, number: int, arguments: tuple[int, ...] = (0,) * 6) -> int:
    """What the kernel would do: the program over a struct seccomp_data."""
    data = struct.pack("<iIQ6Q", number, arch, 0, *arguments)
    instructions = list(struct.iter_unpack("<HBBI", program))
    at = accumulator = 0
    while True:
        code, if_true, if_false, k = instructions[at]
        at += 1
        if code == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif code == 0x15:  # BPF_JMP | BPF_JEQ | BPF_K
            at += if_true if accumulator == k else if_false
        elif code == 0x45:  # BPF_JMP | BPF_JSET | BPF_K
            at += if_true if accumulator & k else if_false
        else:
            assert code == 0x06  # BPF_RET | BPF_K
            return int(k)


@each
def test_every_call_is_denied_but_the_listed(machine: str, files: bool) -> None:
    program = assemble(machine, files=files)
    bounded = {number for number, *_ in BOUNDED[machine, files]}
    for number in range(LAST_CALL):
        if number not in bounded:
            expected = ALLOW if number in FREE[machine, files] else DENY
            assert verdict(program, ARCH[machine], number) == expected, number
    for number in (-1, 2**31 - 1, 0x40000000, 0x40000000 | 1):  # the last two are read and write of the x32 table
        assert verdict(program, ARCH[machine], number) == DENY


@each
def test_bounded_calls_depend_on_their_argument(machine: str, files: bool) -> None:
    program = assemble(machine, files=files)
    for number, argument, good, bad in BOUNDED[machine, files]:
        for word, expected in ((0, ALLOW), (good, ALLOW), (bad, DENY), (0xFFFFFFFF, DENY), (good | bad, DENY)):
            arguments = tuple(word if index == argument else 0xFFFFFFFFFFFFFFFF for index in range(6))
            assert verdict(program, ARCH[machine], number, arguments) == expected, (number, word)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("flags", FORBIDDEN_OPEN_FLAGS)
def test_files_open_for_reading_only(machine: str, flags: int) -> None:
    [(number, argument)] = [(n, a) for n, a, *_ in BOUNDED[machine, True] if n in (56, 257)]
    arguments = tuple(flags if index == argument else 0 for index in range(6))
    assert verdict(assemble(machine, files=True), ARCH[machine], number, arguments) == DENY


@pytest.mark.parametrize("arch", [0x40000003, 0x40000028, 0xC00000B7, 0x14, 0])
def test_another_table_of_calls_kills(arch: int) -> None:
    assert verdict(assemble("x86_64", files=False), arch, 0) == KILL


def test_the_program_fits_the_kernel() -> None:
    for machine in ARCH:
        program = assemble(machine, files=True)
        assert len(program) % 8 == 0
        assert len(program) // 8 <= 4096
        for at, (code, if_true, if_false, _) in enumerate(struct.iter_unpack("<HBBI", program)):
            if code in (0x15, 0x45):
                assert at + 1 + max(if_true, if_false) < len(program) // 8


def test_other_machines_have_none() -> None:
    with pytest.raises(OSError, match="riscv64"):
        assemble("riscv64", files=False)
