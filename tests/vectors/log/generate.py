"""Write treaty-log.json: a small log with its tiles, entry bundle, checkpoint and one receipt, byte for byte.

Made from RFC 6962 and the C2SP specifications with hashlib and cryptography alone, so that it is a second opinion
on treaty_consensus.log, and a vector for implementations in other languages. Run: python tests/vectors/log/generate.py
"""

import base64
import hashlib
import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ORIGIN = "registry.example"
CLOCK = "registry.example/clock"
LOG_SEED = bytes(range(32))
CLOCK_SEED = bytes(range(32, 64))
TIME = 1_800_000_000
SIZE = 600
INDEX = 300


def mth(entries: list[bytes]) -> bytes:
    if not entries:
        return hashlib.sha256().digest()
    if len(entries) == 1:
        return hashlib.sha256(b"\x00" + entries[0]).digest()
    k = largest_power_below(len(entries))
    return hashlib.sha256(b"\x01" + mth(entries[:k]) + mth(entries[k:])).digest()


def path(index: int, entries: list[bytes]) -> list[bytes]:
    if len(entries) == 1:
        return []
    k = largest_power_below(len(entries))
    if index < k:
        return [*path(index, entries[:k]), mth(entries[k:])]
    return [*path(index - k, entries[k:]), mth(entries[:k])]


def largest_power_below(n: int) -> int:
    k = 1
    while 2 * k < n:
        k *= 2
    return k


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def key_id(name: str, kind: int, private: Ed25519PrivateKey) -> bytes:
    public = private.public_key().public_bytes_raw()
    return hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + public).digest()[:4]


def vkey(name: str, kind: int, private: Ed25519PrivateKey) -> str:
    public = private.public_key().public_bytes_raw()
    return f"{name}+{key_id(name, kind, private).hex()}+{b64(bytes([kind]) + public)}"


def main() -> None:
    entries = [f"entry {number}".encode() for number in range(SIZE)]
    log, clock = (Ed25519PrivateKey.from_private_bytes(seed) for seed in (LOG_SEED, CLOCK_SEED))
    text = f"{ORIGIN}\n{SIZE}\n{b64(mth(entries))}\n"
    cosignature = clock.sign(f"cosignature/v1\ntime {TIME}\n{text}".encode())
    checkpoint = (
        f"{text}\n"
        f"— {ORIGIN} {b64(key_id(ORIGIN, 1, log) + log.sign(text.encode()))}\n"
        f"— {CLOCK} {b64(key_id(CLOCK, 4, clock) + TIME.to_bytes(8, 'big') + cosignature)}\n"
    )
    hashes = "".join(f"{b64(value)}\n" for value in path(INDEX, entries))
    tiles = {
        "/tile/0/000": [mth([entry]) for entry in entries[:256]],
        "/tile/0/001": [mth([entry]) for entry in entries[256:512]],
        "/tile/0/002.p/88": [mth([entry]) for entry in entries[512:]],
        "/tile/1/000.p/2": [mth(entries[:256]), mth(entries[256:512])],
    }
    bundle = b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries[512:])
    vector = {
        "entries": "entry 0 … entry 599, ASCII",
        "log_seed": LOG_SEED.hex(),
        "log_vkey": vkey(ORIGIN, 1, log),
        "clock_seed": CLOCK_SEED.hex(),
        "clock_vkey": vkey(CLOCK, 4, clock),
        "time": TIME,
        "size": SIZE,
        "root": mth(entries).hex(),
        "tiles_sha256": {name: hashlib.sha256(b"".join(content)).hexdigest() for name, content in tiles.items()},
        "bundle": {"path": "/tile/entries/002.p/88", "sha256": hashlib.sha256(bundle).hexdigest()},
        "checkpoint": checkpoint,
        "index": INDEX,
        "receipt": f"c2sp.org/tlog-proof@v1\nindex {INDEX}\n{hashes}\n{checkpoint}",
    }
    target = Path(__file__).with_name("treaty-log.json")
    target.write_text(json.dumps(vector, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
