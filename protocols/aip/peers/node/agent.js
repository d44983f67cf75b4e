// An agent and a tool of AIP over gRPC, written from the document (protocols/aip/0.0.1). PROTO is a file with the .proto in it.
//   node agent.js PROTO                       prints the addresses of both, and serves until its standard input ends
//   node agent.js PROTO GATEWAY AGENT TOOL    registers both at a gateway, speaks to AGENT and calls TOOL there, prints what it
//                                             heard, and serves
import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const NAMES = { agent: "node-agent", tool: "node-tool" };
const SESSION_MS = 300_000;
const HEARTBEAT_MS = 10_000;
const MAX_OPEN = 128;
const [proto, gatewayAddress, agentName, toolName] = process.argv.slice(2);
const options = { keepCase: true, enums: String, defaults: true, oneofs: true };
const services = grpc.loadPackageDefinition(loadSync(proto, options)).grpc_service;
const { status } = grpc;
const text = (value) => [{ text: value }];
const open = new Map(); // session_id → the stream that has it

/** The reason for which a message may not come now, or "". */
function fault(first, last, message) {
  if (!first) {
    if (message.session_status !== "START_QUEST") return "The first message of a stream is START_QUEST.";
    if (!message.session_id) return "The first message names its session.";
    return open.has(message.session_id) ? "This session is open." : "";
  }
  const isSame = ["session_id", "sender_id", "receiver_id"].every((name) => message[name] === first[name]);
  if (!isSame) return "A stream has one session, one sender and one receiver.";
  if (last === "STOP_QUEST") return "No message follows STOP_QUEST.";
  return ["HOLD_QUEST", "STOP_QUEST"].includes(message.session_status) ? "" : "The initiator sends HOLD_QUEST and STOP_QUEST.";
}

/** Repeat the content of each inquiry, and answer STOP_QUEST with STOP_RESPONSE. */
function callAgent(stream) {
  let first, last, timer;
  const isOpen = () => first !== undefined && open.get(first.session_id) === stream;
  const close = () => {
    clearTimeout(timer);
    if (isOpen()) open.delete(first.session_id);
  };
  const answer = (session_status, content, more = {}) => {
    const ids = { sender_id: NAMES.agent, receiver_id: first.sender_id, session_id: first.session_id };
    stream.write({ ...ids, session_status, content, ...more });
  };
  const stop = (reason, code) => {
    if (first) answer("STOP_RESPONSE", text(reason));
    close();
    if (code === undefined) stream.end();
    else stream.emit("error", { code, details: reason });
  };
  stream.on("data", (message) => {
    if (first && !isOpen()) return; // it has ended
    const reason = fault(first, last, message);
    if (reason) return stop(reason, status.INVALID_ARGUMENT);
    if (message.receiver_id !== NAMES.agent) return stop("This is another agent.", status.NOT_FOUND);
    if (!first && open.size >= MAX_OPEN) return stop("Too many sessions are open.", status.RESOURCE_EXHAUSTED);
    if (!first) open.set(message.session_id, stream);
    first ??= message;
    last = message.session_status;
    clearTimeout(timer);
    timer = setTimeout(() => stop("The session was silent too long."), SESSION_MS);
    answer(last === "STOP_QUEST" ? "STOP_RESPONSE" : "HOLD_RESPONSE", message.content, { reply_to_message_id: message.message_id });
    if (last === "STOP_QUEST") {
      close();
      stream.end();
    }
  });
  stream.on("end", () => {
    if (!first) stop("The stream ended before its first message.", status.ABORTED);
    else if (isOpen()) stop("The initiator ended the stream.");
  });
  stream.on("cancelled", close);
  stream.on("error", close);
}

/** Return the argument `text` in capitals. */
function callTool({ request }, respond) {
  const { sender_id, receiver_id, session_id } = request;
  if (receiver_id !== NAMES.tool) return respond({ code: status.NOT_FOUND, details: "This is another tool." });
  const ids = { sender_id: receiver_id, receiver_id: sender_id, session_id };
  const { text: argument } = request.arguments;
  if (argument === undefined) return respond(null, { ...ids, is_error: true, error_message: "The argument text is missing." });
  respond(null, { ...ids, content: text(argument.toUpperCase()) });
}

function serve(service, functions) {
  const server = new grpc.Server();
  server.addService(services[service].service, functions);
  return new Promise((resolve, reject) => {
    const bound = (error, port) => (error ? reject(error) : resolve(`127.0.0.1:${port}`));
    server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), bound);
  });
}

/** Hold a session with an agent of the gateway: what it answered. */
function talk(gateway) {
  const stream = gateway.RouteAgentCalling();
  const heard = [];
  const rest = ["HOLD_QUEST", "STOP_QUEST"];
  const ids = { sender_id: NAMES.agent, receiver_id: agentName, session_id: `from-node-${Date.now()}` };
  const say = (session_status) => stream.write({ ...ids, session_status, content: text(`inquiry ${2 - rest.length}`) });
  return new Promise((resolve, reject) => {
    stream.on("data", ({ session_status, content }) => {
      heard.push(`${session_status} ${content[0]?.text}`);
      if (rest.length && session_status === "HOLD_RESPONSE") say(rest.shift());
    });
    stream.on("end", () => resolve(heard)).on("error", reject);
    say("START_QUEST");
  });
}

const told = { agent: await serve("AgentService", { CallAgent: callAgent }), tool: await serve("ToolService", { CallTool: callTool }) };
if (gatewayAddress) {
  const gateway = new services.GatewayService(gatewayAddress, grpc.credentials.createInsecure());
  const ask = (method, request) =>
    new Promise((resolve, reject) => gateway[method](request, (error, answer) => (error ? reject(error) : resolve(answer))));
  const modes = { input_mode: ["TEXT", "IMAGE"], output_mode: ["AUDIO"] };
  const skills = [{ skill_id: "echo", capability: "repeats" }];
  const register = {
    agent: () => ask("RegisterAgent", { agent_id: NAMES.agent, address: told.agent, domain: "foreign", ...modes, skills }),
    tool: () => ask("RegisterTool", { tool_id: NAMES.tool, address: told.tool, arguments: { text: "str" } }),
  };
  told.peers = (await register.agent()).peers.length;
  await register.tool();
  const beat = async (kind) => {
    const { success } = await ask("Heartbeat", { sender_id: NAMES[kind] });
    if (!success) await register[kind]();
    return success;
  };
  const retry = (kind) => beat(kind).catch((error) => console.error(`The gateway does not answer: ${error.message}`));
  for (const kind of ["agent", "tool"]) setInterval(() => retry(kind), HEARTBEAT_MS);
  told.nodes = (await ask("GetNodes", { agent_id: NAMES.agent, domain: "foreign" })).peers.length;
  const request = { sender_id: NAMES.agent, receiver_id: toolName, session_id: "s", tool_name: toolName, arguments: { text: "grüß" } };
  told.answer = (await ask("RouteToolCalling", request)).content[0].text;
  told.heard = await talk(gateway);
}
console.log(JSON.stringify(told));
process.stdin.resume().on("end", () => process.exit(0));
