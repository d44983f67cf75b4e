// Sessions of the Hello profile over WebSockets, in both roles (docs/specification/hello-profile.md and transports.md).
import { randomBytes } from "node:crypto";
import { WebSocket, WebSocketServer } from "ws";
import { OperationError } from "./protocol.js";

const META = 0x00;
const APPLICATION = 0x40;
const MAX_MESSAGE = 1024 * 1024 + 1;
const MAX_OPEN = 256;
const random = () => randomBytes(24).toString("base64url");
const frame = (type, text) => Buffer.concat([Buffer.from([type]), Buffer.from(text)]);
const meta = (value) => frame(META, JSON.stringify(value));
const GENERATED = meta({ action: "codeGeneration", status: "generated" });

/** Open a session with the agent at `url`. `known`: URLs whose agents agreed before, so that the next session begins by the hash.
 *  `begin` makes the session on the socket: one with `receive(frame)`; by default that of a protocol without code. */
export async function connect(url, did, protocol, role, { functions = {}, known = new Set(), begin } = {}) {
  const socket = new WebSocket(url, { maxPayload: MAX_MESSAGE, perMessageDeflate: false });
  const incoming = new Incoming(socket);
  await new Promise((resolve, reject) => socket.once("open", resolve).once("error", reject));
  const offer = known.has(url) ? { usedProtocolHash: protocol.hash } : {};
  const roles = { candidateProtocols: [protocol.uri], candidateRoles: { [protocol.uri]: role } };
  socket.send(JSON.stringify(hello("sourceHello", { sourceDid: did, sessionId: random() }, { ...offer, ...roles })));
  const answer = await incoming.next();
  const { selectedProtocol, usedProtocolHash, peerRole = role } = answer.metaProtocol ?? {};
  const isConfirmed = known.has(url) && usedProtocolHash === protocol.hash;
  if ((!isConfirmed && selectedProtocol !== protocol.uri) || peerRole !== role) {
    socket.close(1008, "session.no-common-protocol");
    throw new Error(answer.modificationSummary ?? "The two agents have no protocol in common.");
  }
  const session = begin ? begin(socket) : new Session(socket, protocol, role, functions);
  if (!isConfirmed) {
    socket.send(GENERATED);
    const code = await incoming.next();
    if (code.status !== "generated") throw new Error(`The other side has no code: ${code.reason}`);
  }
  known.add(url);
  incoming.give((message) => session.receive(message));
  return session;
}

/** Serve a role of a protocol. Return the server; its sessions go to `onSession`. `begin`: as in `connect`. */
export function listen(port, did, protocol, role, functions, onSession = () => {}, begin) {
  const server = new WebSocketServer({ host: "127.0.0.1", port, maxPayload: MAX_MESSAGE, perMessageDeflate: false });
  const open = async (socket) => {
    const incoming = new Incoming(socket);
    const source = await incoming.next();
    const { usedProtocolHash, candidateProtocols = [], candidateRoles = {} } = source.metaProtocol ?? {};
    const peerRole = candidateRoles[protocol.uri] ?? protocol.roles[role].peer;
    const isConfirmed = usedProtocolHash === protocol.hash;
    if (!(isConfirmed || candidateProtocols.includes(protocol.uri)) || peerRole !== protocol.roles[role].peer) {
      const modificationSummary = "session.no-common-protocol: The two agents have no protocol in common.";
      socket.send(meta({ action: "protocolNegotiation", sequenceId: 0, status: "rejected", modificationSummary }));
      return socket.close(1008, "session.no-common-protocol");
    }
    const choice = isConfirmed ? { usedProtocolHash } : { selectedProtocol: protocol.uri, selectedProtocolHash: protocol.hash };
    const parties = { sessionId: source.sessionId ?? random(), sourceDid: did, destinationDid: source.sourceDid ?? "" };
    socket.send(JSON.stringify(hello("destinationHello", parties, { ...choice, role, peerRole })));
    const session = begin ? begin(socket) : new Session(socket, protocol, role, functions);
    if (!isConfirmed) {
      socket.send(GENERATED);
      // Early data for a hash that is not confirmed: the source makes these calls again.
      while ((await incoming.next()).action !== "codeGeneration");
    }
    incoming.give((message) => session.receive(message));
    onSession(session);
  };
  // What a stranger sends may be anything: it ends his connection, and not the program.
  server.on("connection", (socket) => open(socket).catch(() => socket.terminate()));
  return server;
}

const hello = (type, parties, content) => ({
  version: "1.0",
  type,
  messageId: random(),
  random: random(),
  ...parties,
  metaProtocol: { version: "1.0", supportedCapabilities: [], ...content },
});

/** The messages of a socket: awaited one by one during the handshake, and then given to the session. */
class Incoming {
  #queue = [];
  #wake = () => {};
  #isOver = false;

  constructor(socket) {
    socket.on("message", (data) => {
      this.#queue.push(data);
      this.#wake();
    });
    socket.on("error", () => socket.terminate());
    socket.on("close", () => {
      this.#isOver = true;
      this.#wake();
    });
  }

  /** The next Hello or meta message; {} for any other. Throws at the end of the connection. */
  async next() {
    while (!this.#queue.length) {
      if (this.#isOver) throw new Error("The other side ended the connection.");
      await new Promise((resolve) => (this.#wake = resolve));
    }
    const message = this.#queue.shift();
    if (message[0] === 0x7b) return parse(message); // a Hello begins with {, and no frame does
    return message[0] >> 6 === META >> 6 ? parse(message.subarray(1)) : {};
  }

  give(receive) {
    this.#wake = () => this.#queue.splice(0).forEach(receive);
    this.#wake();
  }
}

/** Return the object of a message; {} if it has none. */
function parse(data) {
  try {
    const value = JSON.parse(data);
    return typeof value === "object" && value !== null ? value : {};
  } catch {
    return {};
  }
}

export class Session {
  #calls = new Map(); // id → { operation, items, answer, ... } of this side
  #served = new Map(); // id → { credit, wake, isCancelled } of the other side
  #last = 0;

  constructor(socket, protocol, role, functions) {
    Object.assign(this, { socket, protocol, role, functions });
    socket.on("close", () => {
      for (const call of this.#calls.values()) call.fail(new OperationError(503, "The other side is gone."));
      for (const served of this.#served.values()) served.cancel();
    });
  }

  close() {
    this.socket.close(1000);
  }

  /** Call an operation and return its result. An event returns when it is sent. */
  async call(operation, args) {
    for await (const value of this.stream(operation, args)) return value;
    return null;
  }

  /** Call an operation and yield its items: those of a stream, or the one result of a request. */
  async *stream(name, args) {
    const operation = this.protocol.operations.get(name);
    this.protocol.check(name, "arguments", args);
    const id = String(++this.#last);
    this.#send(name, operation.kind === "event" ? "event" : "request", { id, arguments: args });
    if (operation.kind === "event") return;
    const call = new Call(operation);
    this.#calls.set(id, call);
    try {
      for (let taken = 1, item; (item = await call.next()) !== undefined; taken++) {
        if (operation.kind === "stream" && taken % operation.window === 0) this.#send(name, "more", { id, count: operation.window });
        yield item.value;
      }
    } finally {
      this.#calls.delete(id);
      if (!call.isOver && operation.forms.cancel) this.#send(name, "cancel", { id });
    }
  }

  receive(data) {
    if (data[0] >> 6 !== APPLICATION >> 6) return; // meta messages of capabilities that this side does not list
    const message = parse(data.subarray(1));
    const isOurs = (id, operation, kind) =>
      ["more", "cancel"].includes(kind) ? this.#served.has(id) : this.#calls.get(id)?.operation.name === operation;
    const found = this.protocol.read(message, isOurs);
    if (found === null) {
      if (typeof message.id === "string" && !this.#calls.has(message.id)) this.#refuse(message.id);
    } else if (found.kind === "request" || found.kind === "event") this.#serve(found);
    else if (found.kind === "more") this.#served.get(found.values.id).grant(found.values.count);
    else if (found.kind === "cancel") this.#served.get(found.values.id).cancel();
    else this.#calls.get(found.values.id).answered(found.kind, found.values, this.protocol);
  }

  async #serve({ operation: name, kind, values }) {
    const { id } = values;
    const serve = this.protocol.roles[this.role].invokes.includes(name) && this.functions[name];
    if (this.#served.has(id)) return;
    if (this.#served.size >= MAX_OPEN) return kind === "request" && this.#send(name, "error", { id, code: 429, message: "Too many." });
    const served = new Served(this.protocol.operations.get(name).window);
    if (kind === "request") this.#served.set(id, served);
    const answer = (form, content) => kind === "request" && !served.isCancelled && this.#send(name, form, { id, ...content });
    try {
      const args = this.protocol.check(name, "arguments", values.arguments ?? {});
      if (!serve) throw new OperationError(400, `This side does not serve ${name}.`);
      const result = await serve(args);
      if (result?.[Symbol.asyncIterator]) {
        for await (const item of result) {
          await served.room();
          if (served.isCancelled) return;
          answer("item", { item });
        }
        answer("end", {});
      } else answer("response", { result: result ?? null });
    } catch (error) {
      const isListed = error instanceof OperationError;
      answer("error", { code: isListed ? error.code : 500, message: isListed ? error.message : "The operation failed." });
    } finally {
      if (kind === "request") this.#served.delete(id);
    }
  }

  #refuse(id) {
    const served = this.protocol.roles[this.role].invokes[0];
    if (served) this.#send(served, "error", { id, code: 400, message: "The message has no form of this protocol." });
  }

  #send(operation, kind, values) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(frame(APPLICATION, this.protocol.write(operation, kind, values)));
  }
}

/** A call of this side: the items that came, and its end. */
class Call {
  #items = [];
  #wake = () => {};
  isOver = false;

  constructor(operation) {
    this.operation = operation;
  }

  answered(kind, values, protocol) {
    if (kind === "error") return this.fail(new OperationError(values.code, values.message));
    try {
      if (kind !== "end") this.#items.push({ value: protocol.check(this.operation.name, "result", values.item ?? values.result ?? null) });
      this.isOver = kind !== "item";
      this.#wake();
    } catch (error) {
      this.fail(error);
    }
  }

  fail(error) {
    this.error = error;
    this.isOver = true;
    this.#wake();
  }

  /** The next item; undefined at the end. Throws the error of the call, after its items. */
  async next() {
    while (!this.#items.length && !this.isOver) {
      const late = new OperationError(504, "No answer came in time."); // the outcome is unknown
      const timer = setTimeout(() => this.fail(late), this.operation.timeout * 1000);
      await new Promise((resolve) => (this.#wake = resolve));
      clearTimeout(timer);
    }
    if (this.#items.length) return this.#items.shift();
    if (this.error) throw this.error;
    return undefined;
  }
}

/** A call of the other side: how many items it may still get. */
class Served {
  #wake = () => {};
  isCancelled = false;

  constructor(credit) {
    this.credit = credit;
  }

  grant(count) {
    this.credit += count;
    this.#wake();
  }

  cancel() {
    this.isCancelled = true;
    this.#wake();
  }

  async room() {
    while (this.credit === 0 && !this.isCancelled) await new Promise((resolve) => (this.#wake = resolve));
    this.credit--;
  }
}
