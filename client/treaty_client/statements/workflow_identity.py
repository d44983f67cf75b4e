"""Act for a GitHub account from one of its workflows, with nothing hosted and no key kept.

    1 key       make one, in memory
    2 token     ask the platform for a token whose audience names the log and the key
    3 validate  have the registry verify the token and log the key

The key signs for an hour. A later workflow of the account makes its own, and acts for the same DID.
"""

from __future__ import annotations

import asyncio

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from id import AmbientCredentialError, detect_credential

from treaty_consensus.did import encode_multikey, parse_did
from treaty_consensus.errors import Malformed, NotFound
from treaty_consensus.workflow_evidence import audience
from treaty_io.codes import ClientIdentityCode, ClientRegistryCode
from treaty_io.identity import Identity

from ..registries.api import RegistryClient

_FIX = "Run it in GitHub Actions, in a job with `permissions: id-token: write`."


async def workflow_identity(client: RegistryClient, origin: str) -> Identity:
    """Return the identity of the account for which this workflow runs, at the log `origin`.

    Raises `NotFound` (`identity.missing`) where no platform gives a token, `Malformed` (`registry.answer`) if the registry
    names another key, and what the registry refuses.
    """
    key = Ed25519PrivateKey.generate()
    multikey = encode_multikey(key.public_key().public_bytes_raw())
    # In a thread: the library blocks.
    token = await asyncio.to_thread(_token, audience(origin, multikey))
    validated = await client.validate(token, multikey)
    if parse_did(validated.did).validated_by != "oidc" or validated.keyid != f"{validated.did}#{multikey}":
        raise Malformed(ClientRegistryCode.ANSWER, f"{origin} validated another key than the one that it was asked to.")
    return Identity(validated.did, validated.keyid, key)


def _token(audience: str) -> str:
    try:
        token = detect_credential(audience)
    except AmbientCredentialError as error:
        raise NotFound(ClientIdentityCode.MISSING, f"The platform gave no token: {error}.", fix=_FIX) from error
    if token is None:
        raise NotFound(ClientIdentityCode.MISSING, "No platform gives this process a token.", fix=_FIX)
    return token
