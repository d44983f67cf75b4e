// Try a protocol without code: the reader is one role, and the vectors are the other. Nothing is sent anywhere. Needs declarative.js
// and partner.js.
"use strict";

{
  const { Protocol, Side, ANSWERS, CONTROLS } = Declarative;
  const MAX_MESSAGE = 20_000, MAX_SAID = 200, MAX_SHOWN = 2_000;
  const COMMON_CODES = ["400", "429", "500", "502", "503", "504"];
  const COUNT = { type: "integer" }, TEXT = { type: "string" };
  const root = document.querySelector("[data-console]");
  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  const protocol = new Protocol(JSON.parse(part("manifest").textContent));
  const talks = [...document.querySelectorAll("[data-talk]")].map((talk) => ({
    vector: talk.dataset.talk,
    role: talk.dataset.role,
    lines: [...talk.querySelectorAll("[data-said]")].map((line) => ({ isReceived: line.dataset.said === "received", text: line.querySelector("code").textContent })),
  }));
  let partner, own, script, asked, number, choices, fields;

  function element(name, text, attributes = {}) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
    return made;
  }

  // Every text here is foreign, so it becomes text and never markup.
  function show(who, text, kind) {
    const line = element("li", undefined, { class: kind });
    line.append(element("span", who, { class: "by" }), " ", element(kind === "note" ? "span" : "code", text.slice(0, MAX_SHOWN), { dir: "auto" }));
    const list = part("said");
    list.append(line);
    while (list.childElementCount > MAX_SAID) list.firstElementChild.remove();
    list.parentElement.scrollTop = list.parentElement.scrollHeight; // the page itself stays where it is
  }

  const note = (text) => show("", text, "note");
  const brief = (value) => JSON.stringify(value);
  const peer = () => partner.side.role.name;
  const ended = (who, { value, error }) => `${who} ${error ? `fails with ${error.code}: ${error.text}` : `returns ${brief(value)}`}.`;

  function start() {
    const role = part("role").value;
    partner = new Partner(protocol, role, talks);
    own = new Side(protocol, role);
    script = 0;
    asked = new Map(); // id of an open request of the other side → the recorded call
    number = 0;
    part("said").replaceChildren();
    if (!own.role.calls.length) go();
    offer();
  }

  // What the reader sends, as the other side takes it.
  function say(text) {
    show(own.role.name, text, "own");
    const outcome = partner.side.read(text);
    partner.side.take(outcome);
    own.sent(text);
    const { kind, form, id } = outcome;
    if (kind === "refuse") return hear(outcome.message);
    if (kind === "note") return note(`${peer()} sends no answer. ${outcome.text}`);
    if (kind === "broken") return note(`The call of ${peer()} fails with ${outcome.code}: ${outcome.text}`);
    if (kind === "answer") return note(form.kind === "item" ? `${peer()} gets the item ${brief(outcome.value)}.` : form.kind === "end" ? `${peer()} has all items.` : ended(`The call of ${peer()}`, outcome));
    if (kind === "granted") return note(`${peer()} may send ${outcome.count} more items.`);
    if (kind === "cancelled") return note(`${peer()} stops. A call that was given up has no answer.`);
    if (kind === "nothing") return note("It crossed the last answer, so nothing follows.");
    if (form.kind === "event") return note(`${peer()} takes the event. An event has no answer.`);
    const { texts, note: source } = partner.answer({ form, id, arguments: outcome.arguments });
    note(source);
    texts.forEach(hear);
  }

  // What the other side sends, as the reader's agent takes it.
  function hear(text) {
    show(peer(), text, "other");
    const outcome = own.read(text);
    own.take(outcome);
    partner.side.sent(text);
    const { kind, form } = outcome;
    if (kind === "invoke") note(`Your agent calls your function ${form.operation} with ${brief(outcome.arguments)}.${form.kind === "event" ? "" : " Answer it below."}`);
    if (kind === "refuse") {
      show(own.role.name, outcome.message, "own");
      partner.side.take(partner.side.read(outcome.message));
      note("It does not fit, and your agent answers that by itself.");
    }
    if (kind === "note") note(`Your agent sends no answer. ${outcome.text}`);
    if (kind === "broken") note(`Your call fails with ${outcome.code}: ${outcome.text}`);
    if (kind === "answer") note(form.kind === "item" ? `Your call yields ${brief(outcome.value)}.` : form.kind === "end" ? "Your call has all items." : ended("Your call", outcome));
    return outcome;
  }

  // The other side begins its next recorded call.
  function go() {
    if (script >= partner.script.length) return;
    const id = `${peer()}-${script + 1}`, call = partner.script[script];
    if (hear(partner.call(script, id)).kind === "invoke") asked.set(id, call);
    script += 1;
  }

  // Offer the messages that the reader's role may send now.
  function offer() {
    number += 1;
    const answers = [...own.open].flatMap(([id, operation]) => operation.of(...ANSWERS).map((form) => ({ form, id })));
    const calls = own.role.calls.flatMap((operation) => operation.of("request", "event").map((form) => ({ form, id: String(number) })));
    const controls = [...own.waiting].flatMap(([id, operation]) => operation.of(...CONTROLS).map((form) => ({ form, id })));
    choices = [...answers, ...calls, ...controls];
    part("kind").replaceChildren(...choices.map(({ form, id }, place) => element("option", `${form.operation}: ${form.kind}${calls.length && ANSWERS.includes(form.kind) ? ` to ${id}` : ""}`, { value: place })));
    part("message").hidden = !choices.length;
    const left = partner.script.length - script;
    part("next").hidden = !left;
    part("next").textContent = `Let ${peer()} begin its next call (${left} left)`;
    part("silent").hidden = choices.length > 0 || left > 0;
    if (choices.length) choose();
  }

  // One field for each slot of the form: its name, its schema, and where its value goes.
  function slots(form) {
    const { schemas } = protocol.operations[form.operation];
    const schema = schemas[form.source === "arguments" ? "arguments" : "result"];
    const member = (name) => ({ label: name, source: form.source, member: name, schema: schema.properties?.[name] ?? {}, isRequired: (schema.required ?? []).includes(name) });
    return [...Object.keys(form.places), ...Object.keys(form.members).map((name) => [name])].filter((name) => name !== "id").flatMap((name) => {
      if (Array.isArray(name)) return [member(name[0])];
      if (name === "code") return [{ label: name, source: name, schema: { enum: [...new Set([...Object.keys(protocol.operations[form.operation].errors), ...COMMON_CODES])].map(Number) }, isRequired: true }];
      if (name === "count" || name === "message") return [{ label: name, source: name, schema: name === "count" ? COUNT : TEXT, isRequired: true }];
      const names = Object.keys(schema.properties ?? {});
      return names.length ? names.map(member) : [{ label: name, source: name, schema, isRequired: true }];
    });
  }

  function written(value, schema) {
    if (value === undefined) return "";
    return typeof value === "string" && !schema.enum && isText(schema) ? value : JSON.stringify(value);
  }

  const isText = (schema) => schema.type === "string" || (Array.isArray(schema.type) && schema.type.includes("string"));

  // The value that a text means. One that cannot have its type stays a text, and then it does not fit.
  function valueOf(text, { schema, isRequired }) {
    if (text === "" && !(isRequired && isText(schema))) return undefined;
    if (isText(schema) && !schema.enum) return text;
    try {
      return JSON.parse(text);
    } catch {
      return text;
    }
  }

  function input(slot, value, place) {
    const { schema } = slot, options = schema.enum ?? (schema.type === "boolean" ? [true, false] : null);
    const id = `console-field-${place}`, about = [schema.type ?? "any value", slot.isRequired ? "required" : "optional"].flat().join(", ");
    const made = options ? element("select", undefined, { id }) : element("input", undefined, { id, type: "text", autocomplete: "off", spellcheck: "false" });
    if (options) {
      if (!slot.isRequired) made.append(element("option", "(none)", { value: "" }));
      made.append(...options.map((option) => element("option", typeof option === "string" ? option : JSON.stringify(option), { value: JSON.stringify(option) })));
    }
    if (!options || value !== undefined) made.value = written(value, options ? { enum: options } : schema);
    const label = element("label", undefined, { for: id });
    label.append(element("code", slot.label), " ", element("span", about, { class: "quiet" }));
    const row = element("p");
    row.append(label, made);
    return { ...slot, row, read: () => valueOf(made.value, options ? { ...slot, schema: { enum: options } } : slot) };
  }

  // Make the form of the chosen message, with values of the vectors.
  function choose() {
    const { form, id } = choices[part("kind").value];
    const example = partner.example(form, asked.get(id)), defaults = { code: 500, message: "It failed.", count: 1, ...example };
    fields = slots(form).map((slot, place) => input(slot, slot.member === undefined ? defaults[slot.source] : defaults[slot.source]?.[slot.member], place));
    part("fields").replaceChildren(...fields.map(({ row }) => row));
    compose();
  }

  // Write the message that the fields mean.
  function compose() {
    const { form, id } = choices[part("kind").value], values = { id };
    if (form.source === "arguments" || fields.some(({ member }) => member !== undefined)) values[form.source] = {};
    for (const { source, member, read } of fields) {
      const value = read();
      if (member === undefined) values[source] = value;
      else if (value !== undefined) values[source][member] = value;
    }
    part("json").value = form.write(values);
    judge();
  }

  function judge() {
    const { kind, form, text } = partner.side.read(part("json").value), verdict = part("verdict");
    const fits = ["invoke", "answer", "granted", "cancelled"].includes(kind);
    verdict.className = fits ? "good" : "bad";
    verdict.textContent = fits ? `It fits the form of ${form.operation}: ${form.kind}.` : `It does not fit. ${text ?? ""}`;
  }

  part("role").append(...Object.keys(protocol.roles).map((name) => element("option", name, { value: name })));
  part("role").addEventListener("change", start);
  part("kind").addEventListener("change", choose);
  part("fields").addEventListener("input", compose);
  part("json").addEventListener("input", judge);
  part("restart").addEventListener("click", start);
  part("next").addEventListener("click", () => { go(); offer(); });
  part("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (choices.length && part("json").value.length <= MAX_MESSAGE) say(part("json").value);
    offer();
  });
  root.hidden = false;
  start();
}
