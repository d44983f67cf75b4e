"""The values of `Cache-Control` (RFC 9111 §5.2.2) that a registry and its copies send."""

from __future__ import annotations

IMMUTABLE = "public, max-age=31536000, immutable"
"""It never changes (RFC 8246)."""
SHARED = "public, max-age=5, s-maxage=10, stale-while-revalidate=60, stale-if-error=86400"
"""Caches between the registry and its readers serve it for ten seconds without asking, and for a day while the registry does not
answer (RFC 5861). For what proves itself, or is as old as that by design: checkpoint, bundles, records, topics."""
REVALIDATE = "no-cache"
"""Caches keep it and ask each time. For all others, such as the next `seq` of a voter."""
NO_STORE = "no-store"
