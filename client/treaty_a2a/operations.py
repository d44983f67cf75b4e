"""Perform the operations that A2A messages name: find them, call them through the protocol's handlers, and answer.

A request or an event is answered by a message, a stream by a task whose artifacts are its items. An operation that fails is a
failed task, whose status has the error as data: `{"code": "operation.404", "message": "…", "retryable": false}`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple

from a2a.helpers.proto_helpers import get_data_parts, new_data_message, new_data_part, new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import Event, EventQueue
from a2a.server.request_handlers.default_request_handler_v2 import DefaultRequestHandlerV2
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Message, SendMessageRequest, Task
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError, TaskNotFoundError

from treaty_agent.sessions.in_process import InProcessCaller
from treaty_agent.sessions.served_protocols import ServedProtocols
from treaty_consensus.errors import Malformed, TooLarge, TreatyError
from treaty_consensus.handler import Manifest, Operation, OperationKind
from treaty_consensus.printable import printable
from treaty_io.codes import SessionCode
from treaty_io.line_limit import limited_logger
from treaty_io.network.turns import asker_at
from treaty_sandbox.operation_schemas import Operations
from treaty_sandbox.schemas import ValidationBudget

MAX_TASK = 1024 * 1024
"""Bytes of one task with its artifacts. A stream that goes on fails: A2A keeps all items, and its client does not pace them."""
MAX_TASKS_BYTES = 64 * 1024 * 1024
"""Bytes of all tasks that are kept, half of them for one network. The oldest of the network that has most is forgotten first."""
TASK_OVERHEAD = 4096
"""Bytes of a task beside its content, as a bound for Python's objects."""
APPLICATION, ADDRESS, _CALL = "treaty.application", "treaty.address", "treaty.call"
"""The names in the state of a request: its application, the address of its sender, and the call of its message."""

_log = limited_logger(__name__)


class OperationCall(NamedTuple):
    """The call that a message asks for. `uri`: of the protocol."""

    uri: str
    operation: Operation
    arguments: Mapping[str, Any]


class ServedOperations:
    """The operations that others may call, of the protocols that an agent serves at this moment."""

    def __init__(self, served: ServedProtocols) -> None:
        self._served = served
        # By URI, with the manifest that they are of: compiling costs more than a call.
        self._schemas: dict[str, tuple[Manifest, Operations]] = {}

    @property
    def uris(self) -> set[str]:
        """The URIs of the protocols, which are the extensions of A2A."""
        return set(self._served.ready)

    def parse(self, message: Message, requested: set[str]) -> OperationCall:
        """Return the call of a message. `requested`: the extensions of its request.

        A protocol is meant if the message or its request names exactly its URI, and all are if none is named. Raises
        `ContentTypeNotSupportedError` for a message without data, and `InvalidParamsError`; both name the operations.
        """
        served = {uri: self._operations(uri) for uri in self._served.ready}
        named = [uri for uri in served if uri in {*message.extensions, *requested}]
        offered = {uri: served[uri] for uri in named or served}
        known = ", ".join(f"{name} ({uri})" for uri, operations in offered.items() for name in operations)
        parts = get_data_parts(message.parts)
        if len(parts) != 1 or len(message.parts) != 1:
            raise ContentTypeNotSupportedError(
                f'A message has one data part: {{"operation": NAME, "arguments": {{…}}}}. Operations: {known}.'
            )
        match parts[0]:
            case {"operation": str(name), **rest} if rest.keys() <= {"arguments"} and isinstance(rest.get("arguments", {}), dict):
                matching = [(uri, operations[name]) for uri, operations in offered.items() if name in operations]
            case _:
                raise _invalid("message.parts", 'The data of a message is {"operation": NAME, "arguments": {…}}.')
        if not matching:
            raise _invalid("operation", f"There is no operation {printable(name, 64)}. Operations: {known}.")
        if len(matching) > 1:
            uris = ", ".join(uri for uri, _ in matching)
            raise _invalid("extensions", f"Several protocols have the operation {name}: name one in `extensions`: {uris}.")
        ((uri, operation),) = matching
        arguments = _with_integers(rest.get("arguments", {}))
        try:
            # The handler does it as well, but then a task was made.
            self._compiled(uri).check_arguments(operation, arguments, ValidationBudget())
        except Malformed as error:
            raise _invalid("arguments", str(error)) from error
        return OperationCall(uri, operation, arguments)

    def _operations(self, uri: str) -> dict[str, Operation]:
        manifest = self._served.ready[uri].package.manifest
        role = manifest.roles[self._served.provided()[uri].role]
        return dict(role.invokes)

    def _compiled(self, uri: str) -> Operations:
        manifest = self._served.ready[uri].package.manifest
        known, compiled = self._schemas.get(uri, (None, None))
        if compiled is None or known is not manifest:
            compiled = Operations(manifest)
            self._schemas[uri] = manifest, compiled
        return compiled


class OperationExecutor(AgentExecutor):
    """Performs calls in sessions of this process, one session a call."""

    def __init__(self, caller: InProcessCaller) -> None:
        self._caller = caller

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Answer the message of a request."""
        state = context.call_context.state
        call: OperationCall = state[_CALL]
        message = context.message
        assert message is not None and context.task_id is not None and context.context_id is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        has_begun = False
        try:
            async with self._caller.session(state[APPLICATION], state[ADDRESS], call.uri) as session:
                if call.operation.kind is not OperationKind.STREAM:
                    value = await session.call(call.operation.name, call.arguments)
                    await event_queue.enqueue_event(_answer(value, context, call.uri))
                    return
                await event_queue.enqueue_event(_task(message, context))
                has_begun, size = True, 0
                await updater.start_work()
                async with session.stream(call.operation.name, call.arguments) as items:
                    async for item in items:
                        part = new_data_part(item)
                        size += part.ByteSize() + TASK_OVERHEAD // 8
                        if size > MAX_TASK:
                            raise TooLarge(SessionCode.OUTBOX_FULL, f"The items of a task have at most {MAX_TASK} bytes.")
                        await updater.add_artifact([part], extensions=[call.uri])
                await updater.complete()
        except TreatyError as error:
            _log.info("%s for %s failed: %s", call.operation.name, state[ADDRESS], error)
            if not has_begun:
                await event_queue.enqueue_event(_task(message, context))
            about = {"code": error.code, "message": error.message, "retryable": error.retryable}
            await updater.failed(updater.new_agent_message([new_data_part(about)]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Say that a task is cancelled. The SDK cancels `execute` then, which gives the call up at the other side."""
        assert context.task_id is not None and context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


class OperationHandler(DefaultRequestHandlerV2):
    """The SDK's request handler, which refuses a message without a call before a task is made."""

    def __init__(self, operations: ServedOperations, executor: OperationExecutor) -> None:
        # Only its capabilities are read here. The card that others read is the agent's own.
        card = AgentCard(
            name="agent",
            description="An agent.",
            version="1.0",
            capabilities=AgentCapabilities(streaming=True),
            supported_interfaces=[AgentInterface(url="/a2a", protocol_binding="JSONRPC", protocol_version="1.0")],
            default_input_modes=["application/json"],
            default_output_modes=["application/json"],
            skills=[AgentSkill(id="operation", name="operation", description="An operation.", tags=["operation"])],
        )
        super().__init__(executor, KeptTasks(), card)
        self._operations = operations

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Message | Task:
        """See `RequestHandler`."""
        self._read(params, context)
        answer: Message | Task = await super().on_message_send(params, context)
        return answer

    async def on_message_send_stream(self, params: SendMessageRequest, context: ServerCallContext) -> AsyncGenerator[Event, None]:
        """See `RequestHandler`."""
        self._read(params, context)
        async for event in super().on_message_send_stream(params, context):
            yield event

    def _read(self, params: SendMessageRequest, context: ServerCallContext) -> None:
        # A task takes no further message: its call is made.
        if params.message.task_id:
            raise TaskNotFoundError("A message begins a task, and names none.")
        context.state[_CALL] = self._operations.parse(params.message, context.requested_extensions)


class KeptTasks(InMemoryTaskStore):
    """The tasks of an agent, each for the network that made it. For one event loop. They are lost with the process."""

    def __init__(self) -> None:
        super().__init__(owner_resolver=_network)
        self._sizes: dict[str, OrderedDict[str, int]] = {}
        self._contexts: dict[str, ServerCallContext] = {}

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Keep a task, and forget the oldest ones of the largest network if there are too many bytes."""
        await super().save(task, context)
        network = _network(context)
        self._contexts[network] = context
        self._sizes.setdefault(network, OrderedDict())[task.id] = task.ByteSize() + TASK_OVERHEAD
        while sum(sum(sizes.values()) for sizes in self._sizes.values()) > MAX_TASKS_BYTES or (
            sum(self._sizes[network].values()) > MAX_TASKS_BYTES // 2
        ):
            largest = max(self._sizes, key=lambda each: sum(self._sizes[each].values()))
            oldest, _ = self._sizes[largest].popitem(last=False)
            await super().delete(oldest, self._contexts[largest])
            if not self._sizes[largest]:
                del self._sizes[largest], self._contexts[largest]


def _network(context: ServerCallContext) -> str:
    return asker_at(str(context.state[ADDRESS]).rpartition(":")[0])


def _answer(value: object, context: RequestContext, uri: str) -> Message:
    message = new_data_message(value, context_id=context.context_id)
    message.extensions.append(uri)
    return message


def _task(message: Message, context: RequestContext) -> Task:
    message.task_id, message.context_id = context.task_id or "", context.context_id or ""
    return new_task_from_user_message(message)


def _with_integers(value: Any) -> Any:
    """Return a value with integers where protobuf made floats of them: it has one type for all numbers."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case dict():
            return {name: _with_integers(member) for name, member in value.items()}
        case list():
            return [_with_integers(member) for member in value]
    return value


def _invalid(field: str, why: str) -> InvalidParamsError:
    return InvalidParamsError(why, data={"errors": [{"field": field, "message": why}]})
