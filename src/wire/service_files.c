/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of the service's files. */
#include "wire/service_files.h"

#define F(...) MESSAGE_FIELD(membership, __VA_ARGS__)

static const struct field membership_fields[] = {
    F(controller, FIELD_STRING, FIELD_REQUIRED),
    F(hosts, FIELD_INT, FIELD_REQUIRED, .max = INT32_MAX),
};
const struct message membership_message = {"record of the cluster", sizeof(struct membership),
                                           membership_fields, ARRAY_SIZE(membership_fields),
                                           MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(membership)

#undef F
#define F(...) MESSAGE_FIELD(drain_record, __VA_ARGS__)

static const struct field drain_fields[] = {
    F(device, FIELD_STRING, FIELD_REQUIRED, .min = 1),
    F(reason, FIELD_STRING, FIELD_OPTIONAL),
    F(time, FIELD_NUMBER, FIELD_DEFAULT),
    F(by_hand, FIELD_BOOL, FIELD_DEFAULT),
    F(until_boot, FIELD_BOOL, FIELD_DEFAULT),
    F(pending_accepted, FIELD_BOOL, FIELD_DEFAULT),
    F(failed_accepted, FIELD_BOOL, FIELD_DEFAULT),
};
static const struct message drain_message = {"device", sizeof(struct drain_record), drain_fields,
                                             ARRAY_SIZE(drain_fields), MESSAGE_VERSIONED};

#undef F
#define F(...) MESSAGE_FIELD(drain_list, __VA_ARGS__)

static const struct field list_fields[] = {
    F(boot, FIELD_STRING, FIELD_OPTIONAL),
    F(devices, FIELD_STRUCTS, FIELD_REQUIRED, .count_offset = offsetof(struct drain_list, count),
      .message = &drain_message),
};
const struct message drain_list_message = {"list of drained devices", sizeof(struct drain_list), list_fields,
                                           ARRAY_SIZE(list_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(drain_list)
