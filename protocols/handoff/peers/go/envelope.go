package main

// Envelopes of handoff messages: JCS (RFC 8785), Ed25519 and did:key (docs/specification/handoff.md).

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"strings"

	"github.com/gowebpki/jcs"
)

const (
	signed   = "treaty-handoff-v1\n"
	alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
)

type proof struct {
	Key       string `json:"key"`
	Signature string `json:"signature"`
}

type envelope struct {
	Handoff json.RawMessage `json:"handoff"`
	Proof   *proof          `json:"proof,omitempty"`
}

type identity struct {
	did     string
	private ed25519.PrivateKey
}

func newIdentity() identity {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic(err)
	}
	return identity{"did:key:z" + base58(append([]byte{0xed, 0x01}, public...)), private} // multicodec: an Ed25519 key
}

// seal signs a message. What cannot be encoded is a fault of this program.
func (who identity) seal(message any) envelope {
	data, err := json.Marshal(message)
	if err != nil {
		panic(err)
	}
	form, err := jcs.Transform(data)
	if err != nil {
		panic(err)
	}
	signature := ed25519.Sign(who.private, append([]byte(signed), form...))
	key := who.did + "#" + strings.TrimPrefix(who.did, "did:key:")
	return envelope{data, &proof{key, base64.StdEncoding.EncodeToString(signature)}}
}

// signer returns the DID that signed an envelope, and "" if the proof is missing or does not verify. Only did:key needs no network.
func signer(sealed envelope) string {
	if sealed.Proof == nil {
		return ""
	}
	did, fragment, _ := strings.Cut(sealed.Proof.Key, "#")
	key := unbase58(strings.TrimPrefix(did, "did:key:z"))
	if did != "did:key:"+fragment || len(key) != 34 || !bytes.HasPrefix(key, []byte{0xed, 0x01}) {
		return ""
	}
	form, err := jcs.Transform(sealed.Handoff)
	signature, failed := base64.StdEncoding.DecodeString(sealed.Proof.Signature)
	if err != nil || failed != nil || !ed25519.Verify(key[2:], append([]byte(signed), form...), signature) {
		return ""
	}
	return did
}

func base58(data []byte) string {
	number, digit, text := new(big.Int).SetBytes(data), new(big.Int), ""
	for number.Sign() > 0 {
		number.DivMod(number, big.NewInt(58), digit)
		text = string(alphabet[digit.Int64()]) + text
	}
	return text // a key begins with 0xed, so no leading zero has to be written
}

func unbase58(text string) []byte {
	number := new(big.Int)
	for _, letter := range text {
		at := strings.IndexRune(alphabet, letter)
		if at < 0 || len(text) > 64 {
			return nil
		}
		number.Add(number.Mul(number, big.NewInt(58)), big.NewInt(int64(at)))
	}
	return number.Bytes()
}
