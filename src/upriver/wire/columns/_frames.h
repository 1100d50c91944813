/* What a frame and a change are, for every walk of the accelerator: the same rules as numpy_path.py.
 *
 * No length is believed before it was checked against the bytes that are there.
 */

#ifndef UPRIVER_FRAMES_H
#define UPRIVER_FRAMES_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000 /* the first with Py_buffer */
#endif
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MIB (1024u * 1024u)

/* Python compares these with its own before it uses the module; see LIMITS in _speedups.c. */
#define MAX_BODY (30u * MIB)
#define MAX_STORED_VALUE (21u * MIB)
#define MAX_KEY 250u
#define MAX_PREFIXED_KEY 251u
#define MAX_COLLECTION_KEY 246u

enum { HEADER_SIZE = 24, OPAQUE_AT = 12, BODY_AT = 8 };
enum { REQUEST = 0x80, FLEX_REQUEST = 0x08 };
enum { MUTATION_OPCODE = 0x57, DELETION_OPCODE = 0x58, EXPIRATION_OPCODE = 0x59 };
enum { EVENT_OPCODE = 0x5f }; /* a system event */
enum { MUTATION, DELETION, EXPIRATION }; /* as in the column "op" */

/* Framing extras that are a stream id and nothing else. */
enum { STREAM_ID_SIZE = 3, STREAM_ID_TAG = 0x22 };

/* Bit n says that datatype n is allowed. */
enum { ANY_DATATYPE = 0xff, DELETION_DATATYPES = 0xf5 };

static inline uint16_t
load16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static inline uint32_t
load32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t
load64(const uint8_t *p)
{
    return (uint64_t)load32(p) << 32 | load32(p + 4);
}

/* ---- frames ---------------------------------------------------------------------------- */

static inline int
is_magic(uint8_t byte)
{
    switch (byte) {
    case REQUEST:
    case FLEX_REQUEST:
    case 0x81: /* response */
    case 0x18: /* flexible response */
    case 0x82: /* request of a server */
    case 0x83: /* and its response */
        return 1;
    default:
        return 0;
    }
}

/* The length of the frame at data, of which left bytes are there; 0 if it is not whole, or none. */
static inline size_t
frame_length(const uint8_t *data, size_t left)
{
    if (left < HEADER_SIZE || !is_magic(data[0]))
        return 0;
    uint32_t body = load32(data + BODY_AT);
    if (body > MAX_BODY || body > left - HEADER_SIZE)
        return 0;
    return HEADER_SIZE + (size_t)body;
}

/* As frame_length, for a walk that reads little of each frame: it learns only in one frame where
 * the next is, and would wait for memory every time, so bytes some way ahead are asked for.
 * Not a function of its own, because compilers drop calls of functions that do only this. */
static inline size_t
frame_length_ahead(const uint8_t *data, size_t left)
{
    size_t length = frame_length(data, left);
#if defined(__GNUC__)
    enum { AHEAD = 2048, LINE = 64 };
    if (length <= AHEAD && left >= AHEAD + length)
        for (size_t step = 0; step < length; step += LINE)
            __builtin_prefetch(data + AHEAD + step);
#endif
    return length;
}

typedef struct {
    uint8_t op;
    uint32_t flags;
    uint32_t expiry;
    uint32_t collection;
    const uint8_t *seqnos; /* by seqno and rev seqno, and the other extras */
    size_t extras_length;
    const uint8_t *whole_key; /* with its collection id */
    const uint8_t *key;
    const uint8_t *value;
    size_t key_length;
    size_t value_length;
} Row;

/* Splits the collection id off a key of at least 2 bytes; false if the key breaks a rule. */
static inline int
split_key(Row *row)
{
    const uint8_t *key = row->key;
    size_t most = row->key_length < 5 ? row->key_length : 5;
    uint64_t id = key[0] & 0x7f;
    size_t size = 1;
    while (key[size - 1] & 0x80) {
        if (size == most)
            return 0;
        id |= (uint64_t)(key[size] & 0x7f) << (7 * size);
        size++;
    }
    if ((size > 1 && key[size - 1] == 0) || id > UINT32_MAX || (id >= 1 && id <= 7))
        return 0;
    row->collection = (uint32_t)id;
    row->key += size;
    row->key_length -= size;
    return row->key_length >= 1 && row->key_length <= (id ? MAX_COLLECTION_KEY : MAX_KEY);
}

/* Reads a whole frame as a change; false if it is something else, or breaks a rule. */
static inline int
parse_row(const uint8_t *frame, size_t length, int collections, Row *row)
{
    size_t frames_length = 0;
    size_t key_length = load16(frame + 2);
    size_t extras_length = frame[4];
    unsigned datatypes = ANY_DATATYPE;

    if (frame[0] != REQUEST) {
        if (frame[0] != FLEX_REQUEST || frame[2] != STREAM_ID_SIZE)
            return 0;
        frames_length = STREAM_ID_SIZE;
        key_length = frame[3];
    }
    switch (frame[1]) {
    case MUTATION_OPCODE:
        if (extras_length != 31)
            return 0;
        row->op = MUTATION;
        break;
    case DELETION_OPCODE:
        if (extras_length != 18 && extras_length != 21)
            return 0;
        row->op = DELETION;
        datatypes = DELETION_DATATYPES;
        break;
    case EXPIRATION_OPCODE:
        if (extras_length != 20)
            return 0;
        row->op = EXPIRATION;
        break;
    default:
        return 0;
    }
    if (frame[5] > 7 || !(datatypes >> frame[5] & 1))
        return 0;
    if (key_length < (collections ? 2u : 1u)
        || key_length > (collections ? MAX_PREFIXED_KEY : MAX_KEY))
        return 0;

    size_t value_at = HEADER_SIZE + frames_length + extras_length + key_length;
    if (value_at > length || length - value_at > MAX_STORED_VALUE)
        return 0;
    if (frames_length && frame[HEADER_SIZE] != STREAM_ID_TAG)
        return 0;

    const uint8_t *extras = frame + HEADER_SIZE + frames_length;
    if (extras_length == 31) {
        if (load64(extras) == 0 || load16(extras + 28) != 0)
            return 0;
        row->flags = load32(extras + 16);
        row->expiry = load32(extras + 20);
    } else {
        row->flags = 0;
        row->expiry = 0;
        if (extras_length != 18)
            row->expiry = load32(extras + 16);
        else if (load16(extras + 16) != 0)
            return 0;
    }
    row->seqnos = extras;
    row->extras_length = extras_length;
    row->whole_key = row->key = extras + extras_length;
    row->key_length = key_length;
    row->value = frame + value_at;
    row->value_length = length - value_at;
    row->collection = 0;
    return !collections || split_key(row);
}

/* The method of the module that _select.c has. */
PyObject *select_frames(PyObject *module, PyObject *args);

#endif
