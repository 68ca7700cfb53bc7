/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of a preflight's request and answer. */
#include "wire/preflight.h"

#include <sys/types.h>

enum { ERRNO_MAX = 4095 };

#define F(...) MESSAGE_FIELD(run_user, __VA_ARGS__)

static const struct field user_fields[] = {
    F(name, FIELD_STRING, FIELD_REQUIRED),
    F(home, FIELD_STRING, FIELD_REQUIRED),
    F(shell, FIELD_STRING, FIELD_REQUIRED),
    F(uid, FIELD_INT, FIELD_REQUIRED, .max = (uid_t)-2),
    F(gid, FIELD_INT, FIELD_REQUIRED, .max = (gid_t)-2),
    F(groups, FIELD_INTS, FIELD_REQUIRED, .count_offset = offsetof(struct run_user, group_count),
      .max = (gid_t)-2),
    F(change, FIELD_BOOL, FIELD_DEFAULT),
};
const struct message run_user_message = {"user", sizeof(struct run_user), user_fields,
                                         ARRAY_SIZE(user_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(run_user)

#undef F
#define F(...) MESSAGE_FIELD(preflight_request, __VA_ARGS__)

static const struct field request_fields[] = {
    F(user, FIELD_STRING, FIELD_REQUIRED, .min = 1), F(uid, FIELD_INT, FIELD_REQUIRED, .max = (uid_t)-2),
    F(directory, FIELD_STRING, FIELD_OPTIONAL),      F(program, FIELD_STRING, FIELD_REQUIRED),
    F(engine, FIELD_STRING, FIELD_OPTIONAL),         F(path, FIELD_STRING, FIELD_OPTIONAL),
    F(model, FIELD_STRING, FIELD_OPTIONAL),          F(teacher, FIELD_STRING, FIELD_OPTIONAL),
    F(reward_model, FIELD_STRING, FIELD_OPTIONAL),   F(reference, FIELD_STRING, FIELD_OPTIONAL),
    F(output_dir, FIELD_STRING, FIELD_OPTIONAL),     F(offload_dir, FIELD_STRING, FIELD_OPTIONAL),
    F(log_dir, FIELD_STRING, FIELD_OPTIONAL),        F(socket, FIELD_STRING, FIELD_OPTIONAL),
    F(own_mounts, FIELD_BOOL, FIELD_DEFAULT),
};
const struct message preflight_request_message = {"preflight request", sizeof(struct preflight_request),
                                                  request_fields, ARRAY_SIZE(request_fields),
                                                  MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(preflight_request)

#undef F
#define F(...) MESSAGE_FIELD(preflight_line, __VA_ARGS__)

static const struct field line_fields[] = {
    F(step, FIELD_STRING, FIELD_OPTIONAL),
    F(user, FIELD_STRUCT, FIELD_OPTIONAL, .message = &run_user_message),
    F(error, FIELD_INT, FIELD_OPTIONAL, .min = -ERRNO_MAX, .absent = PREFLIGHT_UNDER_WAY),
    F(message, FIELD_STRING, FIELD_OPTIONAL),
};
const struct message preflight_line_message = {"preflight", sizeof(struct preflight_line), line_fields,
                                               ARRAY_SIZE(line_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(preflight_line)
