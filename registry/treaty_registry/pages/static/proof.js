// Check receipts (C2SP tlog-proof) with WebCrypto. Nothing here touches the page; log-proof.js does.
"use strict";

const LogProof = (() => {
  const HASH_BYTES = 32, MAX_HASHES = 63, MAX_RECEIPT = 400 * 1024;
  const MAX_SIZE = 2n ** 63n - 1n;
  const LOG = 1, CLOCK = 4; // types of keys (C2SP signed-note)
  const TIME_BYTES = 8, SIGNATURE_BYTES = 64;
  const encoder = new TextEncoder();

  class ProofError extends Error {}

  function require(condition, message) {
    if (!condition) throw new ProofError(message);
  }

  // atob accepts spaces, missing padding and set bits after the last byte. A value has one spelling here.
  function fromBase64(text, size) {
    let bytes;
    try {
      bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    } catch {
      throw new ProofError("A line is not base64.");
    }
    require(toBase64(bytes) === text, "A line is not in its one base64 spelling.");
    require(size === undefined || bytes.length === size, `A line does not have ${size} bytes.`);
    return bytes;
  }

  function toBase64(bytes) {
    let text = "";
    for (const byte of bytes) text += String.fromCharCode(byte);
    return btoa(text);
  }

  function toHex(bytes) {
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  function concat(...parts) {
    const joined = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
      joined.set(part, at);
      at += part.length;
    }
    return joined;
  }

  function equal(left, right) {
    return left.length === right.length && left.every((byte, place) => byte === right[place]);
  }

  // Browsers have crypto.subtle only on https pages and on loopback.
  function requireCrypto() {
    require(globalThis.crypto?.subtle, "This browser offers its cryptography only on https pages. Use the command line instead.");
  }

  async function sha256(...parts) {
    requireCrypto();
    return new Uint8Array(await crypto.subtle.digest("SHA-256", concat(...parts)));
  }

  // RFC 6962, section 2.1: the prefixes keep leaves and inner nodes apart.
  const leafHash = (leaf) => sha256(Uint8Array.of(0), leaf);
  const nodeHash = (left, right) => sha256(Uint8Array.of(1), left, right);

  function decimal(text) {
    require(/^(0|[1-9][0-9]{0,18})$/.test(text), "A number is not plain decimal digits.");
    const value = BigInt(text);
    require(value <= MAX_SIZE, "A number is too large.");
    return value;
  }

  // A verifier key: NAME+KEYID+BASE64(type, 32 bytes). The type of a log is 1, that of a clock or a witness is 4.
  async function parseKey(text, type = LOG) {
    const [, name, id, encoded] = /^([^+\s]+)\+([0-9a-f]{8})\+(.+)$/s.exec(text) ?? [];
    require(name !== undefined, "This is not a verifier key.");
    const data = fromBase64(encoded, 1 + HASH_BYTES);
    require(data[0] === type, type === LOG ? "This is not the key of a log." : "This is not the key of a clock.");
    const digest = await sha256(encoder.encode(`${name}\n`), data);
    require(toHex(digest.slice(0, 4)) === id, "The id of the key does not fit the key.");
    return { name, id, public: data.slice(1) };
  }

  // A signed note: a text, an empty line, and signature lines. The text is what was signed, to the byte.
  function parseNote(note) {
    const cut = note.lastIndexOf("\n\n") + 1;
    require(cut > 0 && note.endsWith("\n"), "This is not a signed note.");
    require(!/[\u0000-\u0009\u000b-\u001f]/.test(note), "The note has control characters.");
    const lines = note.slice(cut + 1, -1).split("\n").map((line) => {
      const [, name, encoded] = /^\u2014 ([^\s+]+) (\S+)$/.exec(line) ?? [];
      require(name !== undefined, "A signature line is not a dash, a name and base64.");
      const data = fromBase64(encoded);
      require(data.length > 4, "A signature is too short.");
      return { name, id: toHex(data.slice(0, 4)), signature: data.slice(4) };
    });
    return { text: note.slice(0, cut), lines };
  }

  const signaturesOf = (lines, key) => lines.filter((line) => line.name === key.name && line.id === key.id);

  async function requireSignature(key, signature, text) {
    const verifier = await crypto.subtle.importKey("raw", key.public, { name: "Ed25519" }, false, ["verify"]);
    const holds = await crypto.subtle.verify({ name: "Ed25519" }, verifier, signature, encoder.encode(text));
    require(holds, `The signature of ${key.name} does not verify.`);
  }

  // The time of a cosignature (C2SP tlog-cosignature), in Unix seconds.
  async function cosignedAt(lines, key, text) {
    const own = signaturesOf(lines, key);
    require(own.length === 1, `The checkpoint is not cosigned once by ${key.name}.`);
    const [{ signature }] = own;
    require(signature.length === TIME_BYTES + SIGNATURE_BYTES, `The cosignature of ${key.name} has another length.`);
    const time = BigInt(`0x${toHex(signature.slice(0, TIME_BYTES))}`);
    require(time <= MAX_SIZE, `The cosignature of ${key.name} has no time.`);
    await requireSignature(key, signature.slice(TIME_BYTES), `cosignature/v1\ntime ${time}\n${text}`);
    return time;
  }

  // `clock`: its cosignature is required, with its time. Lines of other keys, as of witnesses, are counted and not checked.
  async function openCheckpoint(note, key, clock) {
    const { text, lines } = parseNote(note);
    const own = signaturesOf(lines, key);
    require(own.length === 1, `The checkpoint is not signed once by the key of ${key.name}.`);
    await requireSignature(key, own[0].signature, text);
    const time = clock && await cosignedAt(lines, clock, text);
    const [origin, size, root, ...rest] = text.slice(0, -1).split("\n");
    require(root !== undefined && rest.every((line) => line !== ""), "This is not a checkpoint.");
    require(origin === key.name, `This is a checkpoint of another log, ${origin}.`);
    const unchecked = lines.length - (clock ? 2 : 1);
    return { origin, size: decimal(size), root: fromBase64(root, HASH_BYTES), note, time, unchecked };
  }

  function parseReceipt(text) {
    require(text.length <= MAX_RECEIPT, "The receipt is too long.");
    const cut = text.indexOf("\n\n");
    require(cut > 0, "This is not a receipt.");
    const [header, ...lines] = text.slice(0, cut).split("\n");
    require(header === "c2sp.org/tlog-proof@v1", "This is not a receipt.");
    if (lines[0]?.startsWith("extra ")) fromBase64(lines.shift().slice(6));
    require(lines[0]?.startsWith("index "), "The receipt has no index.");
    const hashes = lines.slice(1).map((line) => fromBase64(line, HASH_BYTES));
    require(hashes.length <= MAX_HASHES, "The receipt has too many hashes.");
    return { index: decimal(lines[0].slice(6)), hashes, checkpoint: text.slice(cut + 2) };
  }

  // RFC 9162, section 2.1.3.2. Returns the steps from the leaf to the root, and fails unless the last one is the root.
  async function walk(index, size, leaf, hashes, root) {
    require(index < size, "The index is not below the size of the log.");
    let node = index, last = size - 1n, hash = leaf;
    const steps = [];
    for (const sibling of hashes) {
      require(last > 0n, "The path is too long for this size.");
      const isRight = (node & 1n) === 1n || node === last;
      hash = isRight ? await nodeHash(sibling, hash) : await nodeHash(hash, sibling);
      steps.push({ side: isRight ? "left" : "right", sibling, hash });
      // On the right edge some levels have no sibling.
      while (isRight && (node & 1n) === 0n && node !== 0n) {
        node >>= 1n;
        last >>= 1n;
      }
      node >>= 1n;
      last >>= 1n;
    }
    require(last === 0n, "The path is too short for this size.");
    require(equal(hash, root), "The path does not lead to the root of the checkpoint.");
    return steps;
  }

  // Check that the log of a verifier key holds exactly these bytes. `clockText`: the key of its clock. Throws ProofError with the
  // reason.
  async function verify(receiptText, leaf, keyText, clockText) {
    const receipt = parseReceipt(receiptText);
    const key = await parseKey(keyText);
    const clock = clockText && await parseKey(clockText, CLOCK);
    const checkpoint = await openCheckpoint(receipt.checkpoint, key, clock);
    const hash = await leafHash(leaf);
    const steps = await walk(receipt.index, checkpoint.size, hash, receipt.hashes, checkpoint.root);
    return { index: receipt.index, leafHash: hash, steps, checkpoint, key, clock };
  }

  // The id of a statement is the hash of what was signed (DSSE), so this ties the bytes to the id in the address.
  async function statementId(leaf) {
    const envelope = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(leaf));
    const payload = fromBase64(envelope.payload);
    return toHex(await sha256(preAuthenticationEncoding(envelope.payloadType, payload)));
  }

  function preAuthenticationEncoding(type, payload) {
    const name = encoder.encode(type);
    return concat(encoder.encode(`DSSEv1 ${name.length} `), name, encoder.encode(` ${payload.length} `), payload);
  }

  return {
    ProofError, fromBase64, toBase64, toHex, concat, sha256, leafHash, walk, parseKey, parseReceipt, openCheckpoint, verify,
    requireCrypto, statementId, preAuthenticationEncoding, CLOCK,
  };
})();
