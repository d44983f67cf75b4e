"""The E2EE profile of the Hello: the same two Hellos, signed and with key shares, and everything after them encrypted.

    source                                     destination
    sourceHello, signed, key share   ------>
                                     <------   destinationHello, signed, key share
                                     <------   finished
    finished                         ------>
    records                          <----->   records

Nothing here does I/O, reads a clock or draws randomness: `channel.SecureChannel` is given all three. `hello` has the form of the
signed Hellos, `keys` the keys that sign them and how a DID proves its own, `schedule` what is derived from the key shares,
`finished` the messages that confirm it, `records` what carries everything after.
"""

from .hello import is_secure_hello

__all__ = ["is_secure_hello"]
