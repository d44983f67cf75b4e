// Build and sign ballots as treaty_consensus.statement does, byte for byte. Nothing here touches the page. Needs proof.js.
"use strict";

const BallotStatement = (() => {
  const { ProofError, concat, fromBase64, toBase64, toHex, sha256, preAuthenticationEncoding } = LogProof;
  const PAYLOAD_TYPE = "application/vnd.treaty.statement.v1+json";
  const MAX_CANDIDATES = 32, MAX_KEY_FILE = 4096;
  const ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
  // RFC 8410: an Ed25519 PrivateKeyInfo is these bytes and the seed.
  const PKCS8 = Uint8Array.of(0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20);
  const ED25519 = { name: "Ed25519" };
  const encoder = new TextEncoder();

  function require(condition, message) {
    if (!condition) throw new ProofError(message);
  }

  // RFC 8785. Its order of names and its spelling of strings are those of ECMAScript itself.
  function canonical(value) {
    if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
    if (value !== null && typeof value === "object") {
      return `{${Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
    }
    require(typeof value === "string" || typeof value === "boolean" || Number.isSafeInteger(value), "This value cannot be signed.");
    require(typeof value !== "string" || value.isWellFormed(), "A text has half a character.");
    return JSON.stringify(value);
  }

  function base58(bytes) {
    let number = BigInt(`0x${toHex(bytes)}`), text = "";
    for (; number > 0n; number /= 58n) text = ALPHABET[Number(number % 58n)] + text;
    return text;
  }

  // `tiers`: best first, lists of hashes and "none".
  function ballot(topic, seq, tiers, seenCheckpoint) {
    const choices = tiers.flat();
    require(tiers.every((tier) => tier.length > 0), "A rank of the ballot is empty.");
    require(new Set(choices).size === choices.length, "A choice is ranked twice.");
    require(choices.length <= MAX_CANDIDATES + 1, `A ballot ranks at most ${MAX_CANDIDATES} protocols.`);
    require(choices.every((choice) => choice === "none" || /^[0-9a-f]{64}$/.test(choice)), "A choice is no hash.");
    return { topic, seq, tiers, seen_checkpoint: seenCheckpoint };
  }

  function payload(body, log, keyId, issued) {
    return encoder.encode(canonical({ type: "ballot", log, by: [keyId], issued, body }));
  }

  async function id(bytes) {
    return toHex(await sha256(preAuthenticationEncoding(PAYLOAD_TYPE, bytes)));
  }

  // The leaf: a DSSE envelope in canonical JSON.
  function seal(bytes, keyId, signature) {
    const signatures = [{ keyid: keyId, sig: toBase64(signature) }];
    return encoder.encode(canonical({ payload: toBase64(bytes), payloadType: PAYLOAD_TYPE, signatures }));
  }

  async function sign(key, bytes) {
    const signature = await crypto.subtle.sign(ED25519, key.privateKey, preAuthenticationEncoding(PAYLOAD_TYPE, bytes));
    return seal(bytes, key.keyId, new Uint8Array(signature));
  }

  function requireDid(text) {
    require(/^did:(key|wba|web):[A-Za-z0-9._:%-]{1,246}$/.test(text), "This is not a did:key, did:wba or did:web.");
  }

  // A signing key for the page. The browser does not give its secret bytes out again.
  async function keyOf(pkcs8, did, keyId) {
    LogProof.requireCrypto();
    let jwk;
    try {
      // Twice: the public key is only in an exported key, and the key that is kept must not be one that can be exported.
      jwk = await crypto.subtle.exportKey("jwk", await crypto.subtle.importKey("pkcs8", pkcs8, ED25519, true, ["sign"]));
    } catch {
      throw new ProofError("This is not an Ed25519 private key, or this browser has no Ed25519.");
    }
    const privateKey = await crypto.subtle.importKey("pkcs8", pkcs8, ED25519, false, ["sign"]);
    const publicKey = fromBase64(jwk.x.replaceAll("-", "+").replaceAll("_", "/") + "=", 32);
    const multikey = `z${base58(concat(Uint8Array.of(0xed, 1), publicKey))}`;
    const name = did ?? `did:key:${multikey}`;
    const isKey = name.startsWith("did:key:");
    require(!isKey || name === `did:key:${multikey}`, "This did:key belongs to another key.");
    requireDid(name);
    const named = isKey ? `${name}#${multikey}` : keyId ?? `${name}#key-1`;
    require(named.startsWith(`${name}#`) && named.length > name.length + 1, "The name of the key is not one of this DID.");
    return { did: name, keyId: named, multikey, privateKey };
  }

  // An identity file of `treaty`, a PEM private key, or a seed in base64. `did`, `keyId`: for the last two.
  async function importKey(text, did, keyId) {
    const trimmed = text.trim();
    require(trimmed.length <= MAX_KEY_FILE, "A key file is shorter.");
    if (trimmed.startsWith("{")) {
      let file;
      try {
        file = JSON.parse(trimmed);
      } catch {
        throw new ProofError("The identity file is not JSON.");
      }
      require([file.did, file.key, file.seed].every((part) => typeof part === "string"), "The file has no did, key and seed.");
      return keyOf(concat(PKCS8, fromBase64(file.seed, 32)), file.did, file.key);
    }
    const [, pem] = /^-----BEGIN PRIVATE KEY-----\s([A-Za-z0-9+/=\s]+)-----END PRIVATE KEY-----$/.exec(trimmed) ?? [];
    if (pem !== undefined) return keyOf(fromBase64(pem.replace(/\s/g, "")), did, keyId);
    require(!trimmed.startsWith("-----"), "The PEM must be an unencrypted PRIVATE KEY (PKCS #8).");
    return keyOf(concat(PKCS8, fromBase64(trimmed, 32)), did, keyId);
  }

  // The key under the name that its DID has for it in the log. `logged`: the DID's keys, name → Multikey. A name that stands for
  // another key is refused, because the log judges a signature by the key that it knows under the name.
  function settled(key, logged) {
    const [known] = Object.keys(logged).filter((name) => logged[name] === key.multikey);
    if (known !== undefined) return { ...key, keyId: known };
    const free = freeName(key.did, logged);
    require(!Object.hasOwn(logged, key.keyId), `The log knows ${key.keyId} as another key. Name this one ${free}, also in the document of the DID.`);
    return key;
  }

  function freeName(did, logged) {
    let number = 1;
    while (Object.hasOwn(logged, `${did}#key-${number}`)) number += 1;
    return `${did}#key-${number}`;
  }

  // A new key, a did:key without `did`, and its identity file in the form that `treaty` reads. Its name is a free one.
  async function makeKey(did, logged = {}) {
    require(!/:e1_[^:]*$/.test(did ?? ""), "This DID is bound to its key. Make it with `treaty identity new`.");
    const seed = crypto.getRandomValues(new Uint8Array(32));
    const isDomain = did !== undefined && !did.startsWith("did:key:");
    const key = await keyOf(concat(PKCS8, seed), did, isDomain ? freeName(did, logged) : undefined);
    return { key, file: `${canonical({ did: key.did, key: key.keyId, seed: toBase64(seed) })}\n` };
  }

  // As treaty_io.identity writes it: one key, for authentication and assertion.
  function didDocument({ did, keyId, multikey }) {
    return {
      "@context": ["https://www.w3.org/ns/did/v1", "https://w3id.org/security/multikey/v1"],
      id: did,
      verificationMethod: [{ id: keyId, type: "Multikey", controller: did, publicKeyMultibase: multikey }],
      authentication: [keyId],
      assertionMethod: [keyId],
    };
  }

  function documentUrl(did) {
    const [, , host, ...path] = did.split(":");
    return `https://${host.replaceAll("%3A", ":")}/${(path.length ? path : [".well-known"]).join("/")}/did.json`;
  }

  return { didDocument, documentUrl, canonical, ballot, payload, id, seal, sign, requireDid, settled, importKey, makeKey };
})();
