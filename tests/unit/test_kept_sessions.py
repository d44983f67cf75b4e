"""A shared session that outlives its agent, in simulated time: what is kept, what is told, and which file is refused."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from assemblies import ASSEMBLY, Meeting, meet

from treaty_agent import CallContext, Malformed, TreatyError, Unavailable
from treaty_agent.sessions.room_file import RoomFile
from treaty_agent.testing import Simulation, run
from treaty_handler import (
    Call,
    Cancelled,
    Effect,
    Event,
    Invoke,
    Opened,
    PeerJoined,
    PeerLost,
    Persist,
    Received,
    Result,
    SetTimer,
    Timer,
)
from treaty_sandbox.kept_session import KeptSession
