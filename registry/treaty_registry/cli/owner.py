"""Run a command as the user who owns the data directory, whoever calls it.

A file that root makes in the folder of a service is one that the service cannot read: a lock, the next keys.
So root becomes the owner before anything is opened, and keeps no right of its own. Another user is refused, unless he can read
the folder as it is.
"""

from __future__ import annotations

import inspect
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treaty_consensus.errors import Refused

from ..codes import SettingsCode
from ..settings import MIRROR_MARK
from ..storage.cluster import named_user
from .options import Options

_MADE_FIRST = ("keys", "witness.key", MIRROR_MARK)
"""What a registry, a witness and a mirror have from their first start on. A volume itself may belong to root."""


def as_owner(command: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
    """Run a command with its arguments, as the owner of the data directory that they name. Raises as `become_owner`."""
    bound.apply_defaults()
    options = bound.arguments.get("options")
    data = options.data if isinstance(options, Options) else bound.arguments.get("data")
    if isinstance(data, Path):
        become_owner(data)
    return command(*bound.args, **bound.kwargs)


def become_owner(data: Path) -> None:
    """Make this process one of the owner of `data`; nothing changes where there is no folder yet.

    Raises `Refused` (`settings.directory`) when it cannot and cannot read the folder either, or when the owner cannot read
    Treaty.
    """
    account = _made(data)
    if account is None:
        return
    owner, user = account.stat().st_uid, os.geteuid()
    if user == owner or (user and os.access(account, os.R_OK)):
        return
    try:
        # Only root may; for another user the first call fails, and nothing has changed.
        _set_user(owner, account.stat().st_gid)
    except OSError as error:
        name = named_user(owner)
        raise Refused(
            SettingsCode.DIRECTORY,
            f"{data} belongs to {name}, and this command runs as {named_user(user)}.",
            fix=f"Run it as {name}, or as root, who becomes {name}.",
        ) from error
    # Modules are imported later too. An installation in the home of root is one that a service cannot read either.
    for needed in (Path(os.__file__), Path(__file__)):
        if not os.access(needed, os.R_OK):
            raise Refused(
                SettingsCode.DIRECTORY,
                f"{data} belongs to {named_user(owner)}, who cannot read {needed}.",
                fix="Install Treaty and its Python where every user can read them, such as /opt/treaty.",
            )


def _made(data: Path) -> Path | None:
    """Return the file or folder whose owner counts; None before the first start."""
    try:
        return next((data / name for name in _MADE_FIRST if (data / name).exists()), data if data.exists() else None)
    except PermissionError:  # a folder that only its owner may enter
        return data


def _set_user(uid: int, gid: int) -> None:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:  # a user of another machine or container
        os.setgroups([])
    else:
        gid = entry.pw_gid
        os.initgroups(entry.pw_name, gid)
        # So that nothing is written into the home of the caller.
        os.environ["HOME"] = entry.pw_dir
    os.setgid(gid)
    os.setuid(uid)
