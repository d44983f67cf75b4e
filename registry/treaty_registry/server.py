"""Serve a registry: its application, and the control socket beside it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from .app import create_app
from .listening import Listening
from .observation import RegistryState, metrics_served
from .operator.acts import Acts
from .operator.backup import BackedUp, back_up_log, check_folder
from .operator.control import Command, control_socket
from .operator.largest import SenderList, list_senders
from .operator.parameters import Announced, ParametersDraft
from .operator.rotations import prepare
from .operator.withdrawals import Reason, Withdrawn
from .pages.pages import Pages
from .registry import Registry
from .serving.views import Views
from .settings import Settings
from .static_site import StaticSite
from .status import read_status
from .storage.objects import check_store


async def serve(settings: Settings, ready: Callable[[Registry], None]) -> None:
    """Open the registry and serve it until SIGTERM or SIGINT. Then finish the current requests and the queued statements.

    `ready` is called once connections are accepted. Raises as `Registry.open` and `Listening.bound`.
    """
    limits = replace(settings.connections, exempt=settings.proxies.trusts)
    listening = Listening(settings.host, settings.port, settings.tls_cert, settings.tls_key, limits)
    # Before the registry opens: a taken port must not cost a start and a stop of the database, and a mistake in a setting must
    # not leave a log behind.
    with listening.bound() as listener, ended_by_sigterm():
        for store in (settings.blobs, *settings.tiles, settings.head_object):
            check_store(store)
        async with Registry.open(settings) as registry, controlled(registry, settings):
            views = Views(registry)
            state = RegistryState(registry, views, asyncio.get_running_loop())
            async with metrics_served(settings.metrics, state):
                app = create_app(registry, views=views)
                with site_written(registry, views):
                    await listener.serve(app, lambda: ready(registry), registry.begin_stop)


@contextmanager
def site_written(registry: Registry, views: Views) -> Iterator[None]:
    """Write the static site beside the first copy of the tiles during the block, where the log is copied to a store."""
    if not registry.tiles.copies:
        yield
        return
    task = asyncio.create_task(StaticSite(registry, registry.tiles.copies[0], Pages(views)).run())
    try:
        yield
    finally:
        task.cancel()


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """End the block at SIGTERM, as `Listener.serve` does later with its own handler.

    By default SIGTERM ends the process at once, and a database that is being started would stay without a user.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "called in a coroutine"
    terminated = False

    def end() -> None:
        nonlocal terminated
        terminated = True
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    except asyncio.CancelledError:
        if not terminated:
            raise
        task.uncancel()


def controlled(registry: Registry, settings: Settings) -> AbstractAsyncContextManager[None]:
    """Answer the operator's commands on the control socket during the block."""
    commands = _commands(registry, settings) | _moderation(registry)
    return control_socket(settings.control, commands, Acts(registry.pool))


def _moderation(registry: Registry) -> dict[str, Command]:
    senders = registry.intake.senders

    async def withdraw(_target: str, digests: list[str], reason: str) -> Withdrawn:
        return await registry.withdrawals.withdraw(digests, msgspec.convert(reason, Reason))

    async def largest(newest: int | None) -> SenderList:
        return await list_senders(registry.database, registry.intake, registry.head.size, newest)

    return {
        "withdrawable": registry.withdrawals.plan,
        "withdraw": withdraw,
        "block": senders.block,
        "unblock": senders.unblock,
        "quota": senders.set_factor,
        "senders": largest,
    }


def _commands(registry: Registry, settings: Settings) -> dict[str, Command]:
    async def announce(draft: object) -> Announced:
        return await registry.announce(msgspec.convert(draft, ParametersDraft))

    async def accept_clock() -> str:
        return registry.accept_clock().isoformat()

    async def resume_signing() -> int:
        await registry.other_signer.resume()
        return registry.head.size

    async def backup(folder: str, device: int, inode: int) -> BackedUp:
        await asyncio.to_thread(check_folder, Path(folder), device, inode)
        return await back_up_log(settings, registry.database, Path(folder))

    async def prepare_rotation(roles: list[str]) -> list[str]:
        return await asyncio.to_thread(prepare, settings.keys, roles)

    return {
        "status": lambda: read_status(registry),
        "accept-clock": accept_clock,
        "resume-signing": resume_signing,
        "backup": backup,
        "decide": registry.decide,
        "rebuild": registry.rebuild,
        "parameters": registry.parameters_status,
        "announce": announce,
        "prepare-rotation": prepare_rotation,
        "rotate": registry.rotate,
        "retire-keys": registry.retire_keys,
    }
