"""S3 servers on loopback: moto's, and VersityGW, the object store of `deploy/compose`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import obstore
import pytest
from obstore.store import S3Store
from ports import free_port

BUCKET = "treaty"
ENVIRONMENT = {
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "treaty-test",
    "AWS_SECRET_ACCESS_KEY": "treaty-test-secret",
    "AWS_REGION": "us-east-1",
}


@contextmanager
def object_server(folder: Path, versitygw: Path | None = None) -> Iterator[dict[str, str]]:
    """Run a server with an empty bucket, of this program or else of moto.

    Yields the environment of its clients, which is also set for this process.
    """
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    if versitygw is not None:
        (folder / "objects").mkdir()
        keys = ["--access", ENVIRONMENT["AWS_ACCESS_KEY_ID"], "--secret", ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]]
        command = [str(versitygw), "--port", f"127.0.0.1:{port}", *keys, "posix", str(folder / "objects")]
    environment = {**ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    with (folder / "server.log").open("wb") as log, pytest.MonkeyPatch.context() as patch:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait(port, process)
            if versitygw is not None:
                (folder / "objects" / BUCKET).mkdir()
            else:
                assert httpx.put(f"http://127.0.0.1:{port}/{BUCKET}", trust_env=False).status_code == 200
            for name, value in environment.items():
                patch.setenv(name, value)
            yield environment
        finally:
            process.kill()
            process.wait()


def objects() -> dict[str, bytes]:
    """Everything in the bucket."""
    store = S3Store(BUCKET)
    contents = {}
    for item in obstore.list(store).collect():
        with suppress(FileNotFoundError):  # a partial tile may be deleted meanwhile
            contents[item["path"]] = bytes(obstore.get(store, item["path"]).bytes())
    return contents


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert process.poll() is None
        try:
            httpx.get(f"http://127.0.0.1:{port}/", trust_env=False)
        except httpx.HTTPError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the server does not answer")
