"""What was verified earlier and is used again, compared with what was seen of the log since."""

from __future__ import annotations

from collections.abc import Sequence

from treaty_consensus.kinds import Status
from treaty_consensus.log.note import VerifierKey

from .completeness import Answer, left_out
from .contradiction import check_seen
from .leaves import SeenLeaf
from .protocol import VerifiedProtocol, judge
from .steps import Step, taking


def check_kept(verified: VerifiedProtocol, seen: Sequence[SeenLeaf], key: VerifierKey) -> list[SeenLeaf]:
    """Compare a protocol with what was seen under the subjects of its answer; return what is newer than it.

    Raises `LeftOut` when it contradicts what its own log held, and `VerificationFailed` (step 9) when protocol or handler were
    yanked or revoked since. Anything else that is newer, such as a decision or another handler, takes nothing from it.
    """
    answer = Answer(verified.evidence, uri=verified.uri)
    check_seen(answer, (), [leaf for leaf in seen if leaf.index < answer.size], key)
    newer = left_out(answer, seen)
    for leaf in newer:
        body, author = leaf.statement.body, leaf.statement.author.text
        if not isinstance(body, Status) or body.uri != verified.uri:
            continue
        if body.wheel is None or (body.wheel, author) == (verified.package.digest, verified.publisher):
            with taking(Step.STATUS):
                judge(body, body.uri)
    return newer
