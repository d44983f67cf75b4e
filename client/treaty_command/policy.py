"""`treaty policy`: allow publishers, list those that are allowed, and export the policy of witnesses."""

from __future__ import annotations

from dataclasses import replace

from cyclopts import App
from rich.markup import escape

from .context import Options
from .policy_file import allow_publisher

app = App(name="policy", help="Allow publishers, and list those that are allowed.")


@app.command
def allow(did: str, /, *, options: Options = Options()) -> None:
    """Let the handlers of a publisher run on this machine, in the sandbox. All other text of policy.toml stays.

    Parameters
    ----------
    did
        The publisher.
    """
    changed = allow_publisher(options.home / "policy.toml", did)
    said = f"Handlers of [bold]{escape(did)}[/] may run." if changed else f"{escape(did)} was allowed before."
    options.output.result({"publisher": did, "changed": changed}, f"[green]✓[/] {said}")


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
        case WitnessPolicy() as made:
            exported = replace(made, logs=logs)
        case Quorum() as quorum:
            exported = WitnessPolicy.of(quorum, logs)
        case _:
            exported = WitnessPolicy(logs)
    # C2SP recommends UTF-8 for what is not ASCII.
    text = exported.format().decode("utf-8", "replace")
    options.output.plain({"policy": text}, *text.splitlines())
