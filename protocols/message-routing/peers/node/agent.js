// A member and an environment of message routing, written from the document. session.js and protocol.js are those of examples/node.
//   node agent.js member URL URI NAME CLASS ACTION CAUSE…    joins, watches the causes, and answers each of its news with a message
//   node agent.js environment URI                            prints its URL, and runs rounds while members have work
// Each serves until its standard input ends. Then the member prints the contents that it worked on.
import { randomUUID } from "node:crypto";
import { connect, listen } from "./session.js";

const APPLICATION = 0x40;
const MAX = { members: 256, waiting: 256, published: 128, history: 1000, text: 65_536 };
const NAME = /^[^.<>\p{C}\p{Zl}\p{Zp}]{1,64}$/u;
const isName = (value) => typeof value === "string" && NAME.test(value);
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const hasExactly = (value, names) => isObject(value) && Object.keys(value).sort().join() === [...names].sort().join();

/** A message with all its fields; the defaults stand for those that are missing or empty (rule 1). */
function isMessage(value) {
  const names = ["id", "content", "instruct_content", "role", "cause_by", "sent_from", "send_to"];
  if (!hasExactly(value, names) || JSON.stringify(value).length > MAX.text) return false;
  const isAddress = (each) => isName(each) || ["<all>", "<none>", "<self>"].includes(each);
  const hasLists = Array.isArray(value.send_to) && value.send_to.length <= 64 && value.send_to.every(isAddress);
  const hasTexts = [value.id, value.cause_by].every((each) => each === "" || isName(each)) && typeof value.content === "string";
  const hasContent = value.instruct_content === null || isObject(value.instruct_content);
  return hasLists && hasTexts && hasContent && ["user", "system", "assistant"].includes(value.role) && typeof value.sent_from === "string";
}

function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical)}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const members = Object.keys(value).sort();
  return `{${members.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`)}}`;
}

/** Two messages are one if all their fields are equal; the order of send_to does not count (rule 7). */
const identity = (message) => canonical({ ...message, send_to: [...message.send_to].sort() });
const complete = ({ id, cause_by, send_to, ...rest }) => ({
  ...rest,
  id: id || randomUUID().replaceAll("-", ""),
  cause_by: cause_by || "UserRequirement",
  send_to: send_to.length ? send_to : ["<all>"],
});

/** The messages of one session: JSON objects in frames of the application. */
class Channel {
  constructor(socket, take) {
    Object.assign(this, { socket, take });
  }

  say(message) {
    this.socket.send(Buffer.concat([Buffer.from([APPLICATION]), Buffer.from(JSON.stringify(message))]));
  }

  receive(frame) {
    if (frame[0] >> 6 !== APPLICATION >> 6) return;
    let message;
    try {
      message = JSON.parse(frame.subarray(1));
    } catch {
      return; // it does not conform, and is ignored
    }
    if (isObject(message)) this.take(message, this);
  }
}

class Member {
  #buffer = [];
  #seen = new Set();
  #waiting = new Map(); // id of a request → its end
  worked = [];

  constructor(name, address, action, causes) {
    Object.assign(this, { name, address, action, causes: causes.length ? causes : ["UserRequirement"] });
  }

  take(message, channel) {
    if (message.type === "message" && isMessage(message.message) && this.#buffer.length < MAX.waiting) this.#buffer.push(message.message);
    else if (["accepted", "refused"].includes(message.type)) this.#waiting.get(message.id)?.(message);
    else if (message.type === "run" && Number.isInteger(message.round)) this.#react(message.round, channel);
  }

  request(channel, content) {
    const id = randomUUID();
    return new Promise((resolve) => {
      this.#waiting.set(id, resolve);
      channel.say({ ...content, id });
    }).finally(() => this.#waiting.delete(id));
  }

  async join(channel) {
    const answer = await this.request(channel, { type: "join", name: this.name, address: this.address, shared: false });
    if (answer.type !== "accepted") throw new Error(`The environment refused the join: ${answer.reason}`);
  }

  /** Take what is buffered when the round begins, work on the news, and publish an answer to each. */
  async #react(round, channel) {
    const given = this.#buffer.splice(0).filter((message) => !this.#seen.has(identity(message)));
    for (const message of given) this.#seen.add(identity(message));
    const news = given.filter(({ cause_by, send_to }) => this.causes.includes(cause_by) || send_to.includes(this.name));
    let error = "";
    for (const { content } of news) {
      this.worked.push(content);
      const about = { content: `${this.action} of ${content}`, instruct_content: null, role: "assistant", cause_by: this.action };
      const message = complete({ ...about, id: "", sent_from: this.address, send_to: ["<all>"] });
      this.#seen.add(identity(message)); // a member has seen its own responses
      const answer = await this.request(channel, { type: "publish", message });
      if (answer.type === "refused") error = String(answer.reason).slice(0, 500);
    }
    channel.say({ type: "state", round, idle: this.#buffer.length === 0, error });
  }
}

class Environment {
  #members = new Map(); // channel → { name, address, shared, waiting, published, isRunning, isIdle }
  #history = new Map(); // identity → message
  #round = 0;

  take(message, channel) {
    const member = this.#members.get(channel);
    if (message.type === "join" && hasExactly(message, ["type", "id", "name", "address", "shared"])) this.#join(message, channel, member);
    else if (message.type === "publish" && hasExactly(message, ["type", "id", "message"]) && isMessage(message.message)) {
      this.#publish(message, channel, member);
    } else if (member && message.type === "state" && hasExactly(message, ["type", "round", "idle", "error"])) {
      if (member.isRunning && message.round !== this.#round) return; // sent before it got the round
      Object.assign(member, { isRunning: false, isIdle: message.idle === true });
      this.#goOn();
    }
  }

  lose(channel) {
    this.#members.delete(channel);
    this.#goOn();
  }

  #join({ id, name, address, shared }, channel, member) {
    const refuse = (code, reason) => channel.say({ type: "refused", id, code, reason });
    if (![id, name, address].every(isName) || typeof shared !== "boolean") return;
    const others = [...this.#members.values()];
    const isTaken = (other) => [other.name, other.address].includes(name) || address === other.name;
    const isShared = (other) => address !== other.address || (shared && other.shared);
    if (member) return refuse(409, "This peer has joined already.");
    if (others.length >= MAX.members) return refuse(409, "There is no place.");
    if (others.some(isTaken) || !others.every(isShared)) return refuse(409, "The name or the class is not free.");
    this.#members.set(channel, { name, address, shared, waiting: 0, published: 0, isRunning: false, isIdle: true });
    channel.say({ type: "accepted", id });
  }

  #publish({ id, message: draft }, channel, member) {
    const refuse = (code, reason) => channel.say({ type: "refused", id, code, reason });
    const message = complete(draft);
    if (!member) return refuse(403, "Join first.");
    if (![member.name, member.address].includes(message.sent_from)) return refuse(403, "sent_from is the name or the class of another.");
    if (member.published >= MAX.published) return refuse(429, "This member published too much in this round.");
    const isFor = ([, { name, address }]) => message.send_to.some((each) => ["<all>", name, address].includes(each));
    const addressed = [...this.#members].filter(isFor);
    const receivers = addressed.filter(([, other]) => other.waiting < MAX.waiting);
    if (addressed.length && !receivers.length) return refuse(429, "Too many messages wait for each recipient.");
    if (!addressed.length) console.error(`The message ${message.id} has no recipient.`);
    member.published++;
    this.#history.set(identity(message), message);
    if (this.#history.size > MAX.history) this.#history.delete(this.#history.keys().next().value);
    for (const [other, state] of receivers) {
      state.waiting++;
      other.say({ type: "message", message });
    }
    channel.say({ type: "accepted", id });
    this.#goOn();
  }

  /** Begin a round when all members have finished the last one, and some are not idle (rule 9). */
  #goOn() {
    const members = [...this.#members];
    const running = members.filter(([, { isIdle, waiting }]) => !isIdle || waiting);
    if (members.some(([, { isRunning }]) => isRunning) || !running.length) return;
    this.#round++;
    for (const [, member] of members) member.published = 0;
    for (const [channel, member] of running) {
      Object.assign(member, { isRunning: true, waiting: 0 });
      channel.say({ type: "run", round: this.#round });
    }
  }
}

const [role, ...more] = process.argv.slice(2);
const did = `did:wba:${role}-${randomUUID().slice(0, 8)}.example`; // a plain Hello claims it
const protocol = (uri) => ({ uri, hash: "", roles: { member: { peer: "environment" }, environment: { peer: "member" } } });
const ended = new Promise((resolve) => process.stdin.resume().on("end", resolve));
if (role === "member") {
  const [url, uri, name, address, action, ...causes] = more;
  const member = new Member(name, address, action, causes);
  const begin = (socket) => new Channel(socket, (message, channel) => member.take(message, channel));
  await member.join(await connect(url, did, protocol(uri), role, { begin }));
  console.log(JSON.stringify({ joined: name }));
  await ended;
  console.log(JSON.stringify(member.worked));
} else {
  const environment = new Environment();
  const begin = (socket) => {
    const channel = new Channel(socket, (message, each) => environment.take(message, each));
    socket.on("close", () => environment.lose(channel));
    return channel;
  };
  const server = listen(0, did, protocol(more[0]), role, {}, () => {}, begin);
  server.on("listening", () => console.log(JSON.stringify({ url: `ws://127.0.0.1:${server.address().port}` })));
  await ended;
}
process.exit(0);
