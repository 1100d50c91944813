/* The accelerator of upriver.wire.columns: the same rules as numpy_path.py, one frame at a time.
 *
 * A buffer is walked twice, once to measure and once to fill columns of exactly that size. Both
 * walks run without the interpreter's lock. No length is believed before it was checked against
 * the bytes that are there, and nothing is written before it was checked against the room that
 * was given, so that even a buffer that changes between the walks cannot reach other memory.
 *
 * This file knows nothing of Arrow: it is given plain writable buffers.
 */

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000 /* the first with Py_buffer */
#endif
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MIB (1024u * 1024u)

/* Python compares these with its own before it uses this module; see LIMITS below. */
#define MAX_BODY (30u * MIB)
#define MAX_STORED_VALUE (21u * MIB)
#define MAX_KEY 250u
#define MAX_PREFIXED_KEY 251u
#define MAX_COLLECTION_KEY 246u

enum { HEADER_SIZE = 24, OPAQUE_AT = 12, BODY_AT = 8 };
enum { REQUEST = 0x80, FLEX_REQUEST = 0x08 };
enum { MUTATION_OPCODE = 0x57, DELETION_OPCODE = 0x58, EXPIRATION_OPCODE = 0x59 };
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
    const uint8_t *seqnos; /* by seqno and rev seqno */
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
    row->key = extras + extras_length;
    row->key_length = key_length;
    row->value = frame + value_at;
    row->value_length = length - value_at;
    row->collection = 0;
    return !collections || split_key(row);
}

/* ---- measure and fill ------------------------------------------------------------------ */

typedef struct {
    size_t consumed;
    size_t rows;
    size_t key_bytes;
    size_t value_bytes;
    size_t controls;
} Totals;

static void
measure_frames(const uint8_t *data, size_t size, int collections, Totals *totals)
{
    Totals sum = {0, 0, 0, 0, 0};
    size_t length;
    Row row;

    while ((length = frame_length_ahead(data + sum.consumed, size - sum.consumed)) != 0) {
        if (parse_row(data + sum.consumed, length, collections, &row)) {
            sum.rows++;
            sum.key_bytes += row.key_length;
            sum.value_bytes += row.value_length;
        } else {
            sum.controls++;
        }
        sum.consumed += length;
    }
    *totals = sum;
}

/* The order of the arguments of fill. */
enum {
    OP, VBUCKET, SEQNO, REV, CAS, FLAGS, EXPIRY, DATATYPE, COLLECTION, OPAQUE,
    KEY_OFFSETS, KEY, VALUE_OFFSETS, VALUE, CONTROLS, OUTPUTS
};
static const size_t FIXED_WIDTH[KEY_OFFSETS] = {1, 2, 8, 8, 8, 4, 4, 1, 4, 4};

static inline void
store16(uint8_t *column, size_t row, uint16_t number)
{
    memcpy(column + row * sizeof number, &number, sizeof number);
}

static inline void
store32(uint8_t *column, size_t row, uint32_t number)
{
    memcpy(column + row * sizeof number, &number, sizeof number);
}

static inline void
store64(uint8_t *column, size_t row, uint64_t number)
{
    memcpy(column + row * sizeof number, &number, sizeof number);
}

/* Fills columns with room for exactly the totals; false if the buffer does not hold just that. */
static int
fill_frames(const uint8_t *data, size_t size, int collections, const Totals *room,
            uint8_t *const *columns)
{
    uint8_t *const op = columns[OP], *const vbucket = columns[VBUCKET];
    uint8_t *const seqno = columns[SEQNO], *const rev = columns[REV], *const cas = columns[CAS];
    uint8_t *const flags = columns[FLAGS], *const expiry = columns[EXPIRY];
    uint8_t *const datatype = columns[DATATYPE], *const collection = columns[COLLECTION];
    uint8_t *const opaque = columns[OPAQUE];
    uint8_t *const key_offsets = columns[KEY_OFFSETS], *const key = columns[KEY];
    uint8_t *const value_offsets = columns[VALUE_OFFSETS], *const value = columns[VALUE];
    Totals sum = {0, 0, 0, 0, 0};
    size_t length;
    Row row;

    store32(key_offsets, 0, 0);
    store32(value_offsets, 0, 0);
    while ((length = frame_length(data + sum.consumed, size - sum.consumed)) != 0) {
        const uint8_t *frame = data + sum.consumed;
        if (parse_row(frame, length, collections, &row)) {
            size_t n = sum.rows;
            if (n == room->rows || row.key_length > room->key_bytes - sum.key_bytes
                || row.value_length > room->value_bytes - sum.value_bytes)
                return 0;
            op[n] = row.op;
            store16(vbucket, n, load16(frame + 6));
            store64(seqno, n, load64(row.seqnos));
            store64(rev, n, load64(row.seqnos + 8));
            store64(cas, n, load64(frame + 16));
            store32(flags, n, row.flags);
            store32(expiry, n, row.expiry);
            datatype[n] = frame[5];
            store32(collection, n, row.collection);
            store32(opaque, n, load32(frame + OPAQUE_AT));
            memcpy(key + sum.key_bytes, row.key, row.key_length);
            sum.key_bytes += row.key_length;
            memcpy(value + sum.value_bytes, row.value, row.value_length);
            sum.value_bytes += row.value_length;
            sum.rows = n + 1;
            store32(key_offsets, n + 1, (uint32_t)sum.key_bytes);
            store32(value_offsets, n + 1, (uint32_t)sum.value_bytes);
        } else {
            uint8_t *controls = columns[CONTROLS];
            if (sum.controls == room->controls)
                return 0;
            store32(controls, 3 * sum.controls, (uint32_t)sum.rows);
            store32(controls, 3 * sum.controls + 1, (uint32_t)sum.consumed);
            store32(controls, 3 * sum.controls + 2, (uint32_t)length);
            sum.controls++;
        }
        sum.consumed += length;
    }
    return sum.rows == room->rows && sum.key_bytes == room->key_bytes
           && sum.value_bytes == room->value_bytes && sum.controls == room->controls;
}

/* ---- the interface to Python ----------------------------------------------------------- */

static int
within_window(const Py_buffer *buffer)
{
    if (buffer->len <= INT32_MAX)
        return 1;
    PyErr_SetString(PyExc_ValueError, "a buffer must be shorter than 2 GiB");
    return 0;
}

static PyObject *
measure(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer buffer;
    int collections;
    Totals totals;

    if (!PyArg_ParseTuple(args, "y*p:measure", &buffer, &collections))
        return NULL;
    if (!within_window(&buffer)) {
        PyBuffer_Release(&buffer);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    measure_frames(buffer.buf, (size_t)buffer.len, collections, &totals);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&buffer);
    return Py_BuildValue("nnnnn", (Py_ssize_t)totals.consumed, (Py_ssize_t)totals.rows,
                         (Py_ssize_t)totals.key_bytes, (Py_ssize_t)totals.value_bytes,
                         (Py_ssize_t)totals.controls);
}

/* What the outputs have room for; false, with an exception, if they contradict each other. */
static int
find_room(const Py_buffer *out, Totals *room)
{
    size_t rows = (size_t)out[OP].len;
    room->rows = rows;
    room->key_bytes = (size_t)out[KEY].len;
    room->value_bytes = (size_t)out[VALUE].len;
    room->controls = (size_t)out[CONTROLS].len / (3 * sizeof(uint32_t));
    int fits = rows < INT32_MAX / 8;
    for (int column = OP; fits && column < KEY_OFFSETS; column++)
        fits = (size_t)out[column].len == rows * FIXED_WIDTH[column];
    size_t offsets = (rows + 1) * sizeof(int32_t);
    if (fits && (size_t)out[KEY_OFFSETS].len == offsets
        && (size_t)out[VALUE_OFFSETS].len == offsets)
        return 1;
    PyErr_SetString(PyExc_ValueError, "the columns have not all room for the same rows");
    return 0;
}

static PyObject *
fill(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer buffer, out[OUTPUTS];
    uint8_t *columns[OUTPUTS];
    int collections, filled = 0, failed = 1;
    Totals room;

    if (!PyArg_ParseTuple(args, "y*pw*w*w*w*w*w*w*w*w*w*w*w*w*w*w*:fill", &buffer, &collections,
                          &out[OP], &out[VBUCKET], &out[SEQNO], &out[REV], &out[CAS], &out[FLAGS],
                          &out[EXPIRY], &out[DATATYPE], &out[COLLECTION], &out[OPAQUE],
                          &out[KEY_OFFSETS], &out[KEY], &out[VALUE_OFFSETS], &out[VALUE],
                          &out[CONTROLS]))
        return NULL;
    if (within_window(&buffer) && find_room(out, &room)) {
        for (int column = 0; column < OUTPUTS; column++)
            columns[column] = out[column].buf;
        Py_BEGIN_ALLOW_THREADS
        filled = fill_frames(buffer.buf, (size_t)buffer.len, collections, &room, columns);
        Py_END_ALLOW_THREADS
        failed = !filled;
        if (failed)
            PyErr_SetString(PyExc_ValueError, "the columns do not have the measure of the buffer");
    }
    for (int column = 0; column < OUTPUTS; column++)
        PyBuffer_Release(&out[column]);
    PyBuffer_Release(&buffer);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
patch_opaque(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer buffer;
    unsigned long opaque;
    size_t at = 0, length, frames = 0;

    if (!PyArg_ParseTuple(args, "w*k:patch_opaque", &buffer, &opaque))
        return NULL;
    uint8_t *data = buffer.buf;
    size_t size = (size_t)buffer.len;
    const uint8_t bytes[4] = {(uint8_t)(opaque >> 24), (uint8_t)(opaque >> 16),
                              (uint8_t)(opaque >> 8), (uint8_t)opaque};
    Py_BEGIN_ALLOW_THREADS
    while ((length = frame_length_ahead(data + at, size - at)) != 0) {
        memcpy(data + at + OPAQUE_AT, bytes, sizeof bytes);
        at += length;
        frames++;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&buffer);
    return Py_BuildValue("nn", (Py_ssize_t)frames, (Py_ssize_t)at);
}

static PyMethodDef methods[] = {
    {"measure", measure, METH_VARARGS,
     "measure(buffer, collections) -> (consumed, rows, key bytes, value bytes, controls)"},
    {"fill", fill, METH_VARARGS, "fill(buffer, collections, *columns): fills columns so measured"},
    {"patch_opaque", patch_opaque, METH_VARARGS,
     "patch_opaque(buffer, opaque) -> (frames, bytes of whole frames)"},
    {NULL, NULL, 0, NULL},
};

static int
add_limits(PyObject *module)
{
    PyObject *limits = Py_BuildValue("IIIII", MAX_BODY, MAX_STORED_VALUE, MAX_KEY, MAX_PREFIXED_KEY,
                                     MAX_COLLECTION_KEY);
    int failed = limits == NULL ? -1 : PyModule_AddObjectRef(module, "LIMITS", limits);
    Py_XDECREF(limits);
    return failed;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_limits}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_speedups", "The accelerator of upriver.wire.columns.", 0,
    methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__speedups(void)
{
    return PyModuleDef_Init(&definition);
}
