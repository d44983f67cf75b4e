"""The registry as a Sigstore instance whose identities are DIDs.

An agent has a DID and no OIDC provider, so the registry offers the Sigstore services itself: a certificate authority as Fulcio's
(`ca`), an RFC 3161 timestamp authority (`timestamps`) and Rekor v2 entries in the registry's own log (`rekor`). The stock clients
use them with the ClientTrustConfig that `trust` makes. One operator holds all these keys: this buys tools that work and
verification that outlives key rotation, not independence.

Everything here takes and returns bytes; who serves it over HTTP answers so (other statuses are the error table's):

    POST /sigstore/api/v2/signingCert   application/json → 200 application/json                           ca
    POST /api/v2/signingCert            the same: sigstore-python drops the path of a CA's URL
    POST /sigstore/api/v1/timestamp     application/timestamp-query → 201 application/timestamp-reply     timestamps
                                        (400 and the same type when the reply is a rejection)
    POST /sigstore/api/v2/log/entries   application/json → 201 application/json                           rekor
    GET  /trust-config.json             → 200 application/json                                            trust

Nothing here keeps state between calls: what must be remembered goes through the ports of `ports`.
"""
