package main

// Sessions of the Hello profile over WebSockets, without code of ours (docs/specification/hello-profile.md and transports.md).

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	meta        = 0x00
	application = 0x40
	maxFrame    = 1<<20 + 1
	patience    = 10 * time.Second
)

type object = map[string]any

var generated = frame(meta, object{"action": "codeGeneration", "status": "generated"})

func name() string { return rand.Text() }

func frame(kind byte, value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // a fault of this program
	}
	return append([]byte{kind}, data...)
}

type hello struct {
	Version   string `json:"version"`
	Type      string `json:"type"`
	MessageID string `json:"messageId"`
	SessionID string `json:"sessionId"`
	Source    string `json:"sourceDid"`
	Random    string `json:"random"`
	Meta      struct {
		Version      string            `json:"version"`
		Capabilities []string          `json:"supportedCapabilities"`
		Candidates   []string          `json:"candidateProtocols,omitempty"`
		Roles        map[string]string `json:"candidateRoles,omitempty"`
		Selected     string            `json:"selectedProtocol,omitempty"`
		Role         string            `json:"role,omitempty"`
		PeerRole     string            `json:"peerRole,omitempty"`
	} `json:"metaProtocol"`
}

func newHello(kind, session string) hello {
	it := hello{Version: "1.0", Type: kind, MessageID: name(), SessionID: session, Random: name()}
	it.Source = "did:wba:" + fmt.Sprintf("%x", time.Now().UnixNano()) + ".example" // a plain Hello claims it
	it.Meta.Version, it.Meta.Capabilities = "1.0", []string{}
	return it
}

// session has the messages of one connection: JSON objects in frames of the application.
type session struct {
	sync.Mutex // a message is written whole
	socket     *websocket.Conn
}

func (it *session) say(message object) error {
	it.Lock()
	defer it.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience) // a peer that reads nothing is given up
	defer cancel()
	return it.socket.Write(ctx, websocket.MessageBinary, frame(application, message))
}

// read gives each message to take, until the connection ends. What does not parse is ignored.
func (it *session) read(take func(object)) {
	for {
		_, data, err := it.socket.Read(context.Background())
		if err != nil {
			return
		}
		var message object
		if len(data) > 0 && data[0]>>6 == application>>6 && json.Unmarshal(data[1:], &message) == nil && message != nil {
			take(message)
		}
	}
}

func (it *session) awaitCode(ctx context.Context) error {
	if err := it.socket.Write(ctx, websocket.MessageBinary, generated); err != nil {
		return err
	}
	for {
		_, data, err := it.socket.Read(ctx)
		if err != nil {
			return err
		}
		var message struct{ Action, Status string }
		if len(data) > 0 && data[0] == meta && json.Unmarshal(data[1:], &message) == nil && message.Action == "codeGeneration" {
			if message.Status != "generated" {
				return errors.New("the other side has no code")
			}
			return nil
		}
	}
}

// connect opens a session for a protocol, in a role.
func connect(url, uri, role string) (*session, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	socket, _, err := websocket.Dial(ctx, url, nil)
	if err != nil {
		return nil, err
	}
	socket.SetReadLimit(maxFrame)
	it, greeting, answer := &session{socket: socket}, newHello("sourceHello", name()), hello{}
	greeting.Meta.Candidates, greeting.Meta.Roles = []string{uri}, map[string]string{uri: role}
	data, _ := json.Marshal(greeting)
	if err := socket.Write(ctx, websocket.MessageText, data); err != nil {
		return nil, err
	}
	_, data, err = socket.Read(ctx)
	if err != nil {
		return nil, err
	}
	if json.Unmarshal(data, &answer) != nil || answer.Meta.Selected != uri {
		return nil, errors.New("the two agents have no protocol in common")
	}
	return it, it.awaitCode(ctx)
}

// listen serves a role of a protocol, and returns its URL. Each session goes to serve.
func listen(uri, role, peerRole string, serve func(*session)) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	accept := func(writer http.ResponseWriter, request *http.Request) {
		socket, err := websocket.Accept(writer, request, nil)
		if err != nil {
			return
		}
		defer socket.CloseNow()
		socket.SetReadLimit(maxFrame)
		ctx, cancel := context.WithTimeout(request.Context(), patience)
		defer cancel()
		var source hello
		_, data, err := socket.Read(ctx)
		if err != nil || json.Unmarshal(data, &source) != nil || !slices.Contains(source.Meta.Candidates, uri) {
			socket.Close(websocket.StatusPolicyViolation, "session.no-common-protocol")
			return
		}
		answer := newHello("destinationHello", source.SessionID)
		answer.Meta.Selected, answer.Meta.Role, answer.Meta.PeerRole = uri, role, peerRole
		data, _ = json.Marshal(answer)
		it := &session{socket: socket}
		if socket.Write(ctx, websocket.MessageText, data) == nil && it.awaitCode(ctx) == nil {
			serve(it)
		}
	}
	go http.Serve(listener, http.HandlerFunc(accept))
	return "ws://" + listener.Addr().String(), nil
}
