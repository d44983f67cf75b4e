"""`treaty` as a process: exit statuses, both outputs, interrupts, colours, and the causes of a failed connection."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme
from signers import key_signer
from treaty_process import DURING_IMPORT, finished, start, treaty, treaty_here

from treaty_client.protocols.verification.steps import Step, VerificationFailed, taking
from treaty_command.failures import status_of
from treaty_consensus.codes import IdentityCode, LogCode, SystemCode
from treaty_consensus.errors import Conflict, Gone, Malformed, NotFound, Refused, TreatyError, Unavailable, Untrusted
from treaty_consensus.log.note import KeyType, VerifierKey
from treaty_io.codes import ClientTopicCode, ResolveCode, SandboxCode
from treaty_sandbox.levels import bubblewrap

KEY = VerifierKey("registry.example", KeyType.ED25519, key_signer("log").public_key)
ROOT = Path(__file__).parents[2]
HOSTILE = "\x1b]0;owned\x07\u202e[bold]"
ESCAPE = re.compile(r"\x1b")


@pytest.fixture
def home(tmp_path: Path) -> list[str]:
    return ["--home", str(tmp_path / "home")]


@contextmanager
def listening(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server on this machine that hands each connection to `serve`; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return  # closed at the end of the test
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@contextmanager
def registry(answers: dict[str, object], paths: list[str] | None = None) -> Iterator[str]:
    """A registry that answers a few paths with JSON; yields its URL. `asked` gets the targets of the requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if paths is not None:
                paths.append(self.path)
            body = json.dumps(answers.get(self.path.partition("?")[0])).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Nothing: the tests read standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def trust(home: list[str], url: str) -> None:
    assert treaty_here("trust", "add", f"{url}#{KEY}", *home)[0] == 0


# Exit statuses


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Refused("a.b", "No."), 1),
        (Conflict("a.b", "No."), 1),
        (Malformed("a.b", "No."), 1),
        (Unavailable(SystemCode.FILE, "No."), 1),
        (Malformed(SystemCode.USAGE, "No."), 2),
        (Unavailable("a.b", "No."), 3),
        (Untrusted("a.b", "No."), 4),
        (VerificationFailed(5, "a.b", "No."), 4),
        (NotFound("a.b", "No."), 5),
        (Gone("a.b", "No."), 5),
        (NotFound(ClientTopicCode.UNDECIDED, "No."), 6),
        (Unavailable(LogCode.CLOSING, "No."), 6),
        (Refused(IdentityCode.NEW_TENURE, "No."), 6),
        (VerificationFailed(1, ResolveCode.UNKNOWN, "No."), 5),
    ],
)
def test_each_family_has_its_status(error: TreatyError, status: int) -> None:
    assert status_of(error) == status


def test_an_unreached_host_proves_nothing_against_a_protocol() -> None:
    with pytest.raises(VerificationFailed) as failure, taking(Step.STATEMENTS):
        raise Unavailable("egress.unreachable", "No.")
    assert status_of(failure.value) == 3


@pytest.mark.parametrize(
    ("step", "cause", "status"),
    [
        (Step.RESOLVE, NotFound("protocol.unknown", "No."), 5),
        (Step.RESOLVE, Gone("a.b", "No."), 5),
        (Step.RESOLVE, Untrusted("a.b", "No."), 4),
        (Step.STATEMENTS, NotFound("bundle.form", "The proof lacks a statement."), 4),
    ],
)
def test_an_absent_name_differs_from_an_incomplete_proof(step: Step, cause: TreatyError, status: int) -> None:
    with pytest.raises(VerificationFailed) as failure, taking(step):
        raise cause
    assert status_of(failure.value) == status


def test_the_guide_has_the_table_of_statuses() -> None:
    guide = (ROOT / "docs" / "guides" / "command-line.md").read_text(encoding="utf-8")
    assert [int(status) for status in re.findall(r"^\| (\d+) \|", guide, re.MULTILINE)] == [0, 1, 2, 3, 4, 5, 6, 7, 130, 141]


@pytest.mark.sample(1)
@pytest.mark.parametrize("arguments", [["search", "--bogus"], ["vote"], ["nosuch"], ["search", "--limit", "many"]])
def test_a_wrong_command_line_is_an_error_like_others(arguments: list[str]) -> None:
    status, out, err = treaty_here(*arguments)
    assert (status, out) == (2, "")
    assert "system.usage" in err and "--help" in err and "╭" not in err
    status, out, err = treaty_here(*arguments, "--json")
    assert (status, err) == (2, "")
    assert json.loads(out)["error"]["code"] == "system.usage"


def test_a_wrong_command_line_cannot_control_the_terminal() -> None:
    status, _, err = treaty("search", f"--{HOSTILE}")
    assert status == 2 and err.replace("\n", "").isprintable()


def test_the_version_is_that_of_the_package() -> None:
    assert treaty("--version") == (0, f"{version('treaty-agents')}\n", "")


# Ctrl-C


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "module", ["treaty_client", "treaty_command.commands", "cyclopts", "rich.console", "httpx", "treaty_command.audit"]
)
def test_an_interrupt_during_an_import_is_quiet(module: str, home: list[str]) -> None:
    process = start("audit", *home, before=DURING_IMPORT.format(module=module))
    assert finished(process) == (130, "", "")


@pytest.mark.deep
@pytest.mark.sample(1)
@pytest.mark.parametrize("command", ["search", "audit", "doctor"])
def test_an_interrupt_while_a_registry_does_not_answer_is_quiet(command: str, home: list[str]) -> None:
    interrupt_due = threading.Event()

    def silent(connection: socket.socket) -> None:
        connection.recv(1)
        interrupt_due.set()
        connection.recv(65536)
        connection.recv(1)  # until the client is gone

    with listening(silent) as port:
        trust(home, f"http://127.0.0.1:{port}")
        process = start(command, *home)
        assert interrupt_due.wait(60)
        os.killpg(process.pid, signal.SIGINT)
        status, _, err = finished(process)
    assert (status, err) == (130, "")


@pytest.mark.deep
def test_an_interrupt_while_the_sandbox_works_is_quiet(home: list[str]) -> None:
    """Ctrl-C reaches the workers too. Their end is no error to show."""
    # This registry never answers, so that the command cannot end by itself before a busy machine sends the signal.
    with listening(lambda connection: bool(connection.recv(65536)) and connection.recv(1)) as port:
        trust(home, f"http://127.0.0.1:{port}")
        assert treaty_here("identity", "new", *home)[0] == 0
        process = start("publish", str(ROOT / "examples" / "greeting"), *home, environment={"PYTHONUNBUFFERED": "1"})
        assert process.stdout is not None
        assert "built" in process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        status, _, err = finished(process)
    assert (status, err) == (130, "")


# Colours


@pytest.mark.deep
def test_no_color_means_no_escape_sequence(home: list[str]) -> None:
    trust(home, "http://127.0.0.1:9")
    environment = {"FORCE_COLOR": "1", "COLUMNS": "80"}
    for arguments in (["--help"], ["identity", "show", *home], ["search", *home], ["audit", *home]):
        coloured, plain = (treaty(*arguments, environment={**environment, **more}) for more in ({}, {"NO_COLOR": "1"}))
        assert ESCAPE.search(coloured[1] + coloured[2]), "else this test shows nothing"
        assert not ESCAPE.search(plain[1] + plain[2])


def test_a_key_is_shown_whole_at_any_width(home: list[str]) -> None:
    trust(home, "http://127.0.0.1:9")
    name = f"http://127.0.0.1:9#{KEY}"
    assert name in treaty("trust", "list", *home, environment={"COLUMNS": "40"})[1].splitlines()[1]
    assert treaty_here("trust", "list", "--name", *home)[1] == f"{name}\n"


# Connections


def test_the_causes_of_a_failed_connection_are_told_apart(home: list[str], tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)

    def secure(connection: socket.socket) -> None:
        try:
            with context.wrap_socket(connection, server_side=True) as wrapped:
                wrapped.recv(65536)
        except OSError:
            pass  # the client does not trust it

    def plain(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    with listening(secure) as tls, listening(plain) as http:
        cases = {
            f"https://localhost:{tls}": "registry.unreachable",
            f"https://localhost:{http}": "registry.unreachable",
            f"http://127.0.0.1:{closed}": "registry.unreachable",
            "https://no-such-host.invalid": "registry.unreachable",
        }
        fixes = set()
        for number, (url, code) in enumerate(cases.items()):
            own = ["--home", str(tmp_path / str(number))]
            trust(own, url)
            status, out, _ = treaty_here("search", "x", "--json", *own)
            error = json.loads(out)["error"]
            assert (status, error["code"]) == (3, code), error
            fixes.add(error["fix"].replace(str(tls), "").replace(str(http), ""))
    assert len(fixes) == 3, "each cause has a fix of its own"


# Registries


def test_the_topics_of_a_registry_are_listed(home: list[str]) -> None:
    undecided = {"topic": "c", "protocols": 1, "consensus": None, "epoch": None}
    decided = {"topic": "a/b", "protocols": 3, "consensus": "ab" * 32, "epoch": 4}
    named = {**decided, "topic": "a/c", "uri": "https://r.example/protocols/acme.example/hotel/1.0", "status": "yanked"}
    named["successor"] = "https://r.example/protocols/acme.example/hotel/2.0"
    listed = {"topics": [decided, named, undecided]}
    reach = [{"epoch": 4, "able": "3", "pairs": "4"}, {"epoch": 3, "able": "0", "pairs": "4"}]
    about = dict.fromkeys(("origin", "key", "clock_key", "operator", "electorate"), "") | {"epoch": 5, "opened": 0, "size": 9}
    with registry({"/topics.json": listed | {"next": "c"}, "/log": about | {"reach": reach}}) as url:
        trust(home, url)
        status, out, err = treaty_here("topics", *home)
        assert "75.0 % of the pairs that report could speak at once at the end of epoch 4." in out
        assert (status, err) == (0, "")
        assert "a/b" in out and "abababab" in out and "treaty topics --after c" in out
        assert "acme.example/hotel 1.0 yanked, successor" in out and "acme.example/hotel 2.0" in out
        value = json.loads(treaty_here("topics", "--json", *home)[1])
    assert [topic["topic"] for topic in value["topics"]] == ["a/b", "a/c", "c"] and value["next"] == "c"
    assert value["reach"] == [{"epoch": 4, "able": "75.0 %"}, {"epoch": 3, "able": "0.0 %"}]


@pytest.mark.deep
def test_texts_of_a_hostile_registry_stay_printable(home: list[str]) -> None:
    topic = {"topic": HOSTILE, "protocols": 1, "consensus": HOSTILE, "epoch": 1}
    summary = {"uri": HOSTILE, "topic": HOSTILE, "title": HOSTILE, "hash": HOSTILE, "publisher": HOSTILE, "status": HOSTILE}
    grant = {"namespace": HOSTILE, "to": HOSTILE, "by": HOSTILE, "statement": HOSTILE, "index": 1}
    answers: dict[str, object] = {
        "/topics.json": {"topics": [topic], "next": HOSTILE},
        "/protocols": {"protocols": [summary], "next": None},
        "/grants": {"grants": [grant]},
    }
    with registry(answers) as url:
        trust(home, url)
        for arguments in (
            ["topics"],
            ["search"],
            ["search", "--uri"],
            ["grants", "did:wba:a.example"],
            ["topics", "-v"],
            ["doctor"],
        ):
            for more in ([], ["--json"]):
                _, out, err = treaty_here(*arguments, *more, *home)
                assert (out + err).replace("\n", "").isprintable(), arguments


def test_only_uris_are_printed_for_a_script(home: list[str]) -> None:
    summary = {"topic": "a/b", "title": "T", "hash": "ab", "publisher": "did:wba:a.example", "status": "active"}
    listing = {"protocols": [{**summary, "uri": f"https://r.example/protocols/a.example/x/{n}"} for n in (1, 2)], "next": None}
    with registry({"/protocols": listing}) as url:
        trust(home, url)
        lines = [f"https://r.example/protocols/a.example/x/{n}" for n in (1, 2)]
        assert treaty_here("search", "--uri", *home) == (0, "".join(f"{line}\n" for line in lines), "")
    with registry({"/protocols": {"protocols": [], "next": None}}) as url:
        own = [*home[:1], f"{home[1]}-2"]
        trust(own, url)
        status, out, _ = treaty_here("search", "--uri", *own)
        assert (status, out) == (5, "")


def test_a_limit_that_is_none_names_the_numbers(home: list[str]) -> None:
    with registry({}, paths := list[str]()) as url:
        trust(home, url)
        status, out, _ = treaty_here("search", "--limit", "0", "--json", *home)
    error = json.loads(out)["error"]
    assert (status, paths) == (2, []) and "--limit. Must be >= 1" in error["message"] and "treaty search --help" in error["fix"]


def test_filters_reach_the_registry(home: list[str]) -> None:
    paths: list[str] = []
    with registry({"/protocols": {"protocols": [], "next": None}}, paths) as url:
        trust(home, url)
        filters = {"topic": "a/b", "state": "consensus", "origin": "standard", "namespace": "a.example", "signed": "did"}
        arguments = [part for name, value in filters.items() for part in (f"--{name}", value)]
        assert treaty_here("search", "预订", *arguments, "--coverage", "all", "--code-free", *home)[0] == 0
        assert treaty_here("search", *home)[0] == 0
    queries = [{name: value for name, (value,) in parse_qs(urlsplit(path).query).items()} for path in paths]
    assert queries[0] == {"q": "预订", **filters, "coverage": "all", "handler": "code-free", "limit": "20"}
    assert queries[1] == {"limit": "20"}


def test_the_log_tells_requests_and_no_secrets(home: list[str]) -> None:
    with registry({"/protocols": {"protocols": [], "next": None}}) as url:
        trust(home, url)
        status, out, err = treaty_here("search", "my-secret-words", "-v", "--json", *home)
    assert status == 0 and json.loads(out) == {"protocols": []}
    assert re.fullmatch(rf"answered method=GET url={url}/protocols status=200 bytes=\d+ ms=\d+\n", err)


# Policy


WRITTEN = """# mine
max_age = 600
publishers = [
    "did:wba:a.example",  # a friend
]

[tenures]
"did:wba:a.example" = 1
"""


def test_a_publisher_is_allowed_and_the_file_stays_as_written(home: list[str]) -> None:
    file = Path(home[1]) / "policy.toml"
    assert treaty_here("policy", "list", *home)[1].startswith("No publisher is allowed")
    file.parent.mkdir(exist_ok=True)
    file.write_text(WRITTEN)
    for changed in (True, False):
        assert json.loads(treaty_here("policy", "allow", "did:wba:b.example", "--json", *home)[1])["changed"] is changed
    assert file.read_text() == WRITTEN.replace("a friend\n", 'a friend\n    "did:wba:b.example"\n')
    assert json.loads(treaty_here("policy", "list", "--json", *home)[1])["publishers"] == [
        "did:wba:a.example",
        "did:wba:b.example",
    ]
    file.unlink()
    for did in ("did:wba:a.example", "did:wba:b.example"):
        assert treaty_here("policy", "allow", did, *home)[0] == 0
    assert file.read_text() == 'publishers = ["did:wba:a.example", "did:wba:b.example"]\n'


def test_a_policy_that_is_a_link_stays_one_and_keeps_its_mode(home: list[str], tmp_path: Path) -> None:
    link, file = Path(home[1]) / "policy.toml", tmp_path / "kept-elsewhere.toml"
    file.write_text(WRITTEN)
    file.chmod(0o600)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(file)
    assert treaty_here("policy", "allow", "did:wba:b.example", *home)[0] == 0
    assert link.is_symlink()
    assert "did:wba:b.example" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


UNUSUAL = [
    "publishers = 3\n",
    'x = "\n',
    '["publishers"]\n',
    'publishers = [\n    "did:wba:a.example"  # no comma\n]\n',
    'publishers = ["did:wba:a.example", # a ] here\n]\n',
    '"publishers" = ["did:wba:a.example"]\n',
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("text", UNUSUAL)
def test_a_file_that_cannot_be_edited_stays_as_it_is(text: str, home: list[str]) -> None:
    file = Path(home[1]) / "policy.toml"
    file.parent.mkdir()
    file.write_text(text)
    status, out, _ = treaty_here("policy", "allow", "did:wba:b.example", "--json", *home)
    assert status == 1 and json.loads(out)["error"]["code"].startswith("policy.")
    assert file.read_text() == text


@pytest.mark.parametrize("did", ["rubbish", 'did:wba:a.example"]', "did:wba:a.example\n[x]"])
def test_no_text_but_a_did_comes_into_the_policy(did: str, home: list[str]) -> None:
    assert treaty_here("policy", "allow", did, *home)[0] == 1
    assert not (Path(home[1]) / "policy.toml").exists()


# Doctor, completion


def test_the_doctor_names_each_fault_and_its_fix(home: list[str]) -> None:
    status, out, _ = treaty_here("doctor", "--json", *home)
    checks = {check["check"]: check for check in json.loads(out)["checks"]}
    assert status == 1 and json.loads(out)["healthy"] is False
    assert (checks["identity"]["outcome"], checks["policy"]["outcome"]) == ("warning", "warning")
    assert (checks["trust"]["outcome"], checks["trust"]["code"]) == ("fault", "registry.not-trusted")
    assert all(check["fix"] for check in checks.values() if check["outcome"] != "ok")
    assert not (Path(home[1]) / "identity.json").exists()
    trust(home, "http://127.0.0.1:9")
    (Path(home[1]) / "policy.toml").write_text('isolation = "none"\nlost_memory = "refuse"\n')
    (Path(home[1]) / "agent.toml").write_text("[workers]\nmax_workers = 1000000\n")
    registries = json.loads((Path(home[1]) / "registries.json").read_text())
    registries["registries"]["registry.example"]["learned"] = 7
    (Path(home[1]) / "registries.json").write_text(json.dumps(registries))
    checks = {check["check"]: check for check in json.loads(treaty_here("doctor", "--json", *home)[1])["checks"]}
    assert (checks["sandbox"]["outcome"], checks["sandbox"]["code"]) == ("warning", "policy.file")
    assert checks["registry registry.example"]["code"] == "registry.unreachable"
    lost, workers = checks["memory of registry.example"], checks["memory of workers"]
    assert (lost["outcome"], lost["code"]) == ("fault", "memory.lost")
    assert "treaty trust accept-loss registry.example" in lost["fix"]
    treaty_here("trust", "accept-loss", "registry.example", *home)
    checks = {check["check"]: check for check in json.loads(treaty_here("doctor", "--json", *home)[1])["checks"]}
    assert checks["memory of registry.example"]["outcome"] == "ok"
    assert (workers["outcome"], workers["code"]) == ("warning", "config.file")
    assert "1000000 workers of 0.25 GiB" in workers["said"]


def test_the_doctor_names_the_level_and_the_lack_of_a_stronger_one(home: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> NoReturn:
        raise Unavailable(SandboxCode.UNAVAILABLE, "There is no bwrap.", fix="Install it.")

    def sandbox() -> dict[str, str]:
        checks = json.loads(treaty_here("doctor", "--json", *home)[1])["checks"]
        return next(check for check in checks if check["check"] == "sandbox")

    monkeypatch.setattr(bubblewrap, "find_bubblewrap", missing)
    check = sandbox()
    assert check["outcome"] == "ok"
    assert "at the level process." in check["said"] and "bubblewrap is not to be had: There is no bwrap." in check["said"]
    Path(home[1]).mkdir(exist_ok=True)
    (Path(home[1]) / "policy.toml").write_text('isolation = "bubblewrap"\n')
    check = sandbox()
    assert (check["outcome"], check["code"]) == ("fault", "sandbox.unavailable")
    assert check["fix"].startswith("Install it.") and 'isolation = "process"' in check["fix"]
    assert "none" not in check["fix"]


@contextmanager
def web(authority: trustme.CA, host: str, body: Callable[[], bytes | None]) -> Iterator[str]:
    """A web server that has one body at every path, or nothing; yields the option that leads to it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(host).configure_cert(context)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            wrapped.recv(65536)
            content = body()
            status = "404 Not Found" if content is None else "200 OK"
            wrapped.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(content or b'')}\r\n\r\n".encode() + (content or b""))

    with listening(serve) as port:
        yield f"--resolve={host}=127.0.0.1:{port}"


def test_the_doctor_compares_the_served_document_with_the_key(home: list[str], tmp_path: Path) -> None:
    own, served = tmp_path / "own.json", tmp_path / "served.json"
    assert treaty_here("identity", "new", "shop.example", "--document", str(own), *home)[0] == 0
    other = ["--home", str(tmp_path / "other")]
    assert treaty_here("identity", "new", "shop.example", "--document", str(tmp_path / "other.json"), *other)[0] == 0
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def found() -> dict[str, str]:
        checks = json.loads(treaty_here("doctor", resolve, "--ca", str(tmp_path / "ca.pem"), "--json", *home)[1])["checks"]
        (check,) = (check for check in checks if check["check"] == "DID document")
        return check  # type: ignore[no-any-return]

    with web(authority, "shop.example", lambda: served.read_bytes() if served.exists() else None) as resolve:
        absent = found()
        assert (absent["outcome"], absent["code"]) == ("fault", "egress.not-found")
        assert "https://shop.example/.well-known/did.json" in absent["fix"]
        served.write_bytes((tmp_path / "other.json").read_bytes())
        assert (found()["outcome"], found()["code"]) == ("fault", "publisher.other-keys")
        served.write_bytes(own.read_bytes())
        assert found()["outcome"] == "ok"


def test_the_doctor_works_without_the_libraries_of_an_agent(home: list[str]) -> None:
    hidden = "import sys\nfrom treaty_io.extras import EXTRA_OF\nsys.modules |= dict.fromkeys(EXTRA_OF)\n"
    code = f"{hidden}from treaty_command.main import main\nmain(['doctor', '--json', *sys.argv[1:]])"
    done = subprocess.run([sys.executable, "-c", code, *home], capture_output=True, text=True, check=False)
    checks = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert (checks["libraries"]["outcome"], checks["libraries"]["code"]) == ("warning", "system.missing")
    assert "sigstore" in checks["libraries"]["said"] and "pip install '.[agent]'" in checks["libraries"]["fix"]
    assert (checks["configuration"]["outcome"], checks["trust"]["code"]) == ("ok", "registry.not-trusted")
    assert "sandbox" not in checks


@pytest.mark.sample(1)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell: str) -> None:
    status, out, err = treaty_here("completion", shell)
    assert (status, err) == (0, "")
    assert "deprecate" in out and "--successor" in out
