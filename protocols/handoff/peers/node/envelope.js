// Envelopes of handoff messages: JCS (RFC 8785), Ed25519 and did:key (docs/specification/handoff.md).
import { createPublicKey, generateKeyPairSync, sign, verify } from "node:crypto";

const CONTEXT = "treaty-handoff-v1\n";
const ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
const KEY_PREFIX = Buffer.from([0xed, 0x01]); // multicodec: an Ed25519 public key
const SPKI_PREFIX = Buffer.from("302a300506032b6570032100", "hex");

/** The JCS form. JavaScript sorts by UTF-16 units and writes numbers and texts as RFC 8785 asks. */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical)}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const members = Object.keys(value).sort();
  return `{${members.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`)}}`;
}

/** A new key pair and its DID. */
export function createIdentity() {
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  const raw = publicKey.export({ format: "der", type: "spki" }).subarray(SPKI_PREFIX.length);
  const did = `did:key:z${base58(Buffer.concat([KEY_PREFIX, raw]))}`;
  return { did, key: `${did}#${did.slice("did:key:".length)}`, privateKey };
}

export function seal(message, identity) {
  const signature = sign(null, Buffer.from(CONTEXT + canonical(message)), identity.privateKey).toString("base64");
  return { handoff: message, proof: { key: identity.key, signature } };
}

/** The DID that signed an envelope; undefined if the proof is missing or does not verify. Only did:key needs no network. */
export function signer({ handoff, proof }) {
  const [did, fragment] = String(proof?.key).split("#");
  if (!did.startsWith("did:key:z") || fragment !== did.slice("did:key:".length)) return undefined;
  const key = unbase58(did.slice("did:key:z".length));
  if (key?.length !== 34 || !key.subarray(0, 2).equals(KEY_PREFIX)) return undefined;
  const publicKey = createPublicKey({ key: Buffer.concat([SPKI_PREFIX, key.subarray(2)]), format: "der", type: "spki" });
  return verify(null, Buffer.from(CONTEXT + canonical(handoff)), publicKey, Buffer.from(String(proof.signature), "base64")) ? did : undefined;
}

function base58(bytes) {
  let number = BigInt(`0x${bytes.toString("hex")}`);
  let text = "";
  for (; number; number /= 58n) text = ALPHABET[Number(number % 58n)] + text;
  return text; // a key begins with 0xed, so no leading zero has to be written
}

function unbase58(text) {
  if (text.length > 64 || [...text].some((letter) => !ALPHABET.includes(letter))) return undefined;
  const number = [...text].reduce((sum, letter) => sum * 58n + BigInt(ALPHABET.indexOf(letter)), 0n).toString(16);
  return Buffer.from(number.padStart(number.length + (number.length % 2), "0"), "hex");
}
