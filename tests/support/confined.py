"""Run a program as the units of `deploy/systemd` confine it, without systemd: as an unprivileged user, in namespaces of its own.

    PrivateUsers=yes, PrivateIPC=yes    a user namespace and an IPC namespace: PostgreSQL's own interlock is a key of the latter
    ProtectProc=invisible               a /proc that shows no process of another user or user namespace

A Python below a folder that is root's alone, such as /root, is mounted anew for that program: nothing of the machine is changed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
USER = "nobody"
"""The user of the registry here. `initdb` wants one with a name."""
_HIDDEN = "mount -t proc -o hidepid=invisible proc /proc"
_AS_USER = f'exec setpriv --reuid {USER} --regid "$(id -g {USER})" --clear-groups'
_OWN_USERS = f'unshare --user --ipc --map-user "$(id -u {USER})" --map-group "$(id -g {USER})"'


@cache
def missing() -> str | None:
    """Return the reason why nothing can be confined here; None if it can."""
    if os.geteuid() != 0:
        return "Only root can start processes of other users."
    lacking = [name for name in ("setpriv", "unshare", "mount") if shutil.which(name) is None]
    if lacking:
        return f"The system lacks {', '.join(lacking)}."
    words = _words(users=True)
    tried = subprocess.run([*words, sys.executable, "-c", "import treaty_registry"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"This machine confines no process so: {tried.stderr.strip()[-200:]}"


def confined(path: Path, program: Path, *, users: bool, private: Path | None = None) -> Path:
    """Write a script that runs `program` as `USER` with a hidden /proc; with `users` in user and IPC namespaces of its own too.

    `private`: a folder that this program alone sees, as with PrivateTmp=yes. What it writes there is gone with it.
    """
    words = shlex.join(_words(users=users, private=private))
    path.write_text(f'#!/bin/sh\nexec {words} {shlex.quote(str(program))} "$@"\n')
    path.chmod(0o755)
    return path


def reachable(path: Path, program: Path) -> Path:
    """Write a script that runs `program` as root, whose Python other users can read too, as in /opt/treaty."""
    words = ["unshare", "--mount", "sh", "-c", " && ".join([*_opened(), 'exec "$0" "$@"'])]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} {shlex.quote(str(program))} "$@"\n')
    path.chmod(0o755)
    return path


def _words(*, users: bool, private: Path | None = None) -> list[str]:
    steps = [*_opened(), _HIDDEN]
    if private is not None:
        steps.append(f'mount -t tmpfs -o "mode=700,uid=$(id -u {USER})" tmpfs {shlex.quote(str(private))}')
    steps.append(f'{_AS_USER} {_OWN_USERS if users else ""} "$0" "$@"')
    return ["unshare", "--mount", "sh", "-c", " && ".join(steps)]


def _opened() -> list[str]:
    """Return the commands that mount the folders of Python and of the sources where others can reach them."""
    needed = [Path(os.path.realpath(folder)) for folder in (sys.base_prefix, sys.prefix, ROOT)]
    closed = {parent for folder in needed for parent in folder.parents if not parent.stat().st_mode & 0o001}
    steps = []
    for top in sorted(closed):
        if any(parent in closed for parent in top.parents):
            continue  # it is below one that is mounted anew
        below = [folder for folder in needed if top in folder.parents]
        steps.append("mount -t tmpfs -o mode=755 tmpfs /mnt")
        for number, folder in enumerate(below):
            steps.append(f"mkdir /mnt/{number} && mount --bind {shlex.quote(str(folder))} /mnt/{number}")
        steps.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(top))}")
        for number, folder in enumerate(below):
            place = shlex.quote(str(folder))
            steps.append(f"mkdir -p {place} && mount --bind /mnt/{number} {place}")
    return steps
