"""`treaty watch` against a server whose bytes never end, or hardly come: it ends, its memory is bounded, its cursor stays."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from served_log import Wire
from simulated_registry import ALICE, LOG_KEY, with_echo
from treaty_process import finished, start, treaty

from treaty_client.registries.trust import TrustedRegistries, parse_registry_name

MAX_BUNDLE = 16 * 2**20
# The peak of this program alone: `ru_maxrss` counts that of the test's process too, from which it was forked.
PEAK = """
import atexit, re
atexit.register(lambda: print(re.search("VmHWM:\\\\s+([0-9]+)", open("/proc/self/status").read())[1], file=sys.stderr))
"""


@dataclass
class Server:
    """`hostile`: the part of a path whose answer never ends. `pause`: seconds between its chunks. `sent`: bytes of them."""

    name: str = ""
    hostile: str = "nothing"
    chunk: bytes = bytes(65_536)
    pause: float = 0.0
    sent: int = 0


@contextmanager
def serving(wire: Wire) -> Iterator[Server]:
    state, ended = Server(), Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if state.hostile in self.path:
                self.send_response(200)
                self.end_headers()  # without a length: the body lasts as long as the connection
                while not ended.is_set():
                    self.wfile.write(state.chunk)
                    state.sent += len(state.chunk)
                    time.sleep(state.pause)
                return
            status, body = wire.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Sockets(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """The watch has closed the connection."""

    with Sockets(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        state.name = f"http://127.0.0.1:{server.server_port}#{LOG_KEY.verifier}"
        yield state
        ended.set()
        server.shutdown()


@pytest.mark.sample(1)
@pytest.mark.threat(8, 9)
@pytest.mark.parametrize("path", ["/checkpoint", "/tile/entries/", "/tile/0/"])
@pytest.mark.parametrize(("chunk", "pause"), [(bytes(65_536), 0.0), (b"a", 0.5)], ids=["endless", "slow"])
def test_bytes_that_never_end_end_the_watch(tmp_path: Path, path: str, chunk: bytes, pause: float) -> None:
    registry, home = with_echo(), tmp_path / "home"
    options = ["watch", "--once", "--json", "--home", str(home), "--did", ALICE.did]
    with serving(Wire(registry)) as server:
        TrustedRegistries(home).add(parse_registry_name(server.name))
        assert treaty(*options)[0] == 0
        publication = registry.publish("2.0")
        server.hostile, server.chunk, server.pause = path, chunk, pause
        status, out, err = finished(start(*options, before=PEAK))
        assert status in (1, 3, 4), out + err  # no answer of a registry, no answer in time, or a breach
        # Four bundles at a time, tried a few times; the kernel's buffers hold some more.
        assert server.sent < 12 * MAX_BUNDLE
        assert int(err.split()[-1]) < 400 * 1024
        # The entry was not told, and is told as soon as the server is honest.
        assert publication.id not in out
        server.hostile = "nothing"
        status, out, err = treaty(*options)
        assert status == 7, err
        assert [json.loads(line)["statement"] for line in out.splitlines()] == [publication.id]
