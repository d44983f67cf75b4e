"""Hold an agent's identity: its DID, its keys, and the binding of a DID to a key; and tell proved agents from others.

    ai_catalog     entries of AI Catalogs, with signed trust manifests
    identity       the DID and its private keys, in a file
    key_binding    DIDs that contain a key's thumbprint
    peers          other agents, proved or only claimed

Other rooms use these classes from here.
"""

from .identity import Identity, KeyPair
from .peers import UNNAMED, ClaimedPeer, PeerIdentity, ProvedPeer

__all__ = ["UNNAMED", "ClaimedPeer", "Identity", "KeyPair", "PeerIdentity", "ProvedPeer"]
