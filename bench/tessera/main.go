// Append entries to Tessera's POSIX log and print how many were appended a second.
//
// So many writers each append so many entries at once, wait until all of them are durable and have their places, and append the
// next ones; with -published they wait until a signed checkpoint covers them. An entry is random bytes: nothing is signed,
// verified or judged but the checkpoints.
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/transparency-dev/tessera"
	"github.com/transparency-dev/tessera/storage/posix"
	"golang.org/x/mod/sumdb/note"
)

func main() {
	folder := flag.String("folder", "", "where the log is made; it must be empty")
	size := flag.Int("size", 1024, "bytes of an entry")
	number := flag.Int("entries", 4096, "entries")
	writers := flag.Int("writers", 16, "writers at the same time")
	together := flag.Int("together", 64, "entries that a writer appends at once")
	published := flag.Bool("published", false, "wait for a checkpoint that covers the entries")
	flag.Parse()
	ctx := context.Background()
	private, _, err := note.GenerateKey(rand.Reader, "bench.example")
	check(err)
	signer, err := note.NewSigner(private)
	check(err)
	driver, err := posix.New(ctx, posix.Config{Path: *folder})
	check(err)
	// A batch waits for the other writers no longer than one commit takes. By default it would wait a quarter of a second.
	// A tenth of a second between two checkpoints is the least that the storage allows.
	options := tessera.NewAppendOptions().WithCheckpointSigner(signer).WithCheckpointInterval(100*time.Millisecond).
		WithBatching(256, 5*time.Millisecond)
	appender, shutdown, reader, err := tessera.NewAppender(ctx, driver, options)
	check(err)
	awaiter := tessera.NewPublicationAwaiter(ctx, reader.ReadCheckpoint, 5*time.Millisecond)
	entries := make(chan []*tessera.Entry, *number / *together)
	for range *number / *together {
		part := make([]*tessera.Entry, *together)
		for i := range part {
			data := make([]byte, *size)
			_, err := rand.Read(data)
			check(err)
			part[i] = tessera.NewEntry(data)
		}
		entries <- part
	}
	close(entries)
	begun := time.Now()
	var done sync.WaitGroup
	for range *writers {
		done.Go(func() {
			for part := range entries {
				places := make([]tessera.IndexFuture, len(part))
				for i, entry := range part {
					places[i] = appender.Add(ctx, entry)
				}
				for _, place := range places {
					_, err := place()
					check(err)
					if *published {
						_, _, err = awaiter.Await(ctx, place)
						check(err)
					}
				}
			}
		})
	}
	done.Wait()
	fmt.Println(float64(*number / *together * *together) / time.Since(begun).Seconds())
	check(shutdown(ctx))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
