/* Product information, as in document.md: one side asks for a product, the other answers with its details.

   The same behaviour as the handler in Python beside it. An instance is one session. Build it with

       zig cc -target wasm32-wasi -mcpu=generic+bulk_memory+bulk_memory_opt -mexec-model=reactor -O2 \
           -Wl,--strip-all -Wl,-z,stack-size=131072 -o handler.wasm handler.c value.c */

#include "sha256.h"
#include "value.h"

#include <stdio.h>
#include <stdlib.h>

#define EXPORT(name) __attribute__((export_name(name)))

enum { OK = 200, MAX_OPEN = 256, TIMEOUT = 15, MAX_WAITING = 4096, MAX_STATE = 96 * 1024, MAX_FAILURE = 500 };

static const char *const REQUIRED[] = {"productId", "productName", "productDescription", "price", "currency"};
static const char *const WANTED[] = {"productId", "productName"};
/* The errors of manifest.json, and those that any operation may have. */
static const int CODES[] = {400, 401, 403, 404, 410, 429, 500, 502, 503, 504};
#define COUNT(table) (sizeof table / sizeof *table)

/* The state: how many were made, and the pairs of a call and a messageId that are open. Half of the room for texts is used at most,
   because JSON may need two bytes for one. */
static bool is_requester;
static char peer[2049], seed[65];
static int64_t made;
static struct pair {
    struct text call, message_id;
} open[MAX_WAITING];
static size_t open_count;
static char kept[MAX_STATE]; /* the texts of the pairs */
static size_t kept_size;

static struct text keep(struct text text) {
    if (text.size > MAX_STATE - kept_size)
        __builtin_trap(); /* the snapshot would be too long for the host */
    memcpy(kept + kept_size, text.data, text.size);
    kept_size += text.size;
    return (struct text){kept + kept_size - text.size, text.size};
}

static struct pair *pair_of(struct text text, bool by_call) {
    for (size_t i = 0; i < open_count; i++)
        if (equal(by_call ? open[i].call : open[i].message_id, text))
            return open + i;
    return NULL;
}

static void remember(struct text call, struct text message_id) {
    if (open_count == MAX_WAITING)
        __builtin_trap();
    open[open_count++] = (struct pair){keep(call), keep(message_id)};
}

/* Return a copy of the texts of a pair, which is closed. */
static struct pair forget(struct pair *pair) {
    char *copy = allocate_in_arena(pair->call.size + pair->message_id.size);
    struct pair gone = {{copy, pair->call.size}, {copy + pair->call.size, pair->message_id.size}};
    memcpy(copy, pair->call.data, pair->call.size);
    memcpy(copy + pair->call.size, pair->message_id.data, pair->message_id.size);
    for (struct pair *next = pair + 1; next < open + open_count; next++)
        next[-1] = *next;
    open_count--;
    /* Move the texts of the others together. They are in the order of the pairs. */
    kept_size = 0;
    for (size_t i = 0; i < open_count; i++) {
        struct text *texts[] = {&open[i].call, &open[i].message_id};
        for (int j = 0; j < 2; j++) {
            memmove(kept + kept_size, texts[j]->data, texts[j]->size);
            texts[j]->data = kept + kept_size;
            kept_size += texts[j]->size;
        }
    }
    return gone;
}

/* Issues of a message, a sentence each. */

static void complain(struct value *issues, const char *before, const char *name, const char *after) {
    append(issues, text(joined((struct text[]){text_of(before), text_of(name), text_of(after), {0}})));
}

static bool is(const struct value *value, const char *literal) { return is_text(value) && equal(value->text, text_of(literal)); }

static void need_text(struct value *issues, const struct value *map, const char *name, const char *before) {
    if (!is_text(get(map, name)))
        complain(issues, before, name, " is not a string.");
}

static struct value request_issues(const struct value *message) {
    struct value issues = list();
    if (message->kind != MAP)
        return complain(&issues, "A message is a JSON object.", "", ""), issues;
    need_text(&issues, message, "messageId", "");
    need_text(&issues, message, "type", "");
    need_text(&issues, message, "action", "");
    if (!get(message, "productId") && !get(message, "productName"))
        complain(&issues, "Neither productId nor productName is given.", "", "");
    for (size_t i = 0; i < COUNT(WANTED); i++)
        if (get(message, WANTED[i]))
            need_text(&issues, message, WANTED[i], "");
    if (!is(get(message, "type"), "REQUEST"))
        complain(&issues, "The type of a request is REQUEST.", "", "");
    if (!is(get(message, "action"), "getProductInfo"))
        complain(&issues, "The only action is getProductInfo.", "", "");
    return issues;
}

static void product_issues(struct value *issues, const struct value *product) {
    if (product->kind != MAP)
        return complain(issues, "productInfo is not an object.", "", "");
    for (size_t i = 0; i < COUNT(REQUIRED); i++)
        if (strcmp(REQUIRED[i], "price") != 0)
            need_text(issues, product, REQUIRED[i], "productInfo.");
    const struct value *price = get(product, "price");
    if (!price || (price->kind != INTEGER && price->kind != NUMBER))
        complain(issues, "productInfo.price is not a number.", "", "");
}

static struct value response_issues(const struct value *message) {
    struct value issues = list();
    if (message->kind != MAP)
        return complain(&issues, "A message is a JSON object.", "", ""), issues;
    need_text(&issues, message, "messageId", "");
    need_text(&issues, message, "type", "");
    if (!is(get(message, "type"), "RESPONSE"))
        complain(&issues, "The type of a response is RESPONSE.", "", "");
    const struct value *status = get(message, "status"), *code = get(status, "code"), *product = get(message, "productInfo");
    if (!is_text(get(status, "message")) || !code || code->kind != INTEGER)
        return complain(&issues, "status is not an object with an integer code and a message.", "", ""), issues;
    if (!product)
        complain(&issues, "productInfo is missing; where there is none, it is null.", "", "");
    else if (product->kind != NIL || code->integer == OK)
        product_issues(&issues, product);
    return issues;
}

static struct text sentences(const char *before, const struct value *issues) {
    struct text *texts = allocate_in_arena((2 * issues->members.count + 2) * sizeof *texts), *next = texts;
    *next++ = text_of(before);
    for (const struct member *issue = issues->members.first; issue; issue = issue->next) {
        if (issue != issues->members.first)
            *next++ = text_of(" ");
        *next++ = issue->value.text;
    }
    *next = (struct text){0};
    return joined(texts);
}

/* Effects. Each adds one to a list and returns its fields. */

static struct value *effect(struct value *effects, const char *tag) {
    struct value *pair = append(effects, list());
    append(pair, text(text_of(tag)));
    return append(pair, map());
}

static void send(struct value *effects, const struct value *message) {
    struct value *fields = effect(effects, "send");
    set(fields, "peer", text(text_of(peer)));
    set(fields, "data", bytes(write_json(message)));
}

static void note(struct value *effects, const char *before, const char *fault) {
    set(effect(effects, "audit"), "text", text(joined((struct text[]){text_of(before), text_of(fault), {0}})));
}

static void end(struct value *effects, bool is_failed) {
    set(effect(effects, "end"), "status", text(text_of(is_failed ? "failed" : "completed")));
}

static void set_timer(struct value *effects, struct text name, struct value seconds) {
    struct value *fields = effect(effects, "settimer");
    set(fields, "name", text(name));
    set(fields, "seconds", seconds);
}

/* Cut a text at a character. */
static struct text cut(struct text text, size_t characters) {
    for (size_t i = 0; i < text.size; i++)
        if ((text.data[i] & 0xC0) != 0x80 && characters-- == 0)
            return (struct text){text.data, i};
    return text;
}

static void fail_call(struct value *effects, struct text call, int64_t code, struct text message) {
    struct value *fields = effect(effects, "return");
    set(fields, "call", text(call));
    struct value *error = set(fields, "error", map());
    set(error, "code", integer(code));
    set(error, "message", text(cut(message, MAX_FAILURE)));
}

static void fail(struct value *effects, struct pair *pair, int64_t code, struct text message) {
    fail_call(effects, forget(pair).call, code, message);
}

static void answer(struct value *effects, struct text message_id, int64_t code, struct text words, struct value product) {
    struct value response = map();
    set(&response, "messageId", text(message_id));
    set(&response, "type", text(text_of("RESPONSE")));
    struct value *status = set(&response, "status", map());
    set(status, "code", integer(code));
    set(status, "message", text(words));
    set(&response, "productInfo", product);
    send(effects, &response);
}

static void copy_wanted(struct value *into, const struct value *from) {
    for (size_t i = 0; i < COUNT(WANTED); i++)
        if (get(from, WANTED[i]))
            set(into, WANTED[i], *get(from, WANTED[i]));
}

/* The provider */

static void received_by_provider(struct value *effects, const struct value *message) {
    const struct value *id = get(message, "messageId");
    if (!is_text(id))
        return note(effects, "Ignored a message without a messageId.", "");
    if (is(get(message, "type"), "RESPONSE"))
        return note(effects, "Ignored a response; answering it could go on for ever.", "");
    struct value issues = request_issues(message);
    if (issues.members.count)
        return answer(effects, id->text, 400, sentences("", &issues), nil());
    /* So that a snapshot, in which each pair has six more bytes, has the 64 KiB that the host keeps. */
    if (open_count >= MAX_OPEN || kept_size + id->text.size > MAX_STATE / 2)
        return answer(effects, id->text, 429, text_of("256 requests are open already."), nil());
    remember(decimal(++made), id->text);
    struct value *fields = effect(effects, "invoke");
    set(fields, "call", text(open[open_count - 1].call));
    set(fields, "operation", text(text_of("getProductInfo")));
    copy_wanted(set(fields, "arguments", map()), message);
}

static void result(struct value *effects, const struct value *fields) {
    struct pair gone = forget(pair_of(get(fields, "call")->text, true));
    const struct value *error = get(fields, "error"), *value = get(fields, "value");
    if (error && error->kind == MAP) {
        const struct value *words = get(error, "message");
        return answer(effects, gone.message_id, get(error, "code")->integer, words ? words->text : text_of(""), nil());
    }
    answer(effects, gone.message_id, OK, text_of("Success"), value ? *value : nil());
}

/* The requester */

static void call(struct value *effects, const struct value *fields) {
    char id[17];
    uint32_t digest[8];
    if (open_count == MAX_WAITING || kept_size + get(fields, "call")->text.size + sizeof id > MAX_STATE / 2)
        return fail_call(effects, get(fields, "call")->text, 503, text_of("Too many requests are open."));
    struct text source = joined((struct text[]){text_of(seed), text_of("/"), decimal(++made), {0}});
    sha256(source.data, source.size, digest);
    snprintf(id, sizeof id, "%08x%08x", (unsigned)digest[0], (unsigned)digest[1]);
    remember(get(fields, "call")->text, text_of(id));
    struct text message_id = open[open_count - 1].message_id;
    set_timer(effects, message_id, number(TIMEOUT));
    struct value request = map();
    set(&request, "messageId", text(message_id));
    set(&request, "type", text(text_of("REQUEST")));
    set(&request, "action", text(text_of("getProductInfo")));
    copy_wanted(&request, get(fields, "arguments"));
    send(effects, &request);
}

static void received_by_requester(struct value *effects, const struct value *message) {
    const struct value *id = get(message, "messageId");
    struct pair *pair = is_text(id) ? pair_of(id->text, false) : NULL;
    if (!pair)
        return note(effects, "Ignored an answer to no open request.", "");
    set_timer(effects, id->text, nil());
    struct value issues = response_issues(message);
    if (issues.members.count)
        return fail(effects, pair, 502, sentences("The provider's answer does not conform: ", &issues));
    const struct value *status = get(message, "status");
    int64_t code = get(status, "code")->integer;
    struct text words = get(status, "message")->text;
    if (code == OK) {
        struct value *fields = effect(effects, "return");
        set(fields, "call", text(forget(pair).call));
        struct value *product = set(fields, "value", map());
        for (size_t i = 0; i < COUNT(REQUIRED); i++)
            set(product, REQUIRED[i], *get(get(message, "productInfo"), REQUIRED[i]));
        return;
    }
    for (size_t i = 0; i < COUNT(CODES); i++)
        if (CODES[i] == code)
            return fail(effects, pair, code, words);
    struct text parts[] = {text_of("The provider answered with status "), decimal(code), text_of(": "), words, {0}};
    fail(effects, pair, 502, joined(parts));
}

/* Requests of the host. Each sets the reply. */

static void event(struct value *reply, const struct value *tag, const struct value *fields) {
    append(reply, text(text_of("effects")));
    struct value *effects = append(reply, list());
    if (is(tag, "received")) {
        struct value message = nil();
        const char *fault = read_json(get(fields, "data")->text, &message);
        if (!fault && message.kind != MAP)
            fault = "a message is a JSON object";
        if (fault)
            return note(effects, "Ignored what is no message: ", fault);
        return is_requester ? received_by_requester(effects, &message) : received_by_provider(effects, &message);
    }
    if (is(tag, "call") && is_requester)
        return call(effects, fields);
    if (is(tag, "result") && !is_requester)
        return result(effects, fields);
    if (is(tag, "timer") && is_requester)
        return fail(effects, pair_of(get(fields, "name")->text, false), 504, text_of("No answer came within 15 seconds."));
    if (is(tag, "peerlost")) {
        for (size_t i = 0; is_requester && i < open_count; i++)
            fail_call(effects, open[i].call, 503, text_of("The provider is gone."));
        end(effects, open_count > 0);
        if (is_requester)
            open_count = kept_size = 0;
        return;
    }
    if (is(tag, "close"))
        end(effects, false);
}

static void copy_text(char *into, size_t room, const struct value *value) {
    if (!is_text(value) || value->text.size >= room)
        __builtin_trap();
    memcpy(into, value->text.data, value->text.size);
    into[value->text.size] = 0;
}

/* The snapshot is JSON: {"made": …, "open": {CALL: MESSAGE-ID, …}}. */

static void open_session(struct value *reply, const struct value *role, const struct value *parameters, const struct value *snapshot) {
    is_requester = is(role, "requester");
    copy_text(peer, sizeof peer, get(parameters, "peer"));
    copy_text(seed, sizeof seed, get(parameters, "seed"));
    append(reply, text(text_of("done")));
    if (!snapshot->text.size)
        return;
    struct value state = nil();
    if (read_json(snapshot->text, &state))
        __builtin_trap();
    made = get(&state, "made")->integer;
    for (const struct member *pair = get(&state, "open")->members.first; pair; pair = pair->next)
        remember(pair->name, pair->value.text);
}

static void snapshot(struct value *reply) {
    struct value state = map();
    set(&state, "made", integer(made));
    struct value *pairs = set(&state, "open", map());
    for (size_t i = 0; i < open_count; i++)
        set_named(pairs, open[i].call, text(open[i].message_id));
    append(reply, text(text_of("bytes")));
    append(reply, bytes(write_json(&state)));
}

static void reject(struct value *reply, const char *fault) {
    append(reply, text(text_of("failed")));
    append(reply, text(text_of("rejected")));
    append(reply, text(text_of(fault)));
}

static void encode(struct value *reply, const struct value *message) {
    if (message->kind != MAP)
        return reject(reply, "a message is a JSON object");
    append(reply, text(text_of("bytes")));
    append(reply, bytes(write_json(message)));
}

static void decode(struct value *reply, struct text data) {
    struct value message = nil();
    const char *fault = read_json(data, &message);
    if (fault || message.kind != MAP)
        return reject(reply, fault ? fault : "a message is a JSON object");
    append(reply, text(text_of("value")));
    append(reply, message);
}

EXPORT("allocate") void *allocate(size_t size) {
    empty_arena();
    return allocate_in_arena(size);
}

EXPORT("handle") uint64_t handle(const char *data, size_t size) {
    struct value request = nil(), reply = list(), *fields[4] = {0};
    const char *at = data;
    if (!read_messagepack(&at, data + size, &request) || request.kind != LIST)
        __builtin_trap();
    size_t count = 0;
    for (struct member *member = request.members.first; member && count < COUNT(fields); member = member->next)
        fields[count++] = &member->value;
    if (is(fields[0], "open"))
        open_session(&reply, fields[1], fields[2], fields[3]);
    else if (is(fields[0], "event"))
        event(&reply, fields[1], fields[2]);
    else if (is(fields[0], "copy"))
        snapshot(&reply);
    else if (is(fields[0], "encode"))
        encode(&reply, fields[1]);
    else if (is(fields[0], "decode"))
        decode(&reply, fields[1]->text);
    else {
        append(&reply, text(text_of("issues")));
        append(&reply, is(fields[2], "requester") ? request_issues(fields[1]) : response_issues(fields[1]));
    }
    struct text encoded = write_messagepack(&reply);
    return (uint64_t)(size_t)encoded.data << 32 | encoded.size;
}
