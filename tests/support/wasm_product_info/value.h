/* Values as MessagePack and as JSON. They live in one arena, which each request empties. */

#ifndef VALUE_H
#define VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum kind { NIL, BOOLEAN, INTEGER, NUMBER, TEXT, BYTES, LIST, MAP };

/* A text, bytes, or the encoded form of a value. */
struct text {
    const char *data;
    size_t size;
};

struct value {
    enum kind kind;
    union {
        bool boolean;
        int64_t integer;
        double number;
        struct text text;
        struct {
            struct member *first, *last;
            size_t count;
        } members; /* of a list and of a map */
    };
};

struct member {
    struct text name; /* of a map */
    struct value value;
    struct member *next;
};

/* Forget all values. */
void empty_arena(void);
void *allocate_in_arena(size_t size);

/* Inline, so that the size of a literal is a constant. */
static inline struct text text_of(const char *literal) { return (struct text){literal, strlen(literal)}; }
bool equal(struct text one, struct text other);
/* Return the texts one after the other. The list ends with an empty one. */
struct text joined(const struct text *texts);

struct text decimal(int64_t integer);

struct value nil(void);
struct value integer(int64_t value);
struct value number(double value);
struct value text(struct text value);
struct value bytes(struct text value);
struct value list(void);
struct value map(void);
struct value *append(struct value *list, struct value item);
struct value *set_named(struct value *map, struct text name, struct value item);
static inline struct value *set(struct value *map, const char *name, struct value item) { return set_named(map, text_of(name), item); }
/* Return a member of a map, or NULL. Any other kind of value has none. */
const struct value *get_named(const struct value *map, struct text name);
static inline const struct value *get(const struct value *map, const char *name) { return get_named(map, text_of(name)); }
bool is_text(const struct value *value);

/* Read one value at *at. Return false if it is no value that JSON has, or does not end before `end`. */
bool read_messagepack(const char **at, const char *end, struct value *value);
struct text write_messagepack(const struct value *value);
/* Return NULL, or the fault as a sentence for a person. */
const char *read_json(struct text source, struct value *value);
struct text write_json(const struct value *value);

#endif
