"""Connect to the one among several PostgreSQL servers that takes writes."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import asyncpg

_PRIMARY: Any = "primary"  # a name of asyncpg's enumeration, which its package does not export
_STAGGER = 0.5
"""Seconds after which the next host of the URL is asked too."""


async def connect_primary(url: str, **options: Any) -> Any:
    """Connect to the host of `url` that takes writes. After a promotion it is another one.

    asyncpg asks one host after the other within one timeout, so a host that does not answer would hide the others. Here the next
    one is asked after `_STAGGER` seconds, and the first that fits is taken.
    """
    hosts = each_host(url)
    if len(hosts) == 1:
        return await asyncpg.connect(url, target_session_attrs=_PRIMARY, **options)
    waiting = [*reversed(hosts)]
    attempts: set[asyncio.Task[Any]] = set()
    failures: list[BaseException] = []
    try:
        while waiting or attempts:
            if waiting:
                attempts.add(asyncio.create_task(asyncpg.connect(waiting.pop(), target_session_attrs=_PRIMARY, **options)))
            done, attempts = await asyncio.wait(
                attempts, timeout=_STAGGER if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            connections = [task.result() for task in done if task.exception() is None]
            failures += [error for task in done if (error := task.exception()) is not None]
            for connection in connections[1:]:
                connection.terminate()
            if connections:
                return connections[0]
        raise failures[-1]
    finally:
        for task in attempts:
            task.add_done_callback(_drop)
            task.cancel()


def _drop(task: asyncio.Task[Any]) -> None:
    """Close the connection of a task that is no longer needed."""
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


def each_host(url: str) -> list[str]:
    """Return a URL for each host that `url` names, in their order: `//A,B/…` or `//…/…?host=A,B`."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    query = parse_qsl(parts.query, keep_blank_values=True)
    named = next((value for name, value in query if name == "host"), "")
    if "," in hosts:
        return [_joined(parts, f"{user}{at}{host}", query) for host in hosts.split(",")]
    if "," not in named:
        return [url]
    rest = [pair for pair in query if pair[0] != "host"]
    return [_joined(parts, parts.netloc, [*rest, ("host", host)]) for host in named.split(",")]


def _joined(parts: SplitResult, hosts: str, query: list[tuple[str, str]]) -> str:
    # Not `urlunsplit`, which leaves the slashes out where the host is in the query.
    return f"{parts.scheme}://{hosts}{parts.path}{'?' if query else ''}{urlencode(query, safe='/')}"
