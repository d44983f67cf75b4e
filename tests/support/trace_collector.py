"""A collector of OpenTelemetry traces: OTLP over HTTP, on a port of loopback. It keeps the spans that processes send."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class CollectedSpan:
    """One span, as it was sent."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    links: tuple[str, ...]


@dataclass
class TraceCollector:
    """`raw`: the text of everything that was sent."""

    port: int
    spans: list[CollectedSpan] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """The standard variables with which a process sends its spans here."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRICS_EXPORTER": "none",
        }

    def named(self, name: str, service: str = "") -> list[CollectedSpan]:
        """The spans of a name."""
        return [span for span in self.spans if span.name == name and service in ("", span.service)]

    def take(self, body: bytes) -> None:
        """Keep what a process sent."""
        request = ExportTraceServiceRequest.FromString(body)
        self.raw.append(MessageToJson(request))
        for resource in request.resource_spans:
            about = {item.key: item.value.string_value for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {item.key: _value(item.value) for item in span.attributes}
                    links = tuple(link.trace_id.hex() for link in span.links)
                    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                    self.spans.append(CollectedSpan(about.get("service.name", ""), span.name, *ids, attributes, links))


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return (
        [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind or "string_value")
    )


@contextmanager
def trace_collector() -> Iterator[TraceCollector]:
    """Collect during the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = TraceCollector(server.server_address[1])
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
