"""Two agents in two processes, over every transport."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from meetings import LAPTOP, URI_2
from shop_process import agent

from treaty_agent.sessions.operation_errors import OperationError
from treaty_consensus.errors import TreatyError, Unavailable
from treaty_io.network.hosts import Network

SUPPORT = Path(__file__).parents[1] / "support"


@contextmanager
def shop(home: Path, port: int = 0, certificate: Path | None = None) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A shop's process and its port."""
    arguments = [str(home / "shop"), str(port), *([str(certificate)] if certificate else [])]
    command = [sys.executable, str(SUPPORT / "shop_process.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process
        finally:
            process.terminate()


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    """A certificate authority that signed `shop.pem` beside it, for 127.0.0.1."""
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "shop.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return tmp_path / "ca.pem"


@pytest.mark.sample(1)
@pytest.mark.parametrize("schemes", [("ws", "http"), ("wss", "https")], ids=["plain", "tls"])
async def test_strangers_speak_and_resume(tmp_path: Path, ca: Path, schemes: tuple[str, str]) -> None:
    secure = schemes[0] == "wss"
    network = Network(ca=ca) if secure else Network()
    with shop(tmp_path, certificate=ca.with_name("shop.pem") if secure else None) as (port, _):
        async with agent("buyer.example", tmp_path / "buyer", network) as buyer:
            for scheme in schemes:
                for resumed in (False, True):
                    async with buyer.connect(f"{scheme}://127.0.0.1:{port}", protocols=[URI_2]) as session:
                        assert await session.call("getProductInfo", productId="P12345") == LAPTOP
                        with pytest.raises(OperationError) as failure:
                            await session.call("getProductInfo", productId="P99999")
                        assert failure.value.status == 404
                        assert session.resumed is resumed
                        assert session.peer.did == "did:wba:shop.example"


async def test_a_shop_that_was_killed_is_missed_and_found_again(tmp_path: Path) -> None:
    async with agent("buyer.example", tmp_path / "buyer") as buyer:
        with shop(tmp_path) as (port, process):
            url = f"ws://127.0.0.1:{port}"
            async with buyer.connect(url, protocols=[URI_2]) as session:
                assert await session.call("getProductInfo", productId="P12345") == LAPTOP
                process.kill()
                process.wait()
                with pytest.raises(Unavailable):
                    await session.call("getProductInfo", productId="P12345")
        for address in (url, url.replace("ws", "http")):
            with pytest.raises(TreatyError) as nobody:
                async with buyer.connect(address, protocols=[URI_2]):
                    raise AssertionError("a session with nobody")
            assert nobody.value.code == "connection.failed"
        with shop(tmp_path, port):
            async with buyer.connect(url, protocols=[URI_2]) as session:
                assert await session.call("getProductInfo", productId="P12345") == LAPTOP
