package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/transparency-dev/formats/log"
	f_note "github.com/transparency-dev/formats/note"
	"github.com/transparency-dev/tessera/client"
	"github.com/transparency-dev/witness/api"
	witness_http "github.com/transparency-dev/witness/client/http"
	"github.com/transparency-dev/witness/persistence/inmemory"
	"github.com/transparency-dev/witness/witness"
	"golang.org/x/mod/sumdb/note"
)

// askWitness has a witness cosign the note on stdin. TILES: where the log's tiles are, for the consistency proof.
func askWitness(ctx context.Context, arguments []string) (any, error) {
	if len(arguments) != 2 && len(arguments) != 3 {
		return nil, fmt.Errorf("usage: update WITNESS OLD [TILES]")
	}
	address, err := url.Parse(arguments[0])
	if err != nil {
		return nil, err
	}
	old, err := strconv.ParseUint(arguments[1], 10, 64)
	if err != nil {
		return nil, err
	}
	checkpoint, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, err
	}
	var proof [][]byte
	if len(arguments) == 3 && old > 0 {
		if proof, err = consistency(ctx, arguments[2], old, checkpoint); err != nil {
			return nil, err
		}
	}
	signatures, size, err := witness_http.NewWitness(address, http.DefaultClient).Update(ctx, old, checkpoint, proof)
	if err != nil {
		return map[string]any{"error": err.Error(), "size": size}, nil
	}
	return map[string]any{"signatures": string(signatures)}, nil
}

func consistency(ctx context.Context, tiles string, old uint64, note []byte) ([][]byte, error) {
	var checkpoint log.Checkpoint
	if _, err := checkpoint.Unmarshal(note); err != nil {
		return nil, err
	}
	root, err := url.Parse(tiles)
	if err != nil {
		return nil, err
	}
	source, err := client.NewHTTPFetcher(root, nil)
	if err != nil {
		return nil, err
	}
	builder, err := client.NewProofBuilder(ctx, checkpoint.Size, source.ReadTile)
	if err != nil {
		return nil, err
	}
	return builder.ConsistencyProof(ctx, old, checkpoint.Size)
}

// runWitness serves a new witness of one log on a free port, and first prints its URL and key. It ends when stdin does.
func runWitness(ctx context.Context, arguments []string) (any, error) {
	if len(arguments) != 2 {
		return nil, fmt.Errorf("usage: witness NAME VKEY")
	}
	log, err := note.NewVerifier(arguments[1])
	if err != nil {
		return nil, err
	}
	secret, public, err := note.GenerateKey(rand.Reader, arguments[0])
	if err != nil {
		return nil, err
	}
	signer, err := f_note.NewSignerForCosignatureV1(secret)
	if err != nil {
		return nil, err
	}
	key, err := f_note.VKeyToCosignatureV1(public)
	if err != nil {
		return nil, err
	}
	made, err := witness.New(ctx, witness.Opts{
		Persistence: inmemory.New(),
		Signers:     []note.Signer{signer},
		VerifierForLog: func(_ context.Context, origin string) (note.Verifier, bool, error) {
			return log, origin == log.Name(), nil
		},
	})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	routes := http.NewServeMux()
	routes.HandleFunc("POST "+api.HTTPAddCheckpoint, witness.NewHTTPHandler(made).AddCheckpoint)
	server := &http.Server{Handler: routes, ReadHeaderTimeout: 10 * time.Second}
	go server.Serve(listener)
	about := map[string]string{"url": "http://" + listener.Addr().String(), "key": key}
	if err := json.NewEncoder(os.Stdout).Encode(about); err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return nil, err
	}
	latest, err := made.GetCheckpoint(ctx, log.Name())
	return map[string]string{"latest": string(latest)}, err
}
