/* SPDX-License-Identifier: Apache-2.0 */
/* The table of what the store keeps of an attempt, and how older versions wrote it. */
#include "wire/run_record.h"

#include <errno.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/str.h"

#define F(...) MESSAGE_FIELD(part_record, __VA_ARGS__)

static const struct field part_fields[] = {
    F(node, FIELD_STRING, FIELD_REQUIRED),        F(ended, FIELD_BOOL, FIELD_DEFAULT),
    F(trouble, FIELD_STRING, FIELD_OPTIONAL),     F(trouble_at, FIELD_NUMBER, FIELD_OPTIONAL),
    F(clock_error, FIELD_NUMBER, FIELD_OPTIONAL), F(boot, FIELD_STRING, FIELD_OPTIONAL),
    F(lease, FIELD_NUMBER, FIELD_OPTIONAL),
};
static const struct message part_message = {"part", sizeof(struct part_record), part_fields,
                                            ARRAY_SIZE(part_fields), MESSAGE_VERSIONED};

#undef F
#define F(...) MESSAGE_FIELD(lost_record, __VA_ARGS__)

static const struct field lost_fields[] = {
    F(node, FIELD_STRING, FIELD_REQUIRED),
    F(attempt, FIELD_INT, FIELD_REQUIRED),
    F(boot, FIELD_STRING, FIELD_OPTIONAL),
    F(lease, FIELD_NUMBER, FIELD_OPTIONAL),
};
static const struct message lost_message = {"lost part", sizeof(struct lost_record), lost_fields,
                                            ARRAY_SIZE(lost_fields), MESSAGE_VERSIONED};

#undef F
#define F(...) MESSAGE_FIELD(rank_error, __VA_ARGS__)

static const struct field rank_error_fields[] = {
    F(rank, FIELD_INT, FIELD_REQUIRED, .max = INT32_MAX),
    F(worker, FIELD_STRING, FIELD_OPTIONAL),
    F(lost_peer, FIELD_BOOL, FIELD_OPTIONAL),
    F(log, FIELD_STRING, FIELD_OPTIONAL),
};
const struct message rank_error_message = {"rank", sizeof(struct rank_error), rank_error_fields,
                                           ARRAY_SIZE(rank_error_fields), MESSAGE_VERSIONED};

#undef F
#define F(...) MESSAGE_FIELD(retry_record, __VA_ARGS__)

static const struct field retry_fields[] = {
    F(restarts, FIELD_INT, FIELD_OPTIONAL),
    F(node_failures, FIELD_INT, FIELD_OPTIONAL),
    F(busy_starts, FIELD_INT, FIELD_OPTIONAL),
    F(stalled, FIELD_INT, FIELD_OPTIONAL),
    F(delays, FIELD_INT, FIELD_OPTIONAL),
    F(delay, FIELD_NUMBER, FIELD_OPTIONAL),
    F(checkpoint, FIELD_INT, FIELD_OPTIONAL),
    F(checkpoint_node, FIELD_STRING, FIELD_OPTIONAL),
    F(checkpoint_before, FIELD_INT, FIELD_OPTIONAL),
    F(last_failure, FIELD_STRING, FIELD_OPTIONAL),
    F(last_detail, FIELD_STRING, FIELD_OPTIONAL),
    F(avoid, FIELD_STRINGS, FIELD_OPTIONAL),
    F(used, FIELD_NUMBER, FIELD_OPTIONAL),
};
const struct message retry_record_message = {"attempts of a run", sizeof(struct retry_record), retry_fields,
                                             ARRAY_SIZE(retry_fields), MESSAGE_VERSIONED};

#undef F
#define F(...) MESSAGE_FIELD(spare_record, __VA_ARGS__)

static const struct field spare_fields[] = {
    F(node, FIELD_STRING, FIELD_REQUIRED),
    F(slots, FIELD_INTS, FIELD_REQUIRED, .count_offset = offsetof(struct spare_record, slot_count),
      .max = INT32_MAX),
    F(worked, FIELD_BOOL, FIELD_OPTIONAL),
};
const struct message spare_record_message = {"spare", sizeof(struct spare_record), spare_fields,
                                             ARRAY_SIZE(spare_fields), MESSAGE_VERSIONED};

#undef F
#define F(...) MESSAGE_FIELD(run_record, __VA_ARGS__)

static const struct field record_fields[] = {
    F(parts, FIELD_STRUCTS, FIELD_OPTIONAL, .count_offset = offsetof(struct run_record, part_count),
      .message = &part_message),
    F(rank_errors, FIELD_STRUCTS, FIELD_OPTIONAL,
      .count_offset = offsetof(struct run_record, rank_error_count), .message = &rank_error_message),
    F(device_error, FIELD_STRING, FIELD_OPTIONAL),
    F(device_node, FIELD_STRING, FIELD_OPTIONAL),
    F(final_failure, FIELD_BOOL, FIELD_OPTIONAL),
    F(lost, FIELD_STRUCTS, FIELD_OPTIONAL, .count_offset = offsetof(struct run_record, lost_count),
      .message = &lost_message),
    F(spares, FIELD_STRUCTS, FIELD_OPTIONAL, .count_offset = offsetof(struct run_record, spare_count),
      .message = &spare_record_message),
    F(retries, FIELD_STRUCT, FIELD_OPTIONAL, .message = &retry_record_message),
    F(timed_out, FIELD_BOOL, FIELD_OPTIONAL),
    F(evicted, FIELD_STRING, FIELD_OPTIONAL),
    F(words, FIELD_OBJECT, FIELD_OPTIONAL),
};
const struct message run_record_message = {"record of a run", sizeof(struct run_record), record_fields,
                                           ARRAY_SIZE(record_fields), MESSAGE_VERSIONED};

/* {"3": {"worker", "lost_peer", "log"}}: a member for each rank becomes an element of the list. */
static int take_words(struct run_record *record, struct error *err)
{
	_cleanup_json_ json_t *words = steal_pointer(record->words);
	json_t *member;
	const char *name;

	if (!words || record->rank_error_count > 0)
		return 0;
	free(record->rank_errors);
	record->rank_errors = calloc(json_object_size(words) + 1, sizeof(*record->rank_errors));
	if (!record->rank_errors)
		return error_oom(err);
	json_object_foreach(words, name, member)
	{
		struct rank_error *own = &record->rank_errors[record->rank_error_count];

		if (str_to_int64(name, 0, INT32_MAX, &own->rank) < 0)
			continue;
		record->rank_error_count++;
		own->lost_peer = json_get_bool(member, "lost_peer", false);
		if (str_replace(&own->worker, json_get_string(member, "worker", NULL)) < 0 ||
		    str_replace(&own->log, json_get_string(member, "log", NULL)) < 0)
			return error_oom(err);
	}
	return 0;
}

int run_record_decode(const json_t *json, struct run_record *record, struct error *err)
{
	int r = message_decode(&run_record_message, json, record, err);

	if (r < 0)
		return r;
	r = take_words(record, err);
	if (r < 0)
		run_record_release(record);
	return r;
}
