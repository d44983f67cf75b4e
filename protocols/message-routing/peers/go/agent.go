// A member and an environment of message routing, written from the document.
//
//	message-routing member URL URI NAME CLASS ACTION CAUSE…    joins, and answers each of its news with a message
//	message-routing environment URI                            prints its URL, and runs rounds while members have work
//
// Each serves until its standard input ends. Then the member prints the contents that it worked on.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"unicode"
	"unicode/utf8"
)

const (
	maxMembers   = 256
	maxWaiting   = 256
	maxPublished = 128
	maxHistory   = 1000
)

var fields = []string{"cause_by", "content", "id", "instruct_content", "role", "send_to", "sent_from"}

func isName(value any) bool {
	text, isText := value.(string)
	isBad := func(letter rune) bool {
		return letter == '.' || letter == '<' || letter == '>' || letter == '\u2028' || letter == '\u2029' || unicode.Is(unicode.C, letter)
	}
	return isText && utf8.ValidString(text) && text != "" && utf8.RuneCountInString(text) <= 64 && !slices.ContainsFunc([]rune(text), isBad)
}

func hasExactly(value object, names ...string) bool {
	for _, each := range names {
		if _, isThere := value[each]; !isThere {
			return false
		}
	}
	return len(value) == len(names)
}

// messageOf returns the message in a value, with the defaults of rule 1; false if it does not conform.
func messageOf(value any) (object, bool) {
	given, isObject := value.(object)
	if !isObject || !hasExactly(given, fields...) {
		return nil, false
	}
	_, hasContent := given["content"].(string)
	_, hasSender := given["sent_from"].(string)
	_, hasDetails := given["instruct_content"].(object)
	role, _ := given["role"].(string)
	list, isList := given["send_to"].([]any)
	isAddress := func(each any) bool {
		return isName(each) || slices.Contains([]any{"<all>", "<none>", "<self>"}, each)
	}
	isMissing := func(name string) bool { return given[name] == "" }
	isGood := hasContent && hasSender && (hasDetails || given["instruct_content"] == nil) && isList && len(list) <= 64 &&
		!slices.ContainsFunc(list, func(each any) bool { return !isAddress(each) }) &&
		slices.Contains([]string{"user", "system", "assistant"}, role) &&
		(isMissing("id") || isName(given["id"])) && (isMissing("cause_by") || isName(given["cause_by"]))
	if isMissing("id") {
		given["id"] = name()
	}
	if isMissing("cause_by") {
		given["cause_by"] = "UserRequirement"
	}
	if len(list) == 0 {
		given["send_to"] = []any{"<all>"}
	}
	return given, isGood
}

// identity is the same for two messages that are one: the order of send_to, and of names, does not count (rule 7).
func identity(message object) string {
	addresses := []string{}
	for _, each := range message["send_to"].([]any) {
		addresses = append(addresses, each.(string))
	}
	slices.Sort(addresses)
	data, _ := json.Marshal([]any{message["id"], message["content"], message["instruct_content"], message["role"],
		message["cause_by"], message["sent_from"], addresses})
	return string(data)
}

type member struct {
	*session
	name, class, action string
	causes, worked      []string
	buffer              []object
	seen                map[string]bool
	answers             chan object
	rounds              chan float64
}

func (me *member) take(message object) {
	switch message["type"] {
	case "message":
		if given, isGood := messageOf(message["message"]); isGood {
			me.Lock()
			if len(me.buffer) < maxWaiting {
				me.buffer = append(me.buffer, given)
			}
			me.Unlock()
		}
	case "accepted", "refused":
		me.answers <- message
	case "run":
		if round, isNumber := message["round"].(float64); isNumber {
			me.rounds <- round
		}
	}
}

func (me *member) request(request object) (object, error) {
	id := name()
	request["id"] = id
	if err := me.say(request); err != nil {
		return nil, err
	}
	for answer := range me.answers {
		if answer["id"] == id {
			return answer, nil
		}
	}
	return nil, errors.New("the environment is gone")
}

// react takes what is buffered when the round begins, works on the news, and publishes an answer to each.
func (me *member) react(round float64) {
	me.Lock()
	given := me.buffer
	me.buffer = nil
	me.Unlock()
	failure := ""
	for _, each := range given {
		key := identity(each)
		isWatched := slices.Contains(me.causes, each["cause_by"].(string)) || slices.Contains(each["send_to"].([]any), any(me.name))
		if me.seen[key] || !isWatched {
			me.seen[key] = true
			continue
		}
		me.seen[key] = true
		content := each["content"].(string)
		me.worked = append(me.worked, content)
		message := object{"id": name(), "content": me.action + " of " + content, "instruct_content": nil, "role": "assistant",
			"cause_by": me.action, "sent_from": me.class, "send_to": []any{"<all>"}}
		me.seen[identity(message)] = true // a member has seen its own responses
		answer, err := me.request(object{"type": "publish", "message": message})
		if err != nil {
			return
		}
		if answer["type"] == "refused" {
			failure = fmt.Sprint(answer["reason"])
		}
	}
	me.Lock()
	isIdle := len(me.buffer) == 0
	me.Unlock()
	me.say(object{"type": "state", "round": round, "idle": isIdle, "error": failure})
}

func takePart(arguments []string) error {
	it, err := connect(arguments[0], arguments[1], "member")
	if err != nil {
		return err
	}
	me := &member{session: it, name: arguments[2], class: arguments[3], action: arguments[4], causes: arguments[5:],
		seen: map[string]bool{}, answers: make(chan object, 16), rounds: make(chan float64, 16)}
	if len(me.causes) == 0 {
		me.causes = []string{"UserRequirement"}
	}
	go func() {
		it.read(me.take)
		close(me.answers)
		close(me.rounds)
	}()
	answer, err := me.request(object{"type": "join", "name": me.name, "address": me.class, "shared": false})
	if err != nil || answer["type"] != "accepted" {
		return fmt.Errorf("not joined: %v %v", answer["reason"], err)
	}
	fmt.Printf("{\"joined\": %q}\n", me.name)
	done := make(chan struct{})
	go func() {
		for round := range me.rounds {
			me.react(round)
		}
		close(done)
	}()
	io.Copy(io.Discard, os.Stdin)
	it.socket.CloseNow()
	<-done
	return json.NewEncoder(os.Stdout).Encode(append([]string{}, me.worked...))
}

type membership struct {
	name, class               string
	isShared, isBusy, isInRun bool
	waiting, published        int
}

type environment struct {
	sync.Mutex // one message at a time
	members    map[*session]*membership
	order      []*session
	history    []string // what makes messages one; an older one counts as not seen
	round      int
}

func (room *environment) serve(it *session) {
	it.read(func(message object) {
		room.Lock()
		defer room.Unlock()
		room.take(it, room.members[it], message)
	})
	room.Lock()
	defer room.Unlock()
	delete(room.members, it)
	room.order = slices.DeleteFunc(room.order, func(each *session) bool { return each == it })
	room.goOn()
}

func (room *environment) take(it *session, who *membership, message object) {
	switch message["type"] {
	case "join":
		if hasExactly(message, "type", "id", "name", "address", "shared") && isName(message["id"]) {
			room.join(it, who, message)
		}
	case "publish":
		given, isGood := messageOf(message["message"])
		if isGood && isName(message["id"]) && hasExactly(message, "type", "id", "message") {
			room.publish(it, who, message["id"], given)
		}
	case "state":
		idle, isState := message["idle"].(bool)
		if who == nil || !isState || who.isInRun && message["round"] != float64(room.round) {
			return // also one that was sent before the round came
		}
		who.isInRun, who.isBusy = false, !idle
		room.goOn()
	}
}

func refuse(it *session, id any, code int, reason string) {
	it.say(object{"type": "refused", "id": id, "code": code, "reason": reason})
}

func (room *environment) join(it *session, who *membership, message object) {
	shared, isSaid := message["shared"].(bool)
	if !isName(message["name"]) || !isName(message["address"]) || !isSaid {
		return
	}
	new := &membership{name: message["name"].(string), class: message["address"].(string), isShared: shared}
	if who != nil || len(room.members) >= maxMembers {
		refuse(it, message["id"], 409, "This peer has joined already, or there is no place.")
		return
	}
	for _, other := range room.members {
		isTaken := new.name == other.name || new.name == other.class || new.class == other.name
		if isTaken || new.class == other.class && !(shared && other.isShared) {
			refuse(it, message["id"], 409, "The name or the class is not free.")
			return
		}
	}
	room.members[it], room.order = new, append(room.order, it)
	it.say(object{"type": "accepted", "id": message["id"]})
}

func (room *environment) publish(it *session, who *membership, id any, message object) {
	switch {
	case who == nil:
		refuse(it, id, 403, "Join first.")
		return
	case message["sent_from"] != who.name && message["sent_from"] != who.class:
		refuse(it, id, 403, "sent_from is the name or the class of another.")
		return
	case who.published >= maxPublished:
		refuse(it, id, 429, "This member published too much in this round.")
		return
	}
	isAddressed, receivers := false, []*session{}
	for _, each := range room.order {
		other, to := room.members[each], message["send_to"].([]any)
		if slices.Contains(to, any("<all>")) || slices.Contains(to, any(other.name)) || slices.Contains(to, any(other.class)) {
			isAddressed = true
			if other.waiting < maxWaiting {
				receivers = append(receivers, each)
			}
		}
	}
	if isAddressed && len(receivers) == 0 {
		refuse(it, id, 429, "Too many messages wait for each recipient.")
		return
	}
	if !isAddressed {
		fmt.Fprintf(os.Stderr, "The message %v has no recipient.\n", message["id"])
	}
	who.published++
	if key := identity(message); !slices.Contains(room.history, key) {
		room.history = append(room.history[max(0, len(room.history)+1-maxHistory):], key)
	}
	for _, each := range receivers {
		room.members[each].waiting++
		each.say(object{"type": "message", "message": message})
	}
	it.say(object{"type": "accepted", "id": id})
	room.goOn()
}

// goOn begins a round when all members have finished the last one, and some are not idle (rule 9).
func (room *environment) goOn() {
	running := []*session{}
	for _, each := range room.order {
		if room.members[each].isInRun {
			return
		}
		if room.members[each].isBusy || room.members[each].waiting > 0 {
			running = append(running, each)
		}
	}
	if len(running) == 0 {
		return
	}
	room.round++
	for _, who := range room.members {
		who.published = 0
	}
	for _, each := range running {
		room.members[each].isInRun, room.members[each].waiting = true, 0
		each.say(object{"type": "run", "round": room.round})
	}
}

func run(role string, arguments []string) error {
	if role == "member" {
		return takePart(arguments)
	}
	room := &environment{members: map[*session]*membership{}}
	url, err := listen(arguments[0], "environment", "member", room.serve)
	if err != nil {
		return err
	}
	fmt.Printf("{\"url\": %q}\n", url)
	io.Copy(io.Discard, os.Stdin)
	return nil
}

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
