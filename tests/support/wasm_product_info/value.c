#include "value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 32, MAX_VALUES = 20000, PAGE = 65536 };

static const int64_t MAX_INTEGER = 9007199254740991; /* 2^53 - 1 */

/* The memory behind the program's own data. The linker knows where that ends. */
extern char __heap_base;
static char *free_at = &__heap_base;

void empty_arena(void) { free_at = &__heap_base; }

static void reserve(size_t size) {
    size_t end = (size_t)free_at + size, pages = (end + PAGE - 1) / PAGE, present = __builtin_wasm_memory_size(0);
    /* The host lets the memory grow to 16 MiB. It takes a trap for an error of the handler, and ends it. */
    if (end < size || (pages > present && __builtin_wasm_memory_grow(0, pages - present) == (size_t)-1))
        __builtin_trap();
}

void *allocate_in_arena(size_t size) {
    reserve(size + 7);
    char *begin = (char *)(((size_t)free_at + 7) & ~(size_t)7);
    free_at = begin + size;
    return begin;
}

bool equal(struct text one, struct text other) {
    return one.size == other.size && (one.size == 0 || (*one.data == *other.data && memcmp(one.data, other.data, one.size) == 0));
}

struct text joined(const struct text *texts) {
    size_t size = 0, at = 0;
    for (const struct text *text = texts; text->data; text++)
        size += text->size;
    char *data = allocate_in_arena(size + 1);
    for (const struct text *text = texts; text->data; at += text->size, text++)
        memcpy(data + at, text->data, text->size);
    return (struct text){data, size};
}

struct value nil(void) { return (struct value){.kind = NIL}; }
struct value integer(int64_t value) { return (struct value){.kind = INTEGER, .integer = value}; }
struct value number(double value) { return (struct value){.kind = NUMBER, .number = value}; }
struct value text(struct text value) { return (struct value){.kind = TEXT, .text = value}; }
struct value bytes(struct text value) { return (struct value){.kind = BYTES, .text = value}; }
struct value list(void) { return (struct value){.kind = LIST}; }
struct value map(void) { return (struct value){.kind = MAP}; }

struct value *set_named(struct value *map, struct text name, struct value item) {
    struct member *member = allocate_in_arena(sizeof *member);
    *member = (struct member){name, item, NULL};
    if (map->members.last)
        map->members.last->next = member;
    else
        map->members.first = member;
    map->members.last = member;
    map->members.count++;
    return &member->value;
}

struct value *append(struct value *list, struct value item) { return set_named(list, (struct text){0}, item); }

const struct value *get_named(const struct value *map, struct text name) {
    if (map && map->kind == MAP)
        for (const struct member *member = map->members.first; member; member = member->next)
            if (equal(member->name, name))
                return &member->value;
    return NULL;
}

bool is_text(const struct value *value) { return value && value->kind == TEXT; }

/* MessagePack */

static bool read_size(const char **at, const char *end, unsigned width, uint64_t *size) {
    if ((size_t)(end - *at) < width)
        return false;
    *size = 0;
    for (unsigned i = 0; i < width; i++)
        *size = *size << 8 | (uint8_t) * (*at)++;
    return true;
}

static bool read_at(const char **at, const char *end, struct value *value, unsigned depth);

static bool read_bytes(const char **at, const char *end, uint64_t size, struct value *value, enum kind kind) {
    if ((uint64_t)(end - *at) < size)
        return false;
    *value = (struct value){.kind = kind, .text = {*at, size}};
    *at += size;
    return true;
}

static bool read_members(const char **at, const char *end, uint64_t count, struct value *value, enum kind kind, unsigned depth) {
    *value = (struct value){.kind = kind};
    for (; count; count--) {
        struct value name = text((struct text){0}), item;
        if (kind == MAP && (!read_at(at, end, &name, depth) || name.kind != TEXT))
            return false;
        if (!read_at(at, end, &item, depth))
            return false;
        set_named(value, name.text, item);
    }
    return true;
}

static bool read_at(const char **at, const char *end, struct value *value, unsigned depth) {
    uint64_t size;
    /* Four levels more than a value may have: an event is around it. */
    if (depth > MAX_DEPTH + 4 || *at == end)
        return false;
    uint8_t first = (uint8_t) * (*at)++;
    if (first <= 0x7F || first >= 0xE0)
        return *value = integer((int8_t)first), true;
    if (first <= 0x8F)
        return read_members(at, end, first & 15, value, MAP, depth + 1);
    if (first <= 0x9F)
        return read_members(at, end, first & 15, value, LIST, depth + 1);
    if (first <= 0xBF)
        return read_bytes(at, end, first & 31, value, TEXT);
    switch (first) {
    case 0xC0:
        return *value = nil(), true;
    case 0xC2:
    case 0xC3:
        return *value = (struct value){.kind = BOOLEAN, .boolean = first & 1}, true;
    case 0xC4:
    case 0xC5:
    case 0xC6:
        return read_size(at, end, 1u << (first - 0xC4), &size) && read_bytes(at, end, size, value, BYTES);
    case 0xCB: {
        double real;
        if (!read_size(at, end, 8, &size))
            return false;
        memcpy(&real, &size, sizeof real);
        return *value = number(real), true;
    }
    case 0xCC:
    case 0xCD:
    case 0xCE:
    case 0xCF:
        return read_size(at, end, 1u << (first - 0xCC), &size) && (*value = integer((int64_t)size), true);
    case 0xD0:
    case 0xD1:
    case 0xD2:
    case 0xD3: {
        unsigned width = 1u << (first - 0xD0), shift = 64 - 8 * width;
        return read_size(at, end, width, &size) && (*value = integer((int64_t)(size << shift) >> shift), true);
    }
    case 0xD9:
    case 0xDA:
    case 0xDB:
        return read_size(at, end, 1u << (first - 0xD9), &size) && read_bytes(at, end, size, value, TEXT);
    case 0xDC:
    case 0xDD:
        return read_size(at, end, 2u << (first - 0xDC), &size) && read_members(at, end, size, value, LIST, depth + 1);
    case 0xDE:
    case 0xDF:
        return read_size(at, end, 2u << (first - 0xDE), &size) && read_members(at, end, size, value, MAP, depth + 1);
    }
    return false;
}

bool read_messagepack(const char **at, const char *end, struct value *value) { return read_at(at, end, value, 0); }

/* Writing. Nothing is allocated meanwhile, so what was put is in one piece. */

static void put(const char *data, size_t size) {
    reserve(size);
    /* A copy of the interpreter pays from some bytes on. */
    if (size < 12)
        for (size_t i = 0; i < size; i++)
            free_at[i] = data[i];
    else
        memcpy(free_at, data, size);
    free_at += size;
}

static inline void put_text(const char *literal) { put(literal, strlen(literal)); }

static void put_size(uint8_t first, uint64_t size, unsigned width) {
    reserve(1 + width);
    *free_at++ = (char)first;
    while (width--)
        *free_at++ = (char)(size >> 8 * width);
}

/* A text or bytes: short ones have a short header. */
static void put_bytes(struct text text, bool is_text) {
    if (text.size < 256)
        put_size(is_text ? 0xD9 : 0xC4, text.size, 1);
    else
        put_size(is_text ? 0xDB : 0xC6, text.size, 4);
    put(text.data, text.size);
}

static void put_value(const struct value *value) {
    uint64_t bits;
    switch (value->kind) {
    case NIL:
        return put_size(0xC0, 0, 0);
    case BOOLEAN:
        return put_size(value->boolean ? 0xC3 : 0xC2, 0, 0);
    case INTEGER:
        if (value->integer >= 0 && value->integer < 128)
            return put_size((uint8_t)value->integer, 0, 0);
        return put_size(0xD3, (uint64_t)value->integer, 8);
    case NUMBER:
        memcpy(&bits, &value->number, sizeof bits);
        return put_size(0xCB, bits, 8);
    case TEXT:
    case BYTES:
        return put_bytes(value->text, value->kind == TEXT);
    case LIST:
    case MAP:
        if (value->members.count < 16)
            put_size((value->kind == LIST ? 0x90 : 0x80) | (uint8_t)value->members.count, 0, 0);
        else
            put_size(value->kind == LIST ? 0xDD : 0xDF, value->members.count, 4);
        for (const struct member *member = value->members.first; member; member = member->next) {
            if (value->kind == MAP)
                put_bytes(member->name, true);
            put_value(&member->value);
        }
    }
}

struct text write_messagepack(const struct value *value) {
    const char *begin = allocate_in_arena(0);
    put_value(value);
    return (struct text){begin, (size_t)(free_at - begin)};
}

/* JSON */

/* Return how many bytes from `at` on stand for themselves in JSON: no quotation mark, backslash or control character. Eight at once,
   because the interpreter takes as long for eight bytes as for one. */
static size_t plain_run(const char *at, const char *end) {
    const uint64_t ones = 0x0101010101010101;
    const char *begin = at;
    for (; end - at >= 8; at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        uint64_t quotation = word ^ ones * '"', backslash = word ^ ones * '\\';
        if (((((quotation - ones) & ~quotation) | ((backslash - ones) & ~backslash) | ((word - ones * 0x20) & ~word)) & ones << 7) != 0)
            break;
    }
    while (at < end && (uint8_t)*at >= 0x20 && *at != '"' && *at != '\\')
        at++;
    return (size_t)(at - begin);
}

static void put_json_text(struct text text) {
    const char *at = text.data, *end = at + text.size;
    put_text("\"");
    while (at < end) {
        size_t run = plain_run(at, end);
        put(at, run);
        at += run;
        if (at == end)
            break;
        uint8_t byte = (uint8_t)*at++;
        char escaped[6] = {'\\', (char)byte};
        if (byte < 0x20) {
            static const char digits[] = "0123456789abcdef";
            memcpy(escaped, "\\u00", 4);
            escaped[4] = digits[byte >> 4], escaped[5] = digits[byte & 15];
        }
        put(escaped, byte < 0x20 ? 6 : 2);
    }
    put_text("\"");
}

/* Much shorter than `snprintf`, which formats everything. */
static void put_integer(int64_t integer) {
    char digits[20], *end = digits + sizeof digits, *at = end;
    uint64_t left = integer < 0 ? 0 - (uint64_t)integer : (uint64_t)integer;
    do
        *--at = (char)('0' + left % 10);
    while (left /= 10);
    if (integer < 0)
        *--at = '-';
    put(at, (size_t)(end - at));
}

struct text decimal(int64_t integer) {
    const char *begin = allocate_in_arena(0);
    put_integer(integer);
    return (struct text){begin, (size_t)(free_at - begin)};
}

static void put_json(const struct value *value) {
    char digits[40];
    switch (value->kind) {
    case NIL:
        return put_text("null");
    case BOOLEAN:
        return put_text(value->boolean ? "true" : "false");
    case INTEGER:
        return put_integer(value->integer);
    case NUMBER:
        /* The shortest text that is this number. */
        for (int precision = 15; precision <= 17; precision++) {
            snprintf(digits, sizeof digits, "%.*g", precision, value->number);
            if (strtod(digits, NULL) == value->number)
                break;
        }
        put_text(digits);
        /* A float stays a float. */
        if (!strpbrk(digits, ".e"))
            put_text(".0");
        return;
    case TEXT:
    case BYTES:
        return put_json_text(value->text);
    case LIST:
    case MAP:
        put_text(value->kind == LIST ? "[" : "{");
        for (const struct member *member = value->members.first; member; member = member->next) {
            if (member != value->members.first)
                put_text(",");
            if (value->kind == MAP) {
                put_json_text(member->name);
                put_text(":");
            }
            put_json(&member->value);
        }
        put_text(value->kind == LIST ? "]" : "}");
    }
}

struct text write_json(const struct value *value) {
    const char *begin = allocate_in_arena(0);
    put_json(value);
    return (struct text){begin, (size_t)(free_at - begin)};
}

static const char *const NOT_JSON = "not JSON";

struct reader {
    const char *at, *end;
    size_t values;
};

static void skip_space(struct reader *reader) {
    while (reader->at < reader->end && (*reader->at == ' ' || *reader->at == '\t' || *reader->at == '\r' || *reader->at == '\n'))
        reader->at++;
}

static inline bool take(struct reader *reader, const char *literal) {
    size_t size = strlen(literal);
    if ((size_t)(reader->end - reader->at) < size || *reader->at != *literal || (size > 1 && memcmp(reader->at, literal, size) != 0))
        return false;
    reader->at += size;
    return true;
}

static int hexadecimal(struct reader *reader) {
    int unit = 0;
    for (int i = 0; i < 4; i++, reader->at++) {
        if (reader->at == reader->end)
            return -1;
        char digit = *reader->at;
        int lower = digit | 0x20;
        if (digit >= '0' && digit <= '9')
            unit = unit * 16 + digit - '0';
        else if (lower >= 'a' && lower <= 'f')
            unit = unit * 16 + lower - 'a' + 10;
        else
            return -1;
    }
    return unit;
}

static const char *read_json_text(struct reader *reader, struct text *text) {
    size_t run = plain_run(reader->at, reader->end);
    *text = (struct text){reader->at, run};
    if (reader->at + run < reader->end && reader->at[run] == '"') {
        reader->at += run + 1;
        return NULL;
    }
    /* No escape is shorter than the bytes that it stands for. */
    char *decoded = allocate_in_arena((size_t)(reader->end - reader->at));
    size_t size = 0;
    while (reader->at < reader->end && *reader->at != '"') {
        run = plain_run(reader->at, reader->end);
        memcpy(decoded + size, reader->at, run);
        size += run, reader->at += run;
        if (run)
            continue;
        if (!take(reader, "\\") || reader->at == reader->end)
            return NOT_JSON;
        static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
        char escape = *reader->at++;
        const char *name = escape ? strchr(names, escape) : NULL;
        if (name) {
            decoded[size++] = meanings[name - names];
            continue;
        }
        int unit = escape == 'u' ? hexadecimal(reader) : -1;
        if (unit < 0)
            return NOT_JSON;
        uint32_t point = (uint32_t)unit;
        if (unit >= 0xD800 && unit <= 0xDBFF && take(reader, "\\u")) {
            int low = hexadecimal(reader);
            if (low < 0)
                return NOT_JSON;
            if (low < 0xDC00 || low > 0xDFFF)
                return "not UTF-8";
            point = 0x10000 + ((point - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
        }
        if (point >= 0xD800 && point <= 0xDFFF)
            return "not UTF-8";
        if (point < 0x80) {
            decoded[size++] = (char)point;
        } else if (point < 0x800) {
            decoded[size++] = (char)(0xC0 | point >> 6), decoded[size++] = (char)(0x80 | (point & 63));
        } else if (point < 0x10000) {
            decoded[size++] = (char)(0xE0 | point >> 12), decoded[size++] = (char)(0x80 | (point >> 6 & 63));
            decoded[size++] = (char)(0x80 | (point & 63));
        } else {
            decoded[size++] = (char)(0xF0 | point >> 18), decoded[size++] = (char)(0x80 | (point >> 12 & 63));
            decoded[size++] = (char)(0x80 | (point >> 6 & 63)), decoded[size++] = (char)(0x80 | (point & 63));
        }
    }
    if (!take(reader, "\""))
        return NOT_JSON;
    free_at = decoded + size;
    *text = (struct text){decoded, size};
    return NULL;
}

static size_t skip_digits(struct reader *reader) {
    const char *begin = reader->at;
    while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9')
        reader->at++;
    return (size_t)(reader->at - begin);
}

static const char *read_json_number(struct reader *reader, struct value *value) {
    const char *begin = reader->at;
    bool is_integer = true;
    take(reader, "-");
    if (!take(reader, "0") && !skip_digits(reader))
        return NOT_JSON;
    const char *whole = reader->at;
    if (take(reader, ".")) {
        is_integer = false;
        if (!skip_digits(reader))
            return NOT_JSON;
        whole = reader->at;
    }
    if (take(reader, "e") || take(reader, "E")) {
        is_integer = false;
        if (!take(reader, "-"))
            take(reader, "+");
        if (!skip_digits(reader))
            return NOT_JSON;
        whole = reader->at;
    }
    size_t size = (size_t)(whole - begin);
    char *digits = allocate_in_arena(size + 1);
    memcpy(digits, begin, size);
    digits[size] = 0;
    if (is_integer) {
        if (size > 17 || llabs(atoll(digits)) > MAX_INTEGER)
            return "an integer is beyond 2^53-1";
        *value = integer(atoll(digits));
        return NULL;
    }
    *value = number(strtod(digits, NULL));
    return isinf(value->number) ? "a number is too large" : NULL;
}

/* A table of names: comparing each with each would take a peer's large object too many instructions. */
static bool has_name_twice(const struct value *map) {
    size_t room = 2;
    if (map->members.count <= 8) {
        for (const struct member *one = map->members.first; one; one = one->next)
            for (const struct member *other = one->next; other; other = other->next)
                if (equal(one->name, other->name))
                    return true;
        return false;
    }
    while (room < 2 * map->members.count)
        room *= 2;
    const struct member **table = allocate_in_arena(room * sizeof *table);
    memset(table, 0, room * sizeof *table);
    for (const struct member *member = map->members.first; member; member = member->next) {
        uint32_t place = 2166136261u; /* FNV-1a */
        for (size_t i = 0; i < member->name.size; i++)
            place = (place ^ (uint8_t)member->name.data[i]) * 16777619u;
        for (place &= room - 1; table[place]; place = (place + 1) & (room - 1))
            if (equal(table[place]->name, member->name))
                return true;
        table[place] = member;
    }
    return false;
}

static const char *read_json_at(struct reader *reader, struct value *value, unsigned depth) {
    static char too_many[] = "more than 20000 values";
    const char *fault;
    skip_space(reader);
    if (depth > MAX_DEPTH)
        return "nested too deeply";
    if (++reader->values > MAX_VALUES)
        return too_many;
    if (take(reader, "null"))
        return *value = nil(), NULL;
    if (take(reader, "true"))
        return *value = (struct value){.kind = BOOLEAN, .boolean = true}, NULL;
    if (take(reader, "false"))
        return *value = (struct value){.kind = BOOLEAN, .boolean = false}, NULL;
    if (take(reader, "\"")) {
        value->kind = TEXT;
        return read_json_text(reader, &value->text);
    }
    bool is_map = take(reader, "{");
    if (!is_map && !take(reader, "["))
        return read_json_number(reader, value);
    *value = is_map ? map() : list();
    const char *close = is_map ? "}" : "]";
    skip_space(reader);
    if (take(reader, close))
        return NULL;
    do {
        struct text name = {0};
        struct value item = nil();
        skip_space(reader);
        if (is_map) {
            if (!take(reader, "\""))
                return NOT_JSON;
            if ((fault = read_json_text(reader, &name)))
                return fault;
            skip_space(reader);
            if (!take(reader, ":"))
                return NOT_JSON;
        }
        if ((fault = read_json_at(reader, &item, depth + 1)))
            return fault;
        set_named(value, name, item);
        skip_space(reader);
    } while (take(reader, ","));
    if (!take(reader, close))
        return NOT_JSON;
    return is_map && has_name_twice(value) ? "a name occurs twice in one object" : NULL;
}

/* Tell whether the bytes are UTF-8: no longer forms, no surrogates. */
static bool is_utf8(struct text text) {
    const uint8_t *at = (const uint8_t *)text.data, *end = at + text.size;
    while (at < end) {
        uint64_t word = 0;
        for (; end - at >= 8; at += 8)
            if (memcpy(&word, at, 8), word & 0x8080808080808080)
                break;
        if (at == end)
            return true;
        uint8_t first = *at++;
        if (first < 0x80)
            continue;
        unsigned more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
        if (first < 0xC2 || first > 0xF4 || (size_t)(end - at) < more)
            return false;
        if ((first == 0xE0 && *at < 0xA0) || (first == 0xED && *at > 0x9F) || (first == 0xF0 && *at < 0x90) || (first == 0xF4 && *at > 0x8F))
            return false;
        for (; more; more--)
            if ((*at++ & 0xC0) != 0x80)
                return false;
    }
    return true;
}

const char *read_json(struct text source, struct value *value) {
    struct reader reader = {source.data, source.data + source.size, 0};
    if (!is_utf8(source))
        return "not UTF-8";
    const char *fault = read_json_at(&reader, value, 1);
    if (fault)
        return fault;
    skip_space(&reader);
    return reader.at == reader.end ? NULL : NOT_JSON;
}
