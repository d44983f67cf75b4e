"""Identity on the wire: HTTP requests that prove the DID of their sender.

`signer` makes signed requests and `verifier` judges them. `message_signature` and `didwba` are the two forms on the wire;
`nonces` remembers what was accepted.
"""
