"""`treaty vouch` and `treaty vouches`, against a registry on a socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from http_api import serving
from ports import free_port
from registries import TOPIC, Web, contents, publication, publish
from signers import Signer

from treaty_command.main import main
from treaty_registry.registry import Registry


async def test_an_agent_vouches_renews_and_withdraws(
    registry: Registry, web: Web, tmp_path: Path, alice: Signer, bob: Signer, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(tmp_path / "home")]

    async def treaty(*arguments: str) -> str:
        await asyncio.to_thread(main, [*arguments, *home])
        return capsys.readouterr().out

    async def told(*arguments: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(await treaty(*arguments, "--json"))
        return value

    async with serving(registry, free_port()) as url:
        await treaty("trust", "add", f"{url}#{registry.log_key}")
        document = tmp_path / "did.json"
        did = (await told("identity", "new", "shop.example", "--document", str(document)))["did"]
        web.documents[did] = document.read_bytes()
        assert "vouches for no agent" in await treaty("vouches")
        first = await told("vouch", alice.did)
        assert (first["to"], first["withdrawn"], first["seq"], first["epoch"]) == (alice.did, False, 0, 0)
        assert f"You vouch for {bob.did}" in await treaty("vouch", bob.did)
        answer = await told("vouches", did)
        assert [vouch["to"] for vouch in answer["vouches"]] == [bob.did, alice.did]
        assert answer["vouches"][1]["statement"] == first["statement"]
        assert "no longer" in await treaty("withdraw", "vouch", alice.did)
        assert alice.did not in await treaty("vouches")
        size = registry.head.size
        with pytest.raises(SystemExit):
            await told("withdraw", "vouch", alice.did)
        assert json.loads(capsys.readouterr().out)["error"]["code"] == "statement.no-target"
        assert registry.head.size == size


async def test_an_agent_that_could_never_count_is_told_why(
    registry: Registry, tmp_path: Path, alice: Signer, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(tmp_path / "home")]
    async with serving(registry, free_port()) as url:
        await asyncio.to_thread(main, ["trust", "add", f"{url}#{registry.log_key}", *home])
        await asyncio.to_thread(main, ["identity", "new", *home])
        (tmp_path / "home" / "policy.toml").write_text("max_age = 1_000_000_000\n")  # the registry's clock stands still
        await publish(registry, alice, publication(alice))
        before = await contents(registry)
        for command in (["vouch", alice.did], ["vote", TOPIC, "none"]):
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                await asyncio.to_thread(main, [*command, *home])
            text = " ".join(capsys.readouterr().err.split())
            assert ended.value.code == 1
            assert "did:key:" in text and "speaks for no principal" in text and "could never count" in text
            assert "Sign with the DID of a domain of your own" in text, "it says what to do"
        assert await contents(registry) == before
