"""Prometheus and Alertmanager of Debian with the shipped rules, whose time runs faster, and a receiver of their messages."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from debian_programs import debian_program
from ports import free_port

RULES = Path(__file__).parents[2] / "deploy" / "prometheus"
FACTOR = 10
"""Every duration of the shipped files is divided by it: scrapes, ranges, `for`, and the ages that a rule allows."""
_UNITS = {"s": 1, "m": 60, "h": 3600}


def faster(text: str) -> str:
    """Return rules or a configuration with its durations divided by `FACTOR`. Counts and rates stay, and spans of days."""

    def divided(match: re.Match[str]) -> str:
        seconds = int(match[2]) * _UNITS[match[3]] / FACTOR
        return f"{match[1]}{round(seconds * 1000)}ms" if seconds else match[0]

    text = re.sub(r"(\[|for: |offset |_interval: |group_wait: )(\d+)([smh])\b", divided, text)
    return re.sub(
        r"(_age_seconds\) <= |_seconds\)? > )(180|300|900)\b", lambda match: f"{match[1]}{int(match[2]) // FACTOR}", text
    )


class Message(NamedTuple):
    """One alert in a message that a receiver got."""

    at: float
    receiver: str
    status: str
    name: str
    job: str


@dataclass
class Monitoring:
    """Both programs while they run. `targets`: job → the ports of its metrics; written by `scrape`."""

    folder: Path
    prometheus: int
    alertmanager: int
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    def scrape(self, targets: Mapping[str, list[int]]) -> None:
        """Scrape these processes from now on."""
        groups = [
            {"targets": [f"127.0.0.1:{port}" for port in ports], "labels": {"job": job}}
            for job, ports in targets.items()
            if ports
        ]
        new = self.folder / "targets.new"
        new.write_text(json.dumps(groups))
        new.rename(self.folder / "targets.json")

    async def firing(self) -> set[tuple[str, str]]:
        """Return the alerts that fire now: name and job."""
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            with suppress(httpx.HTTPError, ValueError):  # ValueError: it starts, and answers with a text
                alerts = (await client.get(f"http://127.0.0.1:{self.prometheus}/api/v1/alerts")).json()["data"]["alerts"]
                return {
                    (each["labels"]["alertname"], each["labels"].get("job", "")) for each in alerts if each["state"] == "firing"
                }
        return set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one message of Alertmanager."""
        with suppress(OSError, ValueError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"(?i)^content-length: (\d+)", head, re.M)
            body: dict[str, Any] = json.loads(await reader.readexactly(int(length[1]) if length else 0))
            receiver = head.split(" ")[1].strip("/")
            for alert in body["alerts"]:
                labels = alert["labels"]
                self.messages.append(
                    Message(time.monotonic(), receiver, alert["status"], labels["alertname"], labels.get("job", ""))
                )
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        writer.close()


def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()


@asynccontextmanager
async def monitoring(folder: Path) -> AsyncIterator[Monitoring]:
    """Run both; nothing of them runs on after the block."""
    monitoring = Monitoring(folder, free_port(), free_port())
    monitoring.scrape({})
    receiver = free_port()
    (folder / "alerts.yml").write_text(faster((RULES / "alerts.yml").read_text()))
    config = faster((RULES / "prometheus.yml").read_text()).partition("scrape_configs:")[0]
    config = config.replace("127.0.0.1:9093", f"127.0.0.1:{monitoring.alertmanager}")
    sd = [{"files": ["targets.json"], "refresh_interval": "1s"}]
    config += f"scrape_configs: {json.dumps([{'job_name': 'treaty', 'file_sd_configs': sd}])}\n"
    (folder / "prometheus.yml").write_text(config)
    hooks = faster((RULES / "alertmanager.yml").read_text()).replace("127.0.0.1:9095", f"127.0.0.1:{receiver}")
    (folder / "alertmanager.yml").write_text(hooks)
    alertmanager = debian_program("prometheus-alertmanager", "prometheus-alertmanager")
    commands = [
        [
            debian_program("prometheus", "prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'series'}",
            f"--web.listen-address=127.0.0.1:{monitoring.prometheus}",
            # By default an alert is kept until Alertmanager has heard of its end for minutes.
            "--rules.alert.resend-delay=2s",
        ],
        [
            # Debian's program reads its templates there, where an unpacked package has none. For this process alone.
            *("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /usr/share && exec "$@"'),
            str(Path(alertmanager).parents[1] / "share"),
            alertmanager,
            f"--config.file={folder / 'alertmanager.yml'}",
            f"--storage.path={folder / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{monitoring.alertmanager}",
            "--cluster.listen-address=",
        ],
    ]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(await asyncio.start_server(monitoring.answer, "127.0.0.1", receiver))
        for command in commands:
            with (folder / f"{Path(command[0]).name}.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
            monitoring.processes.append(process)
            stack.push_async_callback(process.wait)
            stack.callback(_end, process)
        async with asyncio.timeout(60):
            while not await monitoring.firing():  # noqa: ASYNC110 (the watchdog fires first)
                await asyncio.sleep(0.5)
        yield monitoring
