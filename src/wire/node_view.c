/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of nodes and of lists of devices. */
#include "wire/node_view.h"

const char *const node_states[] = {
    [NODE_UP] = "up", [NODE_DOWN] = "down", [NODE_DRAINED] = "drained", [NODE_UNKNOWN] = "unknown", NULL};

#define F(...) MESSAGE_FIELD(drained_slot, __VA_ARGS__)

static const struct field drained_fields[] = {
    F(index, FIELD_INT, FIELD_REQUIRED),
    F(reason, FIELD_STRING, FIELD_OPTIONAL),
};
static const struct message drained_message = {"drained slot", sizeof(struct drained_slot), drained_fields,
                                               ARRAY_SIZE(drained_fields), MESSAGE_OPEN};

#undef F
#define F(...) MESSAGE_FIELD(foreign_attempt, __VA_ARGS__)

static const struct field foreign_fields[] = {
    F(run, FIELD_INT, FIELD_REQUIRED),
    F(attempt, FIELD_INT, FIELD_REQUIRED),
    F(cluster, FIELD_STRING, FIELD_OPTIONAL),
    F(epoch, FIELD_INT, FIELD_DEFAULT),
    F(user, FIELD_STRING, FIELD_OPTIONAL),
    F(name, FIELD_STRING, FIELD_OPTIONAL),
    F(state, FIELD_ENUM, FIELD_REQUIRED, .names = attempt_states, .other = ATTEMPT_OTHER),
    F(slots, FIELD_INTS, FIELD_DEFAULT, .count_offset = offsetof(struct foreign_attempt, slot_count)),
};
const struct message foreign_attempt_message = {"foreign attempt", sizeof(struct foreign_attempt),
                                                foreign_fields, ARRAY_SIZE(foreign_fields), MESSAGE_OPEN};

MESSAGE_DEFINE_DECODE(foreign_attempt)

static const struct field local_fields[] = {
    MESSAGE_FIELD(local_runs, runs, FIELD_STRUCTS, FIELD_REQUIRED,
                  .count_offset = offsetof(struct local_runs, count), .message = &foreign_attempt_message),
};
const struct message local_runs_message = {"list of runs", sizeof(struct local_runs), local_fields,
                                           ARRAY_SIZE(local_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(local_runs)

#undef F
#define F(...) MESSAGE_FIELD(node_view, __VA_ARGS__)

static const struct field node_fields[] = {
    F(name, FIELD_STRING, FIELD_REQUIRED),
    F(address, FIELD_STRING, FIELD_NULL),
    F(port, FIELD_INT, FIELD_DEFAULT),
    F(state, FIELD_ENUM, FIELD_REQUIRED, .names = node_states, .other = NODE_UNKNOWN),
    F(controller, FIELD_BOOL, FIELD_DEFAULT),
    F(slots, FIELD_INT, FIELD_DEFAULT),
    F(spare_of, FIELD_INTS, FIELD_OPTIONAL, .count_offset = offsetof(struct node_view, spare_count)),
    F(free, FIELD_INT, FIELD_DEFAULT),
    F(version, FIELD_STRING, FIELD_NULL),
    F(launch, FIELD_STRING, FIELD_OPTIONAL),
    F(labels, FIELD_STRINGS, FIELD_DEFAULT),
    F(error, FIELD_STRING, FIELD_NULL),
    F(unreachable, FIELD_STRING, FIELD_OPTIONAL),
    F(failing, FIELD_STRING, FIELD_OPTIONAL),
    F(drained, FIELD_STRUCTS, FIELD_DEFAULT, .count_offset = offsetof(struct node_view, drained_count),
      .message = &drained_message),
    F(hosts_differ, FIELD_BOOL, FIELD_DEFAULT),
    F(foreign, FIELD_STRUCTS, FIELD_DEFAULT, .count_offset = offsetof(struct node_view, foreign_count),
      .message = &foreign_attempt_message),
    F(reason, FIELD_STRING, FIELD_NULL),
    F(last_seen, FIELD_NUMBER, FIELD_NULL),
};
const struct message node_view_message = {"node", sizeof(struct node_view), node_fields,
                                          ARRAY_SIZE(node_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(node_view)

static const struct field nodes_fields[] = {
    MESSAGE_FIELD(node_list, nodes, FIELD_STRUCTS, FIELD_REQUIRED,
                  .count_offset = offsetof(struct node_list, count), .message = &node_view_message),
};
const struct message node_list_message = {"list of nodes", sizeof(struct node_list), nodes_fields,
                                          ARRAY_SIZE(nodes_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(node_list)

static const struct field devices_fields[] = {
    MESSAGE_FIELD(device_list, devices, FIELD_STRUCTS, FIELD_REQUIRED,
                  .count_offset = offsetof(struct device_list, count), .message = &device_info_message),
};
const struct message device_list_message = {"list of devices", sizeof(struct device_list), devices_fields,
                                            ARRAY_SIZE(devices_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(device_list)

#undef F
#define F(...) MESSAGE_FIELD(node_drained, __VA_ARGS__)

static const struct field node_drained_fields[] = {
    F(name, FIELD_STRING, FIELD_REQUIRED),
    F(state, FIELD_ENUM, FIELD_REQUIRED, .names = node_states, .other = NODE_UNKNOWN),
    F(reason, FIELD_STRING, FIELD_NULL),
};
const struct message node_drained_message = {"node", sizeof(struct node_drained), node_drained_fields,
                                             ARRAY_SIZE(node_drained_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(node_drained)

#undef F
#define F(...) MESSAGE_FIELD(node_fenced, __VA_ARGS__)

static const struct field node_fenced_fields[] = {
    F(name, FIELD_STRING, FIELD_REQUIRED),
    F(parts, FIELD_INT, FIELD_DEFAULT),
};
const struct message node_fenced_message = {"node", sizeof(struct node_fenced), node_fenced_fields,
                                            ARRAY_SIZE(node_fenced_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(node_fenced)

#undef F
#define F(...) MESSAGE_FIELD(device_drained, __VA_ARGS__)

static const struct field device_drained_fields[] = {
    F(node, FIELD_STRING, FIELD_REQUIRED),
    F(index, FIELD_INT, FIELD_REQUIRED),
    F(state, FIELD_ENUM, FIELD_REQUIRED, .names = slot_states),
    F(reason, FIELD_STRING, FIELD_NULL),
};
const struct message device_drained_message = {"device", sizeof(struct device_drained), device_drained_fields,
                                               ARRAY_SIZE(device_drained_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(device_drained)

#undef F
#define F(...) MESSAGE_FIELD(service_version, __VA_ARGS__)

static const struct field version_fields[] = {
    F(version, FIELD_STRING, FIELD_REQUIRED),
    F(node, FIELD_STRING, FIELD_REQUIRED),
    F(controller, FIELD_STRING, FIELD_REQUIRED),
};
const struct message service_version_message = {"version", sizeof(struct service_version), version_fields,
                                                ARRAY_SIZE(version_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(service_version)

static const struct field ended_fields[] = {MESSAGE_FIELD(runs_ended, ended, FIELD_INT, FIELD_REQUIRED)};
const struct message runs_ended_message = {"ended runs", sizeof(struct runs_ended), ended_fields,
                                           ARRAY_SIZE(ended_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(runs_ended)

#undef F
#define F(...) MESSAGE_FIELD(foreign_stopped, __VA_ARGS__)

static const struct field stopped_fields[] = {
    F(name, FIELD_STRING, FIELD_REQUIRED),
    F(stopping, FIELD_INT, FIELD_REQUIRED),
};
const struct message foreign_stopped_message = {"foreign work", sizeof(struct foreign_stopped),
                                                stopped_fields, ARRAY_SIZE(stopped_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(foreign_stopped)
