package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"

	f_note "github.com/transparency-dev/formats/note"
	"github.com/transparency-dev/tessera"
	"golang.org/x/mod/sumdb/note"
)

// cosign makes an ML-DSA-44 key and adds its cosignature to the note on stdin.
func cosign(_ context.Context, arguments []string) (any, error) {
	if len(arguments) != 1 {
		return nil, fmt.Errorf("usage: cosign NAME")
	}
	unsigned, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, err
	}
	secret, public, err := f_note.GenerateMLDSAKey(arguments[0])
	if err != nil {
		return nil, err
	}
	signer, err := f_note.NewSignerForCosignatureV1(secret)
	if err != nil {
		return nil, err
	}
	// Open needs a known signature; those of others are kept as they are.
	opened, err := note.Open(unsigned, nil)
	if unverified, ok := err.(*note.UnverifiedNoteError); ok {
		opened = unverified.Note
	} else if err != nil {
		return nil, err
	}
	signed, err := note.Sign(&note.Note{Text: opened.Text, UnverifiedSigs: opened.UnverifiedSigs}, signer)
	return map[string]any{"key": public, "note": string(signed)}, err
}

// checkCosigned verifies the cosignature of a key on the note on stdin.
func checkCosigned(_ context.Context, arguments []string) (any, error) {
	if len(arguments) != 1 {
		return nil, fmt.Errorf("usage: cosigned VKEY")
	}
	signed, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, err
	}
	verifier, err := f_note.NewVerifierForCosignatureV1(arguments[0])
	if err != nil {
		return nil, err
	}
	opened, err := note.Open(signed, note.VerifierList(verifier))
	if err != nil {
		return nil, err
	}
	at, err := f_note.CoSigV1Timestamp(opened.Sigs[0])
	hash := fmt.Sprintf("%08x", opened.Sigs[0].Hash)
	return map[string]any{"name": opened.Sigs[0].Name, "time": at.Unix(), "hash": hash}, err
}

// checkSatisfied applies a policy of witnesses to the note on stdin.
func checkSatisfied(_ context.Context, arguments []string) (any, error) {
	if len(arguments) != 1 {
		return nil, fmt.Errorf("usage: satisfied POLICY")
	}
	policy, err := base64.StdEncoding.DecodeString(arguments[0])
	if err != nil {
		return nil, err
	}
	signed, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, err
	}
	group, err := tessera.NewWitnessGroupFromPolicy(policy)
	if err != nil {
		return nil, err
	}
	return map[string]any{"satisfied": group.Satisfied(signed)}, nil
}
