// A registry of containers in memory, with referrers, until standard input ends. It prints its address as JSON.
package main

import (
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go http.Serve(listener, registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))))
	json.NewEncoder(os.Stdout).Encode(listener.Addr().String())
	io.Copy(io.Discard, os.Stdin)
}
