"""What all programs of Treaty stand on: identities, HTTP to other hosts, admission of strangers, durable files, errors, tracing.

identity          a DID and its keys; proved and claimed peers
network           other hosts over HTTP, with bounds on every exchange
admission         connections, turns and bytes of strangers, shared out by address and network
codes, errors     the errors of agents
conformance       the rules of a protocol, tried at a foreign peer one by one
durable, home     files that survive a crash, and the folder of an agent; `state_file`: a struct in one of them
extras            libraries and public names that are imported at their first use
task_set          the tasks that run beside their callers
tracing           spans of OpenTelemetry
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .extras import lazy_names

if TYPE_CHECKING:
    from .errors import PeerUnavailable as PeerUnavailable
    from .errors import RegistryUnavailable as RegistryUnavailable
    from .identity import ClaimedPeer as ClaimedPeer
    from .identity import Identity as Identity
    from .identity import ProvedPeer as ProvedPeer
    from .network.hosts import Network as Network
else:
    # At their first use: each program needs a few of them.
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".errors": "PeerUnavailable RegistryUnavailable",
            ".identity": "ClaimedPeer Identity ProvedPeer",
            ".network.hosts": "Network",
        },
    )
