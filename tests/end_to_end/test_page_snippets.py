"""What the page of a protocol offers to copy is copied and run, by two agents with homes of their own."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from ports import free_port
from protocol_pages import BROWSER, Shown
from run_process import DOMAINS_READY, Run, make_run, run_script

SETUP = """
. .venv/bin/activate
. .treaty-registry/environment
for name in alice bob; do
    treaty identity new $name.example --home ../agents/$name --document .treaty-registry/domains/$name.example/did.json
    treaty trust add http://127.0.0.1:8080 --yes --home ../agents/$name
done
treaty publish examples/greeting --home ../agents/alice
treaty policy allow did:wba:alice.example --home ../agents/alice
"""
ENTER = """
. .venv/bin/activate
. .treaty-registry/environment
export TREATY_HOME=../agents/{name}
"""


def copied(run: Run, path: str) -> list[str]:
    """The blocks of the page that have a button to copy them."""
    page = Shown()
    page.feed(httpx.get(f"{run.url}{path}", headers=BROWSER).raise_for_status().text)
    page.check()
    return [block.text.removesuffix("Copy").strip() for block in page.all("div", class_="command")]


@pytest.mark.deep
def test_the_snippets_of_a_page_run_as_they_are(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        run.wait_for(DOMAINS_READY)
        done = run_script(run, tmp_path / "setup", SETUP)
        assert done.returncode == 0, done.stdout + done.stderr
        fetch, stubs, caller, provider, *_ = copied(run, "/protocols/alice.example/greeting/1.0")

        work = tmp_path / "bob"
        as_bob = run_script(run, work, ENTER.format(name="bob") + f"{fetch}\n{stubs}\npython -c 'import greeting_stubs'")
        assert as_bob.returncode == 0, as_bob.stdout + as_bob.stderr
        assert "10 lock" in as_bob.stdout
        assert as_bob.stdout.count("for 6 of 6 outcomes") == 2, "by its URI, and by its hash"
        assert "class Guest" in (work / "greeting_stubs.py").read_text()

        work, port = tmp_path / "both", str(free_port())
        work.mkdir()
        (work / "provider.py").write_text(provider.replace("8765", port))
        (work / "caller.py").write_text(caller)
        script = ENTER.format(name="alice") + "treaty policy list\npython provider.py > provider.log 2>&1 & provider=$!\n"
        script += "until grep -q ws:// provider.log; do kill -0 $provider; sleep 0.1; done\nexport TREATY_HOME=../agents/bob\n"
        script += f"treaty policy allow did:wba:alice.example\npython caller.py ws://127.0.0.1:{port}\nkill $provider\n"
        met = run_script(run, work, script)
        assert met.returncode == 0, met.stdout + met.stderr + (work / "provider.log").read_text()
        assert "Hello, Ada!" in met.stdout
