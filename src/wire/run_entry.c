/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of a run in a shared store. */
#include "wire/run_entry.h"

#define F(...) MESSAGE_FIELD(run_entry, __VA_ARGS__)

static const struct field entry_fields[] = {
    F(id, FIELD_INT, FIELD_REQUIRED, .min = 1, .max = INT64_MAX),
    F(attempt, FIELD_INT, FIELD_REQUIRED),
    F(uid, FIELD_INT, FIELD_REQUIRED, .max = UINT32_MAX - 1),
    F(gid, FIELD_INT, FIELD_REQUIRED, .max = UINT32_MAX - 1),
    F(state, FIELD_ENUM, FIELD_REQUIRED, .names = run_states),
    F(submitted, FIELD_NUMBER, FIELD_OPTIONAL),
    F(started, FIELD_NUMBER, FIELD_OPTIONAL),
    F(ended, FIELD_NUMBER, FIELD_OPTIONAL),
    F(reason, FIELD_STRING, FIELD_OPTIONAL),
    F(detail, FIELD_STRING, FIELD_OPTIONAL),
    F(exit_status, FIELD_INT, FIELD_OPTIONAL, .absent = -1),
    F(cancelled, FIELD_BOOL, FIELD_OPTIONAL),
    F(failed, FIELD_BOOL, FIELD_OPTIONAL),
    F(requeue, FIELD_BOOL, FIELD_OPTIONAL),
    F(nodes, FIELD_INT, FIELD_REQUIRED),
    F(per_node, FIELD_INT, FIELD_REQUIRED),
    F(ranks, FIELD_STRING, FIELD_OPTIONAL),
    F(under_way, FIELD_STRING, FIELD_OPTIONAL),
};
const struct message run_entry_message = {"run in a shared store", sizeof(struct run_entry), entry_fields,
                                          ARRAY_SIZE(entry_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(run_entry)

#undef F
#define F(...) MESSAGE_FIELD(run_pieces, __VA_ARGS__)

static const struct field pieces_fields[] = {
    F(series, FIELD_INT, FIELD_REQUIRED, .max = INT64_MAX),
    F(pieces, FIELD_INT, FIELD_REQUIRED, .min = 1, .max = INT32_MAX),
    F(bytes, FIELD_INT, FIELD_REQUIRED, .min = 1, .max = INT32_MAX),
};
const struct message run_pieces_message = {"pieces of a run", sizeof(struct run_pieces), pieces_fields,
                                           ARRAY_SIZE(pieces_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(run_pieces)

#undef F
#define F(...) MESSAGE_FIELD(run_origin, __VA_ARGS__)

static const struct field origin_fields[] = {
    F(name, FIELD_STRING, FIELD_REQUIRED),   F(user, FIELD_STRING, FIELD_REQUIRED),
    F(task, FIELD_STRING, FIELD_REQUIRED),   F(directory, FIELD_STRING, FIELD_OPTIONAL),
    F(output, FIELD_STRING, FIELD_OPTIONAL), F(config, FIELD_STRING, FIELD_REQUIRED),
    F(key, FIELD_STRING, FIELD_OPTIONAL),
};
const struct message run_origin_message = {"origin of a run", sizeof(struct run_origin), origin_fields,
                                           ARRAY_SIZE(origin_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(run_origin)
