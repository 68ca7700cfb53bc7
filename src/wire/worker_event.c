/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a worker's events. */
#include "wire/worker_event.h"

#define F(...) MESSAGE_FIELD(worker_event, __VA_ARGS__)

static const struct field event_fields[] = {
    F(rank, FIELD_INT, FIELD_REQUIRED, .max = INT32_MAX),
    F(kind, FIELD_STRING, FIELD_REQUIRED),
    F(message, FIELD_STRING, FIELD_OPTIONAL),
};
const struct message worker_event_message = {"event", sizeof(struct worker_event), event_fields,
                                             ARRAY_SIZE(event_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(worker_event)
