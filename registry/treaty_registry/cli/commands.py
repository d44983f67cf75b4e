"""The commands of `treaty-registry`."""

from __future__ import annotations

from cyclopts import App

from treaty_consensus import __version__

app = App(
    name="treaty-registry",
    help="Run a registry: the log of what agents publish, report, vote and agree on.",
    version=__version__,
    version_flags=["--version"],
    result_action="return_value",
)

# By name, so that a command imports only its own modules: the web framework alone takes half a second.
for _place, _help in {
    "serving:serve": "Serve the registry of the log in the data directory.",
    "creating:init": "Make a new log: its keys, its database, its first two leaves.",
    "creating:migrate": "Update the database's tables to this release.",
    "inspecting:status": "Show how the running registry is.",
    "inspecting:doctor": "Name each problem of the running registry, and its fix.",
    "operating:decide": "Close the open epoch of a development electorate.",
    "operating:parameters": "Show the constants of the election, or announce new ones.",
    "mirroring:mirror": "Mirror a registry: follow its log, check every rule, and serve its reads.",
    "witnessing:witness": "Witness logs: cosign checkpoints that extend the ones cosigned before.",
    "operating:accept_clock": "Let the running registry sign again after its clock has jumped ahead.",
    "operating:resume_signing": "Let the running registry sign again, after another process signed its log.",
    "rotating:prepare_rotation": "Make the next keys of the log, its clock or its authority. They sign nothing yet.",
    "rotating:rotate": "Log the prepared rotation: from then on the new keys sign.",
    "rotating:retire_keys": "After the overlap, move the old keys out of use.",
    "operating:rebuild": "Derive every table from the log again, and correct the rows that differ.",
    "operating:promote": "Make a registry of a mirror whose registry is gone for good.",
    "copying:backup": "Copy the log, its blobs and its keys into a folder, beside the running registry.",
    "copying:restore": "Bring a log back from a backup, if that cannot fork it.",
    "moderating:withdraw": "Stop serving content and delete its bytes: a URI, all of a DID, or one blob.",
    "moderating:block": "Refuse every write of a DID, a domain or a network, or list who is blocked.",
    "moderating:unblock": "Take writes of a sender again.",
    "moderating:quota": "Raise or lower the quota of a DID or a domain.",
    "moderating:senders": "List the largest senders.",
    "operating:audit": "Check all stored data: every signature, rule and decision.",
}.items():
    app.command(f"{__package__}.{_place}", help=_help)
