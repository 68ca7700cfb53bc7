/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of heartbeats. */
#include "wire/heartbeat.h"

#define F(...) MESSAGE_FIELD(known_cluster, __VA_ARGS__)

static const struct field cluster_fields[] = {
    F(id, FIELD_STRING, FIELD_REQUIRED),
    F(epoch, FIELD_INT, FIELD_DEFAULT),
};
static const struct message cluster_message = {"cluster", sizeof(struct known_cluster), cluster_fields,
                                               ARRAY_SIZE(cluster_fields), MESSAGE_VERSIONED};

#undef F
#define F(...) MESSAGE_FIELD(known_clusters, __VA_ARGS__)

static const struct field known_fields[] = {
    F(highest_run, FIELD_INT, FIELD_DEFAULT, .varies = true),
    F(clusters, FIELD_STRUCTS, FIELD_DEFAULT, .count_offset = offsetof(struct known_clusters, cluster_count),
      .message = &cluster_message),
};
const struct message known_clusters_message = {"known clusters", sizeof(struct known_clusters), known_fields,
                                               ARRAY_SIZE(known_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(known_clusters)

#undef F
#define F(...)        MESSAGE_FIELD(heartbeat, __VA_ARGS__)
#define COUNT(member) .count_offset = offsetof(struct heartbeat, member)

static const struct field heartbeat_fields[] = {
    F(node, FIELD_STRING, FIELD_REQUIRED),
    F(hosts, FIELD_STRING, FIELD_OPTIONAL),
    F(instance, FIELD_STRING, FIELD_REQUIRED),
    F(sequence, FIELD_INT, FIELD_REQUIRED, .varies = true),
    F(version, FIELD_STRING, FIELD_REQUIRED),
    F(launch, FIELD_STRING, FIELD_OPTIONAL),
    F(devices, FIELD_STRUCTS, FIELD_REQUIRED, COUNT(device_count), .message = &device_info_message),
    F(attempts, FIELD_STRUCTS, FIELD_REQUIRED, COUNT(attempt_count), .message = &report_message),
    F(ports, FIELD_INTS, FIELD_OPTIONAL, COUNT(port_count), .min = 1, .max = 65535, .varies = true),
    F(port_range, FIELD_INTS, FIELD_OPTIONAL, COUNT(port_range_count), .max = 65535),
    F(shutting_down, FIELD_BOOL, FIELD_DEFAULT),
    F(boot, FIELD_STRING, FIELD_OPTIONAL, .max = 39),
    F(leases, FIELD_BOOL, FIELD_OPTIONAL),
    F(sent, FIELD_NUMBER, FIELD_OPTIONAL, .varies = true),
    F(known, FIELD_STRUCT, FIELD_OPTIONAL, .message = &known_clusters_message),
};
const struct message heartbeat_message = {"heartbeat", sizeof(struct heartbeat), heartbeat_fields,
                                          ARRAY_SIZE(heartbeat_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(heartbeat)

#undef F
#define F(...) MESSAGE_FIELD(short_heartbeat, __VA_ARGS__)

static const struct field short_fields[] = {
    F(node, FIELD_STRING, FIELD_REQUIRED),
    F(instance, FIELD_STRING, FIELD_REQUIRED),
    F(sequence, FIELD_INT, FIELD_REQUIRED),
    F(whole, FIELD_INT, FIELD_REQUIRED),
    F(ports, FIELD_INTS, FIELD_OPTIONAL, .count_offset = offsetof(struct short_heartbeat, port_count),
      .min = 1, .max = 65535),
    F(sent, FIELD_NUMBER, FIELD_OPTIONAL),
    F(highest_run, FIELD_INT, FIELD_OPTIONAL),
};
const struct message short_heartbeat_message = {"short heartbeat", sizeof(struct short_heartbeat),
                                                short_fields, ARRAY_SIZE(short_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(short_heartbeat)

#undef F
#define F(...) MESSAGE_FIELD(forget, __VA_ARGS__)

static const struct field forget_fields[] = {
    F(run, FIELD_INT, FIELD_REQUIRED),
    F(attempt, FIELD_INT, FIELD_REQUIRED),
};
static const struct message forget_message = {"forget", sizeof(struct forget), forget_fields,
                                              ARRAY_SIZE(forget_fields), MESSAGE_VERSIONED};

#undef F
#define F(...) MESSAGE_FIELD(heartbeat_answer, __VA_ARGS__)

static const struct field answer_fields[] = {
    F(forget, FIELD_STRUCTS, FIELD_DEFAULT, .count_offset = offsetof(struct heartbeat_answer, forget_count),
      .message = &forget_message),
    F(time, FIELD_NUMBER, FIELD_DEFAULT),
    F(cluster, FIELD_STRING, FIELD_NULL),
    F(epoch, FIELD_INT, FIELD_DEFAULT),
    F(highest_run, FIELD_INT, FIELD_DEFAULT),
    F(lease, FIELD_NUMBER, FIELD_OPTIONAL),
    F(whole, FIELD_INT, FIELD_OPTIONAL),
    F(interval, FIELD_NUMBER, FIELD_OPTIONAL),
};
const struct message heartbeat_answer_message = {"answer to a heartbeat", sizeof(struct heartbeat_answer),
                                                 answer_fields, ARRAY_SIZE(answer_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(heartbeat_answer)
