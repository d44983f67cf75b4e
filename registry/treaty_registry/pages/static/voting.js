// The page of a ballot: order the choices, hold a key in memory, sign, send, check. Needs proof.js, log-proof.js and ballot.js.
"use strict";

const page = document.querySelector("[data-voting]");
const part = (name) => page.querySelector(`[data-part="${name}"]`);
const { topic, log: logName, key: logKey, clock: clockKey, most } = page.dataset;
const ranked = part("ranked"), pool = part("pool"), live = part("live");
const ONE = 2 ** 32;
let key = null, madeFile = null;

const title = (item) => item.querySelector(".choice-name").textContent.trim();
const items = () => [...ranked.children];
const choiceOf = (name) => page.querySelector(`[data-choice="${name}"]`);

function say(text) {
  live.textContent = text;
}

function tiers() {
  const found = [];
  for (const item of items()) {
    if (item.dataset.tied && found.length) found.at(-1).push(item.dataset.choice);
    else found.push([item.dataset.choice]);
  }
  return found;
}

// Number the ranks, and show what each button would do.
function refresh() {
  items()[0]?.removeAttribute("data-tied");
  let rank = 0;
  items().forEach((item, place) => {
    if (!item.dataset.tied) rank += 1;
    item.querySelector(".rank").textContent = item.dataset.tied ? "=" : String(rank);
    item.querySelector('[data-do="up"]').disabled = place === 0;
    item.querySelector('[data-do="down"]').disabled = place === items().length - 1;
    const tie = item.querySelector('[data-do="tie"]');
    tie.disabled = place === 0;
    tie.setAttribute("aria-pressed", String(Boolean(item.dataset.tied)));
    item.querySelector(".handle").setAttribute("aria-label", `Move ${title(item)}, place ${place + 1} of ${items().length}`);
  });
  document.querySelector("[data-command] code").textContent = command();
  part("pool-empty").hidden = pool.children.length > 0;
  part("send").disabled = !key || items().length === 0;
}

// The command that makes the same ballot. A URI may have a character that a shell expands.
function command() {
  const uri = (choice) => choiceOf(choice).dataset.uri ?? choice;
  const words = tiers().map((tier) => tier.map(uri).join(","));
  const quoted = words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`));
  return ["treaty vote", topic, ...quoted].join(" ");
}

// The neighbour moves and not the item itself, because an element that moves loses the focus.
function move(item, step) {
  const neighbour = step < 0 ? item.previousElementSibling : item.nextElementSibling;
  if (!neighbour) return say(`${title(item)} is ${step < 0 ? "first" : "last"} already.`);
  if (step < 0) item.after(neighbour);
  else item.before(neighbour);
  refresh();
  say(`${title(item)} is now at place ${items().indexOf(item) + 1} of ${items().length}.`);
}

const ACTIONS = {
  up: (item) => move(item, -1),
  down: (item) => move(item, 1),
  tie(item) {
    if (item.dataset.tied) delete item.dataset.tied;
    else item.dataset.tied = "yes";
    refresh();
    say(`${title(item)} ${item.dataset.tied ? "is tied with the choice above" : "has a rank of its own"}.`);
  },
  rank(item) {
    if (items().length > Number(most)) return say(`A ballot ranks at most ${most} protocols.`);
    // Above `none`: a choice that somebody picks is usually one that they accept.
    const none = items().find((other) => other.dataset.choice === "none");
    ranked.insertBefore(item, none ?? null);
    refresh();
    say(`${title(item)} is on the ballot, at place ${items().indexOf(item) + 1} of ${items().length}.`);
    item.querySelector(".handle").focus();
  },
  unrank(item) {
    delete item.dataset.tied;
    pool.append(item);
    refresh();
    say(`${title(item)} is no longer on the ballot.`);
    item.querySelector('[data-do="rank"]').focus();
  },
};

page.addEventListener("click", (event) => {
  const button = event.target.closest("[data-do]");
  if (button) ACTIONS[button.dataset.do](button.closest("[data-choice]"));
});

ranked.addEventListener("keydown", (event) => {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!step || !event.target.closest(".handle")) return;
  event.preventDefault();
  move(event.target.closest("[data-choice]"), step);
});

// Listeners on the document: a captured pointer is lost when the element moves.
ranked.addEventListener("pointerdown", (event) => {
  const item = event.target.closest(".handle")?.closest("[data-choice]");
  if (!item || event.button !== 0) return;
  event.preventDefault();
  item.classList.add("dragged");
  const drag = (moved) => {
    const after = items().find((other) => other !== item && moved.clientY < middle(other));
    if (after !== item.nextElementSibling) ranked.insertBefore(item, after ?? null);
  };
  const drop = () => {
    document.removeEventListener("pointermove", drag);
    document.removeEventListener("pointerup", drop);
    document.removeEventListener("pointercancel", drop);
    item.classList.remove("dragged");
    refresh();
    item.querySelector(".handle").focus();
    say(`${title(item)} is now at place ${items().indexOf(item) + 1} of ${items().length}.`);
  };
  document.addEventListener("pointermove", drag);
  document.addEventListener("pointerup", drop);
  document.addEventListener("pointercancel", drop);
});

function middle(item) {
  const box = item.getBoundingClientRect();
  return box.top + box.height / 2;
}

function outcome(place, kind, ...content) {
  const line = document.createElement("div");
  line.className = `outcome ${kind}`;
  line.append(...content);
  place.replaceChildren(line);
}

function warn(place, text) {
  const line = document.createElement("div");
  line.className = "outcome warn";
  line.append(paragraph(text));
  place.prepend(line);
}

function paragraph(text) {
  const made = document.createElement("p");
  made.textContent = text;
  return made;
}

function link(text, href) {
  const made = document.createElement("a");
  made.textContent = text;
  made.href = href;
  return made;
}

class Refusal extends Error {
  constructor(problem) {
    super(problem.detail);
    this.problem = problem;
  }
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { cache: "no-cache", headers: { Accept: "application/json" }, ...options });
  if (answer.ok) return answer;
  const type = answer.headers.get("content-type") ?? "";
  throw type.includes("problem+json") ? new Refusal(await answer.json()) : new Error(`The registry answered ${answer.status}.`);
}

function complain(place, error) {
  if (!(error instanceof Refusal)) return outcome(place, "bad", paragraph(error.message));
  const { code, detail, fix } = error.problem;
  const name = document.createElement("code");
  name.textContent = code;
  return outcome(place, "bad", paragraph(detail), ...(fix ? [paragraph(`What to do: ${fix}`)] : []), name);
}

function encoded(did) {
  return encodeURIComponent(did).replaceAll("%3A", ":");
}

// Before anything is signed: what this DID weighs.
async function weigh(did) {
  const place = part("weight");
  try {
    const standing = await (await ask(`/standing/${encoded(did)}`)).json();
    if (did !== key?.did && key) return;
    const weight = Number(standing.weight) / ONE;
    if (did.startsWith("did:key:")) {
      outcome(place, "warn", paragraph(`${did} weighs nothing: a did:key costs nothing, so it has no vote, and the log refuses its ballot.`));
    } else if (standing.epoch === null) {
      outcome(place, "quiet", paragraph(`No epoch has closed yet, so nobody has a weight. The weight of ${did} is known after the first one.`));
    } else if (weight === 0) {
      outcome(place, "warn", paragraph(`${did} weighed nothing at the end of epoch ${standing.epoch}. A ballot counts when its DID has a weight at the end of the open epoch.`));
    } else {
      const number = weight.toLocaleString("en", { maximumFractionDigits: 3 });
      outcome(place, "good", paragraph(`${did} weighs ${number}, as of epoch ${standing.epoch}.`));
    }
  } catch (error) {
    complain(place, error);
  }
}

// The keys of a DID as the log has them, name → Multikey.
async function loggedKeys(did) {
  if (!did || did.startsWith("did:key:")) return {};
  BallotStatement.requireDid(did); // only a DID is sent, whatever was pasted into its field
  try {
    return (await (await ask(`/identities/${encoded(did)}`)).json()).keys;
  } catch (error) {
    if (error instanceof Refusal && error.problem.status === 404) return {};
    throw error;
  }
}

async function hold(made, logged, file = null) {
  key = made;
  madeFile = file;
  part("secret").value = "";
  part("file").value = "";
  part("download").hidden = !file;
  outcome(part("key"), "good", paragraph(`The key of ${made.did} is in the memory of this page.`), paragraph(`Its public part is ${made.multikey}. It signs as ${made.keyId}.`));
  refresh();
  const isNew = Object.keys(logged).length > 0 && !Object.hasOwn(logged, made.keyId);
  part("document").replaceChildren(...(file && !made.did.startsWith("did:key:") ? publishing(made, isNew) : []));
  if (isNew) warn(part("document"), `The log knows ${made.did} with other keys. With a new key that none of them confirms, the DID begins anew: it loses its weight and its standing. Use a key that it has, or rotate it with treaty identity rotate.`);
  await weigh(made.did);
}

// A new key of a domain counts after the domain serves it.
function publishing(made, isNew) {
  const text = document.createElement("pre");
  text.tabIndex = 0;
  text.textContent = JSON.stringify(BallotStatement.didDocument(made), null, 2);
  const served = isNew ? "add the key of this document to the one" : "serve this document";
  return [paragraph(`Before you send the ballot, ${served} at ${BallotStatement.documentUrl(made.did)}, and download the key: this page forgets it.`), text];
}

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    key = null;
    madeFile = null;
    part("download").hidden = true;
    part("document").replaceChildren();
    refresh();
    complain(part("key"), error);
  }
}

part("make").addEventListener("click", () => attempt(async () => {
  const did = part("did").value.trim() || undefined;
  const logged = await loggedKeys(did);
  const { key: made, file } = await BallotStatement.makeKey(did, logged);
  await hold(made, logged, file);
}));

part("import").addEventListener("click", () => attempt(async () => {
  const [file] = part("file").files;
  if (file && file.size > 4096) throw new Error("A key file has at most 4,096 bytes.");
  const text = file ? await file.text() : part("secret").value;
  if (!text.trim()) throw new Error("Choose a file or paste a key first.");
  const made = await BallotStatement.importKey(text, part("did").value.trim() || undefined, part("key-id").value.trim() || undefined);
  const logged = await loggedKeys(made.did);
  await hold(BallotStatement.settled(made, logged), logged);
}));

part("download").addEventListener("click", () => {
  const made = link("", URL.createObjectURL(new Blob([madeFile], { type: "application/json" })));
  made.download = "identity.json";
  made.click();
  URL.revokeObjectURL(made.href);
});

async function send() {
  const place = part("outcome");
  outcome(place, "quiet", paragraph("Signing and sending…"));
  const signer = key;
  const query = new URLSearchParams({ topic, did: signer.did });
  const position = await (await ask(`/ballots?${query}`)).json();
  const checkpoint = await (await ask("/checkpoint", { headers: { Accept: "text/plain" } })).text();
  // The ballot states that its author saw this checkpoint, so it is checked first.
  await LogProof.openCheckpoint(checkpoint, await LogProof.parseKey(logKey), await LogProof.parseKey(clockKey, LogProof.CLOCK));
  const body = BallotStatement.ballot(topic, position.seq, tiers(), checkpoint);
  const payload = BallotStatement.payload(body, logName, signer.keyId, Math.floor(Date.now() / 1000));
  const leaf = await BallotStatement.sign(signer, payload), id = await BallotStatement.id(payload);
  const receipt = await (await ask("/statements", {
    method: "POST", body: leaf, headers: { "Content-Type": "application/json", Accept: "text/plain, application/problem+json" },
  })).text();
  let proof;
  try {
    proof = await LogProof.verify(receipt, leaf, logKey, clockKey);
  } catch (error) {
    // The log may hold the ballot all the same, so the page says which statement to look for.
    throw new LogProof.ProofError(`The registry took the ballot ${id}, but its receipt proves nothing: ${error.message}`);
  }
  outcome(place, "good", paragraph(`Your ballot is leaf ${proof.index} of the log. It counts when epoch ${position.epoch} closes.`), link("The statement", `/statements/${id}`), " ", link("Its receipt", `/proofs/${id}`), " ", link("The topic", `/topics/${topic}`));
  const shown = document.createElement("div");
  ProofView.show(shown, proof);
  place.append(shown);
}

part("send").addEventListener("click", async () => {
  part("send").disabled = true;
  try {
    await send();
  } catch (error) {
    complain(part("outcome"), error);
  }
  refresh();
});

// The newest ballot of the DID, as it is in the log.
const earlier = JSON.parse(page.dataset.earlier);
if (earlier.length && !earlier.flat().includes("none")) pool.append(choiceOf("none"));
for (const tier of earlier) {
  tier.forEach((name, place) => {
    if (place > 0) choiceOf(name).dataset.tied = "yes";
    ranked.append(choiceOf(name));
  });
}
page.hidden = false;
refresh();
