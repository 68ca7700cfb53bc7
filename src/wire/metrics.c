/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of the lines of metrics.jsonl. Their order is that of the members in a line. */
#include "wire/metrics.h"

#define F(...) MESSAGE_FIELD(metrics_report, __VA_ARGS__)

static const struct field report_fields[] = {
    F(step, FIELD_INT, FIELD_REQUIRED, .max = INT64_MAX),
    F(steps, FIELD_INT, FIELD_REQUIRED, .max = INT64_MAX),
    F(epoch, FIELD_NUMBER, FIELD_NULL, .absent = FIELD_NAN),
    F(loss, FIELD_NUMBER, FIELD_NULL, .absent = FIELD_NAN),
    F(learning_rate, FIELD_NUMBER, FIELD_NULL, .absent = FIELD_NAN),
    F(grad_norm, FIELD_NUMBER, FIELD_NULL, .absent = FIELD_NAN),
    F(tokens, FIELD_INT, FIELD_REQUIRED, .max = INT64_MAX),
    F(tokens_per_second, FIELD_NUMBER, FIELD_NULL, .absent = FIELD_NAN),
    F(eta_seconds, FIELD_NUMBER, FIELD_NULL, .absent = FIELD_NAN),
    F(time, FIELD_NUMBER, FIELD_NULL, .absent = FIELD_NAN),
    F(step_seconds, FIELD_NUMBER, FIELD_OPTIONAL, .absent = FIELD_NAN),
    F(compute_seconds, FIELD_NUMBER, FIELD_OPTIONAL, .absent = FIELD_NAN),
    F(communication_seconds, FIELD_NUMBER, FIELD_OPTIONAL, .absent = FIELD_NAN),
    F(data_seconds, FIELD_NUMBER, FIELD_OPTIONAL, .absent = FIELD_NAN),
    F(memory_bytes, FIELD_INT, FIELD_OPTIONAL, .max = INT64_MAX),
    F(device_memory_bytes, FIELD_INT, FIELD_OPTIONAL, .max = INT64_MAX),
    F(slowest_rank, FIELD_INT, FIELD_OPTIONAL, .max = INT32_MAX, .absent = -1),
    F(slowest_node, FIELD_STRING, FIELD_OPTIONAL),
    F(slowest_seconds, FIELD_NUMBER, FIELD_OPTIONAL, .absent = FIELD_NAN),
    F(loss_scale, FIELD_NUMBER, FIELD_OPTIONAL),
    F(skipped_steps, FIELD_INT, FIELD_OPTIONAL, .max = INT64_MAX),
    F(eval_loss, FIELD_NUMBER, FIELD_OPTIONAL, .absent = FIELD_NAN),
    F(eval_perplexity, FIELD_NUMBER, FIELD_OPTIONAL, .absent = FIELD_NAN),
};
const struct message metrics_report_message = {"metrics", sizeof(struct metrics_report), report_fields,
                                               ARRAY_SIZE(report_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(metrics_report)

#undef F
#define F(...) MESSAGE_FIELD(metrics_mark, __VA_ARGS__)

static const struct field mark_fields[] = {
    F(event, FIELD_STRING, FIELD_REQUIRED, .min = 1),
    F(step, FIELD_INT, FIELD_REQUIRED, .max = INT64_MAX),
    F(time, FIELD_NUMBER, FIELD_REQUIRED),
    F(attempt, FIELD_INT, FIELD_OPTIONAL, .max = INT32_MAX),
    F(ranks, FIELD_INT, FIELD_OPTIONAL, .max = INT32_MAX),
    F(precision, FIELD_STRING, FIELD_OPTIONAL),
    F(from, FIELD_STRING, FIELD_OPTIONAL),
    F(path, FIELD_STRING, FIELD_OPTIONAL),
    F(signal, FIELD_STRING, FIELD_OPTIONAL),
};
const struct message metrics_mark_message = {"mark", sizeof(struct metrics_mark), mark_fields,
                                             ARRAY_SIZE(mark_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(metrics_mark)

static const struct field step_fields[] = {
    MESSAGE_FIELD(metrics_step, step, FIELD_INT, FIELD_REQUIRED, .max = INT64_MAX),
};
const struct message metrics_step_message = {"line of metrics", sizeof(struct metrics_step), step_fields,
                                             ARRAY_SIZE(step_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(metrics_step)
