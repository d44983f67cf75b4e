// Verify a bundle with sigstore-js: node verify.js TRUSTED_ROOT BUNDLE ARTIFACT DID ISSUER. It needs an SCT, a log entry and a
// timestamp. sigstore-js leaves the digest of an in-toto statement's subject to its caller.
const fs = require("fs");
const { bundleFromJSON } = require("@sigstore/bundle");
const { TrustedRoot } = require("@sigstore/protobuf-specs");
const { toSignedEntity, toTrustMaterial, Verifier } = require("@sigstore/verify");

const [root, bundle, artifact, did, issuer] = process.argv.slice(2);
const read = (path) => JSON.parse(fs.readFileSync(path, "utf8"));
const verifier = new Verifier(toTrustMaterial(TrustedRoot.fromJSON(read(root))), {
  ctlogThreshold: 1,
  tlogThreshold: 1,
  timestampThreshold: 1,
});
try {
  const entity = toSignedEntity(bundleFromJSON(read(bundle)), fs.readFileSync(artifact));
  verifier.verify(entity, { subjectAlternativeName: did, extensions: { issuer } });
} catch (error) {
  console.error(`${error.code}: ${error.message}`);
  process.exit(1);
}
