"""A rotated key, handed on in a log: the key before it signs for the document that lists the new one.

A log that learns of a new key from the document alone takes it for a new owner's, and opens a new tenure. With the signature of a
key that it knows the tenure goes on. The registry fetches the document and signs first; then the old key signs, and the statement
is logged like any other. That has to happen before the new key signs anything else for this log.
"""

from __future__ import annotations

from treaty_consensus import canonical, statement
from treaty_consensus.did import encode_multikey, parse_key_id
from treaty_consensus.errors import Conflict, Malformed, Refused, TreatyError
from treaty_consensus.kinds import Identity as IdentityBody
from treaty_consensus.kinds import Key
from treaty_consensus.log.proof import Receipt
from treaty_consensus.statement import MAX_PAYLOAD, Draft

from .identity import Identity, KeyPair
from .registries.api import RegistryClient
from .registries.head import LogHead
from .registries.replies import Testimony


async def confirm(client: RegistryClient, head: LogHead, identity: Identity, *, origin: str) -> Receipt:
    """Have the log `origin` know the newest key of a rotated identity, in the same tenure; the receipt was checked.

    Its document must be served by now. Raises `Conflict` (`identity.confirmed`) when the log knows the key already, `Refused`
    (`identity.successor`) when it knows none of the keys that are kept, `Malformed` (`registry.answer`) when the registry would
    have something else signed, and what the registry refuses with.
    """
    known = await client.identity(identity.did)
    keys = known.get("keys")
    listed = keys if isinstance(keys, dict) else {}
    if identity.key_id in listed:
        raise Conflict("identity.confirmed", f"{origin} knows {identity.key_id} already.")
    former = next((pair for pair in reversed(identity.kept) if listed.get(pair.id) == encode_multikey(pair.public)), None)
    if former is None:
        raise Refused("identity.successor", f"No key that is kept here is one of {identity.did} as {origin} knows it.")
    testimony = await client.testimony(identity.did, former.id)
    draft = _checked(testimony, identity, former, origin)
    operator = canonical.b64decode(testimony.sig, limit=64)
    signed = draft.seal({testimony.keyid: operator, former.id: former.private.sign(draft.signing_input)})
    return await head.accept_receipt(await client.submit(signed), signed)


def _checked(testimony: Testimony, identity: Identity, former: KeyPair, origin: str) -> Draft:
    """What the old key is to sign: that this DID has the new key and no other, in this log."""
    try:
        payload = canonical.b64decode(testimony.payload, limit=MAX_PAYLOAD)
        drafted = statement.parse_draft(payload)
        operator, _ = parse_key_id(testimony.keyid)
    except TreatyError as error:
        raise Malformed("registry.answer", f"The registry's testimony does not read: {error.message}") from error
    body, new = drafted.body, Key(identity.key_id, encode_multikey(identity.public_key))
    names = isinstance(body, IdentityBody) and body.did == identity.did and body.keys == (new,)
    expected = tuple(sorted((testimony.keyid, former.id)))
    if not names or drafted.log != origin or drafted.by != expected or operator.text == identity.did:
        raise Malformed("registry.answer", f"The registry would have {former.id} sign something else than {identity.key_id}.")
    return Draft(payload, expected)
