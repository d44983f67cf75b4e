"""An attestation of the first of January 2026 by keys that no longer exist: `python tests/vectors/sigstore/generate.py`.

Its certificate lived for ten minutes, so it shows that an attestation outlives its keys. ECDSA signatures and serial numbers are
random: a second run makes other, equally good files. The simulated authority's clock stands still; sigstore's own client would
insist on today, so the bundle is put together here.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from rfc3161_client import TimestampRequestBuilder, decode_timestamp_response
from rfc3161_client.base import HashAlgorithm
from sigstore._internal.rekor.client_v2 import RekorV2Client
from sigstore.dsse import Statement, _sign
from sigstore.models import Bundle, TransparencyLogEntry
from sigstore_models.rekor.v1 import TransparencyLogEntry as EntryMessage

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "support"))

from signers import ORIGIN  # noqa: E402
from simulated_sigstore import make_authority  # noqa: E402

from treaty_client.protocols.attestation import Binding, encode_statement  # noqa: E402

BINDING = Binding(
    wheel=sha256(b"a wheel").hexdigest(),
    uri=f"https://{ORIGIN}/protocols/alice.example/product-info/1.0",
    protocol_hash=sha256(b"a document").hexdigest(),
    entry_point="treaty_handler_product_info:handler",
)


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        authority = make_authority(Path(directory), now=datetime(2026, 1, 1, tzinfo=UTC))
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = x509.load_der_x509_certificate(await authority.certify(key))
    statement = encode_statement(BINDING, "treaty_handler_product_info-1.0-py3-none-any.whl")
    envelope = _sign(key, Statement(statement))
    query = TimestampRequestBuilder().hash_algorithm(HashAlgorithm.SHA256).data(envelope.signature).nonce(nonce=True).build()
    request = json.dumps(RekorV2Client._build_dsse_request(envelope, certificate)).encode()
    entry = TransparencyLogEntry(EntryMessage.from_json(await authority.rekor.add(request)))
    timestamp = decode_timestamp_response(authority.tsa.respond(query.as_bytes()).der)
    bundle = Bundle._from_parts(certificate, envelope, entry, [timestamp]).to_json()
    (HERE / "attestation.json").write_text(json.dumps(json.loads(bundle), indent=1) + "\n")
    (HERE / "binding.json").write_text(json.dumps(asdict(BINDING), indent=1) + "\n")
    (HERE / "trusted_root.json").write_bytes(authority.trusted_root)


if __name__ == "__main__":
    asyncio.run(main())
