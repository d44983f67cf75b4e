"""Say where a handler was built, as SLSA provenance: an in-toto Statement v1 with the predicate `https://slsa.dev/provenance/v1`.

It follows from the log. The key that signed the `handler` statement was in the memory of one run alone, and the `validation` of
that key names the run: its repository, commit and workflow. So the statement is as good as the operator's word about the token
(`treaty_consensus.workflow_evidence`), and as the workflow that built the wheel. A wheel that another key attached has none.

Source: SLSA v1.0, "Provenance"; the build type is that of GitHub Actions workflows.
"""

from __future__ import annotations

from treaty_consensus.kinds import Handler, Validation
from treaty_consensus.workflow_evidence import Claims, check_evidence

from .verification.records import Evidence, Logged

BUILD_TYPE = "https://slsa-framework.github.io/github-actions-buildtypes/workflow/v1"
_GITHUB = "https://github.com"


def validation_of(evidence: Evidence, handler: Logged) -> Logged | None:
    """Return the validation of the key that attached a handler; None for a key that no token proved."""
    (key_id,) = handler.statement.by
    for logged in reversed(evidence.identities(handler.statement.author.text)):
        body = logged.statement.body
        # The first key alone: the evidence is about it.
        if isinstance(body, Validation) and body.method == "oidc" and body.keys[0].id == key_id and logged.index < handler.index:
            return logged
    return None


def provenance(handler: Logged, validation: Logged, data: bytes) -> dict[str, object]:
    """Return the provenance of a handler, after the evidence was checked. `data`: the bytes of the validation's document.

    Raises `Malformed`, `TooLarge` or `Unauthorized` (`token.invalid`) for evidence of another validation.
    """
    body, stated = handler.statement.body, validation.statement.body
    assert isinstance(body, Handler) and isinstance(stated, Validation), "the caller has looked"
    claims = check_evidence(data, stated, log=validation.statement.log, issued=validation.statement.issued).claims
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": body.filename, "digest": {"sha256": body.wheel.sha256}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": _definition(claims), "runDetails": _run(claims)},
    }


def _definition(claims: Claims) -> dict[str, object]:
    path, _, ref = claims.workflow_ref.removeprefix(f"{claims.repository}/").partition("@")
    repository = f"{_GITHUB}/{claims.repository}"
    return {
        "buildType": BUILD_TYPE,
        "externalParameters": {"workflow": {"ref": ref, "repository": repository, "path": path}},
        "internalParameters": {
            "github": {
                "event_name": claims.event_name,
                "repository_id": claims.repository_id,
                "repository_owner_id": claims.repository_owner_id,
            }
        },
        "resolvedDependencies": [{"uri": f"git+{repository}@{claims.ref}", "digest": {"gitCommit": claims.sha}}],
    }


def _run(claims: Claims) -> dict[str, object]:
    run = f"{_GITHUB}/{claims.repository}/actions/runs/{claims.run_id}/attempts/{claims.run_attempt or 1}"
    return {
        # The file whose steps ran: of a reusable workflow it is another repository's.
        "builder": {"id": f"{_GITHUB}/{claims.job_workflow_ref}"},
        **({"metadata": {"invocationId": run}} if claims.run_id else {}),
    }
