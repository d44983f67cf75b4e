"""The host before a guard: messages of JSON-RPC, one a line, on the standard input and output of this process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator

from .upstream import MAX_LINE, Message, encode_message, parse_message


class HostPipes:
    """The pipes to a host. For one event loop."""

    def __init__(self) -> None:
        """Nothing is opened yet."""
        # Messages leave by a descriptor of their own. Anything else that is printed goes to the log of the host.
        self._out = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    async def messages(self) -> AsyncIterator[Message | None]:
        """Yield the messages of the host until its end, or a line over the limit; None for a line that is none."""
        reader = asyncio.StreamReader(limit=MAX_LINE)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        try:
            while line := await reader.readline():
                if line.strip():
                    yield parse_message(line)
        except ValueError:  # of a line over the limit: the rest cannot be divided into messages
            return

    async def send(self, message: Message) -> None:
        """Write a message. Raises OSError if the host is gone."""
        # In a thread, because a host that does not read blocks the write.
        await asyncio.to_thread(_write, self._out, encode_message(message))


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
