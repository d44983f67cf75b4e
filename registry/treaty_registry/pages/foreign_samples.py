"""Write programs of other languages for a protocol without code, for readers to copy.

They use the peers in the repository: `examples/node`, and `session.go` of message routing. Foreign texts become literals by
`json.dumps` in ASCII, which JavaScript and Go read alike; names of operations and roles are restricted by the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from treaty_handler.declarative import Form, FormTraits

from ..catalogue.packages import PackageOperation, PackageRole


@dataclass(frozen=True)
class ForeignSamples:
    """Programs to copy: of the side that connects and of the other one. An empty one would be too long to read."""

    node_caller: str
    node_provider: str
    go_caller: str


def foreign_samples(
    uri: str, role: PackageRole, called: PackageOperation | None, served: Sequence[PackageOperation]
) -> ForeignSamples:
    """Return the programs. `role`: of the side that connects; it calls `called`. `served`: the operations of its peer."""
    if called is None:
        return ForeignSamples("", _node_provider(uri, role.peer, served), "")
    return ForeignSamples(
        _node_caller(uri, role.name, called), _node_provider(uri, role.peer, served), _go(uri, role.name, called)
    )


def _node_caller(uri: str, role: str, operation: PackageOperation) -> str:
    call = f"{json.dumps(operation.name)}, {json.dumps(_arguments(operation))}"
    if operation.kind == "stream":
        body = f"for await (const item of session.stream({call})) console.log(JSON.stringify(item));"
    else:
        body = f"console.log(JSON.stringify(await session.call({call})));"
    return f"""\
// node caller.js ws://127.0.0.1:8765
import {{ Protocol }} from "./protocol.js";
import {{ connect }} from "./session.js";

const protocol = new Protocol({json.dumps(uri)}, ".");
const session = await connect(process.argv[2], "did:wba:caller.example", protocol, {json.dumps(role)});
{body}
session.close();
"""


def _node_provider(uri: str, role: str, served: Sequence[PackageOperation]) -> str:
    functions = "\n".join(f"  {line}" for operation in served for line in _node_function(operation))
    return f"""\
// node provider.js
import {{ Protocol }} from "./protocol.js";
import {{ listen }} from "./session.js";

const protocol = new Protocol({json.dumps(uri)}, ".");
const functions = {{
{functions}
}};
const server = listen(8765, "did:wba:provider.example", protocol, {json.dumps(role)}, functions);
server.on("listening", () => console.log(`ws://127.0.0.1:${{server.address().port}}`));
"""


def _node_function(operation: PackageOperation) -> Iterator[str]:
    """Yield the lines of a function that answers as the operation's example does."""
    example = operation.example if operation.example and not operation.example.is_error else None
    if operation.kind == "stream":
        yield f"async *{operation.name}(args) {{"
        for item in example.items if example else ():
            yield f"  yield {json.dumps(_value(item))};"
    else:
        yield f"{operation.name}(args) {{"
        if operation.kind == "event":
            yield "  console.log(JSON.stringify(args));"
        elif example is not None:
            yield f"  return {json.dumps(_value(example.outcome))};"
    yield "},"


def _go(uri: str, role: str, operation: PackageOperation) -> str:
    """Return a program in Go that sends the example's message by its form, and prints the answers."""
    forms = _value(operation.forms)
    if forms is None:  # too long to be here as a whole
        return ""
    kind = "event" if operation.kind == "event" else "request"
    message = Form(kind, operation.name, forms[kind], (), FormTraits()).write({"id": "1", "arguments": _arguments(operation)})
    literal = json.dumps(json.dumps(json.loads(message)))
    is_done = "os.Exit(0) // one answer" if operation.kind == "request" else "// an item, or the end"
    read = """\
	fmt.Println("sent")
"""
    if operation.kind != "event":
        read = f"""\
	session.read(func(answer object) {{
		text, _ := json.Marshal(answer)
		fmt.Println(string(text))
		{is_done}
	}})
"""
    return f"""\
// go run sample.go session.go ws://127.0.0.1:8765
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {{
	session, err := connect(os.Args[1], {json.dumps(uri)}, {json.dumps(role)})
	if err != nil {{
		panic(err)
	}}
	var message object
	if err := json.Unmarshal([]byte({literal}), &message); err != nil {{
		panic(err)
	}}
	if err := session.say(message); err != nil {{
		panic(err)
	}}
{read}}}
"""


def _arguments(operation: PackageOperation) -> Any:
    arguments = _value(operation.example.arguments) if operation.example else None
    return arguments if isinstance(arguments, dict) else {}


def _value(text: str) -> Any:
    """Return the value of a JSON text, or None where the text was cut or is empty."""
    try:
        return json.loads(text)
    except ValueError:
        return None
