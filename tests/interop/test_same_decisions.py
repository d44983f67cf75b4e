"""The same log gives the same bytes everywhere: in other processes, with other hash seeds, without assertions, without the vector
units that NumPy would choose, in threads, and under every CPython that is at hand.

At hand is the one that runs the tests, and each `python3.N` from 3.11 on that is found on the PATH and runs. What the core needs,
and no more, is installed for each from the lock, into an environment of its own.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from recompute import recompute
from signers import domain_signer
from simulated_log import SUFFIX_LIST, SUFFIXES, LogBuilder, open_log

from treaty_consensus.kinds import NONE

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "recompute.py"
LOCK = ROOT / "requirements.lock"
NEEDED = {"cffi", "cryptography", "msgspec", "numpy", "packaging", "publicsuffixlist", "pycparser", "rfc8785"}
"""What `treaty_consensus` imports, and what that imports."""


def interpreters() -> list[str]:
    """Every CPython at hand, each as the path it has for itself."""
    paths = [sys.executable]
    for minor in range(11, 20):
        name = shutil.which(f"python3.{minor}")
        if name is None or minor == sys.version_info.minor:
            continue
        # pyenv's shims run only what this names; nobody else reads it
        environment = os.environ | {"PYENV_VERSION": f"3.{minor}"}
        say = "import sys; print(sys.executable if sys.implementation.name == 'cpython' else '')"
        probe = subprocess.run([name, "-c", say], check=False, env=environment, capture_output=True, text=True)
        if probe.returncode == 0 and probe.stdout.strip():
            paths.append(probe.stdout.strip())
    return paths


def fill(log: LogBuilder, seed: int) -> None:
    """Let agents report, fail, equivocate, vote, withdraw and vouch in two topics for seven epochs; the eighth stays open."""
    random = Random(seed)
    agents = [*log.agents, *(domain_signer(f"other-{number}.example") for number in range(6))]
    topics = {topic: [log.publish(agents[n], f"{topic[0]}-{n}", topic=topic) for n in range(4)] for topic in ("one", "two")}
    for epoch in range(8):
        for topic, documents in topics.items():
            rows = []
            for _ in range(30):
                one, other = random.sample(agents, 2)
                document = random.choice(documents[: 1 + epoch // 2])
                nid = log.report(one, other, document, topic=topic, outcome="agreed" if random.random() < 0.8 else "failed")
                rows.append((one, other, document, nid))
            if epoch == 4:
                one, other, document, nid = rows[0]
                log.report(one, other, next(d for d in documents if d != document), topic=topic, nid=nid)
            for agent in random.sample(agents, 5):
                choices = random.sample([*documents, NONE], random.randint(0, 5))
                log.vote(
                    agent,
                    *([tuple(choices[:2]), *choices[2:]] if random.random() < 0.5 and choices[2:] else choices),
                    topic=topic,
                )
        for agent in random.sample(agents, 11):
            log.vouch(agent, random.choice([other for other in agents if other is not agent]))
        if epoch < 7:
            assert log.close()


@pytest.fixture(scope="module", params=["development", "open"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log on the disk."""
    log = open_log(mature_epochs=4) if request.param == "open" else LogBuilder()
    fill(log, seed=4)
    place = tmp_path_factory.mktemp(request.param)
    (place / "leaves").write_text("\n".join(base64.b64encode(leaf).decode() for leaf in log.leaves))
    (place / SUFFIX_LIST.sha256).write_bytes(SUFFIXES)
    return place


@pytest.fixture(scope="module")
def expected(folder: Path) -> str:
    """What this process makes of it."""
    return recompute(folder)


def run(python: str, folder: Path, *flags: str, **environment: str) -> str:
    """What another process makes of it."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "consensus"), **environment}
    command = [python, *flags, str(SCRIPT), str(folder)]
    process = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        ((), {"PYTHONHASHSEED": "0"}),
        ((), {"PYTHONHASHSEED": "1"}),
        ((), {"PYTHONHASHSEED": "random"}),
        (("-O",), {"PYTHONHASHSEED": "2"}),
        ((), {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}),
        ((), {"OMP_NUM_THREADS": "7", "OPENBLAS_NUM_THREADS": "7"}),
        ((), {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX"}),
    ],
    ids=str,
)
def test_in_another_process(folder: Path, expected: str, flags: tuple[str, ...], environment: dict[str, str]) -> None:
    assert run(sys.executable, folder, *flags, **environment) == expected


@pytest.mark.sample(1)
def test_in_threads(folder: Path, expected: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(recompute, [folder] * 4)) == {expected}


@pytest.mark.sample(2)
@pytest.mark.parametrize("python", interpreters())
def test_under_every_version(folder: Path, expected: str, python: str, environment: Callable[[str, str, str], Path]) -> None:
    entries = re.findall(r"^([a-z0-9-]+)(==.*(?:\n    --hash=.*)*)", LOCK.read_text(), re.MULTILINE)
    needed = {name: name + rest for name, rest in entries if name in NEEDED}
    assert needed.keys() == NEEDED
    assert run(str(environment("consensus", "\n".join(needed.values()), python)), folder) == expected
