package main

import (
	"context"
	"fmt"
	"net/url"

	"github.com/transparency-dev/merkle/rfc6962"
	"github.com/transparency-dev/tessera/api"
	"github.com/transparency-dev/tessera/client"
	"github.com/transparency-dev/tessera/fsck"
	"golang.org/x/mod/sumdb/note"
)

// checkLog runs Tessera's fsck: it recomputes every tile and the root from the entries.
func checkLog(ctx context.Context, arguments []string) (any, error) {
	if len(arguments) != 2 {
		return nil, fmt.Errorf("usage: fsck URL VKEY")
	}
	root, err := url.Parse(arguments[0])
	if err != nil {
		return nil, err
	}
	var source fsck.Fetcher = &client.FileFetcher{Root: root.Path}
	if root.Scheme != "file" {
		if source, err = client.NewHTTPFetcher(root, nil); err != nil {
			return nil, err
		}
	}
	verifier, err := note.NewVerifier(arguments[1])
	if err != nil {
		return nil, err
	}
	if err := fsck.New(verifier.Name(), verifier, source, leafHashes, fsck.Opts{N: 2}).Check(ctx); err != nil {
		return nil, err
	}
	checkpoint, _, _, err := client.FetchCheckpoint(ctx, source.ReadCheckpoint, verifier, verifier.Name())
	if err != nil {
		return nil, err
	}
	return map[string]any{"size": checkpoint.Size}, nil
}

func leafHashes(data []byte) ([][]byte, error) {
	var bundle api.EntryBundle
	if err := bundle.UnmarshalText(data); err != nil {
		return nil, err
	}
	hashes := make([][]byte, len(bundle.Entries))
	for i, entry := range bundle.Entries {
		hashes[i] = rfc6962.DefaultHasher.HashLeaf(entry)
	}
	return hashes, nil
}
