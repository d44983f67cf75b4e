"""Sign the two Hellos with key shares, and encrypt all later messages. See docs/specification/e2ee-profile.md.

    source                                     destination
    sourceHello, signed, key share   ------>
                                     <------   destinationHello, signed, key share
                                     <------   finished
    finished                         ------>
    records                          <----->   records

    channel       the state machine of one session
    hello         the signed Hellos
    keys          the keys that sign them, and their proof by DID documents
    key_schedule  the keys derived from the key shares, and the ciphertexts
    handshake     the `finished` messages
    records       the encrypted messages after them

No module does I/O, reads a clock or draws randomness: the caller passes messages, time and random bytes to
`channel.SecureChannel`.
"""

from .hello import is_secure_hello

__all__ = ["is_secure_hello"]
