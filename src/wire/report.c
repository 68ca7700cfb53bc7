/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of reports. */
#include "wire/report.h"

const char *const attempt_states[] = {
    [ATTEMPT_STARTING] = "starting", [ATTEMPT_RUNNING] = "running", [ATTEMPT_STOPPING] = "stopping",
    [ATTEMPT_ENDED] = "ended",       [ATTEMPT_STATES] = NULL,       [ATTEMPT_OTHER] = "unknown"};
const char *const rank_states[] = {
    [RANK_STARTING] = "starting", [RANK_RUNNING] = "running",         [RANK_EXITED] = "exited",
    [RANK_LOST] = "lost",         [RANK_NOT_STARTED] = "not-started", [RANK_STATES] = NULL,
    [RANK_OTHER] = "unknown"};
static const char *const reported_states[] = {
    [RANK_STARTING] = "starting", [RANK_RUNNING] = "running", [RANK_EXITED] = "exited", NULL};

#define F(...) MESSAGE_FIELD(rank_report, __VA_ARGS__)

static const struct field rank_fields[] = {
    F(rank, FIELD_INT, FIELD_REQUIRED, .max = INT32_MAX),
    F(slot, FIELD_INT, FIELD_OPTIONAL, .max = INT32_MAX, .absent = -1),
    F(state, FIELD_ENUM, FIELD_REQUIRED, .names = reported_states),
    F(pid, FIELD_INT, FIELD_OPTIONAL, .max = INT32_MAX),
    F(exit_status, FIELD_INT, FIELD_OPTIONAL, .max = INT32_MAX, .absent = -1),
    F(signal, FIELD_STRING, FIELD_NULL, .max = 32),
    F(ended, FIELD_NUMBER, FIELD_OPTIONAL),
    F(stopped, FIELD_BOOL, FIELD_DEFAULT),
    F(oom, FIELD_BOOL, FIELD_OPTIONAL),
    F(core_dumped, FIELD_BOOL, FIELD_OPTIONAL),
    F(lost_peer, FIELD_BOOL, FIELD_OPTIONAL),
    F(error, FIELD_STRING, FIELD_OPTIONAL),
};
const struct message rank_report_message = {"rank", sizeof(struct rank_report), rank_fields,
                                            ARRAY_SIZE(rank_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(rank_report)

#undef F
#define F(...) MESSAGE_FIELD(report, __VA_ARGS__)

static const struct field report_fields[] = {
    F(run, FIELD_INT, FIELD_REQUIRED, .min = 1, .max = INT64_MAX),
    F(attempt, FIELD_INT, FIELD_REQUIRED, .min = 1, .max = INT32_MAX),
    F(node, FIELD_STRING, FIELD_REQUIRED),
    F(state, FIELD_ENUM, FIELD_REQUIRED, .names = attempt_states),
    F(ranks, FIELD_STRUCTS, FIELD_REQUIRED, .count_offset = offsetof(struct report, rank_count),
      .message = &rank_report_message),
    F(cluster, FIELD_STRING, FIELD_OPTIONAL),
    F(epoch, FIELD_INT, FIELD_OPTIONAL),
    F(user, FIELD_STRING, FIELD_OPTIONAL),
    F(name, FIELD_STRING, FIELD_OPTIONAL),
    F(reason, FIELD_STRING, FIELD_OPTIONAL),
    F(launcher_lost, FIELD_BOOL, FIELD_OPTIONAL),
    F(shutdown, FIELD_STRING, FIELD_OPTIONAL),
    F(device_errors, FIELD_STRINGS, FIELD_OPTIONAL),
    F(lost, FIELD_BOOL, FIELD_OPTIONAL),
    F(clock_offset, FIELD_NUMBER, FIELD_OPTIONAL, .varies = true),
    F(clock_error, FIELD_NUMBER, FIELD_OPTIONAL, .varies = true),
};
const struct message report_message = {"report", sizeof(struct report), report_fields,
                                       ARRAY_SIZE(report_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(report)
