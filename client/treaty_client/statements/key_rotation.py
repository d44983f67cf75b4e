"""Confirm a rotated key in a log: the old key signs for the document that lists the new key.

If a log learns of a new key only from the document, it assumes a new owner and begins a new tenure. With a signature of a key
that it knows, the tenure continues. The registry fetches the document and signs first. Then the old key signs, and the statement
is logged like any other. This must happen before the new key signs any other statement for this log.
"""

from __future__ import annotations

from treaty_consensus import canonical, statement
from treaty_consensus.codes import StatementCode
from treaty_consensus.did import encode_multikey, parse_key_id
from treaty_consensus.errors import Conflict, Malformed, Refused, TreatyError
from treaty_consensus.kinds import Identity as IdentityBody
from treaty_consensus.kinds import Key
from treaty_consensus.log.proof import Receipt
from treaty_consensus.statement import MAX_PAYLOAD, Draft
from treaty_io.codes import ClientIdentityCode, ClientRegistryCode
from treaty_io.identity import Identity, KeyPair

from ..protocols.log_head import LogHead
from ..registries.api import RegistryClient
from ..registries.replies import Testimony


async def confirm(client: RegistryClient, head: LogHead, identity: Identity, *, origin: str) -> Receipt:
    """Confirm the newest key of a rotated identity in the log `origin`, and return the checked receipt. The DID document must be
    served already.

    Raises `Conflict` (`statement.exists`) when the log knows the key already, `Refused` (`identity.rotate`) when it knows
    none of the kept keys, `Malformed` (`registry.answer`) when the registry asks to sign something else, and the errors of the
    registry.
    """
    logged_identity = await client.identity(identity.did)
    keys = logged_identity.get("keys")
    listed = keys if isinstance(keys, dict) else {}
    # Nothing to do. Signing again would log a second identity statement for the same key.
    if identity.key_id in listed:
        raise Conflict(StatementCode.EXISTS, f"{origin} knows {identity.key_id} already.")
    # The newest kept key that the log knows: the log may have missed some rotations.
    old_key = next((pair for pair in reversed(identity.kept) if listed.get(pair.id) == encode_multikey(pair.public)), None)
    if old_key is None:
        raise Refused(ClientIdentityCode.ROTATE, f"{origin} knows none of the kept keys of {identity.did}.")
    testimony = await client.testimony(identity.did, old_key.id)
    # The registry wrote the draft, so it is checked before the old key signs it.
    draft = _checked(testimony, identity, old_key, origin)
    operator = canonical.b64decode(testimony.sig, limit=64)
    signed = draft.seal({testimony.keyid: operator, old_key.id: old_key.private.sign(draft.signing_input)})
    return await head.submit(signed)


def _checked(testimony: Testimony, identity: Identity, old_key: KeyPair, origin: str) -> Draft:
    """Return the draft for the old key to sign: this DID has the new key and no other, in this log."""
    try:
        payload = canonical.b64decode(testimony.payload, limit=MAX_PAYLOAD)
        drafted = statement.parse_draft(payload)
        operator, _ = parse_key_id(testimony.keyid)
    except TreatyError as error:
        raise Malformed(ClientRegistryCode.ANSWER, f"The registry's testimony cannot be parsed: {error.message}") from error
    body, new = drafted.body, Key(identity.key_id, encode_multikey(identity.public_key))
    # The new key and no other: with a second key in the draft, the registry would get one that speaks for this DID.
    names = isinstance(body, IdentityBody) and body.did == identity.did and body.keys == (new,)
    expected = tuple(sorted((testimony.keyid, old_key.id)))
    if not names or drafted.log != origin or drafted.by != expected or operator.text == identity.did:
        raise Malformed(ClientRegistryCode.ANSWER, f"The registry asks {old_key.id} to sign another key than {identity.key_id}.")
    return Draft(payload, expected)
