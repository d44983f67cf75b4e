"""`treaty watch` beside a real registry with a witness: a publication of the owner is expected, and a statement of another one
about the owner is not. Both reach the webhook, also across a crash of the registry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from registry_process import Server, empty
from run_process import ROOT
from signers import NOW, key_signer
from treaty_process import finished, start, treaty
from webhook_receiver import Receiver, receiving, secret_in
from witness_process import witness_process

from treaty_client.registries.trust import TrustedRegistries, parse_registry_name
from treaty_consensus import kinds
from treaty_consensus.did import parse_did
from treaty_consensus.log.note import VerifierKey
from treaty_io.identity import Identity

PROJECT = ROOT / "protocols" / "product-info" / "1.1"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not holds():  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.1)


async def witnessed(server: Server, size: int) -> None:
    """Wait until the published checkpoint has so many leaves."""
    async with asyncio.timeout(60), httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
        while int((await client.get("/checkpoint")).text.split("\n")[1]) < size:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.1)


async def submit(server: Server, leaf: bytes) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60, trust_env=False) as client:
        async with asyncio.timeout(60):
            while True:
                with suppress(httpx.HTTPError):
                    answer = await client.post("/statements", content=leaf, headers={"Content-Type": "application/json"})
                    if answer.status_code in (200, 201):
                        return
                    assert answer.status_code in (429, 503), answer.text
                await asyncio.sleep(0.2)


def told(receiver: Receiver) -> dict[str, str]:
    """The severity of each finding by its statement."""
    return {finding["statement"]: finding["severity"] for _, finding in receiver.taken}


@pytest.mark.deep
async def test_a_watch_follows_a_registry_from_publication_to_webhook(data: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with empty(data / "registry") as server:
        # The log's key is made first, so that the witness knows it.
        await server.start()
        assert await server.ready()
        assert await server.stop() == 0
        log = VerifierKey.parse(server.about["key"])
        async with witness_process(data / "witness", log, name="witness.example/w1") as witness:
            server.options = ("--witness", f"{witness.about['url']}#{witness.about['key']}")
            await server.start()
            assert await server.ready()
            TrustedRegistries(home).add(parse_registry_name(server.about["name"]))
            (home / "policy.toml").write_text(f'[witnesses]\nquorum = 1\nkeys = ["{witness.key}"]\n')
            owner = Identity.create()
            owner.save(home / "identity.json")
            await witnessed(server, 2)
            with receiving() as receiver:
                options = ["--home", str(home), "--did", owner.did, "--namespace", owner.parsed.namespace, "--from", "0"]
                options += ["--webhook", receiver.url, "--secret-file", str(secret_in(tmp_path)), "--interval", "1", "--json"]
                watching = start("watch", *options)
                try:
                    status, out, err = await asyncio.to_thread(treaty, "publish", str(PROJECT), "--home", str(home), "--json")
                    assert status == 0, out + err
                    signed = set((home / "signed.txt").read_text().split())
                    await until(lambda: signed <= told(receiver).keys())
                    assert {told(receiver)[id_] for id_ in signed} == {"expected"}
                    # Somebody else speaks about the owner, while the registry crashes and comes back.
                    await server.kill()
                    await server.start()
                    assert await server.ready()
                    stranger = key_signer("stranger")
                    body = kinds.Grant(parse_did(stranger.did).namespace, owner.did)
                    claim = stranger.statement(body, log=server.about["origin"], issued=NOW)
                    await submit(server, claim.leaf)
                    await until(lambda: claim.id in told(receiver))
                    assert told(receiver)[claim.id] == "unexpected"
                    # A watch with a quorum tells nothing that no witness cosigned.
                    await witness.kill()
                    other = stranger.statement(
                        kinds.Grant(parse_did(stranger.did).namespace, owner.did, withdrawn=True),
                        log=server.about["origin"],
                        issued=NOW + 1,
                    )
                    await submit(server, other.leaf)
                    await asyncio.sleep(5)
                    assert other.id not in told(receiver)
                    await witness.start()
                    await until(lambda: other.id in told(receiver))
                finally:
                    watching.terminate()
                    _, out, err = await asyncio.to_thread(finished, watching)
                printed = {
                    line["statement"]: line["severity"] for line in map(json.loads, out.splitlines()) if "statement" in line
                }
                assert printed == told(receiver), err
