"""`treaty policy`: allow publishers, list those that are allowed, and export the policy of witnesses.

A publisher is added to policy.toml, and the rest of the file stays as its owner wrote it. The text is changed in one place, and
the result is read again. If it does not say exactly the former policy with the new publisher, the file stays as it is.
"""

from __future__ import annotations

import json
import re
import stat
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from cyclopts import App
from rich.markup import escape

from treaty_client.policy import load_policy
from treaty_consensus.did import parse_did
from treaty_consensus.errors import Refused
from treaty_io import durable
from treaty_io.codes import PolicyCode

from .context import Options
from .values import DidText

app = App(name="policy", help="Allow publishers, and list those that are allowed.")


@app.command
def allow(did: DidText, /, *, options: Options = Options()) -> None:
    """Let the handlers of a publisher run on this machine, in the sandbox. All other text of policy.toml stays.

    Parameters
    ----------
    did
        The publisher.
    """
    changed = allow_publisher(options.home / "policy.toml", did)
    sentence = f"Handlers of [bold]{escape(did)}[/] may run." if changed else f"{escape(did)} was allowed before."
    options.output.result({"publisher": did, "changed": changed}, f"[green]✓[/] {sentence}")


@app.command(name="list")
def list_publishers(*, options: Options = Options()) -> None:
    """List the publishers whose handlers may run, in the order of preference. `treaty config` shows all of the policy."""
    policy = options.policy()
    tenures = dict(policy.tenures)
    lines = [escape(did) + (f"  [dim]only tenure {tenures[did]}[/]" if did in tenures else "") for did in policy.publishers]
    value = {"publishers": list(policy.publishers), "tenures": tenures}
    options.output.result(value, *(lines or ["No publisher is allowed, so no handler runs. Allow one: treaty policy allow DID"]))


@app.command
def export(*, options: Options = Options()) -> None:
    """Write the trusted registries and the witnesses of the policy as a C2SP tlog-policy file, for other programs."""
    from treaty_consensus.log.policy import PolicyLog, WitnessPolicy
    from treaty_consensus.log.witness import Quorum

    policy = options.policy()
    logs = tuple(PolicyLog(each.name.key, each.name.base_url) for each in options.registries.all().values())
    match policy.witnesses:
        case WitnessPolicy() as witness_policy:
            exported = replace(witness_policy, logs=logs)
        case Quorum() as quorum:
            exported = WitnessPolicy.of(quorum, logs)
        case _:
            exported = WitnessPolicy(logs)
    # C2SP recommends UTF-8 for what is not ASCII.
    text = exported.format().decode("utf-8", "replace")
    options.output.plain({"policy": text}, *text.splitlines())


_LIST = re.compile(r"^publishers\s*=\s*\[", re.MULTILINE)


def allow_publisher(path: Path, did: str) -> bool:
    """Let handlers of `did` run, as the last choice. Return whether the file changed: False if it named the DID before.

    Raises `Malformed` for a text that is no DID and for a file that is no policy, and `Refused` (`policy.file`) for a file whose
    list of publishers this function cannot find.
    """
    parse_did(did)
    # The file may be a link to one that its owner keeps elsewhere. It stays a link.
    path = path.resolve()
    # Two commands at once must not lose a publisher.
    with durable.exclusive(path.with_name(f"{path.name}.lock")):
        return _allow(path, did)


def _allow(path: Path, did: str) -> bool:
    # Read first: a file with a fault is for its owner to mend.
    if did in load_policy(path).publishers:
        return False
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    before = tomllib.loads(text)
    changed = _with(text, did)
    if _parsed(changed) != {**before, "publishers": [*before.get("publishers", []), did]}:
        raise Refused(
            PolicyCode.FILE, f"The list `publishers` of {path} has an unusual form.", fix=f"Add {json.dumps(did)} to it by hand."
        )
    durable.write(path, changed.encode(), mode=stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644)
    return True


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _with(text: str, did: str) -> str:
    """Return the text with a DID at the beginning or the end of its list; the caller checks the result."""
    match = _LIST.search(text)
    if match is None:
        # Before all tables, or the key would belong to the last of them.
        return f"publishers = [{json.dumps(did)}]\n{text}"
    end = text.find("]", match.end())
    inside = text[match.end() : end].rstrip()
    # A comma in a comment would separate nothing.
    separator = "" if not inside.strip() or inside.endswith(",") or "#" in inside.rpartition("\n")[2] else ","
    space = "\n    " if "\n" in inside else " " if inside.strip() else ""
    return f"{text[: match.end()]}{inside}{separator}{space}{json.dumps(did)}{text[match.end() + len(inside) :]}"
