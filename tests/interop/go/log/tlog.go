package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/transparency-dev/tessera/api"
	"github.com/transparency-dev/tessera/api/layout"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// A tileReader reads the tiles of a C2SP log for tlog, whose own paths also have the height of the tiles.
type tileReader struct{ url string }

func (r tileReader) Height() int { return 8 }

func (r tileReader) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	read := make([][]byte, len(tiles))
	for i, tile := range tiles {
		data, err := get(r.url + "/" + strings.Replace(tile.Path(), "tile/8/", "tile/", 1))
		if err != nil {
			return nil, err
		}
		read[i] = data
	}
	return read, nil
}

func (r tileReader) SaveTiles([]tlog.Tile, [][]byte) {}

// checkTiles proves every record, and every tree of a smaller size, from the tiles of a log.
func checkTiles(_ context.Context, arguments []string) (any, error) {
	if len(arguments) != 2 {
		return nil, fmt.Errorf("usage: tlog URL VKEY")
	}
	url := arguments[0]
	verifier, err := note.NewVerifier(arguments[1])
	if err != nil {
		return nil, err
	}
	data, err := get(url + "/checkpoint")
	if err != nil {
		return nil, err
	}
	opened, err := note.Open(data, note.VerifierList(verifier))
	if err != nil {
		return nil, err
	}
	tree, err := parseTree(opened.Text, verifier.Name())
	if err != nil {
		return nil, err
	}
	hashes := tlog.TileHashReader(tree, tileReader{url})
	records, err := readRecords(url, tree.N)
	if err != nil {
		return nil, err
	}
	for index, record := range records {
		leaf := tlog.RecordHash(record)
		proof, err := tlog.ProveRecord(tree.N, int64(index), hashes)
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", index, err)
		}
		if err := tlog.CheckRecord(proof, tree.N, tree.Hash, int64(index), leaf); err != nil {
			return nil, fmt.Errorf("record %d: %w", index, err)
		}
	}
	for size := int64(1); size <= tree.N; size++ {
		old, err := tlog.TreeHash(size, hashes)
		if err != nil {
			return nil, fmt.Errorf("tree of %d: %w", size, err)
		}
		proof, err := tlog.ProveTree(tree.N, size, hashes)
		if err != nil {
			return nil, fmt.Errorf("tree of %d: %w", size, err)
		}
		if err := tlog.CheckTree(proof, tree.N, tree.Hash, size, old); err != nil {
			return nil, fmt.Errorf("tree of %d: %w", size, err)
		}
	}
	return map[string]any{"size": tree.N, "records": len(records)}, nil
}

// parseTree reads the text of a checkpoint. tlog.ParseTree accepts that of the Go checksum database alone.
func parseTree(text, origin string) (tlog.Tree, error) {
	first, rest, _ := strings.Cut(text, "\n")
	if first != origin {
		return tlog.Tree{}, fmt.Errorf("the origin is %q", first)
	}
	return tlog.ParseTree([]byte("go.sum database tree\n" + rest))
}

func readRecords(url string, size int64) ([][]byte, error) {
	var records [][]byte
	for first := int64(0); first < size; first += layout.EntryBundleWidth {
		width := min(size-first, layout.EntryBundleWidth) % layout.EntryBundleWidth
		data, err := get(url + "/" + layout.EntriesPath(uint64(first/layout.EntryBundleWidth), uint8(width)))
		if err != nil {
			return nil, err
		}
		var bundle api.EntryBundle
		if err := bundle.UnmarshalText(data); err != nil {
			return nil, err
		}
		records = append(records, bundle.Entries...)
	}
	if int64(len(records)) != size {
		return nil, fmt.Errorf("%d records in a log of %d", len(records), size)
	}
	return records, nil
}

func get(url string) ([]byte, error) {
	answer, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, answer.Status)
	}
	return io.ReadAll(answer.Body)
}
