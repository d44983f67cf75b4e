"""Sign and verify HTTP requests that prove the DID of their sender. See docs/specification/identity-on-the-wire.md.

request_signing    sign and verify requests
message_signature  the form of RFC 9421
didwba             the older form
nonces             remember accepted signatures
"""
