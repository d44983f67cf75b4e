// The page's reader of messages, against the vectors of protocols without code. Run by test_page_scripts.py.
import assert from "node:assert/strict";
import { test } from "node:test";

import { cases, known, load } from "../support/page_scripts.mjs";

load("declarative.js");
const { Protocol, Side, brokenRule } = known("Declarative");
const { protocols, schemas } = cases();

// A browser has its own words for a text that is no message, and for the rule of a schema that is broken at a place.
const briefly = (_, value) => (typeof value === "string" ? brief(value) : value);
const brief = (text) => text.replace(/no message: .*|(?<=break the schema at [^:]*): .*/s, "");

// What a side does with a message, as the effects of a vector say it.
function expected(effects) {
  const of = (tag) => effects.filter(([name]) => name === tag).map(([, fields]) => fields);
  const [invoked] = of("invoke"), [returned] = of("return"), [emitted] = of("emit"), [noted] = of("audit"), sent = of("send");
  if (invoked) return { operation: invoked.operation, arguments: invoked.arguments };
  if (returned) return returned.error ? { error: [returned.error.code, brief(returned.error.message)] } : { value: returned.value ?? null };
  if (emitted) return { value: emitted.value };
  // JSON.parse takes the last of two equal names, and says other words.
  if (noted?.text.endsWith("a name occurs twice in one object")) return undefined;
  if (noted) return { note: brief(noted.text) };
  return sent.length && !of("settimer").length ? { message: JSON.parse(sent[0].data, briefly) } : null;
}

function read(outcome) {
  switch (outcome.kind) {
    case "invoke": return { operation: outcome.form.operation, arguments: outcome.arguments };
    case "refuse": return { message: JSON.parse(outcome.message, briefly) };
    case "note": return { note: brief(outcome.text.slice(0, 500)) };
    case "broken": return { error: [outcome.code, brief(outcome.text.slice(0, 500))] };
    case "answer": return outcome.error ? { error: [outcome.error.code, outcome.error.text] } : { value: outcome.value };
    default: return null;
  }
}

for (const { name, manifest, vectors } of protocols) {
  test(`${name}: each received message of each vector is read as the interpreter reads it`, () => {
    const protocol = new Protocol(manifest);
    for (const { file, role, steps } of vectors) {
      const side = new Side(protocol, role);
      for (const [place, { event, data, timer, effects }] of steps.entries()) {
        const where = `${file}, step ${place + 1}`;
        if (event === "received") {
          const outcome = side.read(data), wanted = expected(effects);
          // An item may wait for its application, and a control has no effect that a page shows.
          if (wanted === undefined) continue;
          if (wanted) assert.deepEqual(read(outcome), wanted, where);
          else assert.ok(["answer", "granted", "cancelled", "nothing"].includes(outcome.kind), `${where}: ${outcome.kind}`);
          side.take(outcome);
        }
        if (event === "timer") side.waiting.delete(timer);
        for (const [tag, fields] of effects) if (tag === "send" && event !== "received") side.sent(fields.data);
      }
    }
  });
}

test("a request under an open id is passed over, and one beyond the bound is refused", () => {
  const { manifest } = protocols.find(({ name }) => name === "examples/greeting");
  const side = new Side(new Protocol(manifest), "host");
  const request = (id) => JSON.stringify({ id, type: "request", name: "Ada" });
  for (let id = 0; id < 256; id++) side.take(side.read(request(String(id))));
  assert.deepEqual(side.read(request("7")), { kind: "note", text: "Ignored a request whose id is open already." });
  assert.equal(side.read(request("more")).code, 429);
  side.sent(JSON.stringify({ id: "7", type: "response", greeting: "Hello, Ada!" }));
  assert.equal(side.read(request("more")).kind, "invoke");
});

test("a value fits a schema here as it does in an agent", () => {
  assert.ok(schemas.length > 200);
  for (const { schema, value, fits } of schemas) {
    assert.equal(brokenRule(schema, schema, value) === "", fits, JSON.stringify({ schema, value }));
  }
});

test("a pattern that could take for ever is taken as fitting", () => {
  const text = `${"a".repeat(5_000)}!`;
  for (const pattern of ["^(a+)+$", "^(a|aa)*$", "^(a|a)+$", "^a*a*a*a*a*$", "(", "^(?P<x>a"]) {
    assert.equal(brokenRule({}, { type: "string", pattern }, text), "", pattern);
  }
  assert.equal(brokenRule({}, { pattern: "^(?P<day>[0-9]{2})$" }, "ab"), ': pattern "^(?P<day>[0-9]{2})$"');
});
