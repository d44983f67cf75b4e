// An agent of the protocol handoff over HTTP, written from its document. It admits each sender whose sender_id is its own DID.
//   node agent.js receive NAME DOCUMENT            prints its URL, and serves until its standard input ends
//   node agent.js send URL RECIPIENT DOCUMENT      hands one message over, and prints the report
//   node agent.js session NAME DOCUMENT URI        as receive, in sessions of the Hello profile, as the role receiver of URI
// DOCUMENT is protocols/handoff/1.0/document.md: the schema is in it.
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import Ajv from "ajv/dist/2020.js";
import { canonical, createIdentity, seal, signer } from "./envelope.js";
import { listen } from "./session.js";

const MAX_BODY = 1024 * 1024;
const MAX_KEPT = 10_000;
const REPORTED = new Set(["TASK_TRANSFER", "ESCALATION", "APPROVAL_REQUEST", "REQUEST_INFORMATION"]);
const identity = createIdentity();

/** The faults of a message by the schema of the document. Members that a later minor version added are no faults. */
function checker(path) {
  const schema = JSON.parse(readFileSync(path, "utf8").match(/```json schema\n([^]*?)```/)[1]);
  const options = { allErrors: false, strict: false, validateFormats: false }; // patterns back the formats
  const [strict, pruning] = [new Ajv(options), new Ajv({ ...options, removeAdditional: true })].map((ajv) => ajv.compile(schema));
  return (message) => {
    const [major, minor] = String(message?.metadata?.protocol_version).split(".");
    if (major !== "1") return ["Version 1.0.0 is spoken here."];
    const check = Number(minor) > 0 ? pruning : strict;
    return check(message) ? [] : check.errors.map((error) => `${error.instancePath || "/"} ${error.message}`);
  };
}

/** A message of this agent that answers another one. */
function answer(about, name, handoff_type, data) {
  const { message_id, sender_id, task_id, correlation_id, priority } = about.metadata;
  const metadata = { message_id: randomUUID(), timestamp: new Date().toISOString(), protocol_version: "1.0.0", sender_id: name };
  Object.assign(metadata, { recipient_id: sender_id, task_id, priority, ...(correlation_id && { correlation_id }) });
  const context = { workflow_state: data.status ?? "ANSWERED", previous_actions: [] };
  return { metadata, context, payload: { handoff_type, data: { ...data, in_reply_to: message_id } }, instructions: {} };
}

/** What the application does: nothing, so it has done no action and can judge no criteria. */
function work({ payload: { handoff_type, data }, instructions: { required_actions = [], success_criteria } }) {
  if (handoff_type === "REQUEST_INFORMATION") return { information: {}, missing_keys: data.requested_info_keys };
  if (required_actions.length || success_criteria) return { status: "FAILED", detail: "The actions are not known here." };
  return { status: handoff_type === "APPROVAL_REQUEST" ? "DENIED" : "COMPLETED" };
}

class Receiver {
  #kept = new Map(); // sender and id → { text, reply }: a repetition gets the first answer

  constructor(name, check) {
    Object.assign(this, { name, check });
  }

  /** The status code, the status and the answers to a body. */
  receive(body) {
    if (body.length > MAX_BODY) return [413, "REJECTED"];
    let envelope;
    try {
      envelope = JSON.parse(body);
    } catch {
      return [400, "REJECTED"];
    }
    const message = envelope?.handoff;
    if (typeof message !== "object" || message === null) return [400, "REJECTED"];
    if (!message.metadata?.sender_id || signer(envelope) !== message.metadata.sender_id) return [401, "REJECTED"];
    return this.take(message);
  }

  /** The same for a message whose sender is known. */
  take(message) {
    const text = canonical(message);
    const issues = this.check(message);
    if (issues.length) return [400, "REJECTED", this.#reject(message, issues)];
    const { sender_id, message_id, recipient_id, expiration_time } = message.metadata;
    if (![recipient_id].flat().includes(this.name)) return [403, "REJECTED"];
    const key = `${message_id.toLowerCase()} ${sender_id}`;
    const kept = this.#kept.get(key);
    if (kept && kept.text !== text) return [409, "REJECTED", this.#reject(message, ["Another message has this id."])];
    if (kept) return [kept.reply[0], "DUPLICATE", kept.reply[2]];
    const isExpired = expiration_time && Date.parse(expiration_time) <= Date.now();
    const reply = isExpired ? this.#report(message, 410, { status: "EXPIRED" }) : this.#worked(message);
    this.#kept.set(key, { text, reply });
    if (this.#kept.size > MAX_KEPT) this.#kept.delete(this.#kept.keys().next().value);
    return reply;
  }

  #worked(message) {
    const result = work(message);
    if (result.information) return [200, "COMPLETED", [answer(message, this.name, "PROVIDE_INFORMATION", result)]];
    return this.#report(message, result.status === "FAILED" ? 422 : 200, result);
  }

  #report(message, code, data) {
    const isReported = REPORTED.has(message.payload.handoff_type);
    return [code, data.status, isReported ? [answer(message, this.name, "STATUS_UPDATE", data)] : []];
  }

  /** A report of the faults, if the message says enough for one. */
  #reject(message, issues) {
    if (!message.metadata || message.payload?.handoff_type === "STATUS_UPDATE") return [];
    const report = answer(message, this.name, "STATUS_UPDATE", { status: "REJECTED", issues });
    return this.check(report).length ? [] : [report];
  }
}

function serve(receiver) {
  const server = createServer(async (request, response) => {
    const parts = [];
    let size = 0;
    for await (const part of request) if ((size += part.length) <= MAX_BODY + 1) parts.push(part);
    const isPost = request.method === "POST" && request.url === "/handoffs";
    const body = size > MAX_BODY ? { length: size } : Buffer.concat(parts);
    const [code, status, answers = []] = isPost ? receiver.receive(body) : [404, "REJECTED"];
    response.writeHead(code, { "content-type": "application/json" });
    response.end(JSON.stringify({ status, handoffs: answers.map((message) => seal(message, identity)) }));
  });
  server.requestTimeout = 10_000; // a body that comes slowly holds no place
  server.listen(0, "127.0.0.1", () => console.log(JSON.stringify({ url: `http://127.0.0.1:${server.address().port}` })));
  process.stdin.resume().on("end", () => process.exit(0));
}

/** Hand a message over until it is answered: the same bytes each time, so that it has one effect. */
async function send(url, message) {
  const body = JSON.stringify(seal(message, identity));
  for (const pause of [0.2, 1, 5, 10, 20]) {
    try {
      const response = await fetch(`${url}/handoffs`, { method: "POST", body, signal: AbortSignal.timeout(60_000) });
      if (response.status !== 503) return { code: response.status, ...(await response.json()) };
    } catch (error) {
      console.error(`Not answered: ${error.cause ?? error}`);
    }
    await sleep(pause * 1000);
  }
  throw new Error("The agent does not answer.");
}

/** The receiver in sessions: a frame is a message, and so is each answer. */
function meet(receiver, uri) {
  const begin = (socket) => {
    const say = (message) => socket.send(Buffer.concat([Buffer.from([0x40]), Buffer.from(JSON.stringify(message))]));
    const receive = (frame) => {
      let message;
      try {
        message = JSON.parse(frame.subarray(1));
      } catch {
        return;
      }
      if (typeof message !== "object" || message === null) return;
      const [code, status, answers = []] = receiver.take(message);
      const report = (data) => say(answer(message, receiver.name, "STATUS_UPDATE", data));
      if (status === "DUPLICATE") return report({ status });
      if ([200, 422].includes(code) && REPORTED.has(message.payload.handoff_type)) report({ status: "ACCEPTED" });
      answers.forEach(say);
    };
    return { receive };
  };
  const protocol = { uri, hash: "", roles: { receiver: { peer: "sender" } } };
  const server = listen(0, identity.did, protocol, "receiver", {}, () => {}, begin);
  server.on("listening", () => console.log(JSON.stringify({ url: `ws://127.0.0.1:${server.address().port}` })));
  process.stdin.resume().on("end", () => process.exit(0));
}

const [role, place, ...more] = process.argv.slice(2);
if (role === "receive") serve(new Receiver(place, checker(more[0])));
else if (role === "session") meet(new Receiver(place, checker(more[0])), more[1]);
else {
  const metadata = { message_id: randomUUID(), timestamp: new Date().toISOString(), protocol_version: "1.0.0", priority: "MEDIUM" };
  Object.assign(metadata, { sender_id: identity.did, recipient_id: more[0], task_id: "task-1", correlation_id: randomUUID() });
  const payload = { handoff_type: "TASK_TRANSFER", data: { objective: "Say that this came: grüß.", sub_tasks: [] } };
  const message = { metadata, context: { workflow_state: "OPEN", previous_actions: [] }, payload, instructions: {} };
  const { code, status, handoffs } = await send(place, message);
  const report = handoffs.find((each) => each.handoff.payload.data.in_reply_to === metadata.message_id);
  const proof = { signed: report ? signer(report) : null, valid: report ? checker(more[1])(report.handoff).length === 0 : null };
  console.log(JSON.stringify({ code, status, report: report?.handoff.payload.data, ...proof }));
}
