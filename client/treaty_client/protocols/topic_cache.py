"""Keep the bundles of topics, so that a first meeting by topic needs no registry: HOME/topics.json and the store.

    {"topics": [{"origin": ORIGIN, "topic": TOPIC, "bundle": HEX}, …]}      newest first, at most 64

A bundle is used while its proof is younger than the policy's `max_age`. It is proved again when a process reads it. A topic only
orders the offers of a Hello: each protocol still passes all ten steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import msgspec

from treaty_consensus.errors import TreatyError
from treaty_consensus.kinds import Digest
from treaty_io.state_file import StateFile

from ..policy import Policy
from ..registries.trust import TrustedRegistries
from .store import Store
from .verification.ten_steps import prove, read_bundle
from .verification.topic import TopicView, view_topic

MAX_TOPICS = 64
"""A bundle may have megabytes."""
MAX_FILE = 64 * 1024


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    origin: str
    topic: str
    bundle: Digest


class _Topics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topics: tuple[_Entry, ...]


class TopicCache:
    """The topics of one home. The methods block on the disk; only `put` and `distrust` raise OSError. Safe among threads of one
    process; of two processes the later write wins."""

    def __init__(self, home: Path, store: Store, registries: TrustedRegistries, policy: Policy, now: Callable[[], int]) -> None:
        """Read nothing yet. `now`: Unix seconds."""
        self._store, self._registries, self._policy, self._now = store, registries, policy, now
        self._file = StateFile(home / "topics.json", _Topics, limit=MAX_FILE)
        self._views: dict[tuple[str, str], TopicView] = {}
        self._distrusted: set[str] = set()

    def get(self, origin: str, topic: str) -> TopicView | None:
        """Return the view of a topic if its proof is young enough for the policy, else None."""
        if topic in self._distrusted:
            return None
        view = self._views.get((origin, topic)) or self._load(origin, topic)
        if view is None or self._is_old(view):
            return None
        self._views[origin, topic] = view
        return view

    def put(self, origin: str, view: TopicView, bundle: bytes) -> None:
        """Keep a view that was proved just now, and its bundle."""
        self._views[origin, view.topic] = view
        self._distrusted.discard(view.topic)
        entries = self._read()
        # The bundle first: a crash leaves unused bytes, and never a name without them.
        new_entry = _Entry(origin, view.topic, self._store.put(bundle))
        rest = [entry for entry in entries if (entry.origin, entry.topic) != (origin, view.topic)]
        newest = [new_entry, *rest][:MAX_TOPICS]
        self._write(entries, newest)
        for key in self._views.keys() - {(entry.origin, entry.topic) for entry in newest}:
            self._views.pop(key, None)

    def distrust(self, topic: str) -> None:
        """Use no stored answer about a topic until a registry answers well, because an answer was refused. The stored ones are
        dropped, so that it holds after a restart, too. Raises OSError; then it holds for this process alone."""
        self._distrusted.add(topic)
        entries = self._read()
        self._write(entries, [entry for entry in entries if entry.topic != topic])

    def _write(self, entries: list[_Entry], newest: list[_Entry]) -> None:
        if newest != entries:
            self._file.write(_Topics(tuple(newest)))
        used = {entry.bundle for entry in newest}
        for entry in entries:
            if entry.bundle not in used:
                self._store.discard(entry.bundle)

    def _is_old(self, view: TopicView) -> bool:
        time = view.evidence.checkpoint.time
        return time is None or self._now() - time > self._policy.max_age

    def _load(self, origin: str, topic: str) -> TopicView | None:
        data = next((self._store.get(e.bundle) for e in self._read() if (e.origin, e.topic) == (origin, topic)), None)
        if data is None:
            return None
        try:
            # Without `seen`: the checkpoint was consistent when it was stored, and is older than the newest one now.
            registry = dataclasses.replace(self._registries.get(origin), seen=None)
            bundle = read_bundle(data, topic=topic)
            evidence = prove(bundle, registry, self._policy, now=self._now())
            return view_topic(bundle, topic, evidence, self._policy.constitutions.get(origin))
        except TreatyError:  # too old, or no longer admitted: the registry is asked
            return None

    def _read(self) -> list[_Entry]:
        content = self._file.read()
        return list(content.topics[:MAX_TOPICS]) if content else []
