"""Provide the registry as a Sigstore instance whose identities are DIDs.

An agent has a DID and no OIDC provider. So the registry offers the Sigstore services itself: a certificate authority like Fulcio
(`ca`), an RFC 3161 timestamp authority (`timestamps`) and Rekor v2 entries in the registry's own log (`rekor`). Standard clients
use them with the ClientTrustConfig of `trust`. One operator holds all these keys. The services give compatible tools, and
verification after key rotation. They do not give independence from the operator.

Everything here takes and returns bytes. The routes answer so (other statuses are in the error table):

    POST /sigstore/api/v2/signingCert   application/json → 200 application/json                           ca
    POST /api/v2/signingCert            the same: sigstore-python drops the path of a CA's URL
    POST /sigstore/api/v1/timestamp     application/timestamp-query → 201 application/timestamp-reply     timestamps
                                        (400 and the same type when the reply is a rejection)
    POST /sigstore/api/v2/log/entries   application/json → 201 application/json                           rekor
    GET  /trust-config.json             → 200 application/json                                            trust

No state is kept here between calls. Persistent data goes through the ports of `ports`.
"""
