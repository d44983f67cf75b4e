"""Agree on a protocol by two Hellos and meta messages (`anp-meta/1.0`). See docs/specification/hello-profile.md.

    hello        the two Hellos
    messages     the meta messages after them
    documents    the header of a proposed protocol document
    states       the states, transitions and waits
    machine      the state machine of both sides
    core         the shared parts of the machine, and its limits
    negotiation  the negotiations of a protocol, of test cases, and questions
    generation   the code of both sides, and its repair
    actions      the machine's requests to its driver
    commands     the driver's decisions for the machine

`treaty_anp.e2ee` signs the Hellos and encrypts the later messages.
"""
