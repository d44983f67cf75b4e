package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"strconv"

	"filippo.io/torchwood"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
)

// checkPolicy has torchwood verify the note on stdin by a policy file, log keys included.
func checkPolicy(_ context.Context, arguments []string) (any, error) {
	if len(arguments) != 1 {
		return nil, fmt.Errorf("usage: policy POLICY")
	}
	data, err := base64.StdEncoding.DecodeString(arguments[0])
	if err != nil {
		return nil, err
	}
	policy, err := torchwood.ParsePolicy(data)
	if err != nil {
		return nil, err
	}
	signed, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, err
	}
	checkpoint, _, err := torchwood.VerifyCheckpoint(signed, policy)
	if err != nil {
		return map[string]any{"holds": false}, nil
	}
	return map[string]any{"holds": true, "size": checkpoint.N}, nil
}

// checkSubtree has transparency-dev/merkle verify a subtree proof: SIZE ROOT START END HASH [PROOF...], hashes in base64.
func checkSubtree(_ context.Context, arguments []string) (any, error) {
	if len(arguments) < 5 {
		return nil, fmt.Errorf("usage: subtree SIZE ROOT START END HASH [PROOF...]")
	}
	var numbers [3]uint64
	for i, text := range []string{arguments[0], arguments[2], arguments[3]} {
		number, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, err
		}
		numbers[i] = number
	}
	var hashes [][]byte
	for _, text := range append([]string{arguments[1], arguments[4]}, arguments[5:]...) {
		hash, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, err
		}
		hashes = append(hashes, hash)
	}
	err := proof.VerifySubtreeConsistency(
		rfc6962.DefaultHasher, numbers[1], numbers[2], numbers[0], hashes[2:], hashes[1], hashes[0])
	return map[string]any{"holds": err == nil}, nil
}
