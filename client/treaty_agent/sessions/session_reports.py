"""Report the sessions of an agent, and answer the reports that peers propose."""

from __future__ import annotations

from treaty_anp.hello_profile.messages import ReportCosignature, ReportProposed, ReportRefused
from treaty_consensus.codes import ReportCode
from treaty_consensus.errors import Refused, TreatyError
from treaty_consensus.protocol import parse_protocol_uri

from ..reports.report import Reporter
from ..reports.report_rules import SessionFacts, refusal_code
from .agreements import URN
from .interfaces import SpokenProtocol
from .session import ReportParties


class SessionReports:
    """The reports of one agent. `registry`: the origin where negotiated protocols are published and reported."""

    def __init__(self, reporter: Reporter, registry: str) -> None:
        self.reporter, self.registry = reporter, registry

    def log(self, protocol: str) -> str:
        """Return the origin of the log that gets the reports on a protocol, by its URI. A negotiated one, and one that is not
        known, are reported to the agent's own registry."""
        is_elsewhere = protocol and not protocol.startswith(URN)
        return parse_protocol_uri(protocol).origin if is_elsewhere else self.registry

    def facts(self, protocol: SpokenProtocol | None, parties: ReportParties, *, spoke: bool) -> SessionFacts:
        """Return the facts of a session for a report. A negotiated protocol is reported to the agent's own registry. Raises
        `Refused` (`report.other`) without a protocol."""
        if protocol is None:
            raise Refused(ReportCode.OTHER, "A session without a protocol cannot be reported.")
        log = self.log(protocol.uri)
        return SessionFacts(parties.own_key, parties.peer_key, log, parties.nid, protocol.topic, protocol.hash, spoke)

    async def cosign(
        self, protocol: SpokenProtocol | None, parties: ReportParties, proposal: ReportProposed, *, spoke: bool
    ) -> ReportCosignature:
        """Return the answer to a proposed report. Never raises."""
        try:
            facts = self.facts(protocol, parties, spoke=spoke)
        except TreatyError as error:
            return ReportRefused(refusal_code(error))
        return await self.reporter.cosign(facts, proposal)
