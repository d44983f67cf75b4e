// A protocol without code: it writes and reads messages by the forms of its manifest (docs/specification/declarative.md).
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import Ajv from "ajv/dist/2020.js";

export class OperationError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

export class Protocol {
  /** `folder` has manifest.json and document.md, as they were published under `uri`. */
  constructor(uri, folder) {
    this.uri = uri;
    this.hash = createHash("sha256").update(readFileSync(`${folder}/document.md`)).digest("hex");
    const text = readFileSync(`${folder}/manifest.json`, "utf8");
    const { operations, roles, messages, interface: number } = JSON.parse(text);
    // Forms of a later interface mean more than this program knows: it would read them wrongly. A project does not name its interface.
    if (number > 4 || /"\$absent"|"refusals"/.test(text)) throw new Error(`${uri} has forms of a later interface than 4.`);
    this.roles = roles;
    const ajv = new Ajv({ strict: false });
    this.operations = new Map();
    this.forms = [];
    for (const [name, operation] of Object.entries(operations)) {
      const forms = messages[name] ?? messages["*"];
      const validate = { arguments: ajv.compile(operation.arguments), result: ajv.compile(operation.result ?? {}) };
      this.operations.set(name, { name, kind: "request", window: 16, timeout: 60, ...operation, forms, validate });
      for (const [kind, form] of Object.entries(forms)) this.forms.push({ operation: name, kind, form });
    }
    // The code of an error holds every constant, so errors are tried last.
    this.forms.sort((one, other) => (one.kind === "error") - (other.kind === "error"));
  }

  write(operation, kind, values) {
    const fill = (form) => {
      if (isObject(form)) return Object.fromEntries(Object.entries(form).map(([name, value]) => [name, fill(value)]));
      if (!isSlot(form)) return constant(form);
      const [slot, member] = parts(form);
      const value = { operation, message: "Success", ...values }[slot];
      return member === undefined ? value : value?.[member];
    };
    return JSON.stringify(fill(this.operations.get(operation).forms[kind]));
  }

  /** Return the operation, the kind and the values of a message; null if no form fits. `isOurs`: whether an answer with this id may be one. */
  read(message, isOurs) {
    for (const { operation, kind, form } of this.forms) {
      const values = {};
      if (!match(form, message, values, operation)) continue;
      if (!["request", "event"].includes(kind) && !isOurs(values.id, operation, kind)) continue;
      if (["code", "count"].some((slot) => slot in values && !Number.isInteger(values[slot]))) continue;
      return { operation, kind, values };
    }
    return null;
  }

  check(operation, part, value) {
    const { validate } = this.operations.get(operation);
    if (!validate[part](value)) throw new OperationError(part === "arguments" ? 400 : 502, `${part}: ${fault(validate[part])}`);
    return value;
  }
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isSlot = (form) => typeof form === "string" && form.startsWith("$") && !form.startsWith("$$");
const constant = (form) => (typeof form === "string" && form.startsWith("$$") ? form.slice(1) : form);
const fault = (validator) => validator.errors.map((error) => `${error.instancePath} ${error.message}`).join("; ");

/** `$arguments.name` → ["arguments", "name"]. */
function parts(slot) {
  const dot = slot.indexOf(".");
  return dot < 0 ? [slot.slice(1), undefined] : [slot.slice(1, dot), slot.slice(dot + 1)];
}

function match(form, message, values, operation) {
  if (!isObject(message)) return false;
  return Object.entries(form).every(([name, wanted]) => {
    const value = message[name];
    if (isObject(wanted)) return match(wanted, value, values, operation);
    if (!isSlot(wanted)) return value === constant(wanted);
    const [slot, member] = parts(wanted);
    if (slot === "operation") return value === operation;
    if (slot === "id") return typeof (values.id = value) === "string";
    if (member !== undefined) Object.assign((values[slot] ??= {}), name in message ? { [member]: value } : {});
    else if (name in message) values[slot] = value;
    return true;
  });
}
