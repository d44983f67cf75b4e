"""Find the protocols of a topic at several registries, asked at the same time, with the answers of the store."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from treaty_consensus.errors import NotFound, TreatyError, Unavailable
from treaty_io.codes import ClientRegistryCode

from ..policy import Policy
from ..registries.trust import TrustedRegistries
from .answers import Answers
from .topic_cache import TopicCache
from .verification.steps import Step, taking
from .verification.topic import TopicView, view_topic

LATE = 5.0
"""Seconds that a registry may answer later than the first one, so that one slow registry does not delay all."""


_PATIENCE = 0.5
"""Seconds that registries may take to answer about a topic, if the store has protocols about it."""
_log = logging.getLogger(__name__)


class Candidates(NamedTuple):
    """The protocols to offer for a topic: their URIs, best first, and those that are the consensus at their registry.
    `taken_back`: sentences about those that their publishers yanked or revoked."""

    uris: tuple[str, ...] = ()
    consensus: frozenset[str] = frozenset()
    taken_back: tuple[str, ...] = ()


class Topics:
    """The topics of one agent. For one event loop; call `aclose`."""

    def __init__(
        self,
        answers: Answers,
        cache: TopicCache,
        registries: TrustedRegistries,
        policy: Policy,
        stored_about: Callable[[str], list[str]],
    ) -> None:
        """Ask for nothing yet. `stored_about`: return the URIs of the verified protocols about a topic in the store; it blocks on
        the disk."""
        self._answers, self._cache, self._registries, self._policy = answers, cache, registries, policy
        self._stored_about = stored_about
        self._renewals: dict[str, asyncio.Task[list[TopicView]]] = {}

    async def candidates(self, topic: str, *, fresh: bool = False) -> Candidates:
        """Return a topic's protocols at all registries of the policy. `fresh`: wait for their answers. Raises as `ask`.

        A stored answer is used while its proof is young enough, and renewed in the background. If no registry answers, the
        verified protocols of the store that are about the topic are returned.
        """
        if fresh:
            return ranked(await asyncio.shield(self._renew(topic)))
        origins = [origin for origin in self._registries.all() if self._policy.admits_registry(origin)]
        views = [view for origin in origins if (view := await asyncio.to_thread(self._cache.get, origin, topic)) is not None]
        stored = [] if views else await asyncio.to_thread(self._stored_about, topic)
        # A registry may hang: where there is an answer already, nothing waits for a better one.
        renewal = self._renew(topic)
        if not views:
            try:
                async with asyncio.timeout(_PATIENCE if stored else None):
                    views = await asyncio.shield(renewal)
            except (TimeoutError, Unavailable):
                if not stored:
                    raise
        return ranked(views) if views else Candidates(tuple(stored))

    async def aclose(self) -> None:
        """Stop asking."""
        for renewal in (renewals := list(self._renewals.values())):
            renewal.cancel()
        await asyncio.gather(*renewals, return_exceptions=True)

    def _renew(self, topic: str) -> asyncio.Task[list[TopicView]]:
        """Ask the registries about a topic, in one task at a time."""
        renewal = self._renewals.get(topic)
        if renewal is None:
            renewal = self._renewals[topic] = asyncio.create_task(self.ask(topic))
            renewal.add_done_callback(lambda done: self._renewed(topic, done))
        return renewal

    def _renewed(self, topic: str, done: asyncio.Task[list[TopicView]]) -> None:
        del self._renewals[topic]
        # With a stored answer nothing waits for the renewal, so its failure is handled here.
        failure = None if done.cancelled() else done.exception()
        if failure is not None and not isinstance(failure, Unavailable | NotFound):
            _log.error("The answer of a registry about %s is refused: %s", topic, failure)
            # The next connection must not go on as if there were no contradiction.
            try:
                self._cache.distrust(topic)
            except OSError as error:
                _log.warning("The stored answers about %s cannot be dropped: %s", topic, error)

    async def ask(self, topic: str) -> list[TopicView]:
        """Return the verified view of a topic at each registry of the policy.

        Registries that do not know it, do not answer, or answer more than `LATE` seconds after the first one are omitted. Raises
        `VerificationFailed`, and `NotFound` or `Unavailable` if no view remains.
        """
        origins = [origin for origin in self._registries.all() if self._policy.admits_registry(origin)]
        tasks = [asyncio.create_task(self._topic_at(origin, topic)) for origin in origins]
        await _first_and_prompt(tasks)
        views: list[TopicView] = []
        failure: TreatyError | None = None
        for task in tasks:
            try:
                # In the order of registries.json, not of arrival, so that the result does not depend on timing.
                views.append(task.result())
            except (NotFound, Unavailable) as error:
                failure = error
            except asyncio.CancelledError:
                continue
        if not views:
            raise failure or NotFound(
                ClientRegistryCode.NOT_TRUSTED, "There is no registry to ask.", fix="Trust one: treaty trust add URL#KEY"
            )
        return views

    async def _topic_at(self, origin: str, topic: str) -> TopicView:
        async with self._answers.advising(origin):
            answer = await self._answers.topic(origin, topic)
            with taking(Step.STATEMENTS):
                view = view_topic(answer.bundle, topic, answer.evidence, self._policy.constitutions.get(origin))
        try:
            await asyncio.to_thread(self._cache.put, origin, view, answer.data)
        except OSError as error:  # a cache: the next connection asks again
            _log.warning("A topic cannot be stored: %s", error)
        return view


def ranked(views: Iterable[TopicView]) -> Candidates:
    """Return the protocols of several registries: first the consensus of each, followed by the older versions of its line."""
    views = list(views)
    protocols = [protocol for view in views for protocol in view.protocols]
    protocols.sort(key=lambda protocol: not (protocol.is_older or protocol.state == "consensus"))
    consensus = frozenset(protocol.uri for protocol in protocols if protocol.state == "consensus")
    return Candidates(
        tuple(protocol.uri for protocol in protocols),
        consensus,
        tuple(protocol.withdrawal for view in views for protocol in view.taken_back),
    )


async def _first_and_prompt(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until one task has succeeded, then `LATE` seconds for the others; wait for all if none succeeds.

    Unfinished tasks are cancelled afterwards, also when the caller is cancelled.
    """
    waiting, loop, end = set(tasks), asyncio.get_running_loop(), math.inf
    try:
        while waiting:
            left = None if math.isinf(end) else end - loop.time()
            done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            if None in [task.exception() for task in done]:
                # Counted from the first success, or registries that answer one after another would renew the wait.
                end = min(end, loop.time() + LATE)
    finally:
        for task in waiting:
            task.cancel()
        # Wait for the cancelled tasks, so that none uses the client after it is closed.
        await asyncio.gather(*waiting, return_exceptions=True)
