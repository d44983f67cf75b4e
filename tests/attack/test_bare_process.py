"""The level `process`: what a namespace hides is out of reach, because no system call can name it."""

from __future__ import annotations

import asyncio
import errno
import getpass
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from handler_packages import LOCAL, PEER, package
from sandboxes import descendants, gone, probe, sandboxed, status_of, template

import treaty_sandbox
from treaty_consensus.errors import Unavailable
from treaty_sandbox import Isolation, SandboxPool
from treaty_sandbox.isolation import at_least
from treaty_sandbox.levels import bare_process, bubblewrap

pytestmark = [pytest.mark.usefixtures("level"), pytest.mark.parametrize("level", ["process"], indirect=True)]
HERE, HOME, SUPPORT = Path(__file__).resolve(), Path.home(), Path(__file__).resolve().parents[1] / "support"
WORKER = str(Path(treaty_sandbox.__file__).parent)
HARDENED = str(SUPPORT / "hardened.py")

# Whether a worker that starts here is at the expected level, and computes.
LEVEL = """
import asyncio, sys
from sandboxes import probe
from treaty_sandbox import SandboxPool
async def main():
    async with SandboxPool(size=1) as pool:
        await pool.warm()
        print(pool.isolation, *pool.lacks)
    async with probe() as inside:
        print(await inside.run("value = 6 * 7"), await inside.attempt("import os; os.stat('/etc/passwd')"))
asyncio.run(main())
"""
# The rights of the agent, and of its worker and template.
RIGHTS = """
import asyncio
from sandboxes import descendants, probe, status_of
async def main():
    print(int(status_of("self")["CapEff"], 16) > 0)
    async with probe():
        print({int(status_of(pid)[name], 16) for pid in descendants() for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")})
asyncio.run(main())
"""
# What Landlock alone refuses, without the filter.
SECOND_WALL = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", 0))
sys.path.insert(0, sys.argv[1])
from worker import landlock, process, seccomp
from worker.kernel import prctl
seccomp.install = lambda *_, **__: None
restrict = landlock.restrict
def restricted():
    global version
    version = restrict()
landlock.restrict = restricted
prctl(38, 1)
process.Pathless("").restrict()
for attempt in (
    lambda: os.listdir("/"),
    lambda: open("/etc/passwd"),
    lambda: socket.create_connection(server.getsockname()),
    lambda: os.kill(os.getppid(), 0),
):
    try: attempt()
    except PermissionError: print("refused")
    else: print("done")
print(version)
"""


def calls(numbers: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """The numbers of this machine."""
    return {
        name: both[os.uname().machine == "aarch64"] for name, both in numbers.items() if both[os.uname().machine == "aarch64"]
    }


# x86_64, aarch64; 0: not there. Each takes a path, a descriptor of another file, or the number of another process.
DENIED = {
    "open": (2, 0),
    "stat": (4, 0),
    "lstat": (6, 0),
    "access": (21, 0),
    "readlink": (89, 0),
    "getcwd": (79, 17),
    "openat": (257, 56),
    "newfstatat": (262, 79),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlinkat": (267, 78),
    "statx": (332, 291),
    "openat2": (437, 437),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "statfs": (137, 43),
    "chdir": (80, 49),
    "execveat": (322, 281),
    "inotify_add_watch": (254, 27),
    "fsopen": (430, 430),
    "open_tree": (428, 428),
    "getxattr": (191, 8),
    "utimensat": (280, 88),
    "uselib": (134, 0),
    "acct": (163, 89),
    "fstat": (5, 80),
    "lseek": (8, 62),
    "pread64": (17, 67),
    "getdents64": (217, 61),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "dup": (32, 23),
    "sendmsg": (46, 211),
    "recvmsg": (47, 212),
    "sendto": (44, 206),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "memfd_create": (319, 279),
    "splice": (275, 76),
    "sendfile": (40, 71),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "process_madvise": (440, 440),
    "getpriority": (140, 141),
    "sched_getaffinity": (204, 123),
    "get_robust_list": (274, 100),
    "getpgid": (121, 155),
    "getsid": (124, 156),
    "getppid": (110, 173),
    "getpid": (39, 172),
    "uname": (63, 160),
    "clone": (56, 220),
    "clone3": (435, 435),
    "fork": (57, 0),
    "vfork": (58, 0),
    "wait4": (61, 260),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "io_setup": (206, 0),
    "io_uring_enter": (426, 426),
    "sigaltstack": (131, 132),
    "rt_sigaction": (13, 134),
    "personality": (135, 92),
    "pkey_mprotect": (329, 288),
    "arch_prctl": (158, 0),
    "modify_ldt": (154, 0),
    "seccomp": (317, 277),
    "setrlimit": (160, 164),
    "prctl": (157, 167),
    "landlock_create_ruleset": (444, 444),
    "syslog": (103, 116),
    "sysinfo": (99, 179),
    "getrandom": (318, 278),
    "nanosleep": (35, 101),
    "timer_create": (222, 107),
    "setitimer": (38, 103),
    "times": (100, 153),
    "getrusage": (98, 165),
    "mincore": (27, 232),
    "mlock": (149, 228),
    "remap_file_pages": (216, 234),
    "keyctl": (250, 219),
}


@pytest.mark.threat(450)
async def test_no_call_names_a_path_a_descriptor_or_a_process() -> None:
    code = (
        "import sys, errno; ctypes = sys.modules['ctypes']; libc = ctypes.CDLL(None, use_errno=True)\n"
        "buffer, path = ctypes.create_string_buffer(4096), ctypes.c_char_p(b'/etc/passwd')\n"
        "zero, here = ctypes.c_long(0), ctypes.c_long(-100)\n"
        "value = []\n"
        f"for name, number in {calls(DENIED)!r}.items():\n"
        "    for first in (path, here, zero, ctypes.c_long(-1), buffer):\n"
        "        ctypes.set_errno(0)\n"
        "        result = libc.syscall(ctypes.c_long(number), first, path, zero, buffer, zero, zero)\n"
        "        if (result, ctypes.get_errno()) != (-1, errno.EPERM): value.append(name)\n"
    )
    async with probe() as inside:
        assert await inside.run(code) == []
        for call in ("stat", "lstat", "listdir", "readlink", "statvfs", "chdir", "open"):
            arguments = "'/etc/passwd', 0" if call == "open" else "'/etc/passwd'"
            assert await inside.attempt(f"import os; os.{call}({arguments})") == "PermissionError", call


def memory_of(pid: int) -> Iterator[tuple[str, bytes]]:
    """All memory that a process can read, with the lines that name it to the host."""
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, end = (int(number, 16) for number in line.split(" ")[0].split("-"))
            if " r" in line and "[v" not in line:  # the kernel's own pages cannot be read from outside
                memory.seek(begin)
                yield line, memory.read(end - begin)


def owner_of_memory(pid: int) -> int:
    return Path(f"/proc/{pid}/mem").stat().st_uid


def limits_of(pid: int) -> str:
    return Path(f"/proc/{pid}/limits").read_text()


async def test_foreign_tables_of_system_calls_lead_nowhere() -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("tables of x86-64")
    x32 = (
        "import sys; ctypes = sys.modules['ctypes']; libc = ctypes.CDLL(None, use_errno=True)\n"
        "value = [libc.syscall(ctypes.c_long(0x40000000 | number), b'/etc/passwd', 0, 0) for number in (2, 4, 39, 257, 520)]"
    )
    async with probe() as inside:
        assert await inside.run(x32) == [-1] * 5


@pytest.mark.threat(450)
async def test_no_byte_of_its_memory_names_a_place_of_the_host() -> None:
    """What handlers could find with ctypes: objects, the linker's names, arguments, environment, freed memory, the stack."""
    words = {str(HOME), str(HERE.parents[2]), str(Path.cwd()), sys.base_prefix, sys.prefix, "treaty/interpreters", "root:x:0:0"}
    words |= {os.uname().nodename, getpass.getuser()} if len(os.uname().nodename) > 5 and getpass.getuser() != "root" else set()
    words -= {"/", "/usr", "/usr/local"}
    async with probe() as inside:
        assert await inside.run("import sys; value = sys.path") == []
        [worker] = sandboxed()
        if os.getuid() != 0:
            pytest.skip("only root reads the memory of a worker")
        sizes = 0
        for place, content in memory_of(worker):
            sizes += len(content)
            # Pages that all workers share are those of the library, for reading. No page is both written and run.
            assert not re.search(" (.w.s|.wx.) ", place), place
            # The snapshot's own folder has a name like that of the home of root.
            foreign = content.replace(b"/proc/self/cwd/root", b"")
            assert [word for word in words if word.encode() in foreign] == [], place
        assert sizes > 10_000_000


@pytest.mark.threat(450)
async def test_the_library_that_workers_share_cannot_be_written() -> None:
    writable = (
        "import sys; ctypes = sys.modules['ctypes']; libc = ctypes.CDLL(None, use_errno=True)\n"
        "[library] = [one for one in sys.meta_path if type(one).__name__ == 'Library']\n"
        "address = ctypes.c_size_t.from_address(id(library._code.obj) + 16).value\n"  # mmap_object.data
        "length = int.from_bytes(ctypes.string_at(address, 8), 'big')\n"
        "marshalled = ctypes.string_at(address + 8, 1)\n"
        "value = [0 < length < 1 << 24, marshalled == b'\\xfb' or marshalled == b'{',\n"
        "         libc.mprotect(ctypes.c_size_t(address), ctypes.c_size_t(4096), 3), ctypes.get_errno()]"
    )
    async with probe() as inside:
        assert await inside.run(writable) == [True, True, -1, errno.EACCES]


async def test_its_modules_come_from_memory() -> None:
    code = (
        "import fractions, xml.etree.ElementTree, treaty_handler.declarative, json\n"
        "value = [fractions.__file__, json.loads.__code__.co_filename, type(fractions.__loader__).__name__]"
    )
    async with probe() as inside:
        origin, named, loader = await inside.run(code)
        assert origin.startswith("/python/lib") and named.startswith("/python/lib")
        assert loader == "Library"
        for module in ("mmap", "_posixsubprocess", "_sqlite3"):
            assert await inside.attempt(f"import {module}") == "ModuleNotFoundError", module


@pytest.mark.threat(450)
async def test_it_is_alone_in_its_session_and_leaves_no_core() -> None:
    async with probe() as inside:
        [worker] = sandboxed()
        forking = template()
        # Of all sessions, its own: no terminal of the agent, and no group that a signal reaches.
        assert os.getsid(worker) == os.getpgid(worker) == worker
        assert os.getsid(forking) == forking
        for pid in (worker, forking):
            status = status_of(pid)
            assert {int(uid) for uid in status["Uid"].split()} == {os.getuid() or 65534}
            assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
            assert status["NoNewPrivs"] == "1"
            if os.getuid() == 0:
                assert (status["CapBnd"], status["Groups"].strip()) == ("0" * 16, "")
            # A process whose memory is not dumped belongs to root in /proc, whoever runs it.
            assert owner_of_memory(pid) == 0
        limits = limits_of(worker)
        for name in ("Max core file size", "Max file size", "Max processes"):
            assert re.search(rf"^{name} +0 +0 ", limits, re.MULTILINE), name
        assert await inside.run("value = 1") == 1


@pytest.mark.threat(450)
async def test_its_memory_holds_nothing_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "swordfish")
    secret = bytearray(b"swordfish of the heap " * 1000)
    async with probe() as inside:
        [worker] = sandboxed()
        if os.getuid() == 0:
            assert secret and [place for place, content in memory_of(worker) if b"swordfish" in content] == []
        assert await inside.run("import os; value = sorted(os.environ)") in (
            ["LC_CTYPE", "LD_LIBRARY_PATH", "TZ"],
            ["LD_LIBRARY_PATH", "TZ"],
        )
        assert await inside.run("import time; value = list(time.tzname)") == ["UTC", "UTC"]


@pytest.mark.threat(450)
async def test_a_template_that_is_killed_takes_an_endless_loop_with_it() -> None:
    async with probe() as inside:
        task = asyncio.create_task(inside.run("while True: pass"))
        await asyncio.sleep(0.1)
        before = sandboxed()
        os.kill(template(), 9)
        assert await asyncio.to_thread(gone, before)
        with pytest.raises(Unavailable):
            await task


def under(*line: str, program: str = LEVEL, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program that ran below another one, such as `setpriv`."""
    environment = {**os.environ, "PYTHONPATH": ":".join([str(SUPPORT), *filter(None, sys.path)]), **variables}
    whole = [*line, sys.executable, "-c", program]
    return subprocess.run(whole, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.sample(1)
@pytest.mark.threat(450)
@pytest.mark.parametrize("options", [("--no-landlock",), ()], ids=["without Landlock", "with Landlock"])
def test_it_is_the_level_where_namespaces_are_denied(options: tuple[str, ...]) -> None:
    process = under(sys.executable, HARDENED, *options)
    assert process.stdout.splitlines() == ["process bubblewrap", "42 PermissionError"], process.stderr


@pytest.mark.deep
@pytest.mark.skipif(os.getuid() != 0, reason="of root alone")
def test_root_without_the_right_to_end_a_worker_starts_none() -> None:
    rights = ("setpriv", "--bounding-set", "-all,+setuid,+setgid", "--inh-caps", "-all")
    process = under(*rights, sys.executable, HARDENED)
    assert (process.returncode, process.stdout) == (1, "")
    assert "process: The sandbox did not start: root has no capability KILL here." in process.stderr


@pytest.mark.deep
@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a right to another user")
def test_a_right_of_the_agent_is_none_of_its_workers(tmp_path: Path) -> None:
    rights = ("--inh-caps", "+dac_override,+net_bind_service", "--ambient-caps", "+dac_override,+net_bind_service")
    user = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *rights)
    process = under(*user, sys.executable, HARDENED, program=RIGHTS, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert process.stdout.splitlines() == ["True", "{0}"], process.stderr


@pytest.mark.threat(450)
def test_landlock_is_a_wall_of_its_own() -> None:
    answers = subprocess.run([sys.executable, "-c", SECOND_WALL, WORKER], capture_output=True, text=True, check=True, timeout=30)
    *refusals, version = map(str.strip, answers.stdout.splitlines())
    if version == "0":
        pytest.skip("this kernel has no Landlock")
    # By version of the kernel's: files 1, network 4, signals 6.
    assert refusals == ["refused"] * 2 + ["refused" if int(version) >= since else "done" for since in (4, 6)]


@pytest.mark.threat(451)
async def test_a_level_stays_when_it_fails_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async with SandboxPool(size=0, levels=at_least("process")) as pool:
        worker = await pool.load_code(package(), local=LOCAL, peers=[PEER])
        assert (pool.isolation, pool.lacks) == ("bubblewrap", {})
        await worker.close()
        monkeypatch.setattr(bubblewrap, "_inner_options", lambda: ("--no-such-option",))
        os.kill(template(), 9)
        for _ in range(2):
            with pytest.raises(Unavailable, match="no-such-option") as caught:
                await pool.load_code(package(), local=LOCAL, peers=[PEER])
            assert caught.value.code == "sandbox.unavailable"
        assert pool.isolation == "bubblewrap"
    assert at_least("bubblewrap") == ("bubblewrap",)
    assert at_least("process") == ("bubblewrap", "process")


@pytest.mark.threat(451)
async def test_a_machine_without_any_level_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descendants()
    monkeypatch.setattr(bubblewrap, "_OF_A_TEMPLATE", ("--no-such-option",))
    monkeypatch.setattr(bubblewrap, "_inner_options", lambda: ("--no-such-option",))
    monkeypatch.setattr(bare_process, "_ROOT", "/no/such/folder")
    levels: tuple[tuple[Isolation, ...], ...] = (("bubblewrap",), ("bubblewrap", "process"))
    for accepted in levels:
        async with SandboxPool(size=0, levels=accepted) as pool:
            with pytest.raises(Unavailable) as caught:
                await pool.load_code(package(), local=LOCAL, peers=[PEER])
        assert caught.value.code == "sandbox.unavailable"
        assert "bubblewrap: " in caught.value.message and "no-such-option" in caught.value.message
        assert ("process: " in caught.value.message) == ("process" in accepted)
        assert ('isolation = "process"' in caught.value.fix) == ("process" not in accepted)
        assert "none" not in caught.value.fix and "Install bubblewrap" in caught.value.fix
    assert gone(descendants() - before)


@pytest.mark.deep
@pytest.mark.parametrize("user", ["the same user", "nobody"])
@pytest.mark.parametrize("options", [(), ("--no-landlock",)], ids=["with Landlock", "without Landlock"])
def test_the_suite_holds_where_namespaces_are_denied(user: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """The attacks at this level once more, as root or the user of the tests, and as a user without any right."""
    line = [sys.executable, HARDENED, *options, sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    files = [
        str(HERE.parent / f"test_sandbox_{name}.py") for name in ("batches", "code", "effects", "exhaustion", "reach", "streams")
    ]
    if user == "nobody":
        if os.getuid() != 0:
            pytest.skip("only root becomes another user")
        rights = ("--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set", "-all", "--inh-caps", "-all")
        line = ["setpriv", *rights, *line]
        if subprocess.run([*line[: 1 + len(rights)], sys.executable, "-c", ""], capture_output=True, check=False).returncode != 0:
            pytest.skip("another user cannot start this interpreter")
        tmp_path.chmod(0o777)
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "TREATY_DEPTH": "full"}
    tried = subprocess.run(
        [*line, "--basetemp", str(tmp_path / "tests"), *files, "-k", "not bubblewrap"], env=environment, check=False
    )
    assert tried.returncode == 0
