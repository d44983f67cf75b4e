// Read and write the messages of a protocol that needs no code (docs/specification/declarative.md). Nothing here touches the page.
"use strict";

const Declarative = (() => {
  const MAX_ID = 256, MAX_OPEN = 256, MAX_CREDIT = 1024, MAX_LISTED = 5, MAX_SENTENCES = 8, MAX_TEXT = 500, MAX_DEPTH = 64;
  const MAX_NESTING = 32, MAX_STEPS = 1e6, MAX_RULE = 120;
  const COMMON = [500, 502, 503, 504];
  const ANSWERS = ["response", "item", "end", "error"], CONTROLS = ["more", "cancel"];
  const SOURCES = { request: "arguments", event: "arguments", response: "result", item: "item" };
  const MISSING = Symbol("missing");
  const INTEGER_IDS = 5; // the handler interface of manifests whose ids may be integers

  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  const isSlot = (node) => typeof node === "string" && node.startsWith("$") && !node.startsWith("$$");
  const dotted = (path) => path.join(".");
  const withArticle = (noun) => `${/^[aeiou]/i.test(noun) ? "an" : "a"} ${noun}`;
  const shown = (constant) => (typeof constant === "string" ? constant : JSON.stringify(constant));

  function at(message, path) {
    for (const name of path) {
      if (!isObject(message) || !Object.hasOwn(message, name)) return MISSING;
      message = message[name];
    }
    return message;
  }

  // The value of a JSON text, or MISSING where it is none, or deeper than a message may be.
  function parsed(text) {
    try {
      const value = JSON.parse(text);
      return isValue(value) ? value : MISSING;
    } catch {
      return MISSING;
    }
  }

  // Equal as JSON: the order of members does not matter.
  function equal(one, other) {
    if (Array.isArray(one)) return Array.isArray(other) && one.length === other.length && one.every((item, place) => equal(item, other[place]));
    if (!isObject(one)) return one === other;
    const names = Object.keys(one);
    return isObject(other) && names.length === Object.keys(other).length
      && names.every((name) => Object.hasOwn(other, name) && equal(one[name], other[name]));
  }

  // Whether a message may have this value: no infinite number, no half of a character, and a bounded depth.
  function isValue(value, left = MAX_NESTING) {
    if (typeof value === "number") return Number.isFinite(value);
    if (typeof value === "string") return value.isWellFormed();
    return typeof value !== "object" || value === null || (left > 0 && Object.values(value).every((item) => isValue(item, left - 1)));
  }

  // A browser's patterns backtrack, and the pattern is foreign. So one whose cost could explode on a text of this length is taken
  // as fitting, as is one of another syntax. Agents check them all, by an engine without backtracking.
  function matches(pattern, text) {
    const bare = pattern.replace(/\\./gsu, "a").replace(/\[\^?[^\]]*\]/gu, "a").replace(/\(\?(?::|P?<[^>]*>)/gu, "(");
    let depth = 0, cost = 1, isVaried = false;
    for (const [token, , least, comma, most] of bare.matchAll(/[()|*+?]|(\{(\d*)(,?)(\d*)\})/gu)) {
      if (token === "(") depth += 1;
      else if (token === ")") depth -= 1;
      else if (token === "|") isVaried ||= depth > 0;
      else if (token[0] !== "{" || comma) {
        cost *= token === "?" ? 2 : most ? Math.min(text.length, most - least) + 1 : text.length + 1;
        isVaried ||= depth > 0;
      }
    }
    if (cost > MAX_STEPS || (isVaried && /\)[*+{]/u.test(bare))) return true;
    try {
      return new RegExp(pattern.replaceAll("(?P<", "(?<"), "u").test(text);
    } catch {
      return true;
    }
  }

  const TYPES = {
    string: [(value) => typeof value === "string", "a string"],
    number: [(value) => typeof value === "number", "a number"],
    integer: [(value) => Number.isInteger(value), "an integer"],
    boolean: [(value) => typeof value === "boolean", "true or false"],
    object: [isObject, "an object"],
    array: [Array.isArray, "a list"],
    null: [(value) => value === null, "null"],
  };

  // JSON Schema 2020-12, as a manifest may use it: no references but to its own definitions, and none in a circle. Returns the
  // first place and rule that the value breaks, such as `.day: minLength 1`, or "". A format is a hint here.
  function brokenRule(root, schema, value, depth = 0) {
    if (typeof schema === "boolean") return schema ? "" : ": nothing is allowed here";
    if (!isObject(schema) || depth > MAX_DEPTH) return "";
    const fits = (part, item = value) => brokenRule(root, part, item, depth + 1) === "";
    // The first fault in a list of a name, a part and an item each.
    const inside = (parts) => {
      for (const [name, part, item] of parts) {
        const broken = brokenRule(root, part, item, depth + 1);
        if (broken) return `.${name}${broken}`;
      }
      return true;
    };
    const length = typeof value === "string" ? [...value].length : 0;
    const members = isObject(value) ? Object.entries(value) : [];
    const items = Array.isArray(value) ? value : [];
    const isNumber = typeof value === "number", isText = typeof value === "string";
    const own = (name) => Object.hasOwn(schema.properties ?? {}, name) || Object.keys(schema.patternProperties ?? {}).some((pattern) => matches(pattern, name));
    const counted = () => items.filter((item) => fits(schema.contains, item)).length;
    const RULES = {
      $ref: (name) => brokenRule(root, root.$defs?.[name.replace("#/$defs/", "")], value, depth + 1) || true,
      type: (types) => [types].flat().some((type) => TYPES[type]?.[0](value)),
      enum: (values) => values.some((each) => equal(each, value)),
      const: (constant) => equal(constant, value),
      minimum: (least) => !isNumber || value >= least,
      maximum: (most) => !isNumber || value <= most,
      exclusiveMinimum: (least) => !isNumber || value > least,
      exclusiveMaximum: (most) => !isNumber || value < most,
      multipleOf: (step) => !isNumber || Math.abs(value / step - Math.round(value / step)) < 1e-9,
      minLength: (least) => !isText || length >= least,
      maxLength: (most) => !isText || length <= most,
      pattern: (pattern) => !isText || matches(pattern, value),
      minItems: (least) => !Array.isArray(value) || items.length >= least,
      maxItems: (most) => !Array.isArray(value) || items.length <= most,
      uniqueItems: (unique) => !unique || items.every((item, place) => !items.slice(0, place).some((earlier) => equal(earlier, item))),
      prefixItems: (parts) => inside(parts.slice(0, items.length).map((part, place) => [place, part, items[place]])),
      items: (part) => inside(items.map((item, place) => [place, part, item]).slice(schema.prefixItems?.length ?? 0)),
      contains: () => !Array.isArray(value) || (counted() >= (schema.minContains ?? 1) && counted() <= (schema.maxContains ?? Infinity)),
      minProperties: (least) => !isObject(value) || members.length >= least,
      maxProperties: (most) => !isObject(value) || members.length <= most,
      required: (names) => !isObject(value) || names.every((name) => Object.hasOwn(value, name)),
      properties: (parts) => inside(members.filter(([name]) => Object.hasOwn(parts, name)).map(([name, item]) => [name, parts[name], item])),
      patternProperties: (parts) => inside(members.flatMap(([name, item]) => Object.entries(parts).filter(([pattern]) => matches(pattern, name)).map(([, part]) => [name, part, item]))),
      additionalProperties: (part) => inside(members.filter(([name]) => !own(name)).map(([name, item]) => [name, part, item])),
      propertyNames: (part) => members.every(([name]) => fits(part, name)),
      dependentRequired: (parts) => Object.entries(parts).every(([name, names]) => !Object.hasOwn(isObject(value) ? value : {}, name) || names.every((each) => Object.hasOwn(value, each))),
      dependentSchemas: (parts) => Object.entries(parts).every(([name, part]) => !Object.hasOwn(isObject(value) ? value : {}, name) || fits(part)),
      allOf: (parts) => parts.every((part) => fits(part)),
      anyOf: (parts) => parts.some((part) => fits(part)),
      oneOf: (parts) => parts.filter((part) => fits(part)).length === 1,
      not: (part) => !fits(part),
      if: (part) => fits((fits(part) ? schema.then : schema.else) ?? true),
    };
    for (const [keyword, rule] of Object.entries(schema)) {
      const holds = !Object.hasOwn(RULES, keyword) || RULES[keyword](rule);
      if (holds !== true) return holds || `: ${keyword} ${JSON.stringify(rule).slice(0, MAX_RULE)}`;
    }
    return "";
  }

  function wrongType(schema, value) {
    const [fits, words] = (typeof schema?.type === "string" && TYPES[schema.type]) || [() => true, ""];
    return fits(value) ? "" : words;
  }

  const texts = (value) => (Array.isArray(value) ? value.filter((item) => typeof item === "string") : []);

  // The members of which a schema requires one, or none if it says something else.
  function choice(alternatives) {
    if (!Array.isArray(alternatives)) return [];
    const names = alternatives.map((one) => (isObject(one) && Object.keys(one).length === 1 ? texts(one.required) : []));
    return names.every((each) => each.length === 1) ? names.flat() : [];
  }

  // Say why a value breaks its schema, as the interpreter of an agent says it. `placeOf`: names a member.
  function sentences(schema, value, name, placeOf) {
    const wrong = wrongType(schema, value);
    if (wrong) return [`${name} is not ${wrong}.`];
    if (!isObject(value)) return [];
    const said = texts(schema.required).filter((member) => !Object.hasOwn(value, member)).map((member) => `${placeOf(member)} is missing.`);
    const one = choice(schema.anyOf);
    if (one.length && !one.some((member) => Object.hasOwn(value, member))) said.push(`Neither ${one.map(placeOf).join(" nor ")} is given.`);
    for (const [member, rule] of Object.entries(schema.properties ?? {})) {
      const fault = Object.hasOwn(value, member) && wrongType(rule, value[member]);
      if (fault) said.push(`${placeOf(member)} is not ${fault}.`);
    }
    return said.slice(0, MAX_SENTENCES);
  }

  // The places of `$absent` in a template.
  function absent(path, node) {
    if (isObject(node)) return Object.entries(node).flatMap(([name, child]) => absent([...path, name], child));
    return node === "$absent" ? [path] : [];
  }

  // One form of one operation: the places of its constants and of its slots. `presence`: the places by which other forms may be told
  // apart, each with whether it is there. `required`: the members of its value that each message has. `traits`: of all forms.
  class Form {
    constructor(kind, operation, template, required, traits) {
      Object.assign(this, { kind, operation, template, traits, source: SOURCES[kind] ?? "" });
      this.constants = [];
      this.objects = [];
      this.places = {};
      this.members = {};
      this.presence = absent([], template).map((path) => [path, false]);
      this.#compile([], template);
      const members = required.filter((name) => Object.hasOwn(this.members, name)).map((name) => this.members[name]);
      const written = [...this.objects, ...Object.values(this.places), ...members];
      for (const path of traits.absent) if (written.some((each) => equal(each, path))) this.presence.push([path, true]);
    }

    #compile(path, node) {
      if (node === "$absent") return;
      if (isObject(node)) {
        if (path.length) this.objects.push(path);
        for (const [name, child] of Object.entries(node)) this.#compile([...path, name], child);
      } else if (!isSlot(node)) this.constants.push([path, typeof node === "string" && node.startsWith("$$") ? node.slice(1) : node]);
      else if (node === "$operation") this.constants.push([path, this.operation]);
      else {
        const dot = node.indexOf(".");
        if (dot < 0) this.places[node.slice(1)] = path;
        else this.members[node.slice(dot + 1)] = path;
      }
    }

    matches(message) {
      return this.constants.every(([path, constant]) => at(message, path) === constant)
        && this.presence.every(([path, isThere]) => (at(message, path) !== MISSING) === isThere);
    }

    placeOf(member) {
      return dotted(this.members[member] ?? [...(this.places[this.source] ?? []), member]);
    }

    idIn(message) {
      const id = at(message, this.places.id ?? []);
      if (typeof id === "string") return [...id].length <= MAX_ID ? id : null;
      return this.traits.hasIntegerIds && Number.isSafeInteger(id) ? id : null;
    }

    write(values) {
      const all = { operation: this.operation, message: "Success", ...values };
      const fill = (node) => {
        if (isObject(node)) {
          const filled = Object.entries(node).map(([name, child]) => [name, fill(child)]);
          return Object.fromEntries(filled.filter(([, value]) => value !== undefined));
        }
        if (!isSlot(node)) return typeof node === "string" && node.startsWith("$$") ? node.slice(1) : node;
        const dot = node.indexOf(".");
        if (dot < 0) return all[node.slice(1)];
        const whole = all[node.slice(1, dot)];
        return isObject(whole) && Object.hasOwn(whole, node.slice(dot + 1)) ? whole[node.slice(dot + 1)] : undefined;
      };
      return JSON.stringify(fill(this.template));
    }

    read(message) {
      const faults = this.objects
        .filter((path) => isObject(at(message, path.slice(0, -1))) && !isObject(at(message, path)))
        .map((path) => `${dotted(path)} is not an object.`);
      const values = {};
      for (const [name, path] of Object.entries(this.places)) {
        const value = at(message, path);
        if (name === "code" || name === "count") {
          if (!Number.isInteger(value) && !faults.length) faults.push(`${dotted(path)} is not an integer.`);
        } else if (name === "id" && this.traits.hasIntegerIds) {
          if (!Number.isInteger(value) && typeof value !== "string" && !faults.length) faults.push(`${dotted(path)} is neither a string nor an integer.`);
        } else if (name === "id" || name === "message") {
          if (typeof value !== "string" && !faults.length) faults.push(`${dotted(path)} is not a string.`);
        } else if (value === MISSING) faults.push(`${dotted(path)} is missing.`);
        values[name] = value;
      }
      if (this.source && !Object.hasOwn(values, this.source)) {
        const present = Object.entries(this.members).map(([name, path]) => [name, at(message, path)]).filter(([, value]) => value !== MISSING);
        const isNothing = !Object.keys(this.members).length && this.source !== "arguments";
        values[this.source] = isNothing ? null : Object.fromEntries(present);
      }
      return { values, faults };
    }
  }

  const match = (forms, message) => forms.find((form) => form.matches(message));

  // Say which constants, and which members that are there or absent, keep a message from having one of these forms: those at the
  // places of the first.
  function wrongConstants(forms, message) {
    const key = (form) => JSON.stringify([form.constants, form.presence].map((marks) => marks.map(([path]) => path).sort()));
    const alike = forms.filter((form) => key(form) === key(forms[0]));
    const said = [...alike[0].constants].sort(([one], [other]) => (String(one) < String(other) ? -1 : 1)).flatMap(([path]) => {
      const constants = new Map(alike.map((form) => [form.constants.find(([place]) => equal(place, path))[1], form]));
      if (constants.has(at(message, path))) return [];
      const known = [...constants.keys()];
      if (known.length > 1) return [`${dotted(path)} is none of ${known.slice(0, MAX_LISTED).map(shown).join(", ")}${known.length > MAX_LISTED ? " …" : ""}.`];
      const [[constant, form]] = constants;
      if (constant === form.operation) return [`The only ${dotted(path)} is ${constant}.`];
      return [`The ${dotted(path)} of ${withArticle(form.kind === "error" ? "response" : form.kind)} is ${shown(constant)}.`];
    });
    for (const [path] of [...alike[0].presence].sort(([one], [other]) => (String(one) < String(other) ? -1 : 1))) {
      const isThere = at(message, path) !== MISSING;
      if (alike.some((form) => form.presence.some(([place, expected]) => equal(place, path) && expected === isThere))) continue;
      const word = alike[0].kind === "error" ? "response" : alike[0].kind;
      said.push(isThere ? `A ${word} has no ${dotted(path)}.` : `${dotted(path)} is missing.`);
    }
    return said.length ? said : ["The message has no known combination of constants."];
  }

  class Operation {
    constructor(name, declared, forms, traits) {
      Object.assign(this, { name, traits, kind: declared.kind ?? "request", window: declared.window ?? 16, errors: declared.errors ?? {} });
      this.schemas = { arguments: declared.arguments, result: declared.result ?? {} };
      const kinds = { request: ["request", "response", "error", "cancel"], stream: ["request", "item", "end", "error", ...CONTROLS], event: ["event"] }[this.kind];
      this.forms = Object.fromEntries(kinds.filter((kind) => forms[kind]).map((kind) => [kind, new Form(kind, name, forms[kind], this.#required(kind), traits)]));
    }

    #required(kind) {
      return texts(this.schemas[kind === "request" || kind === "event" ? "arguments" : "result"].required);
    }

    of(...kinds) {
      return kinds.filter((kind) => this.forms[kind]).map((kind) => this.forms[kind]);
    }

    // The form of errors is tried last: its code holds every constant.
    answer(message) {
      return match(this.of("response", "item", "end", "error"), message);
    }

    faults(form, value) {
      const schema = this.schemas[form.source === "arguments" ? "arguments" : "result"];
      const broken = brokenRule(schema, schema, value);
      if (!broken) return [];
      const name = dotted(form.places[form.source] ?? []) || `The ${form.source}`;
      const said = sentences(schema, value, name, (member) => form.placeOf(member));
      const words = { arguments: "The arguments of", item: "The items of" }[form.source] ?? "The results of";
      return said.length ? said : [`${words} ${this.name} break the schema at $${broken}.`];
    }
  }

  class Protocol {
    // `refusals`: the code of the interpreter → the one that the protocol has in its place.
    constructor({ operations, roles, messages, interface: version, refusals = {} }) {
      const places = Object.values(messages).flatMap((forms) => Object.values(forms)).flatMap((form) => absent([], form));
      const traits = { absent: places.filter((path, place) => places.findIndex((each) => equal(each, path)) === place), hasIntegerIds: version >= INTEGER_IDS, refusals };
      this.operations = Object.fromEntries(Object.entries(operations).map(([name, one]) => [name, new Operation(name, one, messages[name] ?? messages["*"] ?? {}, traits)]));
      const chosen = (names) => names.map((name) => this.operations[name]);
      this.roles = Object.fromEntries(Object.entries(roles).map(([name, role]) => [name, { name, peer: role.peer, calls: chosen(role.calls), invokes: chosen(role.invokes) }]));
    }

    all(...kinds) {
      return Object.values(this.operations).flatMap((operation) => operation.of(...kinds));
    }
  }

  // One side of a session. `waiting`: the calls that it made, id → operation. `open`: the requests that it serves, id → operation.
  class Side {
    constructor(protocol, role) {
      Object.assign(this, { protocol, role: protocol.roles[role], waiting: new Map(), open: new Map(), left: new Set() });
    }

    #forms(operations, kinds) {
      return operations.flatMap((operation) => operation.of(...kinds));
    }

    // Return the ids that a message has at the places of these forms.
    ids(operations, kinds, message) {
      return [...new Set(this.#forms(operations, kinds).map((form) => at(message, form.places.id)))].filter((id) => typeof id === "string" || Number.isInteger(id));
    }

    // Note a message that this side sends: a request waits for its answer, and an answer ends a request.
    sent(text) {
      const message = parsed(text);
      if (!isObject(message)) return;
      const { calls, invokes } = this.role;
      const started = match(this.#forms(calls, ["request"]), message);
      if (started) return void this.waiting.set(started.idIn(message), this.protocol.operations[started.operation]);
      for (const id of this.ids(calls, CONTROLS, message).filter((each) => this.waiting.has(each))) {
        if (match(this.waiting.get(id).of("cancel"), message)) this.#leave(id);
      }
      for (const id of this.ids(invokes, ANSWERS, message).filter((each) => this.open.has(each))) {
        const form = this.open.get(id).answer(message);
        if (form && form.kind !== "item") this.open.delete(id);
      }
    }

    // Where a form says that this side gave up a call, answers to it may still be on their way.
    #leave(id) {
      if (this.waiting.get(id)?.forms.cancel) this.left.add(id);
      this.waiting.delete(id);
    }

    // Return what this side makes of a text: a `kind`, and what belongs to it. Changes nothing; `take` does.
    read(text) {
      const message = parsed(text);
      if (message === MISSING) return { kind: "note", text: "Ignored what is no message: not JSON" };
      if (!isObject(message)) return { kind: "note", text: "Ignored what is no message: a message is a JSON object" };
      const { calls, invokes } = this.role;
      const started = match(this.#forms(invokes, ["request", "event"]), message);
      if (started) return this.#started(started, message);
      for (const id of this.ids(invokes, CONTROLS, message).filter((each) => this.open.has(each))) {
        const form = match(this.open.get(id).of(...CONTROLS), message);
        if (form) return this.#controlled(form, id, message);
      }
      const id = this.ids(calls, ANSWERS, message).find((each) => this.waiting.has(each) || this.left.has(each));
      if (id === undefined) return this.#unknown(message);
      return this.waiting.has(id) ? this.#answered(id, message) : { kind: "nothing" };
    }

    take({ kind, form, id, refused }) {
      if (kind === "invoke" && form.kind === "request") this.open.set(id, this.protocol.operations[form.operation]);
      if (kind === "cancelled" || (kind === "refuse" && refused)) this.open.delete(id);
      if (kind === "broken") this.#leave(id);
      if (kind === "answer" && form.kind !== "item") this.waiting.delete(id);
    }

    #refuse(operation, id, own, text, refused = false) {
      const form = operation.forms.error, code = operation.traits.refusals[own] ?? own;
      const message = form.write({ id, code, message: text.slice(0, MAX_TEXT) });
      return { kind: "refuse", id, form, code, text, message, refused };
    }

    #started(form, message) {
      const operation = this.protocol.operations[form.operation];
      const { values, faults } = form.read(message);
      if (!faults.length) faults.push(...operation.faults(form, values.arguments));
      if (form.kind === "event") {
        if (faults.length) return { kind: "note", text: `Ignored an event that does not conform: ${faults.join(" ")}`, faults };
        return { kind: "invoke", form, arguments: values.arguments };
      }
      const id = form.idIn(message), place = dotted(form.places.id);
      if (id === null) return { kind: "note", text: `Ignored a message without ${withArticle(place)}.` };
      if (this.open.has(id)) return { kind: "note", text: `Ignored a request whose ${place} is open already.` };
      if (faults.length) return this.#refuse(operation, id, 400, faults.join(" "));
      if (this.open.size >= MAX_OPEN) return this.#refuse(operation, id, 429, `${MAX_OPEN} requests are open already.`);
      return { kind: "invoke", form, id, arguments: values.arguments };
    }

    #controlled(form, id, message) {
      if (form.kind === "cancel") return { kind: "cancelled", form, id };
      const { values, faults } = form.read(message);
      if (!faults.length && values.count >= 1 && values.count <= MAX_CREDIT) return { kind: "granted", form, id, count: values.count };
      const text = faults.join(" ") || `At most ${MAX_CREDIT} items may be asked for at once.`;
      return this.#refuse(this.open.get(id), id, 400, text, true);
    }

    #answered(id, message) {
      const operation = this.waiting.get(id), form = operation.answer(message);
      if (form && at(message, form.places.id) !== id) return { kind: "note", text: "Ignored an answer to no open request." };
      const broken = (faults) => ({ kind: "broken", id, form, code: 502, text: `The ${this.role.peer}'s answer does not conform: ${faults.join(" ")}`, faults });
      if (!form) return broken(wrongConstants(operation.of("response", "item", "end"), message));
      const { values, faults } = form.read(message);
      if (!faults.length && form.source) faults.push(...operation.faults(form, values[form.source]));
      if (faults.length) return broken(faults);
      if (form.kind !== "error") return { kind: "answer", form, id, value: values[form.source] ?? null };
      const { code, message: words = "" } = values;
      const isListed = COMMON.includes(code) || Object.hasOwn(operation.errors, String(code));
      const error = isListed ? { code, text: words } : { code: 502, text: `The ${this.role.peer} answered with status ${code}: ${words}` };
      return { kind: "answer", form, id, error };
    }

    #unknown(message) {
      const { calls, invokes } = this.role, requests = this.#forms(invokes, ["request"]);
      if (match(this.protocol.all(...CONTROLS), message)) return { kind: "nothing" };
      const isAnswer = match(this.protocol.all(...ANSWERS), message) !== undefined;
      if (calls.length && (isAnswer || !requests.length)) return { kind: "note", text: "Ignored an answer to no open request." };
      if (!requests.length) return { kind: "note", text: "Ignored a message that is no event." };
      const form = requests.find((each) => each.idIn(message) !== null);
      if (!form) return { kind: "note", text: `Ignored a message without ${withArticle(dotted(requests[0].places.id))}.` };
      if (isAnswer) return { kind: "note", text: "Ignored a response; answering it could go on for ever." };
      return this.#refuse(this.protocol.operations[form.operation], form.idIn(message), 400, wrongConstants(requests, message).join(" "));
    }
  }

  return { Protocol, Side, ANSWERS, CONTROLS, isObject, at, equal, parsed, brokenRule };
})();
