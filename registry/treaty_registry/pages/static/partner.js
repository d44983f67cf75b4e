// The other side of a session, played from the recorded conversations of a protocol without code. Nothing here touches the page,
// and nothing is sent anywhere. Needs declarative.js.
"use strict";

const Partner = (() => {
  const { Side, ANSWERS, at, equal, isObject, parsed } = Declarative;
  const MAX_SCRIPT = 64;
  const OWN = ["request", "event", ...ANSWERS];
  // The order in which recorded answers to the same arguments are given: first those that a reader wants to see.
  const RANKS = ["value", "error", "broken", "silence"];

  // A recorded call: its arguments, and the texts of its answers. `answered`: the values of each answer by the kind of its form.
  class Recorded {
    constructor(form, id, args, text, vector) {
      Object.assign(this, { form, id, arguments: args, text, vector, answers: [], answered: new Map(), ending: "silence" });
    }

    add(text, outcome) {
      this.answers.push(text);
      const { kind, form, value, error } = outcome;
      if (kind === "broken") this.ending = kind;
      else if (this.ending !== "broken") this.ending = error ? "error" : "value";
      if (kind === "answer" && !this.answered.has(form.kind)) this.answered.set(form.kind, error ? { code: error.code, message: error.text } : { [form.source]: value });
    }
  }

  // `role`: of the reader. `talks`: conversations, each with the `role` whose vector it is and `lines` of { isReceived, text }.
  return class {
    #protocol;
    #given = new Map();

    constructor(protocol, role, talks) {
      const peer = protocol.roles[role].peer;
      this.#protocol = protocol;
      this.side = new Side(protocol, peer);
      this.made = []; // the recorded calls of the reader's role
      this.script = []; // those of the other side
      for (const talk of talks) {
        if (talk.role === role) this.#learn(talk, role, peer, (line) => !line.isReceived);
        if (talk.role === peer && protocol.roles[peer].peer === role) this.#learn(talk, role, peer, (line) => line.isReceived);
      }
    }

    #learn({ vector, lines }, role, peer, isOwn) {
      const sides = { own: new Side(this.#protocol, role), other: new Side(this.#protocol, peer) };
      const open = { own: new Map(), other: new Map() };
      for (const line of lines) {
        const [from, to] = isOwn(line) ? ["own", "other"] : ["other", "own"];
        const outcome = sides[to].read(line.text);
        const { kind, form, id } = outcome;
        if (kind === "invoke" || (kind === "refuse" && !outcome.refused)) {
          const call = new Recorded(form, id, outcome.arguments, line.text, vector);
          if (from === "own" && kind === "invoke") this.made.push(call);
          if (from === "other") this.#plan(call);
          if (id !== undefined) open[from].set(id, call);
        } else {
          const message = parsed(line.text);
          const [call] = sides[to].ids(sides[to].role.calls, ANSWERS, message).map((each) => open[to].get(each)).filter(Boolean);
          call?.add(line.text, outcome);
        }
        sides[to].take(outcome);
        sides[from].sent(line.text);
      }
    }

    #plan(call) {
      const bare = this.#renamed(call.text, call.id, "");
      const isNew = this.script.every((earlier) => this.#renamed(earlier.text, earlier.id, "") !== bare);
      if (isNew && this.script.length < MAX_SCRIPT) this.script.push(call);
    }

    // The same text with another id, at each place where a message may have it.
    #renamed(text, id, other) {
      const message = parsed(text);
      if (!isObject(message)) return text;
      for (const { places } of this.#protocol.all(...OWN)) {
        if (!places.id || at(message, places.id) !== id) continue;
        at(message, places.id.slice(0, -1))[places.id.at(-1)] = other;
      }
      return JSON.stringify(message);
    }

    // Return the recorded answer to a call: its `texts`, and a `note` about where it comes from.
    answer({ form, id, arguments: args }) {
      const known = this.made.filter((call) => call.form.operation === form.operation)
        .sort((one, other) => RANKS.indexOf(one.ending) - RANKS.indexOf(other.ending));
      if (!known.length) return { texts: [], note: `No vector has a call of ${form.operation}. A real ${this.side.role.name} decides its answer.` };
      const same = known.filter((call) => equal(call.arguments, args));
      const shared = (call) => Object.keys(args).filter((name) => equal(call.arguments[name], args[name])).length;
      const key = JSON.stringify([form.operation, args]), times = this.#given.get(key) ?? 0;
      this.#given.set(key, times + 1);
      const chosen = same.length ? same[times % same.length] : known.reduce((best, call) => (shared(call) > shared(best) ? call : best));
      const source = same.length ? `Recorded in ${chosen.vector}.` : `No vector has these values. In ${chosen.vector} this was the answer to ${JSON.stringify(chosen.arguments)}.`;
      const silence = chosen.answers.length ? "" : " No answer was recorded: it came too late, or not at all.";
      return { texts: chosen.answers.map((text) => this.#renamed(text, chosen.id, id)), note: source + silence };
    }

    // Return the text of the call at a place of the script, under this id.
    call(place, id) {
      const call = this.script[place];
      return this.#renamed(call.text, call.id, id);
    }

    // Return values that a vector has for a message of this form, or none. `call`: the recorded one that it answers.
    example(form, call) {
      if (form.source === "arguments") {
        const of = (each) => each.form.operation === form.operation;
        const ordered = [...this.made.filter(of)].sort((one, other) => RANKS.indexOf(one.ending) - RANKS.indexOf(other.ending));
        return { arguments: ordered[0]?.arguments };
      }
      const alike = [call, ...this.script].filter((each) => each?.form.operation === form.operation && each.answered.has(form.kind));
      return alike.length ? alike[0].answered.get(form.kind) : {};
    }
  };
})();
