package main

import (
	"context"
	"fmt"
	"os"

	"github.com/transparency-dev/formats/log"
	f_note "github.com/transparency-dev/formats/note"
	tlogproof "github.com/transparency-dev/formats/proof"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/note"
)

// checkReceipt verifies a receipt as a C2SP tlog-proof: the log's signature, the clock's cosignature, and the path of the leaf.
func checkReceipt(_ context.Context, arguments []string) (any, error) {
	if len(arguments) != 4 {
		return nil, fmt.Errorf("usage: receipt VKEY CLOCK_VKEY RECEIPT LEAF")
	}
	verifier, err := note.NewVerifier(arguments[0])
	if err != nil {
		return nil, err
	}
	clock, err := f_note.NewVerifierForCosignatureV1(arguments[1])
	if err != nil {
		return nil, err
	}
	receipt, err := os.ReadFile(arguments[2])
	if err != nil {
		return nil, err
	}
	leaf, err := os.ReadFile(arguments[3])
	if err != nil {
		return nil, err
	}
	var read tlogproof.TLogProof
	if err := read.Unmarshal(receipt); err != nil {
		return nil, err
	}
	checkpoint, _, opened, err := log.ParseCheckpoint(read.Checkpoint, verifier.Name(), verifier, clock)
	if err != nil {
		return nil, err
	}
	path := make([][]byte, len(read.Hashes))
	for i := range read.Hashes {
		path[i] = read.Hashes[i][:]
	}
	hash := rfc6962.DefaultHasher.HashLeaf(leaf)
	if err := proof.VerifyInclusion(rfc6962.DefaultHasher, read.Index, checkpoint.Size, hash, path, checkpoint.Hash); err != nil {
		return nil, err
	}
	for _, signature := range opened.Sigs {
		if signature.Hash == clock.KeyHash() {
			time, err := f_note.CoSigV1Timestamp(signature)
			return map[string]any{"index": read.Index, "size": checkpoint.Size, "time": time.Unix()}, err
		}
	}
	return nil, fmt.Errorf("the clock did not cosign the checkpoint")
}
