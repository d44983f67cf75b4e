"""Record the spans of OpenTelemetry traces, from the handshake of two agents to the commit of their report.

    OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 treaty-registry serve

Tracing is on when a standard variable names a collector (`OTEL_EXPORTER_OTLP_ENDPOINT`, or the one for traces), or
`OTEL_TRACES_EXPORTER` is `otlp` or `console`; an application with an SDK of its own calls `use`. All other
`OTEL_*` variables have their standard meaning: sampling, batches, headers, resource. The libraries are the extra `telemetry`.

While it is off, a span costs one comparison, and no library is imported. Attributes have no secret: no
addresses or texts of errors, only ids of statements, codes, counts and kinds. The spans of an agent's calls name peer, protocol,
operation and role; a registry's spans name no DID. A trace from another side decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from treaty_consensus.errors import TreatyError
from treaty_io.extras import naming_extras

if TYPE_CHECKING:
    import asyncio

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

Kind: TypeAlias = Literal["internal", "server", "client"]
Value: TypeAlias = str | int | float | bool | Sequence[str]
Parent: TypeAlias = Any
"""The place of a span in its trace: opaque, from `current` or `received`. None: the current span."""

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class OpenSpan:
    """A span that has begun. While tracing is off, it records nothing."""

    __slots__ = ("_span",)

    def __init__(self, span: Span | None = None) -> None:
        self._span = span

    def set(self, **attributes: Value) -> None:
        """Set attributes, named as in `span`."""
        if self._span is not None:
            self._span.set_attributes(_named(attributes))

    def fail(self, code: str) -> None:
        """Mark the span as failed, with a stable code."""
        if self._span is not None:
            from opentelemetry.trace import StatusCode as Outcome

            self._span.set_attribute("error.type", code)
            self._span.set_status(Outcome.ERROR)


_OFF: AbstractContextManager[OpenSpan] = nullcontext(OpenSpan())
_tracer: Tracer | None = None
_provider: TracerProvider | None = None


def is_on() -> bool:
    """Whether spans are recorded."""
    return _tracer is not None


def tracer() -> Tracer:
    """Return the tracer. Only while `is_on`."""
    assert _tracer is not None
    return _tracer


def start(service: str) -> bool:
    """Record spans if the environment asks for it; return whether it does. `service`: the default of `OTEL_SERVICE_NAME`.

    Later calls in the same process change nothing. Raises `Unavailable` (`system.missing`) without the libraries.
    """
    global _provider  # noqa: PLW0603 (one exporter for a process, as the variables mean it)
    if _tracer is not None:
        return True
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    is_wanted = exporter in ("otlp", "console") or (not exporter and any(os.environ.get(name) for name in _ENDPOINTS))
    if not is_wanted or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    with naming_extras("telemetry"):
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

        if exporter == "console":
            span_exporter: SpanExporter = ConsoleSpanExporter()
        else:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            span_exporter = OTLPSpanExporter()
    named = os.environ.get("OTEL_SERVICE_NAME") or service
    provider = TracerProvider(resource=Resource.create({"service.name": named}))
    # In a thread of its own and with a bounded queue: a collector that hangs costs spans, and delays no request.
    provider.add_span_processor(BatchSpanProcessor(span_exporter))
    use(provider)
    _provider = provider
    return True


def use(provider: TracerProvider) -> None:
    """Record spans with the provider of the application, which also ends it."""
    global _tracer  # noqa: PLW0603
    from treaty_consensus import __version__

    _tracer = provider.get_tracer("treaty", __version__)


def stop() -> None:
    """Send the spans that wait, and record no more. A provider of the application goes on."""
    global _tracer, _provider
    provider, _tracer, _provider = _provider, None, None
    if provider is not None:
        provider.shutdown()


def span(
    name: str, kind: Kind = "internal", *, parent: Parent = None, links: Sequence[Parent] = (), **attributes: Value
) -> AbstractContextManager[OpenSpan]:
    """Record the block as a span, below the current one or `parent`. `links`: other spans that it works for.

    A `TreatyError` that leaves the block is recorded by its code, another exception by its type. In the name of an attribute,
    `_` stands for a dot and `__` for `_`.
    """
    tracer = _tracer
    return _OFF if tracer is None else _recorded(tracer, name, kind, parent, links, attributes)


def watch(done: asyncio.Future[Any], name: str, **attributes: Value) -> None:
    """Record a span that begins now and ends when the future is done, below the current one."""
    if _tracer is None:
        return
    begun = _tracer.start_span(name, attributes=_named(attributes))

    def end(future: asyncio.Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            OpenSpan(begun).fail(_code(error) if error else "cancelled")
        begun.end()

    done.add_done_callback(end)


def joined(traceparent: str) -> AbstractContextManager[object]:
    """Make the spans of the block, and of the tasks that it starts, parts of a trace that another side names."""
    place = received(traceparent) if traceparent else None
    return _OFF if place is None else _attached(place)


@contextmanager
def _attached(place: Parent) -> Iterator[None]:
    from opentelemetry import context

    token = context.attach(place)
    try:
        yield
    finally:
        context.detach(token)


def current() -> Parent:
    """Return the place of the current span, for a span that another task records; None while tracing is off."""
    if _tracer is None:
        return None
    from opentelemetry import context

    return context.get_current()


def received(traceparent: str, tracestate: str = "") -> Parent:
    """Return the place that another side names by W3C Trace Context. A wrong value names none. None while tracing is off."""
    if _tracer is None:
        return None
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    # In an empty context, so that no span of this process is the parent.
    return TraceContextTextMapPropagator().extract({"traceparent": traceparent, "tracestate": tracestate}, Context())


def headers() -> dict[str, str]:
    """Return the headers that name the current span to another side. Empty while tracing is off, and outside of spans."""
    if _tracer is None:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


def trace_id() -> str:
    """Return the id of the current trace, or ""."""
    if _tracer is None:
        return ""
    from opentelemetry.trace import format_trace_id, get_current_span

    context = get_current_span().get_span_context()
    return format_trace_id(context.trace_id) if context.is_valid else ""


@contextmanager
def _recorded(
    tracer: Tracer, name: str, kind: Kind, parent: Parent, links: Sequence[Parent], attributes: Mapping[str, Value]
) -> Iterator[OpenSpan]:
    from opentelemetry.trace import Link, SpanKind, get_current_span

    others = [get_current_span(place).get_span_context() for place in links if place is not None]
    opened = tracer.start_as_current_span(
        name,
        context=parent,
        kind=SpanKind[kind.upper()],
        attributes=_named(attributes),
        links=[Link(other) for other in others if other.is_valid],
        # The text of an exception may quote a DID or an address. Its code says enough.
        record_exception=False,
        set_status_on_exception=False,
    )
    with opened as begun:
        open_span = OpenSpan(begun)
        try:
            yield open_span
        except BaseException as error:
            open_span.fail(_code(error))
            raise


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, TreatyError) else type(error).__name__


def _named(attributes: Mapping[str, Value]) -> dict[str, Any]:
    return {name.replace("__", "\0").replace("_", ".").replace("\0", "_"): value for name, value in attributes.items()}
