/* RowReader: layers of rows from the newest to the oldest, and the one walk that reads them. The walk looks rows up and
 * decodes their sets several at a time, so that cache misses overlap; a sink gets one row after the other. */

#include "row_reader.h"

/* -- layers ----------------------------------------------------------------------------------------------------- */

/* layer(rows, names, hashes, deleted): add a layer below the others.
 *
 * `names`, int32, are the ids in answers of its first feature's ids, or None. `hashes` and `deleted` are the entities
 * that a delta decides, uint64[n, 2] ascending and bool[n], or None. */
READER_METHOD(layer) {
    RowReader *self = (RowReader *)call->self;
    PyObject *object;
    Array names, hashes, deleted;
    if (take(call, "o4?8?1?.", &object, &names, &hashes, &deleted) < 0) return NULL;
    if (hashes.length != 2 * deleted.length || !hashes.data != !deleted.data) return refuse(DO_NOT_FIT);
    RowReader *rows = (RowReader *)object;
    if ((self->kind != NOTHING && self->kind != STACK) || Py_TYPE(object) != Py_TYPE(call->self) ||
        (rows->kind != LISTED && rows->kind != EXACT && rows->kind != SHAPED && rows->kind != NUMBERED) ||
        (self->num_layers && self->layers[0].rows->num_features != rows->num_features))
        return refuse("this is not a layer of the same features");
    Layer *layers = PyMem_Realloc(self->layers, sizeof(Layer) * (size_t)(self->num_layers + 1));
    if (!layers) return PyErr_NoMemory();
    self->layers = layers;
    if (reader_keep(self, call) < 0) return NULL;
    Py_INCREF(object);
    layers[self->num_layers++] = (Layer){rows, names.data, names.length, hashes.data, deleted.data, deleted.length};
    self->kind = STACK;
    Py_RETURN_NONE;
}

/* shards(shift, first_layers, is_served): divide the layers among shards of entities.
 *
 * `hash[0] >> shift` is the shard of an entity. `first_layers`, int64[S + 1], say where the layers of each shard begin;
 * `is_served`, bool[S], which shards may be read. Reads of entities in other shards are refused. */
READER_METHOD(shards) {
    RowReader *self = (RowReader *)call->self;
    Array firsts, served;
    Py_ssize_t shift;
    if (take(call, "n81.", &shift, &firsts, &served) < 0) return NULL;
    const int64_t *first = firsts.data;
    if (self->kind != STACK || self->first_layers || shift < 1 || shift > 63 || served.length != 1ll << (64 - shift) ||
        firsts.length != served.length + 1 || first[0] != 0 || first[served.length] != self->num_layers)
        return refuse(DO_NOT_FIT);
    for (Py_ssize_t s = 0; s < served.length; s++)
        if (first[s] > first[s + 1]) return refuse(DO_NOT_FIT);
    if (reader_keep(self, call) < 0) return NULL;
    self->first_layers = first;
    self->is_served = served.data;
    self->shard_shift = (int)shift;
    Py_RETURN_NONE;
}

/* limits(limits, resolutions, most_sealed, num_shown, is_named, seed): rows of one entity add up from now on.
 *
 * `limits`, int64, say how many items the list of each feature shows, and `resolutions`, int64, within how many
 * microseconds it shows a value once: INT64_MAX for a set, whose values have no times, and 0 for counts, which are added
 * up; `most_sealed`, int64, how many items a seal keeps. The first `num_shown` features are in answers. `is_named` says whether the names of ids are those of one
 * vocabulary. */
READER_METHOD(limits) {
    RowReader *self = (RowReader *)call->self;
    Array limits, resolutions, most_sealed;
    Py_ssize_t num_shown, is_named;
    uint64_t seed;
    if (take(call, "888nnw.", &limits, &resolutions, &most_sealed, &num_shown, &is_named, &seed) < 0) return NULL;
    if (self->kind != STACK || self->limits || limits.length != self->layers->rows->num_features ||
        resolutions.length != limits.length || most_sealed.length != limits.length || num_shown < 0 ||
        num_shown > limits.length)
        return refuse(DO_NOT_FIT);
    for (Py_ssize_t f = 0; f < resolutions.length; f++)
        if (((const int64_t *)resolutions.data)[f] < 0) return refuse("a tick does not take less than nothing");
    for (Py_ssize_t l = 0; l < self->num_layers; l++)
        if (self->layers[l].hashes || self->layers[l].rows->kind == NUMBERED)
            return refuse("rows of deltas and static functions do not add up");
    if (reader_keep(self, call) < 0) return NULL;
    self->limits = limits.data;
    self->most_sealed = most_sealed.data;
    self->resolutions = resolutions.data;
    self->num_shown = num_shown;
    self->is_named = is_named != 0;
    self->seed = seed;
    Py_RETURN_NONE;
}

/* -- the row of an entity --------------------------------------------------------------------------------------- */

/* The layers that an entity may be in; -1 if they are not read here. */
static int find_layers(const RowReader *stack, const uint64_t *hash, Py_ssize_t *first, Py_ssize_t *end) {
    *first = 0;
    *end = stack->num_layers;
    if (!stack->first_layers) return 0;
    uint64_t shard = hash[0] >> stack->shard_shift;
    *first = stack->first_layers[shard];
    *end = stack->first_layers[shard + 1];
    return stack->is_served[shard] ? 0 : -1;
}

/* Finds the row of an entity: FOUND, EXPIRED, ABSENT or FAILED. */
static int locate(const RowReader *stack, const uint64_t *hash, int64_t expire_before, Arena *arena, Place *place) {
    place->stack = stack;
    place->sets = NULL;
    place->num_pieces = 0;
    place->is_ambiguous = 0;
    place->hash = hash;
    place->limits = stack->limits;
    place->most_sealed = stack->most_sealed;
    place->since = expire_before;
    Py_ssize_t first, end;
    if (find_layers(stack, hash, &first, &end) < 0) return fault_note(NOT_SERVED);
    if (stack->limits) return items_locate(stack, hash, first, end, expire_before, arena, place);
    for (Py_ssize_t l = first; l < end; l++) {
        const Layer *layer = stack->layers + l;
        const RowReader *rows = layer->rows;
        if (layer->hashes) {
            int64_t listed = hashes_find(layer->hashes, layer->num_hashes, hash);
            if (listed == NO_ROW) continue;
            if (layer->deleted[listed]) return ABSENT;
        }
        place->layer = layer;
        place->row = rows->find(rows, hash, place);
        if (place->row == NO_ROW) {
            if (layer->hashes) return FAILED; /* a listed entity has no row */
            continue;
        }
        if (place->row < 0 || place->row >= rows->num_rows) return FAILED;
        return rows->date(rows, expire_before, place);
    }
    return ABSENT;
}

/* Prefetches what `locate` needs first. */
static void expect(const RowReader *stack, const uint64_t *hash) {
    Py_ssize_t first, end;
    (void)find_layers(stack, hash, &first, &end);
    for (Py_ssize_t l = first; l < end; l++) {
        const RowReader *rows = stack->layers[l].rows;
        if (rows->expect && !stack->layers[l].hashes) rows->expect(rows, hash); /* few are in deltas */
    }
}

int feature_read(Place *place, Py_ssize_t f, const Feature **feature, Arena *arena, Content *content) {
    *content = (Content){.state = MISSING};
    if (place->num_pieces) return items_merge(place, f, feature, arena, content);
    const Feature *own = *feature = place->layer->rows->features + f;
    if (!own->read) return 0;
    if (own->read(place, own, arena, content) < 0) return FAILED;
    if (!own->is_ones) return 0;
    int64_t *ones = arena_get(arena, (size_t)content->count * sizeof *ones);
    if (!ones) return FAILED;
    for (int64_t i = 0; i < content->count; i++) ones[i] = 1;
    *content = (Content){.state = content->state, .count = content->count, .numbers = ones};
    return 0;
}

/* -- the walk ------------------------------------------------------------------------------------------- */

/* Takes a time, before which rows and items of all entities have expired; or int64[n, 2], for the lists of each entity
 * the time of the oldest item, and one in the first tick that is too new. 0, or -1 with an exception. */
static int take_window(Call *call, Walk *walk) {
    Array windows = {NULL, 0};
    Py_ssize_t expire_before = 0;
    int is_one = call->next == call->stop || PyLong_Check(*call->next);
    if (is_one ? take(call, "n", &expire_before) < 0 : take(call, "8", &windows) < 0) return -1;
    if (!is_one && windows.length != 2 * walk->n) {
        refuse(DO_NOT_FIT);
        return -1;
    }
    walk->expire_before = expire_before;
    walk->windows = is_one ? NULL : windows.data;
    return 0;
}

/* Takes the hashes of entities: 16 bytes each, in bytes or in an array. 0, or -1 with an exception. */
static int take_hashes(Call *call, Walk *walk) {
    Py_buffer *buffer = &call->buffers[call->num_buffers];
    if (call->next == call->stop) {
        refuse("there are no hashes");
        return -1;
    }
    if (PyObject_GetBuffer(*call->next++, buffer, PyBUF_SIMPLE) < 0) return -1;
    call->num_buffers++;
    if (buffer->len % 16 || (uintptr_t)buffer->buf % 8) {
        refuse("a hash has 16 bytes, aligned to 8");
        return -1;
    }
    walk->hashes = buffer->buf;
    walk->n = buffer->len / 16;
    return 0;
}

int walk_begin(Call *call, Walk *walk, int is_dated) {
    walk->stack = (RowReader *)call->self;
    if (walk->stack->kind != STACK) {
        refuse("there are no layers to read");
        return -1;
    }
    if (take_hashes(call, walk) < 0 || take_window(call, walk) < 0) return -1;
    walk->limit = INT64_MAX;
    walk->is_dated = is_dated;
    walk->is_whole = 0;
    arena_init(&walk->arena);
    return 0;
}

/* Rows that are read together. */
typedef struct {
    Py_ssize_t first, number;
    int statuses[ROWS_AT_A_TIME];
    Place places[ROWS_AT_A_TIME];
    RecentWindows recent;
    int have_filter; /* several rows, some features of which may be in one */
} Rows;

static int has_filter(const RowReader *stack) {
    for (Py_ssize_t l = 0; l < stack->num_layers; l++) {
        const RowReader *rows = stack->layers[l].rows;
        if (rows->num_ranges) return 1;
        for (Py_ssize_t f = 0; f < rows->num_features; f++)
            if (rows->features[f].symbols) return 1;
    }
    return 0;
}

/* Prefetches what the next row needs of a filter: shapes, before it is found; or features of a row that was found. */
static void expect_shapes(const RowReader *stack, RecentWindows *recent, const uint64_t *hash) {
    for (Py_ssize_t l = 0; l < stack->num_layers && !stack->first_layers; l++) {
        const RowReader *rows = stack->layers[l].rows;
        for (Py_ssize_t r = 0; r < rows->num_ranges; r++)
            if (rows->ranges[r].is_wanted) windows_expect(recent, rows->ranges[r].shapes, hash);
    }
}

static void expect_features(const RowReader *rows, RecentWindows *recent, const uint64_t *hash) {
    for (Py_ssize_t f = 0; f < rows->num_features; f++)
        if (rows->features[f].symbols) windows_expect(recent, rows->features[f].symbols, hash);
}

/* Finds the next rows; 0 or FAILED. */
static int locate_rows(Walk *walk, Rows *rows) {
    const uint64_t *hashes = walk->hashes + 2 * rows->first;
    for (Py_ssize_t i = 0; i < rows->number && rows->number > 1; i++) expect(walk->stack, hashes + 2 * i);
    for (Py_ssize_t i = 0; i < rows->number; i++) {
        Place *place = rows->places + i;
        if (rows->have_filter && i + 1 < rows->number) expect_shapes(walk->stack, &rows->recent, hashes + 2 * (i + 1));
        place->recent = &rows->recent;
        const int64_t *window = walk->windows ? walk->windows + 2 * (rows->first + i) : NULL;
        place->limit = walk->limit;
        place->until = window ? window[1] : INT64_MAX;
        place->is_dated = walk->is_dated;
        walk->hash = hashes + 2 * i;
        rows->statuses[i] =
            locate(walk->stack, walk->hash, window ? window[0] : walk->expire_before, &walk->arena, place);
        if (rows->statuses[i] == FAILED) return FAILED;
    }
    return 0;
}

static int has_sets(const Rows *rows, Py_ssize_t i) {
    const Place *place = rows->places + i;
    return rows->statuses[i] == FOUND && !place->num_pieces && !place->sets && place->layer->rows->num_sets;
}

/* Reads the sets of all rows, layer by layer; 0 or FAILED. */
static int read_all_sets(Walk *walk, Rows *rows) {
    for (Py_ssize_t i = 0; i < rows->number; i++) {
        Place *alike[ROWS_AT_A_TIME];
        Py_ssize_t number = 0;
        if (!has_sets(rows, i)) continue;
        const RowReader *own = rows->places[i].layer->rows;
        for (Py_ssize_t k = i; k < rows->number; k++)
            if (has_sets(rows, k) && rows->places[k].layer->rows == own) alike[number++] = rows->places + k;
        walk->hash = alike[0]->hash;
        if (sets_read(own, alike, number, &walk->arena) < 0) return FAILED;
    }
    return 0;
}

static int read_rows(Walk *walk, Rows *rows, Sink sink, void *self) {
    if (locate_rows(walk, rows) < 0 || read_all_sets(walk, rows) < 0) return FAILED;
    for (Py_ssize_t i = 0; i < rows->number; i++) {
        const Place *next = rows->places + i + 1;
        if (rows->have_filter && i + 1 < rows->number && rows->statuses[i + 1] == FOUND && !next->num_pieces)
            expect_features(next->layer->rows, &rows->recent, next->hash);
        walk->hash = rows->places[i].hash;
        if (sink(self, rows->first + i, rows->statuses[i], rows->places + i, &walk->arena) < 0) return FAILED;
    }
    return 0;
}

int walk_run(Walk *walk, Sink sink, void *self, Py_ssize_t steps_of_a_row) {
    Rows rows;
    int failed = 0;
    walk->is_long = steps_of_a_row && walk->n > WORTH_RELEASING_GIL / steps_of_a_row;
    memset(rows.recent.symbols, 0, sizeof rows.recent.symbols);
    rows.recent.next = 0;
    rows.have_filter = walk->n > 1 && has_filter(walk->stack);
    if (walk->is_long) gil_release();
    for (rows.first = 0; !failed && rows.first < walk->n; rows.first += rows.number) {
        rows.number = walk->n - rows.first < ROWS_AT_A_TIME ? walk->n - rows.first : ROWS_AT_A_TIME;
        if (!walk->is_whole) arena_reset(&walk->arena);
        failed = read_rows(walk, &rows, sink, self) < 0;
    }
    if (walk->is_long) gil_retake();
    if (failed && !PyErr_Occurred()) fault_raise(walk->hash);
    return failed ? -1 : 0;
}
