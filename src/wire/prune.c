/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of POST /v1/prune and of GET /v1/peer/active-runs. */
#include "wire/prune.h"

#define F(...) MESSAGE_FIELD(prune_request, __VA_ARGS__)

static const struct field request_fields[] = {
    F(days, FIELD_NUMBER, FIELD_OPTIONAL, .min = 0, .max = 1000000, .absent = -1),
    F(runs, FIELD_INT, FIELD_OPTIONAL, .min = 0, .max = INT32_MAX, .absent = -1),
    F(dry_run, FIELD_BOOL, FIELD_OPTIONAL),
};
const struct message prune_request_message = {"prune request", sizeof(struct prune_request), request_fields,
                                              ARRAY_SIZE(request_fields), MESSAGE_STRICT};
MESSAGE_DEFINE_DECODE(prune_request)

#undef F
#define F(...) MESSAGE_FIELD(pruned_run, __VA_ARGS__)

static const struct field run_fields[] = {
    F(run, FIELD_INT, FIELD_REQUIRED, .min = 1, .max = INT64_MAX),
    F(bytes, FIELD_INT, FIELD_REQUIRED, .max = INT64_MAX),
    F(changed, FIELD_NUMBER, FIELD_REQUIRED),
};
static const struct message run_message = {"run", sizeof(struct pruned_run), run_fields,
                                           ARRAY_SIZE(run_fields), MESSAGE_OPEN};

#undef F
#define F(...) MESSAGE_FIELD(prune_answer, __VA_ARGS__)

static const struct field answer_fields[] = {
    F(runs, FIELD_STRUCTS, FIELD_REQUIRED, .count_offset = offsetof(struct prune_answer, run_count),
      .message = &run_message),
    F(kept, FIELD_INT, FIELD_REQUIRED, .max = INT64_MAX),
    F(error, FIELD_STRING, FIELD_OPTIONAL),
};
const struct message prune_answer_message = {"answer to a prune request", sizeof(struct prune_answer),
                                             answer_fields, ARRAY_SIZE(answer_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(prune_answer)

#undef F
#define F(...) MESSAGE_FIELD(active_runs, __VA_ARGS__)

static const struct field active_fields[] = {
    F(runs, FIELD_INTS, FIELD_REQUIRED, .count_offset = offsetof(struct active_runs, count), .min = 1,
      .max = INT64_MAX),
};
const struct message active_runs_message = {"active runs", sizeof(struct active_runs), active_fields,
                                            ARRAY_SIZE(active_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(active_runs)
