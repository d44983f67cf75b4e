"""Writes the vectors beside it from the official SDK's own code; needs a Python with the package `anp` (1.0.7 made these).

schedule.json: what its key schedule derives. signatures.json: what it signs. handshake.json: all messages of a handshake
between two of its agents, with their private keys, and a message each way.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from pathlib import Path
from typing import Any

from anp.e2e_encryption.message_generation import generate_encrypted_message  # type: ignore[import-not-found]
from anp.e2e_encryption.short_term_key_generater import ShortTermKeyGenerater  # type: ignore[import-not-found]
from anp.utils.crypto_tool import (  # type: ignore[import-not-found]
    derive_tls13_data_keys,
    generate_16_char_from_random_num,
    generate_bitcoin_address,
    generate_ec_key_pair,
    generate_shared_secret,
    generate_signature_for_json,
    get_pem_from_private_key,
)

HERE = Path(__file__).parent


def scalar(private_key: Any) -> str:
    return format(private_key.private_numbers().private_value, "064x")


def schedules() -> list[dict[str, str]]:
    vectors = []
    for randoms in [
        ("a" * 64, "b" * 64),
        (secrets.token_hex(32), secrets.token_hex(32)),
        (secrets.token_urlsafe(24), secrets.token_urlsafe(24)),
    ]:
        (source, _, source_share), (destination, destination_public, destination_share) = (
            generate_ec_key_pair(),
            generate_ec_key_pair(),
        )
        keys = derive_tls13_data_keys(generate_shared_secret(source, destination_public), *(text.encode() for text in randoms))
        vectors.append(
            {
                "sourcePrivate": scalar(source),
                "destinationPrivate": scalar(destination),
                "sourceShare": source_share,
                "destinationShare": destination_share,
                "sourceRandom": randoms[0],
                "destinationRandom": randoms[1],
                "sourceKey": keys[0].hex(),
                "destinationKey": keys[1].hex(),
                "keyId": generate_16_char_from_random_num(*randoms),
            }
        )
    return vectors


def signatures() -> list[dict[str, Any]]:
    vectors = []
    for message in [{"b": 1, "a": ["x", None, True]}, {"text": "协议 ü \U0001f600 \u2028", "z": {"y": "", "x": '"\\/\n'}}]:
        private_key, _, public = generate_ec_key_pair()
        vectors.append(
            {"message": message, "publicKeyHex": public, "proofValue": generate_signature_for_json(private_key, message)}
        )
    return vectors


async def handshake() -> dict[str, Any]:
    wire: list[tuple[str, dict[str, Any]]] = []
    peers: dict[str, ShortTermKeyGenerater] = {}
    identities = {}
    for side in ("source", "destination"):
        private_key, public_key, _ = generate_ec_key_pair()
        identities[side] = (f"did:all:{generate_bitcoin_address(public_key)}", private_key)
    waiting: list[asyncio.Task[bool]] = []

    def sender(side: str, other: str) -> Any:
        async def send(message: dict[str, Any]) -> None:
            wire.append((side, message))
            await asyncio.sleep(0.2 if side == "source" else 0.05)  # it misses what comes just when it begins to wait
            peers[other].receive_json_message(json.loads(json.dumps(message)))
            if message["type"] == "sourceHello":
                waiting.append(asyncio.create_task(peers[other].generate_short_term_key_passive()))

        return send

    for side, other in (("source", "destination"), ("destination", "source")):
        peers[side] = ShortTermKeyGenerater(
            identities[side][0],
            get_pem_from_private_key(identities[side][1]),
            identities[other][0],
            sender(side, other),
            is_initiator=side == "source",
            session_id="5" * 32,
        )
    assert await peers["source"].generate_short_term_key_active()
    assert await waiting[0]
    for side, other in (("source", "destination"), ("destination", "source")):
        _, key, _, key_id, _, _ = peers[side].get_final_short_term_key()
        frame = b'\x00{"action": "codeGeneration", "status": "generated"}'
        wire.append(
            (side, generate_encrypted_message("1.0", "6" * 32, identities[side][0], identities[other][0], key_id, frame, key))
        )
    return {
        "sides": {
            side: {
                "did": did,
                "privateKey": scalar(private_key),
                "publicKeyHex": peers[side].local_did_public_key_hex,
                "ephemeral": scalar(peers[side].local_ec_key_pair.private_key),
            }
            for side, (did, private_key) in identities.items()
        },
        "messages": [{"from": side, "text": json.dumps(message)} for side, message in wire],
    }


def main() -> None:
    logging.disable()
    for name, value in {
        "schedule.json": schedules(),
        "signatures.json": signatures(),
        "handshake.json": asyncio.run(handshake()),
    }.items():
        (HERE / name).write_text(json.dumps(value, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
