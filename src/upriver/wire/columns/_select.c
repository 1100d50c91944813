/* Stored frames as one stream sends them: those that it wants, in the form that it asked for.
 *
 * One walk chooses, patches and copies. What takes more than that, because a value has to be
 * decompressed or attributes chosen, is left to the caller and pointed at. The walk stops before
 * a system event that the stream has to look at itself, because it may change what is wanted.
 * Nothing is written before it was checked against the room that was given.
 */

#include "_frames.h"

/* What of a change is sent: the bits of Part in frame_selection.py. */
enum {
    PREFIX = 1, VALUE = 2, DATATYPE = 4, XATTRS = 8, DELETED_USER_XATTRS = 16, DELETE_TIMES = 32,
    EXPIRATIONS = 64, DELETIONS = 128, SNAPPY_VALUES = 256, PLAIN_VALUES = 512, EVENTS = 1024
};
enum { SNAPPY = 2, XATTR = 4 }; /* bits of the datatype */
enum { DELETION_EXTRAS = 21, EXPIRATION_EXTRAS = 20, SHORT_DELETION_EXTRAS = 18 };
enum { SEQNOS_SIZE = 16 };
enum { LENGTH_SIZE = 4, NO_STREAM_ID = -1 };

typedef struct {
    unsigned parts;
    uint8_t opaque[4];
    int stream_id;
    int all_collections;
    const uint8_t *collections; /* rising native 32-bit numbers */
    size_t collection_count;
} Selection;

static int
wants(const Selection *selection, uint32_t collection)
{
    size_t low = 0, high = selection->collection_count;

    if (selection->all_collections)
        return 1;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        uint32_t candidate;
        memcpy(&candidate, selection->collections + middle * sizeof candidate, sizeof candidate);
        if (candidate == collection)
            return 1;
        if (candidate < collection)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* The size of the attributes before a body, with their length; 0 if they do not fit the value. */
static size_t
xattrs_size(const uint8_t *value, size_t length)
{
    if (length < LENGTH_SIZE)
        return 0;
    size_t size = load32(value); /* once, so that what was checked is what is used */
    return size > length - LENGTH_SIZE ? 0 : LENGTH_SIZE + size;
}

typedef enum { TAKEN, DROPPED, LEFT } Decision;

/* A packet to be: the parts of a stored frame that it has. */
typedef struct {
    uint8_t opcode;
    uint8_t datatype;
    uint8_t extras_length;
    size_t extras_copied; /* the others are zeros */
    const uint8_t *key;
    size_t key_length;
    const uint8_t *value;
    size_t value_length;
} Packet;

static Decision
choose_mutation(const Selection *selection, const Row *row, Packet *packet)
{
    unsigned parts = selection->parts;
    uint8_t datatype = packet->datatype;
    int compressed = datatype & SNAPPY, has_xattrs = datatype & XATTR;

    if (!(parts & VALUE)) {
        packet->value_length = 0;
        packet->datatype = 0;
        if (has_xattrs && parts & XATTRS) {
            if (compressed || !(packet->value_length = xattrs_size(row->value, row->value_length)))
                return LEFT;
            packet->datatype = XATTR;
        }
        if (parts & DATATYPE)
            packet->datatype = datatype & ~SNAPPY;
        return TAKEN;
    }
    if (has_xattrs && !(parts & XATTRS)) {
        size_t size = compressed ? 0 : xattrs_size(row->value, row->value_length);
        if (!size)
            return LEFT;
        packet->value += size;
        packet->value_length -= size;
        packet->datatype = datatype & ~XATTR;
    }
    if (compressed)
        return parts & SNAPPY_VALUES ? TAKEN : LEFT;
    return parts & PLAIN_VALUES || !packet->value_length ? TAKEN : LEFT;
}

static Decision
choose_removal(const Selection *selection, const Row *row, Packet *packet)
{
    unsigned parts = selection->parts;
    uint8_t datatype = packet->datatype;

    if (!(parts & DELETIONS))
        return DROPPED;
    packet->value_length = 0;
    packet->datatype = 0;
    if (datatype & XATTR && parts & XATTRS) {
        size_t size = xattrs_size(row->value, row->value_length);
        if (datatype & SNAPPY || !(parts & DELETED_USER_XATTRS) || !size)
            return LEFT;
        if (size > LENGTH_SIZE) {
            packet->value_length = size;
            packet->datatype = XATTR;
        }
    }
    if (row->op == EXPIRATION && parts & EXPIRATIONS)
        return TAKEN;
    packet->opcode = DELETION_OPCODE;
    packet->extras_length = parts & DELETE_TIMES ? DELETION_EXTRAS : SHORT_DELETION_EXTRAS;
    packet->extras_copied = parts & DELETE_TIMES ? EXPIRATION_EXTRAS : SEQNOS_SIZE;
    return TAKEN;
}

/* What becomes of a stored frame, and of which parts its packet is made. */
static Decision
choose(const Selection *selection, const uint8_t *frame, size_t length, Packet *packet)
{
    Row row;

    packet->opcode = frame[1];
    packet->datatype = frame[5];
    if (packet->opcode == EVENT_OPCODE) {
        size_t extras_length = frame[4], key_length = load16(frame + 2);
        size_t value_at = HEADER_SIZE + extras_length + key_length;
        if (frame[0] != REQUEST || key_length > UINT8_MAX || value_at > length)
            return LEFT;
        packet->extras_length = (uint8_t)extras_length;
        packet->extras_copied = extras_length;
        packet->key = frame + HEADER_SIZE + extras_length;
        packet->key_length = key_length;
        packet->value = frame + value_at;
        packet->value_length = length - value_at;
        return TAKEN;
    }
    if (frame[0] != REQUEST || !parse_row(frame, length, 1, &row))
        return LEFT;
    if (row.op == DELETION && row.extras_length != DELETION_EXTRAS)
        return LEFT;
    if (!wants(selection, row.collection))
        return DROPPED;
    packet->extras_length = (uint8_t)row.extras_length;
    packet->extras_copied = row.extras_length;
    packet->key = selection->parts & PREFIX ? row.whole_key : row.key;
    packet->key_length = (size_t)(row.value - packet->key);
    packet->value = row.value;
    packet->value_length = row.value_length;
    return row.op == MUTATION ? choose_mutation(selection, &row, packet)
                              : choose_removal(selection, &row, packet);
}

static inline uint8_t *
put(uint8_t *out, const uint8_t *bytes, size_t size)
{
    memcpy(out, bytes, size);
    return out + size;
}

/* Writes a packet; 0 if there is no room for it. */
static size_t
write_packet(const Selection *selection, const uint8_t *frame, const Packet *packet, uint8_t *out,
             size_t room)
{
    size_t framing = selection->stream_id == NO_STREAM_ID ? 0 : STREAM_ID_SIZE;
    size_t body = framing + packet->extras_length + packet->key_length + packet->value_length;
    uint8_t *start = out;

    if (room < HEADER_SIZE + body)
        return 0;
    *out++ = framing ? FLEX_REQUEST : REQUEST;
    *out++ = packet->opcode;
    *out++ = framing ? (uint8_t)framing : (uint8_t)(packet->key_length >> 8);
    *out++ = (uint8_t)packet->key_length;
    *out++ = packet->extras_length;
    *out++ = packet->datatype;
    out = put(out, frame + 6, 2); /* the vbucket */
    *out++ = (uint8_t)(body >> 24);
    *out++ = (uint8_t)(body >> 16);
    *out++ = (uint8_t)(body >> 8);
    *out++ = (uint8_t)body;
    out = put(out, selection->opaque, sizeof selection->opaque);
    out = put(out, frame + 16, 8); /* the cas */
    if (framing) {
        *out++ = STREAM_ID_TAG;
        *out++ = (uint8_t)(selection->stream_id >> 8);
        *out++ = (uint8_t)selection->stream_id;
    }
    out = put(out, frame + HEADER_SIZE, packet->extras_copied);
    memset(out, 0, packet->extras_length - packet->extras_copied);
    out += packet->extras_length - packet->extras_copied;
    out = put(out, packet->key, packet->key_length);
    put(out, packet->value, packet->value_length);
    return (size_t)(out - start) + packet->value_length;
}

typedef struct {
    size_t consumed;
    size_t written;
    size_t count;
    size_t left;
    uint64_t last_seqno;
} Outcome;

/* False if there was no room for a packet. */
static int
walk(const Selection *selection, const uint8_t *data, size_t size, uint8_t *out, size_t room,
     uint8_t *places, size_t most_left, Outcome *outcome)
{
    Outcome sum = {0, 0, 0, 0, 0};
    size_t length;
    Packet packet;

    while ((length = frame_length_ahead(data + sum.consumed, size - sum.consumed)) != 0) {
        const uint8_t *frame = data + sum.consumed;
        int is_change = frame[1] >= MUTATION_OPCODE && frame[1] <= EXPIRATION_OPCODE;
        if (!is_change && !(frame[1] == EVENT_OPCODE && selection->parts & EVENTS))
            break;
        Decision decision = choose(selection, frame, length, &packet);
        if (decision == TAKEN) {
            size_t written = write_packet(selection, frame, &packet, out + sum.written,
                                          room - sum.written);
            if (!written)
                return 0;
            sum.written += written;
            sum.last_seqno = length < HEADER_SIZE + 8 ? 0 : load64(frame + HEADER_SIZE);
            sum.count++;
        } else if (decision == LEFT) {
            if (sum.left == most_left)
                break;
            const uint32_t place[3] = {(uint32_t)sum.written, (uint32_t)sum.consumed,
                                       (uint32_t)length};
            memcpy(places + sum.left * sizeof place, place, sizeof place);
            sum.left++;
        }
        sum.consumed += length;
    }
    *outcome = sum;
    return 1;
}

PyObject *
select_frames(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer data, collections, out, places;
    Selection selection;
    unsigned long opaque;
    Outcome outcome;
    int fits = 0;

    if (!PyArg_ParseTuple(args, "y*Ikipy*w*w*:select", &data, &selection.parts, &opaque,
                          &selection.stream_id, &selection.all_collections, &collections, &out,
                          &places))
        return NULL;
    for (int byte = 0; byte < 4; byte++)
        selection.opaque[byte] = (uint8_t)(opaque >> (24 - 8 * byte));
    selection.collections = collections.buf;
    selection.collection_count = (size_t)collections.len / sizeof(uint32_t);
    if (data.len > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a buffer must be shorter than 2 GiB");
    } else {
        Py_BEGIN_ALLOW_THREADS
        fits = walk(&selection, data.buf, (size_t)data.len, out.buf, (size_t)out.len, places.buf,
                    (size_t)places.len / (3 * sizeof(uint32_t)), &outcome);
        Py_END_ALLOW_THREADS
        if (!fits)
            PyErr_SetString(PyExc_ValueError, "there is no room for what was selected");
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&collections);
    PyBuffer_Release(&out);
    PyBuffer_Release(&places);
    if (!fits)
        return NULL;
    return Py_BuildValue("nnnnK", (Py_ssize_t)outcome.consumed, (Py_ssize_t)outcome.written,
                         (Py_ssize_t)outcome.count, (Py_ssize_t)outcome.left,
                         (unsigned long long)outcome.last_seqno);
}
