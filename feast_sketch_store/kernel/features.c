/* Features of rows: in sets, in columns, in digits of numbers, and one row after the other. */

#include "prepared.h"

/* Whether a read of these rows' sets must read them one by one. */
static int has_dependent(const Prepared *rows) {
    for (Py_ssize_t f = 0; f < rows->num_sets; f++)
        if (rows->sets.codes.of[f].others_width >= 0) return 1;
    return 0;
}

/* Where the sets of rows begin, in blocks that are verified; 0 or FAILED. */
static int begin_sets(const Prepared *rows, Place **places, Py_ssize_t number, Job *jobs) {
    for (Py_ssize_t i = 0; i < number; i++) expect_ascending(&rows->starts.numbers, places[i]->row);
    for (Py_ssize_t i = 0; i < number; i++) {
        int64_t row = places[i]->row;
        uint64_t first = get_checked(&rows->starts, row), stop = rows->sets.num_bits;
        if (first > stop) return FAILED;
        PREFETCH(rows->sets.words + (first >> 6));
        jobs[i].bit = first;
        if (is_finished(&rows->code_blocks)) continue;
        if (row + 1 < rows->num_rows) stop = get_checked(&rows->starts, row + 1);
        if (first > stop || stop > rows->sets.num_bits ||
            !are_verified(&rows->code_blocks, first >> 6, (stop >> 6) + 1))
            return FAILED;
    }
    return 0;
}

/* Reads the sets of one row, some of which are coded relative to others; 0 or FAILED. */
static int read_dependent(const Prepared *rows, uint64_t start, SetOfRow *own, Arena *arena) {
    const Sets *sets = &rows->sets;
    RowOfSets row;
    int64_t room = 256, failed;
    void *memory = arena_get(arena, room_for_row(&sets->codes));
    int32_t *ids = arena_get(arena, (size_t)room * sizeof *ids);
    if (!memory || !ids) return FAILED;
    init_row(&row, &sets->codes, memory);
    row.marks = rows->marks;
    while ((failed = read_row(sets, start, rows->num_sets - 1, &row, ids, 0, room)) > 0) {
        room = 2 * failed;
        ids = arena_get(arena, (size_t)room * sizeof *ids);
        if (!ids) return FAILED;
    }
    if (failed) return FAILED;
    for (Py_ssize_t f = 0; f < rows->num_sets; f++) own[f] = (SetOfRow){row.headers[f], ids + (f ? row.ends[f - 1] : 0)};
    return 0;
}

/* Reads the sets of one feature, where those before end; 0 or FAILED. */
static int read_sets_of_feature(const Prepared *rows, Py_ssize_t f, Job *jobs, Py_ssize_t number, SetOfRow *own,
                                Arena *arena) {
    const Sets *sets = &rows->sets;
    const Code *code = sets->codes.of + f;
    Job *full[ROWS_AT_A_TIME];
    Py_ssize_t num_full = 0;
    int64_t total;
    if (read_headers(sets, code, jobs, number, &total) < 0) return FAILED;
    int32_t *ids = arena_get(arena, (size_t)total * sizeof *ids);
    if (!ids) return FAILED;
    for (Py_ssize_t i = 0; i < number; i++) {
        own[i * rows->num_sets + f] = (SetOfRow){jobs[i].header, ids};
        jobs[i].ids = ids;
        ids += jobs[i].size;
        if (jobs[i].size) full[num_full++] = jobs + i;
    }
    return read_alone(sets, code, full, num_full) < 0 ? FAILED : 0;
}

int read_sets_of(const Prepared *rows, Place **places, Py_ssize_t number, Arena *arena) {
    Job jobs[ROWS_AT_A_TIME];
    SetOfRow *own = arena_get(arena, (size_t)(number * rows->num_sets) * sizeof *own);
    if (!own || begin_sets(rows, places, number, jobs) < 0) return FAILED;
    if (has_dependent(rows)) {
        for (Py_ssize_t i = 0; i < number; i++)
            if (read_dependent(rows, jobs[i].bit, own + i * rows->num_sets, arena) < 0) return FAILED;
    } else {
        for (Py_ssize_t f = 0; f < rows->num_sets; f++)
            if (read_sets_of_feature(rows, f, jobs, number, own, arena) < 0) return FAILED;
    }
    for (Py_ssize_t i = 0; i < number; i++) places[i]->sets = own + i * rows->num_sets;
    return 0;
}

static int read_set(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    if (!place->sets) return FAILED;
    int64_t no_set = place->layer->rows->sets.codes.of[feature->number].no_set;
    const SetOfRow *set = place->sets + feature->number;
    content->state = set->header < no_set ? set->header : set->header > no_set ? VALUE : EMPTY;
    content->count = set->header > no_set ? set->header - no_set : 0;
    content->ids = set->ids;
    if (!feature->own_ids) return 0;
    int32_t *own = arena_get(arena, (size_t)content->count * sizeof *own);
    if (!own) return FAILED;
    content->ids = own;
    for (int64_t i = 0; i < content->count; i++) {
        own[i] = feature->own_ids[set->ids[i]];
        if (own[i] < 0) return FAILED;
    }
    return 0;
}

static int read_column(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    uint64_t first = (uint64_t)place->row;
    int64_t state, start = place->row, stop = start + 1;
    if (get_number(&feature->states, first, &state) < 0) return FAILED;
    int64_t base = (int64_t)feature->states.base;
    if (state < base || state - base > VALUE || base < MISSING || base > VALUE) return FAILED;
    state = base + feature->state_step * (state - base);
    if (state > VALUE) return FAILED;
    content->state = (int)state;
    if (feature->has_bounds) {
        if (get_number(&feature->bounds, first, &start) < 0 || get_number(&feature->bounds, first + 1, &stop) < 0)
            return FAILED;
    } else if (state != VALUE) {
        return 0;
    }
    int64_t num_elements = (int64_t)feature->elements.length - (feature->elements_are == AS_BYTES);
    if (start < 0 || stop < start || stop > num_elements) return FAILED;
    content->count = stop - start;
    size_t count = (size_t)content->count;
    if (feature->elements_are == AS_IDS) {
        int32_t *ids = arena_get(arena, count * sizeof *ids);
        if (!ids) return FAILED;
        content->ids = ids;
        for (int64_t id, i = start; i < stop; i++, *ids++ = (int32_t)id)
            if (get_number(&feature->elements, (uint64_t)i, &id) < 0 || id < 0 || id >= feature->values.length)
                return FAILED;
    } else if (feature->elements_are == AS_NUMBERS) {
        int64_t *numbers = arena_get(arena, count * sizeof *numbers);
        if (!numbers) return FAILED;
        content->numbers = numbers;
        for (int64_t i = start; i < stop; i++)
            if (get_number(&feature->elements, (uint64_t)i, numbers++) < 0) return FAILED;
    } else {
        Slice *slices = arena_get(arena, count * sizeof *slices);
        int64_t begin = 0, end;
        if (!slices) return FAILED;
        content->slices = slices;
        if (count && get_number(&feature->elements, (uint64_t)start, &begin) < 0) return FAILED;
        for (int64_t i = start; i < stop; i++, begin = end) {
            if (get_number(&feature->elements, (uint64_t)i + 1, &end) < 0 || begin < 0 || end < begin ||
                end > feature->num_content_bytes ||
                (end > begin && !are_verified(&feature->content_blocks, (uint64_t)begin >> 3, (uint64_t)(end - 1) >> 3)))
                return FAILED;
            *slices++ = (Slice){feature->content + begin, end - begin};
        }
    }
    return 0;
}

static int read_digits(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    int64_t number;
    if (get_number(&feature->elements, (uint64_t)place->row, &number) < 0) return FAILED;
    uint64_t symbol = (uint64_t)number / feature->divisor % feature->num_symbols;
    if (symbol >= (uint64_t)feature->values.length) {
        content->state = feature->others[symbol - (uint64_t)feature->values.length];
        return content->state > VALUE ? FAILED : 0;
    }
    int32_t *id = arena_get(arena, sizeof *id);
    if (!id) return FAILED;
    *id = (int32_t)symbol;
    content->ids = id;
    content->count = 1;
    content->state = VALUE;
    return 0;
}

int read_exact(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    (void)arena;
    int64_t start = feature->indptr[place->row], stop = feature->indptr[place->row + 1];
    if (start < 0 || stop < start || stop > feature->num_ids) return FAILED;
    content->state = feature->row_states[place->row];
    content->count = stop - start;
    if (feature->ids) {
        content->ids = feature->ids + start;
        content->weights = feature->weights ? feature->weights + start : NULL;
    } else {
        content->numbers = feature->weights + start;
    }
    return content->state > VALUE ? FAILED : 0;
}

static int read_only_state(const Place *place, const Feature *feature, Arena *arena, Content *content) {
    (void)arena;
    return (content->state = read_state(place, feature)) < 0 ? FAILED : 0;
}

/* -- construction ----------------------------------------------------------------------------------------- */

/* feature(tag, is_collection, wire_type, numbers, offsets, data)
 *
 * Begins a feature that the rows do not have yet. Its ids stand for int64 numbers, for bytes, or for nothing. */
PREPARED_METHOD(feature) {
    Prepared *self = (Prepared *)call->self;
    Array tag, numbers, offsets, data;
    Py_ssize_t is_collection, wire;
    if (take(call, "1nn8?8?1?.", &tag, &is_collection, &wire, &numbers, &offsets, &data) < 0) return NULL;
    if ((self->kind != LISTED && self->kind != EXACT && self->kind != SHAPED && self->kind != NUMBERED) || wire < VARINT || wire > FIXED32 ||
        tag.length > (Py_ssize_t)sizeof self->features->tag || (offsets.data && !offsets.length))
        return refuse(DO_NOT_FIT);
    size_t size = sizeof(Feature) * (size_t)(self->num_features + 1);
    Feature *features = PyMem_Realloc(self->features, size);
    if (!features) return PyErr_NoMemory();
    self->features = features;
    if (keep(self, call) < 0) return NULL;
    Feature *feature = features + self->num_features++;
    memset(feature, 0, sizeof *feature);
    memcpy(feature->tag, tag.data, (size_t)tag.length);
    feature->tag_size = tag.length;
    feature->is_collection = is_collection != 0;
    feature->wire = (int)wire;
    feature->values = (Values){numbers.data, offsets.data, data.data, numbers.length, data.length};
    if (offsets.data) feature->values.length = offsets.length - 1;
    Py_RETURN_NONE;
}

Feature *begun(Prepared *self, int kind) {
    if (self->kind == (unsigned)kind && self->num_features && !self->features[self->num_features - 1].read)
        return self->features + self->num_features - 1;
    refuse("no feature was begun");
    return NULL;
}

/* from_set(number, own_ids): the feature is in the sets. */
PREPARED_METHOD(from_set) {
    Prepared *self = (Prepared *)call->self;
    Feature *feature = begun(self, LISTED);
    Array own_ids;
    if (!feature || take(call, "n4?.", &feature->number, &own_ids) < 0) return NULL;
    if (!self->marks || feature->number < 0 || feature->number >= self->sets.codes.number ||
        (own_ids.data && own_ids.length != self->sets.codes.of[feature->number].num_symbols))
        return refuse(DO_NOT_FIT);
    feature->own_ids = own_ids.data;
    mark_wanted(&self->sets.codes, feature->number, self->marks);
    if (feature->number >= self->num_sets) self->num_sets = feature->number + 1;
    feature->read = read_set;
    return done(self, call);
}

/* from_column(states ..., step, bounds ... of a collection, else Nones, elements ..., elements_are, is_text,
 *             content, check): see structures/columns.py. */
PREPARED_METHOD(from_column) {
    Prepared *self = (Prepared *)call->self;
    Feature *feature = begun(self, LISTED);
    Array content;
    Py_ssize_t step, elements_are, is_text;
    if (!feature || take_numbers(call, &feature->states) < 0 || take(call, "n", &step) < 0 ||
        take_numbers(call, &feature->bounds) < 0 || take_numbers(call, &feature->elements) < 0 ||
        take(call, "nn8?", &elements_are, &is_text, &content) < 0 || take_blocks(call, &feature->content_blocks) < 0 ||
        take(call, ".") < 0)
        return NULL;
    if (step < 1 || elements_are < AS_IDS || elements_are > AS_BYTES) return refuse(DO_NOT_FIT);
    feature->state_step = step;
    feature->has_bounds = feature->bounds.length != 0;
    feature->elements_are = (unsigned)elements_are;
    feature->is_text = is_text != 0;
    feature->content = content.data;
    feature->num_content_bytes = 8 * content.length;
    feature->read = read_column;
    return done(self, call);
}

/* from_digits(numbers ..., divisor, others): `others` are states, uint8; see structures/scalars.py. */
PREPARED_METHOD(from_digits) {
    Prepared *self = (Prepared *)call->self;
    Feature *feature = begun(self, LISTED);
    Array others;
    if (!feature || take_numbers(call, &feature->elements) < 0 || take(call, "w1.", &feature->divisor, &others) < 0)
        return NULL;
    feature->num_others = (uint64_t)others.length;
    feature->num_symbols = (uint64_t)feature->values.length + feature->num_others;
    if (!feature->divisor || !feature->num_symbols) return refuse(DO_NOT_FIT);
    feature->others = others.data;
    feature->read = read_digits;
    return done(self, call);
}

/* from_rows(states, indptr, ids, weights): uint8[n], int64[n + 1], int32[nnz]; and int64[nnz] or None. */
PREPARED_METHOD(from_rows) {
    Prepared *self = (Prepared *)call->self;
    Feature *feature = begun(self, EXACT);
    Array states, indptr, ids, weights;
    if (!feature || take(call, "1848?.", &states, &indptr, &ids, &weights) < 0) return NULL;
    if (states.length != self->num_rows || indptr.length != self->num_rows + 1 ||
        (weights.data && weights.length != ids.length))
        return refuse(DO_NOT_FIT);
    feature->row_states = states.data;
    feature->indptr = indptr.data;
    feature->ids = ids.data;
    feature->weights = weights.data;
    feature->num_ids = ids.length;
    feature->read = read_exact;
    return done(self, call);
}

/* from_states(): of the feature only `states` are known. */
PREPARED_METHOD(from_states) {
    Prepared *self = (Prepared *)call->self;
    Feature *feature = begun(self, (int)self->kind);
    if (!feature || take(call, ".") < 0) return NULL;
    feature->read = read_only_state;
    Py_RETURN_NONE;
}

/* states(numbers ..., range): the states of the last feature by row, or by the shapes of a range; if its values do not
 * imply them. */
PREPARED_METHOD(states) {
    Prepared *self = (Prepared *)call->self;
    if (!self->num_features) return refuse("no feature was begun");
    Feature *feature = self->features + self->num_features - 1;
    Py_ssize_t range;
    if (take_numbers(call, &feature->states) < 0 || take(call, "n.", &range) < 0) return NULL;
    if (range < 0 || (range && range >= self->num_ranges) ||
        (int64_t)feature->states.length != (range ? self->ranges[range].shapes->num_symbols : self->num_rows))
        return refuse(DO_NOT_FIT);
    if (keep(self, call) < 0) return NULL;
    feature->range = range;
    if (range) self->ranges[range].is_wanted = 1;
    Py_RETURN_NONE;
}

/* ones(tag, wire_type): the last feature has a one for each of its values instead of these. */
PREPARED_METHOD(ones) {
    Prepared *self = (Prepared *)call->self;
    Array tag;
    Py_ssize_t wire;
    if (!self->num_features) return refuse("no feature was begun");
    Feature *feature = self->features + self->num_features - 1;
    if (take(call, "1n.", &tag, &wire) < 0) return NULL;
    if (tag.length > (Py_ssize_t)sizeof feature->tag || wire != VARINT) return refuse(DO_NOT_FIT);
    memcpy(feature->tag, tag.data, (size_t)tag.length);
    feature->tag_size = tag.length;
    feature->wire = (int)wire;
    feature->is_ones = 1;
    Py_RETURN_NONE;
}
