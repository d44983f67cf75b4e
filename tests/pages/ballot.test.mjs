// Ballots that the browser makes, against those of Python, to the byte. Run by test_page_scripts.py.
import assert from "node:assert/strict";
import { test } from "node:test";

import { cases, known, load } from "../support/page_scripts.mjs";

load("proof.js", "ballot.js");
const LogProof = known("LogProof"), BallotStatement = known("BallotStatement");
const { ballots, refused, keys, canonical } = cases();
const text = (bytes) => new TextDecoder().decode(bytes);

test("ballots have the bytes, the signature and the id of Python's", async () => {
  assert.ok(ballots.length > 100);
  for (const { file, topic, seq, tiers, seen, log, issued, leaf, id } of ballots) {
    const key = await BallotStatement.importKey(file);
    const body = BallotStatement.ballot(topic, seq, tiers, seen);
    const payload = BallotStatement.payload(body, log, key.keyId, issued);
    const made = await BallotStatement.sign(key, payload);
    assert.equal(text(made), leaf);
    assert.equal(await BallotStatement.id(payload), id);
    assert.equal(await LogProof.statementId(made), id);
  }
});

test("canonical JSON is that of Python", () => {
  for (const { value, expected } of canonical) assert.equal(BallotStatement.canonical(value), expected);
  for (const value of [1.5, 2 ** 53, null, undefined, "\ud800"]) {
    assert.throws(() => BallotStatement.canonical({ value }), LogProof.ProofError);
  }
});

test("impossible ballots are refused", () => {
  for (const tiers of refused) assert.throws(() => BallotStatement.ballot("a", 0, tiers, "x"), LogProof.ProofError);
});

test("a key is read in each of its forms, and cannot be read out again", async () => {
  for (const { file, seed, pem, did, keyId, multikey } of keys) {
    for (const [form, given] of [[file, []], [seed, [did, keyId]], [pem, [did, keyId]]]) {
      const key = await BallotStatement.importKey(form, ...given);
      assert.deepEqual([key.did, key.keyId, key.multikey], [did, keyId, multikey]);
      assert.equal(key.privateKey.extractable, false);
    }
    assert.equal((await BallotStatement.importKey(seed)).did, `did:key:${multikey}`);
    await assert.rejects(BallotStatement.importKey(seed, "did:key:z6MkOther"), LogProof.ProofError);
    await assert.rejects(BallotStatement.importKey(seed, "did:wba:a.example", "did:wba:b.example#key-1"), LogProof.ProofError);
  }
  const [{ file }] = keys;
  const no = ["", "x", "{", "{}", "AAAA", file.replace('"seed"', '"sead"'), `-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----`];
  for (const form of no) await assert.rejects(BallotStatement.importKey(form), LogProof.ProofError, form);
});

test("a made key is another one each time, and its file is read again", async () => {
  const made = [await BallotStatement.makeKey(), await BallotStatement.makeKey("did:wba:a.example:b")];
  assert.notEqual(made[0].key.multikey, made[1].key.multikey);
  for (const { key, file } of made) {
    const again = await BallotStatement.importKey(file);
    assert.deepEqual([again.did, again.keyId], [key.did, key.keyId]);
    assert.equal(file, `${BallotStatement.canonical(JSON.parse(file))}\n`);
  }
  assert.equal(BallotStatement.documentUrl("did:wba:a.example:b"), "https://a.example/b/did.json");
  assert.equal(BallotStatement.documentUrl("did:wba:a.example%3A8443"), "https://a.example:8443/.well-known/did.json");
  await assert.rejects(BallotStatement.makeKey("did:wba:a.example:e1_x"), LogProof.ProofError);
});

test("a key has the name that the log knows it by, and takes no name of another key", async () => {
  const did = "did:wba:a.example", other = `z6Mk${"A".repeat(44)}`;
  const { key, file } = await BallotStatement.makeKey(did, { [`${did}#key-1`]: other, [`${did}#key-2`]: other });
  assert.equal(key.keyId, `${did}#key-3`);
  assert.equal(JSON.parse(file).key, `${did}#key-3`);
  assert.equal(BallotStatement.settled(key, {}), key);
  assert.equal(BallotStatement.settled(key, { [`${did}#main`]: key.multikey, [key.keyId]: other }).keyId, `${did}#main`);
  assert.throws(() => BallotStatement.settled(key, { [key.keyId]: other }), /Name this one did:wba:a\.example#key-1,/);
  assert.equal(BallotStatement.settled(key, { [`${did}#key-1`]: other }).keyId, key.keyId);
  assert.equal((await BallotStatement.makeKey()).key.did.startsWith("did:key:"), true);
});
