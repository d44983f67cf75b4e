"""A server that accepts everything and answers nothing, as a process of its own: `python sink.py`. It prints its port.

A flood against it shows what the flood itself takes from the processors that it shares with the registry.
"""

from __future__ import annotations

import asyncio
import resource


class _Sink(asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        """Drop it."""


async def main() -> None:
    """Serve until the process is ended."""
    server = await asyncio.get_running_loop().create_server(_Sink, "127.0.0.1", 0, backlog=4_096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main())
