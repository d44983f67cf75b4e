"""Handler packages for tests: honest ones, the parts of crafted wheels, and a handler that does whatever it is told."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping
from typing import Any

from treaty_consensus.handler import HandlerMetadata, HandlerPackage, build_wheel, read_wheel

URI = "https://registry.example/protocols/example.com/probe/1.0"
LOCAL, PEER = "did:wba:buyer.example", "did:wba:shop.example"
PACKAGE = "treaty_handler_probe"
DIST_INFO = f"{PACKAGE}-1.0.dist-info"
FILENAME = f"{PACKAGE}-1.0-py3-none-any.whl"

ANYTHING: dict[str, Any] = {
    "arguments": {"type": "object"},
    "result": {},
    "errors": {"404": "There is none."},
    "idempotent": True,
    "timeout": 15,
}
MANIFEST: dict[str, Any] = {
    "operations": {"ask": ANYTHING, "serve": {**ANYTHING, "result": {"type": "string"}}},
    "roles": {
        "client": {"peer": "server", "calls": ["ask"], "invokes": []},
        "server": {"peer": "client", "calls": [], "invokes": ["serve"]},
    },
}

# Runs the code of a call: `value` or `error` is returned, `effects` go before it, and `session` lives from call to call. Its
# snapshot is `session.kept`.
PROBE = """
import treaty_handler
from treaty_handler import *

class Session:
    def __init__(self, parameters, snapshot):
        self.parameters = parameters
        self.kept = decode_json(snapshot) if snapshot else {}

    def handle(self, event):
        if not isinstance(event, Call):
            return []
        space = {**vars(treaty_handler), "session": self, "event": event, "value": None, "error": None, "effects": []}
        exec(event.arguments["code"], space)
        return [*space["effects"], Return(call=event.call, value=space["value"], error=space["error"])]

    def snapshot(self):
        return encode_json(self.kept)

class Handler:
    def open(self, role, parameters, snapshot=b""):
        return Session(parameters, snapshot)

    def encode(self, message):
        return encode_json(message)

    def decode(self, data):
        return decode_json(data)

    def validate(self, message, sender):
        return [] if sender == "server" else ["Only servers speak."]

handler = Handler()
"""


def metadata(manifest: Mapping[str, Any] = MANIFEST) -> HandlerMetadata:
    """What the builder wants to know about the probe."""
    return HandlerMetadata(
        name="probe",
        version="1.0",
        summary="A handler for tests.",
        licence="Apache-2.0",
        entry_point=f"{PACKAGE}:handler",
        protocol_uri=URI,
        protocol_hash="0" * 64,
        manifest=manifest,
    )


def package(
    source: str = PROBE, manifest: Mapping[str, Any] = MANIFEST, more: Mapping[str, bytes] | None = None
) -> HandlerPackage:
    """A checked package with this source as its `__init__.py`."""
    sources = {"__init__.py": source.encode(), **(more or {})}
    return read_wheel(*build_wheel(sources, metadata(manifest)))


def with_record(files: Mapping[str, bytes], record: str = f"{DIST_INFO}/RECORD") -> dict[str, bytes]:
    """The files with a RECORD that is right about them."""
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}"
        for name, data in files.items()
        if name != record
    ]
    return {**files, record: "\n".join([*rows, f"{record},,", ""]).encode()}


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive as the standard library writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0))
            info.compress_type = method
            info.external_attr = 0o100644 << 16
            archive.writestr(info, data)
    return buffer.getvalue()
