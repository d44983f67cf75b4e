"""Runs inside the environment of the official SDK: one end of its end-to-end encryption, one call a line."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

from anp.e2e_encryption.message_generation import generate_encrypted_message  # type: ignore[import-not-found]
from anp.e2e_encryption.short_term_key_generater import ShortTermKeyGenerater  # type: ignore[import-not-found]
from anp.e2e_encryption.wss_message_sdk import WssMessageSDK  # type: ignore[import-not-found]
from anp.utils.crypto_tool import (  # type: ignore[import-not-found]
    generate_bitcoin_address,
    generate_ec_key_pair,
    get_pem_from_private_key,
    get_public_key_from_hex,
)

logging.disable(logging.CRITICAL)

LOOP = asyncio.new_event_loop()
SENT: list[dict[str, Any]] = []
END: dict[str, Any] = {}


def address(public_key_hex: str) -> str:
    """The DID of a P-256 key, as the SDK makes it."""
    return f"did:all:{generate_bitcoin_address(get_public_key_from_hex(public_key_hex))}"


def begin(peer: str, session: str, initiator: bool) -> dict[str, Any]:
    """A new end with a new identity, for a handshake with this peer; the initiator says its Hello."""
    private_key, _, public = generate_ec_key_pair()

    async def send(message: dict[str, Any]) -> None:
        SENT.append(message)

    generater = ShortTermKeyGenerater(
        address(public), get_pem_from_private_key(private_key), peer, send, is_initiator=initiator, session_id=session
    )
    END.update(generater=generater, peer=peer, task=None)
    if initiator:
        END["task"] = LOOP.create_task(generater.generate_short_term_key_active())
    return {"did": address(public), "publicKeyHex": public, "sent": _settle()}


def receive(text: str) -> list[dict[str, Any]]:
    """Give it a message of the handshake; what it says to that."""
    END["generater"].receive_json_message(json.loads(text))
    if END["task"] is None:
        END["task"] = LOOP.create_task(END["generater"].generate_short_term_key_passive())
    return _settle()


def finished() -> bool:
    """Whether the handshake succeeded."""
    return bool(END["task"].done() and END["task"].result())


def encrypt(frame: str) -> dict[str, Any]:
    """A message that it would send."""
    _, key, _, key_id, _, _ = END["generater"].get_final_short_term_key()
    message = generate_encrypted_message("1.0", "6" * 32, END["generater"].local_did, END["peer"], key_id, frame.encode(), key)
    return dict(message)


def decrypt(text: str) -> str | None:
    """What it reads in a message that it gets."""
    _, _, key, key_id, _, _ = END["generater"].get_final_short_term_key()
    sdk = WssMessageSDK.__new__(WssMessageSDK)
    sdk.short_term_keys = {key_id: {"receive_decryption_key": key.hex()}}
    plaintext = sdk.ecrypted_message_process(json.loads(text))
    return None if plaintext is None else str(plaintext)


def _settle() -> list[dict[str, Any]]:
    """Let it do what it has to do; it loses what comes just when it begins to wait."""
    LOOP.run_until_complete(asyncio.sleep(0.05))
    frames = list(SENT)
    SENT.clear()
    return frames


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (address, begin, receive, finished, encrypt, decrypt)
}

if __name__ == "__main__":
    out = sys.stdout
    sys.stdout = sys.stderr  # what the SDK prints is not an answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": FUNCTIONS[request["call"]](**request["arguments"])}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=out, flush=True)
