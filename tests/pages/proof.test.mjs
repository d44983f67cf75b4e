// The checks of receipts in the browser, against logs that the Python side built. Run by test_page_scripts.py.
import assert from "node:assert/strict";
import { test } from "node:test";

import { cases, known, load } from "../support/page_scripts.mjs";

load("proof.js");
const LogProof = known("LogProof");
const { key, clock, time, receipts, wrong, cosigned, keys } = cases();
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));

test("each receipt of the logs verifies", async () => {
  assert.ok(receipts.length > 100);
  for (const { receipt, leaf, index, size } of receipts) {
    const proof = await LogProof.verify(receipt, bytes(leaf), key);
    assert.equal(proof.index, BigInt(index));
    assert.equal(proof.checkpoint.size, BigInt(size));
    const last = proof.steps.at(-1)?.hash ?? proof.leafHash;
    assert.deepEqual(last, proof.checkpoint.root);
  }
});

test("each wrong receipt is refused with a reason", async () => {
  assert.ok(wrong.length > 20);
  for (const { what, receipt, leaf, by } of wrong) {
    await assert.rejects(LogProof.verify(receipt, bytes(leaf), by ?? key), LogProof.ProofError, what);
  }
});

test("the cosignature of the clock is checked, and those of others are counted", async () => {
  for (const { receipt, leaf } of receipts.slice(0, 20)) {
    const { checkpoint } = await LogProof.verify(receipt, bytes(leaf), key, clock);
    assert.deepEqual([checkpoint.time, checkpoint.unchecked], [BigInt(time), 0]);
  }
  for (const { what, receipt, leaf, unchecked } of cosigned) {
    // Each is whole but for its clock.
    await LogProof.verify(receipt, bytes(leaf), key);
    const checked = LogProof.verify(receipt, bytes(leaf), key, clock);
    if (unchecked === undefined) await assert.rejects(checked, LogProof.ProofError, what);
    else assert.equal((await checked).checkpoint.unchecked, unchecked, what);
  }
  await assert.rejects(LogProof.parseKey(key, LogProof.CLOCK), LogProof.ProofError);
});

test("a text that is no key of a log is refused", async () => {
  for (const text of keys) await assert.rejects(LogProof.parseKey(text), LogProof.ProofError, text);
});

test("base64 has one spelling", () => {
  assert.deepEqual(LogProof.fromBase64("AAE="), Uint8Array.of(0, 1));
  for (const text of ["AAE", "AAF=", " AAE=", "AAE=\n", "AA-_", "é"]) {
    assert.throws(() => LogProof.fromBase64(text), LogProof.ProofError, text);
  }
});
