"""Services of `deploy/systemd`, confined as systemd confines them, by namespaces, mounts and `setpriv` alone.

`APPLIED` are the settings that a service gets here. `BEYOND` are those that only systemd itself can give, with the reason. A unit
with a setting in neither is refused, so that none is passed over in silence.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = tuple(Path(os.path.realpath(folder)) for folder in (sys.base_prefix, sys.prefix, ROOT))
"""The folders of this Python and of the sources. Where a unit hides the folder above them, they stay visible."""

APPLIED = frozenset(
    {
        *("ExecStart", "Environment", "EnvironmentFile", "Type", "User", "Group", "UMask", "Nice"),
        *(
            "StateDirectory",
            "StateDirectoryMode",
            "ReadWritePaths",
            "ProtectSystem",
            "ProtectHome",
            "PrivateTmp",
            "PrivateDevices",
        ),
        *("PrivateIPC", "PrivateUsers", "ProtectProc", "ProtectHostname", "ProtectControlGroups", "ProtectKernelTunables"),
        *("ProtectKernelLogs", "ProtectKernelModules", "NoNewPrivileges", "CapabilityBoundingSet", "AmbientCapabilities"),
        "ProtectClock",
    }
)
_FILTER = "a filter of system calls, which systemd writes"
_MANAGER = "systemd starts it again, stops it, or clears up after it"
BEYOND = {
    **dict.fromkeys(("SystemCallFilter", "SystemCallArchitectures", "SystemCallErrorNumber", "RestrictAddressFamilies"), _FILTER),
    **dict.fromkeys(("RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "MemoryDenyWriteExecute"), _FILTER),
    "LockPersonality": _FILTER,
    **dict.fromkeys(
        ("Restart", "RestartSec", "TimeoutStartSec", "TimeoutStopSec", "KillMode", "OOMPolicy", "RemoveIPC"), _MANAGER
    ),
    "IOSchedulingClass": "the order of disk accesses decides nothing here",
    "LimitNOFILE": "root of a container may not raise its own limit",
    "LimitCORE": "a service that runs to its end dumps no core",
    **dict.fromkeys(("WatchdogSec", "FileDescriptorStoreMax"), "test_service_manager.py plays this part of systemd"),
}
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_TEMPORARY = ("/tmp", "/var/tmp")


class Unit:
    """The section [Service] of a unit."""

    def __init__(self, text: str) -> None:
        """Raises `ValueError` for a setting that is in neither list above."""
        self.settings: dict[str, list[str]] = {}
        section = ""
        for line in text.splitlines():
            if line.startswith("["):
                section = line
            name, separator, value = line.partition("=")
            if section == "[Service]" and separator and not line.startswith("#"):
                self.settings.setdefault(name, []).append(value)
        unknown = self.settings.keys() - APPLIED - BEYOND.keys()
        if unknown:
            raise ValueError(f"settings of a unit that no test applies: {sorted(unknown)}")

    @property
    def user(self) -> str:
        return self._one("User")

    @property
    def is_oneshot(self) -> bool:
        return self._one("Type") == "oneshot"

    def environment(self) -> dict[str, str]:
        """Return the variables: its own, those of its files, and the path. Nothing else is passed on."""
        variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        variables |= dict(item.split("=", 1) for line in self._all("Environment") for item in shlex.split(line))
        for file in self._all("EnvironmentFile"):
            lines = (line for line in Path(file).read_text().splitlines() if line.strip() and not line.startswith("#"))
            variables |= dict(line.split("=", 1) for line in lines)
        return variables

    def command(self) -> list[str]:
        """Return its command. A word that is a variable becomes the words of its value."""
        variables = self.environment()
        command: list[str] = []
        for word in shlex.split(self._one("ExecStart")):
            command += variables[word[1:]].split() if word.startswith("$") else [word]
        return command

    def confined(self, command: Sequence[str]) -> list[str]:
        """Return the command of root by which `command` runs as the service does. It stays one process."""
        namespaces = ["--mount", *(["--ipc"] * self._is("PrivateIPC")), *(["--uts"] * self._is("ProtectHostname"))]
        steps = [*self._writable(), *self._processes(), *self._devices(), *self._hidden(), *self._read_only(), self._program()]
        return ["unshare", *namespaces, "sh", "-ec", "\n".join(steps), "sh", *command]

    def _one(self, name: str) -> str:
        return self.settings.get(name, [""])[-1]

    def _all(self, name: str) -> list[str]:
        return self.settings.get(name, [])

    def _is(self, name: str) -> bool:
        return self._one(name) == "yes"

    @property
    def _folders(self) -> list[str]:
        """The folders that it may write."""
        named = [path for line in self._all("ReadWritePaths") for path in line.split()]
        return [f"/var/lib/{self._one('StateDirectory')}", *named]

    def _writable(self) -> list[str]:
        """Return the commands that make its own folder, and a mount of each folder that it may write."""
        state, *named = self._folders
        owner = f"-o {self.user} -g {self._one('Group')} -m {self._one('StateDirectoryMode') or '0755'}"
        mounts = [f"mount --bind {path} {path}" for path in (state, *(path for path in named if not path.startswith("-")))]
        optional = [path[1:] for path in named if path.startswith("-")]
        return [f"install -d {owner} {state}", *mounts, *(f"! test -e {path} || mount --bind {path} {path}" for path in optional)]

    def _processes(self) -> list[str]:
        """Return the commands that hide the processes of other users, and what is the kernel's."""
        steps = []
        if self._one("ProtectProc") == "invisible":
            steps.append("mount -t proc -o hidepid=invisible proc /proc")
        if self._is("ProtectKernelTunables"):
            steps.append("mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys")
        if self._is("ProtectKernelLogs"):
            steps.append("mount --bind /dev/null /proc/kmsg")
        if self._is("ProtectKernelModules"):
            steps += _covered("/usr/lib/modules", "000")
        return steps

    def _devices(self) -> list[str]:
        if not self._is("PrivateDevices"):
            return []
        steps = ["mount -t tmpfs -o mode=755,noexec tmpfs /mnt", "mkdir /mnt/shm", "mount --bind /dev/shm /mnt/shm"]
        steps += [f"touch /mnt/{name} && mount --bind /dev/{name} /mnt/{name}" for name in _DEVICES]
        return [*steps, "ln -s /proc/self/fd /mnt/fd", "mount --move /mnt /dev"]

    def _hidden(self) -> list[str]:
        """Return the commands that give it temporary folders of its own, and no one's home."""
        steps: list[str] = []
        if self._is("PrivateTmp"):
            steps += [step for top in _TEMPORARY for step in _covered(top, "1777")]
        if self._is("ProtectHome"):
            steps += [step for top in ("/home", "/root", "/run/user") for step in _covered(top, "000")]
        return steps

    def _read_only(self) -> list[str]:
        """Return the commands that leave it nothing to write but its folders."""
        if self._one("ProtectSystem") != "strict":
            raise ValueError("ProtectSystem is strict in every unit")
        # /sys is the kernel's, and /dev and /proc have their own settings.
        open_ones = [
            "/proc",
            "/dev",
            *(["/sys"] * (not self._is("ProtectKernelTunables") or not self._is("ProtectControlGroups"))),
        ]
        open_ones += [*(path.lstrip("-") for path in self._folders), *(_TEMPORARY if self._is("PrivateTmp") else ())]
        pattern = "|".join(f"{path}|{path}/*" for path in open_ones)
        # The program is read below a temporary folder, and not written. A mount that another one hides cannot be named.
        text = "|".join(shlex.quote(str(folder)) for folder in PROGRAMS)
        return [
            "while read -r _ place _; do case $place in",
            f"{text}) mount -o remount,bind,ro $place ;;",
            f"{pattern}) ;;",
            "*) mount -o remount,bind,ro $place 2>/dev/null || ! mountpoint -q $place ;;",
            "esac; done < /proc/self/mounts",
        ]

    def _program(self) -> str:
        """Return the last command: the program, as its user, without rights, and in a namespace of users of its own."""
        words = [f"umask {self._one('UMask') or '0022'}\nexec"]
        if self._one("Nice"):
            words.append(f"nice -n {self._one('Nice')}")
        words.append(f"setpriv --reuid {self.user} --regid {self._one('Group')} --init-groups")
        if self._is("PrivateUsers"):
            identity = f'--map-user "$(id -u {self.user})" --map-group "$(id -g {self.user})"'
            # Its capabilities in there are kept for the next command alone, which drops them.
            words.append(f"unshare --user --keep-caps {identity}")
        if self._all("CapabilityBoundingSet") != [""]:
            raise ValueError("a unit keeps no capability, which ProtectClock and others rest on")
        if not self._is("PrivateUsers"):
            words[-1] += " --bounding-set=-all --inh-caps=-all --ambient-caps=-all"
        else:
            words.append("setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all")
        if self._is("NoNewPrivileges"):
            words[-1] += " --no-new-privs"
        return " ".join([*words, '"$@"'])


def _covered(top: str, mode: str) -> list[str]:
    """Return the commands that hide what is in a folder, but for the program itself."""
    folders = [folder for folder in PROGRAMS if Path(top) in folder.parents]
    folders = [folder for folder in folders if not any(other in folder.parents for other in folders)]
    mode = "755" if folders and mode == "000" else mode
    steps = [f"mount -t tmpfs -o mode={mode} tmpfs /mnt"]
    for folder in map(shlex.quote, map(str, folders)):
        steps.append(
            f"mkdir -p /mnt/{Path(folder).relative_to(top)} && mount --bind {folder} /mnt/{Path(folder).relative_to(top)}"
        )
    return [f"if [ -d {top} ]; then", *steps, f"mount --move /mnt {top}", "fi"]
