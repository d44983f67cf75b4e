// An agent of the protocol handoff, written from its document. Over HTTP it admits each sender whose sender_id is its own DID.
//
//	handoff receive NAME DOCUMENT           prints its URL, and serves HTTP until its standard input ends
//	handoff session NAME DOCUMENT URI       the same for sessions of the protocol URI
//	handoff send URL RECIPIENT DOCUMENT     hands one message over, and prints the report
//
// DOCUMENT is protocols/handoff/1.0/document.md: the schema is in it.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gowebpki/jcs"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

const (
	maxBody = 1 << 20
	maxKept = 10_000
)

// Patterns of JSON Schema are those of ECMA-262; Go writes this escape another way.
var unicodeEscape = regexp.MustCompile(`\\u([0-9a-fA-F]{4})`)

var reported = []string{"TASK_TRANSFER", "ESCALATION", "APPROVAL_REQUEST", "REQUEST_INFORMATION"}

// schemaOf compiles the schema in the document.
func schemaOf(path string) (*jsonschema.Schema, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut(string(text), "```json schema\n")
	block, _, _ := strings.Cut(rest, "```")
	form, err := jsonschema.UnmarshalJSON(strings.NewReader(block))
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseRegexpEngine(func(pattern string) (jsonschema.Regexp, error) {
		return regexp.Compile(unicodeEscape.ReplaceAllString(pattern, `\x{$1}`))
	})
	if err := compiler.AddResource("handoff.json", form); err != nil {
		return nil, err
	}
	return compiler.Compile("handoff.json")
}

// issues returns the faults of a message. Members that a later minor version added are no faults.
func issues(schema *jsonschema.Schema, message any, version string) []string {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil || major != 1 {
		return []string{"Version 1.0.0 is spoken here."}
	}
	err := schema.Validate(message)
	if failed, ok := err.(*jsonschema.ValidationError); ok {
		return faults(failed, minor > 0)
	}
	return nil
}

func faults(failed *jsonschema.ValidationError, isLater bool) (found []string) {
	if _, isUnknown := failed.ErrorKind.(*kind.AdditionalProperties); isUnknown && isLater {
		return nil
	}
	if len(failed.Causes) == 0 {
		return []string{"/" + strings.Join(failed.InstanceLocation, "/") + " breaks " + strings.Join(failed.ErrorKind.KeywordPath(), "/")}
	}
	for _, cause := range failed.Causes {
		found = append(found, faults(cause, isLater)...)
	}
	return found
}

type message struct {
	Metadata struct {
		ID          string `json:"message_id"`
		Version     string `json:"protocol_version"`
		Sender      string `json:"sender_id"`
		Recipient   any    `json:"recipient_id"`
		Correlation string `json:"correlation_id"`
		Task        string `json:"task_id"`
		Priority    string `json:"priority"`
		Expires     string `json:"expiration_time"`
	} `json:"metadata"`
	Payload struct {
		Type string `json:"handoff_type"`
		Data object `json:"data"`
	} `json:"payload"`
	Instructions struct {
		Actions  []string `json:"required_actions"`
		Criteria string   `json:"success_criteria"`
	} `json:"instructions"`
}

func uuid() string {
	data := make([]byte, 16)
	rand.Read(data) // never fails
	data[6], data[8] = data[6]&0x0f|0x40, data[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", data[:4], data[4:6], data[6:8], data[8:10], data[10:])
}

func build(sender string, recipient any, task, correlation, priority, state, kind string, data object) object {
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	metadata := object{"message_id": uuid(), "timestamp": now, "protocol_version": "1.0.0", "sender_id": sender,
		"recipient_id": recipient, "task_id": task, "priority": priority}
	if correlation != "" {
		metadata["correlation_id"] = correlation
	}
	context := object{"workflow_state": state, "previous_actions": []any{}}
	return object{"metadata": metadata, "context": context, "payload": object{"handoff_type": kind, "data": data}, "instructions": object{}}
}

type reply struct {
	code    int
	status  string
	answers []object
}

type receiver struct {
	sync.Mutex // a repetition waits for the first message's end
	identity
	name   string
	schema *jsonschema.Schema
	texts  map[string]string // sender and id → canonical form
	kept   map[string]reply
}

func (agent *receiver) answer(about message, kind string, data object) object {
	data["in_reply_to"] = about.Metadata.ID
	of := about.Metadata
	return build(agent.name, of.Sender, of.Task, of.Correlation, of.Priority, "ANSWERED", kind, data)
}

func (agent *receiver) receive(body []byte) reply {
	var sealed envelope
	if len(body) > maxBody {
		return reply{413, "REJECTED", nil}
	}
	if json.Unmarshal(body, &sealed) != nil || !bytes.HasPrefix(bytes.TrimSpace(sealed.Handoff), []byte("{")) {
		return reply{400, "REJECTED", nil}
	}
	var got message
	json.Unmarshal(sealed.Handoff, &got) // a member of another type: the schema tells which
	if did := signer(sealed); did == "" || did != got.Metadata.Sender {
		return reply{401, "REJECTED", nil}
	}
	taken, _ := agent.take(sealed.Handoff)
	return taken
}

// take works on a message whose sender is known. It also returns whether this is a repetition.
func (agent *receiver) take(text []byte) (reply, bool) {
	var got message
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	wrong := json.Unmarshal(text, &got)
	if err != nil {
		return reply{400, "REJECTED", nil}, false
	}
	if found := issues(agent.schema, value, got.Metadata.Version); len(found) > 0 || wrong != nil {
		return reply{400, "REJECTED", agent.reject(got, found)}, false
	}
	recipients, isList := got.Metadata.Recipient.([]any)
	if got.Metadata.Recipient != agent.name && !(isList && slices.Contains(recipients, any(agent.name))) {
		return reply{403, "REJECTED", nil}, false
	}
	form, err := jcs.Transform(text)
	if err != nil {
		return reply{400, "REJECTED", nil}, false
	}
	key := strings.ToLower(got.Metadata.ID) + " " + got.Metadata.Sender
	agent.Lock()
	defer agent.Unlock()
	if known, isKnown := agent.texts[key]; isKnown && known != string(form) {
		return reply{409, "REJECTED", agent.reject(got, []string{"Another message has this id."})}, false
	} else if isKnown {
		return agent.kept[key], true
	}
	if len(agent.kept) >= maxKept {
		return reply{503, "FAILED", nil}, false // a peer for tests: it forgets nothing
	}
	agent.texts[key], agent.kept[key] = string(form), agent.work(got)
	return agent.kept[key], false
}

// work does nothing: so no action is done, and no criteria can be judged.
func (agent *receiver) work(got message) reply {
	until, err := time.Parse(time.RFC3339, got.Metadata.Expires)
	switch {
	case got.Metadata.Expires != "" && (err != nil || !until.After(time.Now())):
		return agent.report(got, 410, object{"status": "EXPIRED"})
	case got.Payload.Type == "REQUEST_INFORMATION":
		data := object{"information": object{}, "missing_keys": got.Payload.Data["requested_info_keys"]}
		return reply{200, "COMPLETED", []object{agent.answer(got, "PROVIDE_INFORMATION", data)}}
	case len(got.Instructions.Actions) > 0 || got.Instructions.Criteria != "":
		return agent.report(got, 422, object{"status": "FAILED", "detail": "The actions are not known here."})
	}
	return agent.report(got, 200, object{"status": "COMPLETED"})
}

func (agent *receiver) report(got message, code int, data object) reply {
	status := data["status"].(string)
	if !slices.Contains(reported, got.Payload.Type) {
		return reply{code, status, nil}
	}
	return reply{code, status, []object{agent.answer(got, "STATUS_UPDATE", data)}}
}

// reject reports the faults, if the message says enough for a report.
func (agent *receiver) reject(got message, found []string) []object {
	report := agent.answer(got, "STATUS_UPDATE", object{"status": "REJECTED", "issues": found})
	data, _ := json.Marshal(report)
	value, _ := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if got.Payload.Type == "STATUS_UPDATE" || len(issues(agent.schema, value, "1.0.0")) > 0 {
		return nil
	}
	return []object{report}
}

func (agent *receiver) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	answer := reply{404, "REJECTED", nil}
	if request.Method == "POST" && request.URL.Path == "/handoffs" {
		body, err := io.ReadAll(io.LimitReader(request.Body, maxBody+1))
		if err != nil {
			return
		}
		answer = agent.receive(body)
	}
	handoffs := []envelope{}
	for _, each := range answer.answers {
		handoffs = append(handoffs, agent.seal(each))
	}
	writer.Header().Set("Content-Type", "application/json")
	writer.WriteHeader(answer.code)
	json.NewEncoder(writer).Encode(object{"status": answer.status, "handoffs": handoffs})
}

func serve(agent *receiver) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := http.Server{Handler: agent, ReadTimeout: 10 * time.Second} // a body that comes slowly holds no place
	go server.Serve(listener)
	fmt.Printf("{\"url\": \"http://%s\"}\n", listener.Addr())
	io.Copy(io.Discard, os.Stdin)
	return nil
}

// meet serves sessions: a frame is a message, and so is each answer.
func meet(agent *receiver, uri string) error {
	serve := func(it *session) {
		it.read(func(came object) {
			text, _ := json.Marshal(came) // it was read from JSON
			var got message
			json.Unmarshal(text, &got)
			taken, isRepetition := agent.take(text)
			said := taken.answers
			if isRepetition {
				said = []object{agent.answer(got, "STATUS_UPDATE", object{"status": "DUPLICATE"})}
			} else if (taken.code == 200 || taken.code == 422) && slices.Contains(reported, got.Payload.Type) {
				said = append([]object{agent.answer(got, "STATUS_UPDATE", object{"status": "ACCEPTED"})}, said...)
			}
			for _, each := range said {
				it.say(each) // a session that has ended needs no answer
			}
		})
	}
	url, err := listen(uri, "receiver", "sender", serve)
	if err != nil {
		return err
	}
	fmt.Printf("{\"url\": %q}\n", url)
	io.Copy(io.Discard, os.Stdin)
	return nil
}

type answer struct {
	Status   string     `json:"status"`
	Handoffs []envelope `json:"handoffs"`
}

// send hands a message over until it is answered: the same bytes each time, so that it has one effect.
func send(url string, sealed envelope) (int, answer, error) {
	var got answer
	body, err := json.Marshal(sealed)
	if err != nil {
		return 0, got, err
	}
	client := http.Client{Timeout: time.Minute}
	for _, pause := range []time.Duration{200, 1000, 5000, 10_000, 20_000} {
		response, err := client.Post(url+"/handoffs", "application/json", bytes.NewReader(body))
		if err == nil && response.StatusCode != 503 {
			defer response.Body.Close()
			return response.StatusCode, got, json.NewDecoder(io.LimitReader(response.Body, maxBody)).Decode(&got)
		}
		if err == nil {
			response.Body.Close()
		}
		time.Sleep(pause * time.Millisecond)
	}
	return 0, got, fmt.Errorf("the agent does not answer")
}

func hand(url, recipient string, schema *jsonschema.Schema) error {
	me := newIdentity()
	data := object{"objective": "Say that this came: grüß.", "sub_tasks": []any{}}
	message := build(me.did, recipient, "task-1", uuid(), "MEDIUM", "OPEN", "TASK_TRANSFER", data)
	code, got, err := send(url, me.seal(message))
	if err != nil {
		return err
	}
	told := object{"code": code, "status": got.Status}
	for _, each := range got.Handoffs {
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(each.Handoff))
		if err != nil {
			return err
		}
		told["signed"], told["valid"] = signer(each), len(issues(schema, value, "1.0.0")) == 0
		told["report"] = value.(object)["payload"].(object)["data"]
	}
	return json.NewEncoder(os.Stdout).Encode(told)
}

func main() {
	schema, err := schemaOf(os.Args[map[string]int{"receive": 3, "session": 3, "send": 4}[os.Args[1]]])
	agent := &receiver{identity: newIdentity(), name: os.Args[2], schema: schema, texts: map[string]string{}, kept: map[string]reply{}}
	switch {
	case err != nil:
	case os.Args[1] == "receive":
		err = serve(agent)
	case os.Args[1] == "session":
		err = meet(agent, os.Args[4])
	default:
		err = hand(os.Args[2], os.Args[3], schema)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
