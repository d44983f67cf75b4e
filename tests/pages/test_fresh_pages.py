"""A page shows a statement as soon as it is logged, although answers are cached; and what did not change is not made again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from http_api import attach, path_of, publish, say
from pages_read import decide, read
from registries import TOPIC, Web, ballot, grant, publication
from signers import ORIGIN, Signer, domain_signer

from treaty_consensus import kinds
from treaty_registry.app import create_app
from treaty_registry.registry import Registry
