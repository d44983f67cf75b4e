// The button "Check that this entry is in the log", and the picture of the path. Needs proof.js.
"use strict";

const ProofView = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const ROW = 54, WIDTH = 520;

  function element(name, text, attributes = {}) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  function shape(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
    if (text !== undefined) made.textContent = text;
    return made;
  }

  const short = (hash) => `${LogProof.toHex(hash).slice(0, 10)}…`;

  function node(svg, x, y, label, kind) {
    svg.append(shape("rect", { x, y, width: 128, height: 30, rx: 6, class: `path-node path-${kind}` }));
    svg.append(shape("text", { x: x + 64, y: y + 20, "text-anchor": "middle", class: "path-text" }, label));
  }

  // The leaf is at the bottom, the root at the top. Each sibling stands on its side of the path.
  function picture(proof) {
    const height = ROW * (proof.steps.length + 1) + 8;
    const svg = shape("svg", {
      viewBox: `0 0 ${WIDTH} ${height}`, width: WIDTH, height, role: "img", class: "path",
      "aria-label": `The path from leaf ${proof.index} to the root, ${proof.steps.length} steps. The list below has its hashes.`,
    });
    const middle = (WIDTH - 128) / 2;
    proof.steps.forEach((step, place) => {
      const y = height - ROW * (place + 1);
      const side = step.side === "left" ? 20 : WIDTH - 148;
      svg.append(shape("path", { d: `M${middle + 64} ${y} V${y - ROW + 40}`, class: "path-line" }));
      svg.append(shape("path", { d: `M${side + 64} ${y} C${side + 64} ${y - 14} ${middle + 64} ${y - 4} ${middle + 64} ${y - 20}`, class: "path-line" }));
      node(svg, side, y, short(step.sibling), "sibling");
    });
    node(svg, middle, height - ROW, proof.steps.length ? short(proof.leafHash) : "leaf = root", "own");
    proof.steps.forEach((step, place) => {
      const isRoot = place === proof.steps.length - 1;
      node(svg, middle, height - ROW * (place + 2), short(step.hash), isRoot ? "root" : "own");
    });
    return svg;
  }

  function moment(seconds) {
    const date = new Date(Number(seconds) * 1000);
    return Number.isNaN(date.getTime()) ? `second ${seconds}` : date.toISOString().replace(/\.000Z$/, "Z");
  }

  function steps(proof) {
    const list = element("ol", undefined, { class: "steps" });
    list.append(element("li", `The leaf is hashed: ${LogProof.toHex(proof.leafHash)}`));
    for (const step of proof.steps) {
      const hash = LogProof.toHex(step.sibling);
      list.append(element("li", `With ${hash} on the ${step.side}: ${LogProof.toHex(step.hash)}`));
    }
    list.append(element("li", `This is the root of the checkpoint at ${proof.checkpoint.size} leaves.`));
    list.append(element("li", `The checkpoint is signed by the key ${proof.key.id} of ${proof.key.name}.`));
    if (proof.clock) list.append(element("li", `The clock ${proof.clock.name}, key ${proof.clock.id}, signed it at ${moment(proof.checkpoint.time)}.`));
    if (proof.checkpoint.unchecked) list.append(element("li", `It has ${proof.checkpoint.unchecked} more signatures, as of witnesses. This page does not know their keys and does not check them.`));
    return list;
  }

  // Show a proof that holds, below what the page says already.
  function show(place, proof) {
    const title = element("p", `This entry is leaf ${proof.index} of the log. Your browser checked it.`, { class: "outcome good" });
    const scroll = element("div", undefined, { class: "scroll", tabindex: "0" });
    scroll.append(picture(proof));
    const details = element("details");
    const all = steps(proof);
    details.append(element("summary", `All ${all.children.length} steps`), all);
    place.replaceChildren(title, scroll, details);
  }

  function refuse(place, error) {
    const reason = error instanceof LogProof.ProofError ? error.message : `The check could not be made: ${error.message}`;
    place.replaceChildren(element("p", reason, { class: "outcome bad" }));
  }

  async function read(path, accept) {
    const answer = await fetch(path, { cache: "no-cache", headers: { Accept: accept } });
    if (!answer.ok) throw new Error(`${path} answered ${answer.status}.`);
    return answer;
  }

  // Fetch a statement and its receipt, and check both against the keys.
  async function check(id, key, clock) {
    const leaf = new Uint8Array(await (await read(`/statements/${id}`, "application/json")).arrayBuffer());
    const found = await LogProof.statementId(leaf);
    if (found !== id) throw new LogProof.ProofError("The registry sent another statement than this one.");
    const receipt = await (await read(`/proofs/${id}`, "text/plain, */*;q=0.1")).text();
    return LogProof.verify(receipt, leaf, key, clock);
  }

  return { show, refuse, check };
})();

for (const section of document.querySelectorAll("[data-proof]")) {
  const button = section.querySelector("button");
  const outcome = section.querySelector("[data-outcome]");
  button.hidden = false;
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      ProofView.show(outcome, await ProofView.check(section.dataset.proof, section.dataset.key, section.dataset.clock));
    } catch (error) {
      ProofView.refuse(outcome, error);
    }
    button.disabled = false;
  });
}
