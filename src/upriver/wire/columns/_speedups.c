/* The accelerator of upriver.wire.columns: the same rules as numpy_path.py, one frame at a time.
 *
 * A buffer is walked twice, once to measure and once to fill columns of exactly that size. Both
 * walks run without the interpreter's lock. No length is believed before it was checked against
 * the bytes that are there, and nothing is written before it was checked against the room that
 * was given, so that even a buffer that changes between the walks cannot reach other memory.
 *
 * This file knows nothing of Arrow: it is given plain writable buffers.
 */

#include "_frames.h"

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
    {"select", select_frames, METH_VARARGS,
     "select(buffer, parts, opaque, stream id or -1, all collections, collections, out, places) -> "
     "(consumed, written, count, left, last seqno)"},
    {NULL, NULL, 0, NULL},
};

static int
add_limits(PyObject *module)
{
    PyObject *limits = Py_BuildValue("IIIIIiiii", MAX_BODY, MAX_STORED_VALUE, MAX_KEY,
                                     MAX_PREFIXED_KEY, MAX_COLLECTION_KEY, MUTATION_OPCODE,
                                     DELETION_OPCODE, EXPIRATION_OPCODE, EVENT_OPCODE);
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
