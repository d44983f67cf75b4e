"""Join one process to the other nodes of its registry: it leads or follows, and what it cannot do itself it has the leader do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from treaty_consensus.errors import TreatyError
from treaty_consensus.log.checkpoint import LogKeys
from treaty_io.network.hosts import Network

from .log.entry import BlobReader, Entry
from .log.forwarding import PATIENCE, Forwarding
from .log.leader import Leader
from .log.leadership import Leadership
from .log.node import SILENT, Node
from .log.proposals import LogPosition, Proposal
from .log.sequencer import Sequencer
from .storage.postgres import Pool


class Nodes:
    """This node among the others. For one event loop."""

    def __init__(
        self,
        *,
        url: str,
        database: str,
        pool: Pool,
        blobs: BlobReader,
        leader: Leader,
        keys: Callable[[], LogKeys],
        secret: Callable[[LogKeys], bytes],
        network: Network,
        lead: Callable[[], Awaitable[None]],
        learned: Callable[[Sequence[Entry] | None], Awaitable[None]],
    ) -> None:
        """`url`: where the others reach this one. `keys`: those of the log. `secret`: one of all nodes. `lead`, `learned`: as
        for `Node`."""
        self._url = url
        self._leader = leader
        self._http = network.client(timeout=PATIENCE)
        self._node = Node(
            url=url,
            database=database,
            pool=pool,
            blobs=blobs,
            leader=leader,
            keys=keys,
            lead=lead,
            learned=learned,
        )
        self._forwarding = Forwarding(
            keys=keys,
            secret=lambda: secret(keys()),
            http=self._http,
            leader=leader,
            found=lambda: self._node.found,
            adopt=self._node.adopt,
        )

    async def begin(self, patience: float) -> None:
        """See `Node.begin`."""
        await self._node.begin(patience)

    async def run(self) -> None:
        """See `Node.run`."""
        await self._node.run()

    async def send(self, proposals: Sequence[Proposal]) -> list[LogPosition | TreatyError]:
        """See `Forwarding.send`."""
        return await self._forwarding.send(proposals)

    async def take(self, sequencer: Sequencer, body: bytes, code: str) -> tuple[bytes, str]:
        """Place the proposals of another node. Returns the answer and its code. Raises as `Forwarding.read`."""
        proposals = self._forwarding.read(body, code)
        return self._forwarding.answer(await sequencer.submit(proposals), code)

    @property
    def led_elsewhere(self) -> Leadership | None:
        """Return who leads, if another node does and is alive."""
        state = self._node.found
        alive = state is not None and state.led and state.url not in ("", self._url) and state.silent <= SILENT
        return state if alive and not self._leader.leads else None

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
