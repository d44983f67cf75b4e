"""Implement the two profiles of the ANP meta-protocol and its encryption, without I/O, clock or randomness.

frame          the frames after the Hellos
hello_profile  agree on a protocol by two Hellos and meta messages
flow_profile   agree on a protocol by the negotiation flow
e2ee           sign the Hellos and encrypt all later messages
transitions    the state tables that both machines follow
recording      record the calls of a machine
transcript     the file of recorded calls, and their replay
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treaty_io.extras import lazy_names

if TYPE_CHECKING:
    from .e2ee.channel import SecureChannel as SecureChannel
    from .flow_profile.initiator import Initiator as Initiator
    from .flow_profile.responder import Responder as Responder
    from .flow_profile.states import FlowLimits as FlowLimits
    from .flow_profile.states import FlowTimeouts as FlowTimeouts
    from .hello_profile.core import Limits as Limits
    from .hello_profile.hello import Hello as Hello
    from .hello_profile.hello import Provided as Provided
    from .hello_profile.machine import Machine as Machine
    from .hello_profile.states import Timeouts as Timeouts
    from .transcript import TranscriptRecorder as TranscriptRecorder
    from .transcript import parse_transcript as parse_transcript
    from .transcript import replay as replay
else:
    # At their first use: each program needs a few of them.
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".e2ee.channel": "SecureChannel",
            ".flow_profile.initiator": "Initiator",
            ".flow_profile.responder": "Responder",
            ".flow_profile.states": "FlowLimits FlowTimeouts",
            ".hello_profile.core": "Limits",
            ".hello_profile.hello": "Hello Provided",
            ".hello_profile.machine": "Machine",
            ".hello_profile.states": "Timeouts",
            ".transcript": "TranscriptRecorder parse_transcript replay",
        },
    )
