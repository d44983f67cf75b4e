// Command log runs code of other projects against a Treaty log and its witnesses. Each subcommand is one role. It prints one JSON
// value, or fails with the words of the library that refused.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
)

var commands = map[string]func(context.Context, []string) (any, error){
	"tlog":    checkTiles,   // URL VKEY                     golang.org/x/mod/sumdb reads the log
	"fsck":    checkLog,     // URL VKEY                     Tessera recomputes the log; URL may be file:///FOLDER
	"receipt": checkReceipt, // VKEY CLOCK_VKEY RECEIPT LEAF   transparency-dev/formats reads a receipt and its leaf
	"update":  askWitness,   // WITNESS OLD [TILES]          a foreign log asks a witness to cosign the note on stdin
	"witness": runWitness,   // NAME VKEY                    a foreign witness of one log, until stdin ends

	"cosign":    cosign,         // NAME      transparency-dev/formats cosigns the note on stdin by a new ML-DSA-44 key
	"cosigned":  checkCosigned,  // VKEY      it verifies a cosignature of the note on stdin
	"satisfied": checkSatisfied, // POLICY    Tessera applies a policy, in base64, to the note on stdin
	"policy":    checkPolicy,    // POLICY    torchwood does, and checks the log too
	"subtree":   checkSubtree,   // SIZE ROOT START END HASH [PROOF...]    transparency-dev/merkle checks a subtree proof
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: log tlog|fsck|receipt|update|witness|cosign|cosigned|satisfied|policy|subtree ARGUMENTS")
		os.Exit(2)
	}
	result, err := commands[os.Args[1]](context.Background(), os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
