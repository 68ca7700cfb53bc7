/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of what passes between the node service and dtrain-launch. */
#include "wire/launch.h"

#include <errno.h>
#include <sys/types.h>

#define F(...) MESSAGE_FIELD(start_record, __VA_ARGS__)

static const struct field record_fields[] = {
    F(uid, FIELD_INT, FIELD_REQUIRED, .max = (uid_t)-2),
    F(slots, FIELD_INTS, FIELD_REQUIRED, .count_offset = offsetof(struct start_record, slot_count),
      .max = INT32_MAX),
    F(cgroup, FIELD_STRING, FIELD_OPTIONAL),
    F(service, FIELD_STRING, FIELD_OPTIONAL),
};
const struct message start_record_message = {"record of a start", sizeof(struct start_record), record_fields,
                                             ARRAY_SIZE(record_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(start_record)

#undef F
#define F(...) MESSAGE_FIELD(rank_description, __VA_ARGS__)

static const struct field rank_fields[] = {
    F(rank, FIELD_INT, FIELD_REQUIRED, .max = INT32_MAX),
    F(slot, FIELD_INT, FIELD_REQUIRED, .max = INT32_MAX),
    F(environment, FIELD_STRINGS, FIELD_REQUIRED),
    F(log, FIELD_STRING, FIELD_OPTIONAL),
    F(error_file, FIELD_STRING, FIELD_OPTIONAL),
    F(cpus, FIELD_STRING, FIELD_OPTIONAL),
    F(numa, FIELD_INT, FIELD_OPTIONAL, .min = -1, .max = INT16_MAX, .absent = -1),
};
static const struct message rank_message = {"rank", sizeof(struct rank_description), rank_fields,
                                            ARRAY_SIZE(rank_fields), MESSAGE_VERSIONED};

#undef F
#define F(...) MESSAGE_FIELD(launch_description, __VA_ARGS__)

static const struct field description_fields[] = {
    F(switch_user, FIELD_BOOL, FIELD_DEFAULT),
    F(umask, FIELD_INT, FIELD_DEFAULT, .max = 0777, .absent = 022),
    F(uid, FIELD_INT, FIELD_REQUIRED, .max = (uid_t)-2),
    F(gid, FIELD_INT, FIELD_REQUIRED, .max = (gid_t)-2),
    F(groups, FIELD_INTS, FIELD_REQUIRED, .count_offset = offsetof(struct launch_description, group_count),
      .max = (gid_t)-2),
    F(user, FIELD_STRING, FIELD_OPTIONAL),
    F(directory, FIELD_STRING, FIELD_OPTIONAL),
    F(tmp_dir, FIELD_STRING, FIELD_OPTIONAL),
    F(core_files, FIELD_BOOL, FIELD_OPTIONAL),
    F(argv, FIELD_STRINGS, FIELD_REQUIRED),
    F(save_signal, FIELD_INT, FIELD_OPTIONAL, .max = 64),
    F(save, FIELD_NUMBER, FIELD_OPTIONAL),
    F(grace, FIELD_NUMBER, FIELD_DEFAULT, .absent = LAUNCH_DEFAULT_GRACE),
    F(record, FIELD_STRING, FIELD_OPTIONAL),
    F(started, FIELD_STRUCT, FIELD_OPTIONAL, .message = &start_record_message),
    F(cgroup, FIELD_STRING, FIELD_OPTIONAL),
    F(service, FIELD_STRING, FIELD_OPTIONAL),
    F(oom_file, FIELD_STRING, FIELD_OPTIONAL),
    F(lease, FIELD_STRING, FIELD_OPTIONAL),
    F(outlives_lease, FIELD_BOOL, FIELD_OPTIONAL),
    F(ranks, FIELD_STRUCTS, FIELD_REQUIRED, .count_offset = offsetof(struct launch_description, rank_count),
      .message = &rank_message),
};
const struct message launch_description_message = {"launch.json", sizeof(struct launch_description),
                                                   description_fields, ARRAY_SIZE(description_fields),
                                                   MESSAGE_VERSIONED};

int launch_description_decode(const json_t *json, struct launch_description *d, struct error *err)
{
	int r = message_decode(&launch_description_message, json, d, err);

	if (r < 0)
		return r;
	if (!d->argv[0])
		r = error_set(err, -EINVAL, "launch.json: argv: it is empty; the program to run is needed");
	else if (d->rank_count == 0)
		r = error_set(err, -EINVAL, "launch.json: ranks: at least one is needed");
	if (r < 0)
		launch_description_release(d);
	return r;
}

#undef F
#define F(...) MESSAGE_FIELD(launch_report, __VA_ARGS__)

static const struct field report_fields[] = {
    F(state, FIELD_ENUM, FIELD_REQUIRED, .names = attempt_states),
    F(launcher, FIELD_INT, FIELD_OPTIONAL, .max = INT32_MAX),
    F(ranks, FIELD_STRUCTS, FIELD_REQUIRED, .count_offset = offsetof(struct launch_report, rank_count),
      .message = &rank_report_message),
    F(reason, FIELD_STRING, FIELD_OPTIONAL),
    F(terminated, FIELD_BOOL, FIELD_OPTIONAL),
    F(lease_ended, FIELD_BOOL, FIELD_OPTIONAL),
};
const struct message launch_report_message = {"dtrain-launch", sizeof(struct launch_report), report_fields,
                                              ARRAY_SIZE(report_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(launch_report)

#undef F
#define F(...) MESSAGE_FIELD(launch_command, __VA_ARGS__)

static const struct field command_fields[] = {
    F(stop, FIELD_NUMBER, FIELD_OPTIONAL, .absent = -1),
    F(acknowledge, FIELD_BOOL, FIELD_OPTIONAL),
    F(confirmed, FIELD_BOOL, FIELD_OPTIONAL),
    F(save, FIELD_NUMBER, FIELD_OPTIONAL),
};
const struct message launch_command_message = {"command to dtrain-launch", sizeof(struct launch_command),
                                               command_fields, ARRAY_SIZE(command_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(launch_command)
