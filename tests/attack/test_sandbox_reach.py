"""What a handler can reach from inside the sandbox: nothing it could harm, and nothing it could learn from."""

from __future__ import annotations

import getpass
import hmac
import os
import re
import socket
import sys
import zlib
from pathlib import Path

import pytest
from sandboxes import probe, sandboxed

from treaty_sandbox import Isolation

HERE, HOME = Path(__file__).resolve(), Path.home()
pytestmark = pytest.mark.usefixtures("level")
each_level = pytest.mark.parametrize("level", ["bubblewrap", "process"], indirect=True)
in_bubblewrap = pytest.mark.parametrize("level", ["bubblewrap"], indirect=True)
REFUSED = ("PermissionError", "OSError", "RuntimeError", "ImportError", "NotImplementedError")


@each_level
@pytest.mark.threat(48)
async def test_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        async with probe() as inside:
            for family in ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"):
                assert await inside.attempt(f"import _socket; _socket.socket(_socket.{family})") in (
                    "PermissionError",
                    "ImportError",
                )
            # The same by the bare system call, for whoever brings no module along: socket(AF_INET, SOCK_STREAM, 0).
            assert await inside.run(_syscall("SOCKET", 2, 1, 0)) == -1
            assert (
                await inside.attempt(f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}')") != "it worked"
            )


@in_bubblewrap
async def test_the_view_holds_nothing_else() -> None:
    async with probe() as inside:
        roots = await inside.run("import os; value = sorted(os.listdir('/'))")
        assert set(roots) <= {"python", "treaty", "lib", "lib64"}, roots
        assert len(roots) == 3, roots  # of the last two that one where the interpreter looks for its loader
        assert await inside.run("import os; value = sorted(os.listdir('/treaty'))") == ["msgspec", "treaty_handler", "worker"]
        for path in ("/etc", "/home", "/root", "/proc", "/dev", "/sys", "/tmp", "/var", "/run", "/work", "/opt", "/bin", "/usr"):
            assert await inside.attempt(f"import os; os.listdir({path!r})") == "FileNotFoundError", path


@in_bubblewrap
@pytest.mark.threat(49)
async def test_only_the_interpreters_own_files_are_visible() -> None:
    walk = "import os; value = [f'{place}/{name}' for place, _, names in os.walk('/') for name in names]"
    own = re.compile(
        r"/(lib|lib64)/ld-[a-z0-9._-]+"
        r"|/python/bin/python3\.[0-9]+"
        r"|/python/lib/lib[A-Za-z0-9+._-]+\.so[0-9.]*"
        r"|/python/lib(64)?/python3\.[0-9]+/([A-Za-z0-9_]+/)*[A-Za-z0-9_]+\.pyc"
        r"|/python/lib(64)?/python3\.[0-9]+/lib-dynload/[A-Za-z0-9_.-]+\.so"
        r"|/treaty/(worker|treaty_handler(/declarative)?|msgspec)/([A-Za-z0-9_]+\.pyc|_core\.[a-z0-9_.-]+\.so)"
    )
    async with probe() as inside:
        files = await inside.run(walk)
    assert len(files) > 400
    assert [path for path in files if not own.fullmatch(path)] == []
    names = {path.rpartition("/")[2] for path in files}
    assert not {name for name in names if name.startswith(("_sysconfigdata", "sitecustomize"))}
    libraries = [path for path in files if path.startswith("/python/lib/lib")]
    assert len(libraries) < 20, libraries  # what the worker has mapped, and not what the host has installed


@in_bubblewrap
@pytest.mark.threat(49)
async def test_no_file_gives_away_a_path_or_the_login_name_of_the_host() -> None:
    private = {str(HOME), str(HOME.resolve()), str(HERE.parents[2]), str(Path.cwd()), sys.base_prefix, sys.prefix}
    if getpass.getuser() != "root":  # a word like any other
        private.add(getpass.getuser())
    private -= {"/", "/usr", "/usr/local"}
    search = (
        "import os\nvalue = []\n"
        "for place, _, names in os.walk('/'):\n"
        "    for name in names:\n"
        "        with open(f'{place}/{name}', 'rb') as stream: data = stream.read()\n"
        f"        value += [(f'{{place}}/{{name}}', word) for word in {sorted(private)!r} if word.encode() in data]"
    )
    names = (
        "import sys, types\nvalue = set()\n"
        "for module in list(sys.modules.values()):\n"
        "    value.add(str(getattr(module, '__file__', '')))\n"
        "    for item in list(getattr(module, '__dict__', {}).values()):\n"
        "        if isinstance(item, types.FunctionType): value.add(item.__code__.co_filename)\n"
        "value = sorted(name for name in value if name.startswith('/'))"
    )
    async with probe() as inside:
        assert await inside.run(search) == []
        names_read = await inside.run(names)
        assert names_read
        assert [name for name in names_read if not name.startswith(("/python/", "/treaty/", "/handler/"))] == []
        paths = await inside.run("import sys; value = str([sys.prefix, sys.base_prefix, sys.exec_prefix, sys.path, sys.argv])")
        assert [word for word in private if word in paths] == []


@each_level
@pytest.mark.threat(49)
async def test_neither_home_nor_repository_nor_installed_packages(tmp_path: Path, level: Isolation) -> None:
    refusal = "FileNotFoundError" if level == "bubblewrap" else "PermissionError"
    secret = tmp_path / "secret"
    secret.write_text("swordfish")
    secret.chmod(0o644)
    async with probe() as inside:
        for path in (secret, HERE, HOME / ".bashrc", HOME / ".treaty"):
            assert await inside.attempt(f"open({str(path)!r})") == refusal, path
        for module in ("jsonschema_rs", "sigstore", "treaty_io", "treaty_client", "treaty_consensus", "pip", "pytest"):
            assert await inside.attempt(f"import {module}") == "ModuleNotFoundError", module


@each_level
async def test_the_standard_library_is_there_as_far_as_it_computes() -> None:
    works = (
        "import array, base64, bisect, collections, copy, csv, dataclasses, datetime, decimal, email, enum, functools\n"
        "import fractions, hashlib, heapq, hmac, html, io, itertools, json, math, random, re, statistics, string, struct\n"
        "import textwrap, typing, unicodedata, urllib.parse, uuid, xml.etree.ElementTree, zlib, bz2, lzma, treaty_handler\n"
        "value = [hashlib.sha256(b'').hexdigest()[:8], xml.etree.ElementTree.fromstring('<a>1</a>').text,"
        "        random.Random(7).random() == random.Random(7).random(), str(decimal.Decimal(1) / 3)[:5],"
        "        hmac.new(b'k', b'm', 'sha256').hexdigest()[:4], zlib.crc32(b'x'), csv.writer.__name__]"
    )
    mac = hmac.new(b"k", b"m", "sha256").hexdigest()[:4]
    async with probe() as inside:
        assert await inside.run(works) == ["e3b0c442", "1", True, "0.333", mac, zlib.crc32(b"x"), "writer"]


@each_level
@pytest.mark.threat(49)
async def test_nothing_is_writable() -> None:
    async with probe() as inside:
        for folder in ("/", "/python", "/python/lib", "/treaty", "/treaty/worker"):
            path = f"{folder}/x"
            assert await inside.attempt(f"open({path!r}, 'w')") in ("PermissionError", "OSError"), folder
            assert await inside.attempt(f"import os; os.mkdir({path!r})") in ("PermissionError", "OSError"), folder
        writing = {
            "os.open('/treaty/worker/main.pyc', os.O_RDWR)",
            "os.open('/treaty/worker/main.pyc', os.O_WRONLY)",
            "os.open('/', os.O_TMPFILE | os.O_RDWR)",
            "os.open('/treaty/worker/main.pyc', os.O_RDONLY | os.O_TRUNC)",
            "os.memfd_create('x')",
            "os.unlink('/treaty/worker/main.pyc')",
            "os.rename('/treaty', '/x')",
            "os.symlink('/', '/x')",
            "os.chmod('/treaty', 0o777)",
            "os.truncate('/treaty/worker/main.pyc', 0)",
            "os.chdir('/treaty')",
        }
        for code in writing:
            assert await inside.attempt(f"import os; {code}") in ("PermissionError", "OSError"), code


@in_bubblewrap
async def test_every_mount_is_read_only() -> None:
    """The system call filter is not what keeps files from being written, or not alone."""
    async with probe() as inside:
        mounts = [line.split(" ") for line in (interpreter() / "mountinfo").read_text().splitlines()]
        assert "/" in {fields[4] for fields in mounts}
        assert {fields[4]: fields[5] for fields in mounts if "ro" not in fields[5].split(",")} == {}
        assert await inside.run("value = 1") == 1


@each_level
@pytest.mark.threat(51)
async def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "swordfish")
    monkeypatch.setenv("PYTHONPATH", "/swordfish")
    async with probe() as inside:
        assert set(await inside.run("import os; value = list(os.environ)")) <= {"LD_LIBRARY_PATH", "PWD", "LC_CTYPE", "TZ"}
        assert "swordfish" not in str(await inside.run("import os, sys; value = [dict(os.environ), sys.path, sys.argv]"))
        # The host's name is not the sandbox's, and even that is not told.
        assert await inside.attempt("import os; assert os.uname().nodename == 'x'") == "PermissionError"


@each_level
@pytest.mark.threat(51)
async def test_it_is_nobody(level: Isolation) -> None:
    async with probe() as inside:
        # Seen from outside: bwrap keeps the uid of whoever started it, the interpreter below it does not keep root's.
        worker = interpreter()
        status = dict(line.split(":\t", 1) for line in (worker / "status").read_text().splitlines() if ":\t" in line)
        assert {int(uid) for uid in status["Uid"].split()} == {os.getuid() or 65534}
        assert {int(gid) for gid in status["Gid"].split()} == {os.getgid() or 65534}
        # An ordinary user may not drop a right from the bound, and no program that it could run would get one.
        bound = () if level == "process" and os.getuid() != 0 else ("CapBnd",)
        assert [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", *bound, "CapAmb")] == [0] * (4 + len(bound))
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        if level == "bubblewrap":
            for namespace in ("user", "pid", "net", "ipc", "uts", "mnt", "cgroup"):
                assert namespace_of(worker, namespace) != namespace_of(Path("/proc/self"), namespace), namespace
        if level == "bubblewrap" or os.getuid() == 0:  # its memory and its descriptors are closed to other processes of this user
            assert descriptors(worker) == ["0"]
        assert await inside.run("value = 1") == 1


@each_level
@pytest.mark.threat(50)
async def test_no_process_and_no_signal() -> None:
    async with probe() as inside:
        for code in (
            "os.fork()",
            "os.posix_spawn('/python/bin/python3', ['python3'], {})",
            "os.execv('/python/bin/python3', ['x'])",
            "os.system('true') == 0 or exec('raise PermissionError')",
            "os.kill(1, 9)",
            "os.killpg(0, 9)",
            "os.setuid(0)",
            "os.setgid(0)",
            "os.pipe()",
            "os.nice(-1)",
            "os.sched_setaffinity(0, {0})",
            "os.chroot('/')",
            "os.urandom(1)",
            "os.getrandom(1)",
            "__import__('_thread').start_new_thread(print, ())",
            "__import__('signal').alarm(1) == 0 or exec('raise PermissionError')",
            "__import__('time').sleep(0.1)",
            "__import__('signal').signal(2, print)",
        ):
            assert await inside.attempt(f"import os\n{code}") in REFUSED, code
        # Python 3.13 opens the terminal before it forks, and there is none. Before that the fork itself is refused.
        assert await inside.attempt("import os\nos.forkpty()") in (*REFUSED, "FileNotFoundError")
        for name, *arguments in (
            ("PRLIMIT64", 0, 0, 0, 0),
            ("EXECVE", 0, 0, 0),
            ("PTRACE", 0, 1, 0),
            ("UNSHARE", 0x10000000),
            ("MOUNT", 0, 0, 0),
            ("BPF", 0, 0, 0),
            ("IO_URING_SETUP", 1, 0),
            ("USERFAULTFD", 0),
            ("PERF_EVENT_OPEN", 0, 0, 0),
            ("KEYCTL", 0, 0),
            ("PROCESS_VM_READV", 1, 0, 0),
            ("MEMFD_SECRET", 0),
            ("PRCTL", 22, 0, 0),
        ):
            assert await inside.run(_syscall(name, *arguments)) == -1, name
            assert await inside.run("import errno; value = session.kept['errno'] == errno.EPERM"), name


@each_level
@pytest.mark.threat(50)
async def test_no_clock_tells_of_another_process() -> None:
    async with probe() as inside:
        assert await inside.attempt("import time; time.clock_gettime(time.CLOCK_MONOTONIC), time.process_time()") == "it worked"
        for pid in (0, 1, os.getpid()):
            assert await inside.attempt(f"import time; time.clock_gettime((~{pid} << 3) | 2)") == "PermissionError"


@each_level
@pytest.mark.threat(50)
async def test_no_native_code_after_the_doors_closed() -> None:
    async with probe() as inside:
        # mmap(0, 4096, READ|WRITE|EXEC, PRIVATE|ANONYMOUS, -1, 0), and making memory executable later.
        assert await inside.run(_syscall("MMAP", 0, 4096, 7, 0x22, -1, 0)) == -1
        assert await inside.run(_syscall("MPROTECT", 0, 4096, 5)) == -1
        for module in {"_sqlite3", "_ssl", "_posixsubprocess", "mmap", "_asyncio"} - set(sys.builtin_module_names):
            assert await inside.attempt(f"import {module}") in ("ImportError", "ModuleNotFoundError"), module


@each_level
@pytest.mark.threat(51)
async def test_inherited_descriptors_are_closed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("swordfish")
    descriptor = os.open(secret, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        async with probe() as inside:
            for number in {1, 2, 3, descriptor}:
                assert await inside.attempt(f"import os; os.read({number}, 0)") == "OSError", number
            assert await inside.attempt("import os; os.read(0, 0)") == "it worked"
    finally:
        os.close(descriptor)


@each_level
async def test_printing_is_harmless_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    async with probe() as inside:
        assert await inside.attempt("import sys; print('x' * 10_000_000); print('y', file=sys.stderr)") == "it worked"
        assert await inside.run("value = 7") == 7
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def interpreter() -> Path:
    """The /proc folder of the one worker."""
    [pid] = sandboxed()
    return Path(f"/proc/{pid}")


def descriptors(process: Path) -> list[str]:
    return [entry.name for entry in (process / "fd").iterdir()]


def namespace_of(process: Path, kind: str) -> Path:
    return (process / "ns" / kind).readlink()


# System call numbers: x86_64, aarch64.
_NUMBERS = {
    "MMAP": (9, 222),
    "MPROTECT": (10, 226),
    "SOCKET": (41, 198),
    "EXECVE": (59, 221),
    "PTRACE": (101, 117),
    "PRCTL": (157, 167),
    "MOUNT": (165, 40),
    "KEYCTL": (250, 219),
    "UNSHARE": (272, 97),
    "PRLIMIT64": (302, 261),
    "PERF_EVENT_OPEN": (298, 241),
    "PROCESS_VM_READV": (310, 270),
    "BPF": (321, 280),
    "USERFAULTFD": (323, 282),
    "IO_URING_SETUP": (425, 425),
    "MEMFD_SECRET": (447, 447),
}


def _syscall(name: str, *arguments: int) -> str:
    """Code that makes a bare system call; `value` is what it returned."""
    number = _NUMBERS[name][os.uname().machine == "aarch64"]
    words = ", ".join(f"ctypes.c_long({argument})" for argument in (number, *arguments))
    return (
        "import sys; ctypes = sys.modules['ctypes']\n"
        f"value = ctypes.CDLL(None, use_errno=True).syscall({words})\n"
        "session.kept['errno'] = ctypes.get_errno()"
    )
