"""Hold an agent's identity: its DID, its keys, and the binding of a DID to a key.

    identity       the DID and its private keys, in a file
    key_binding    DIDs that contain a key's thumbprint

Other rooms use `Identity` and `KeyPair` from here.
"""

from .identity import Identity, KeyPair

__all__ = ["Identity", "KeyPair"]
