/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of what the controller asks of a node. */
#include "wire/start_request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "base/str.h"

#define F(...) MESSAGE_FIELD(start_rank, __VA_ARGS__)

static const struct field rank_fields[] = {
    F(rank, FIELD_INT, FIELD_REQUIRED, .max = INT32_MAX),
    F(local_rank, FIELD_INT, FIELD_REQUIRED, .max = INT32_MAX),
    F(slot, FIELD_INT, FIELD_OPTIONAL, .max = INT32_MAX, .absent = -1),
    F(slots, FIELD_INTS, FIELD_OPTIONAL, .count_offset = offsetof(struct start_rank, slot_count),
      .max = INT32_MAX),
};
static const struct message rank_message = {"rank", sizeof(struct start_rank), rank_fields,
                                            ARRAY_SIZE(rank_fields), MESSAGE_VERSIONED};

static json_t *config_encode(const void *member)
{
	json_t *json = NULL;

	return run_config_to_json(member, &json, NULL) < 0 ? NULL : json;
}

static int config_decode(const json_t *json, const char *where, bool lenient, void **member,
                         struct error *err)
{
	struct run_config *config = NULL;
	int r = run_config_decode(json, where, lenient, &config, err);

	*member = config;
	return r;
}

static void config_release(void *member)
{
	run_config_free(member);
}

static const struct field_codec config_codec = {config_encode, config_decode, config_release};

#undef F
#define F(...) MESSAGE_FIELD(start_request, __VA_ARGS__)

static const struct field start_fields[] = {
    F(controller, FIELD_STRING, FIELD_OPTIONAL),
    F(cluster, FIELD_STRING, FIELD_OPTIONAL),
    F(epoch, FIELD_INT, FIELD_OPTIONAL),
    F(run, FIELD_INT, FIELD_REQUIRED, .min = 1, .max = INT64_MAX),
    F(attempt, FIELD_INT, FIELD_REQUIRED, .min = 1, .max = INT32_MAX),
    F(user, FIELD_STRING, FIELD_REQUIRED, .min = 1),
    F(uid, FIELD_INT, FIELD_REQUIRED, .max = (uid_t)-2),
    F(gid, FIELD_INT, FIELD_OPTIONAL, .max = (gid_t)-2, .absent = -1),
    F(config, FIELD_CODED, FIELD_REQUIRED, .codec = &config_codec),
    F(world_size, FIELD_INT, FIELD_REQUIRED, .min = 1, .max = 1 << 20),
    F(nodes, FIELD_COUNT, FIELD_OPTIONAL, .min = 1, .max = 1 << 20, .absent = 1),
    F(node_rank, FIELD_INT, FIELD_OPTIONAL, .max = 1 << 20),
    F(local_world_size, FIELD_INT, FIELD_OPTIONAL, .min = 1, .max = 1 << 20),
    F(master_addr, FIELD_STRING, FIELD_OPTIONAL, .min = 1),
    F(master_port, FIELD_INT, FIELD_OPTIONAL, .max = PORT_MAX),
    F(until, FIELD_NUMBER, FIELD_OPTIONAL),
    F(checkpoint, FIELD_INT, FIELD_OPTIONAL, .max = INT64_MAX),
    F(checkpoint_node, FIELD_STRING, FIELD_OPTIONAL),
    F(ranks, FIELD_STRUCTS, FIELD_REQUIRED, .count_offset = offsetof(struct start_request, rank_count),
      .message = &rank_message),
};
const struct message start_request_message = {"start request", sizeof(struct start_request), start_fields,
                                              ARRAY_SIZE(start_fields), MESSAGE_VERSIONED};

bool start_may_succeed_later(int code)
{
	static const int codes[] = {
	    EAGAIN,   ETIMEDOUT,   EIO,       ENOMEM,       ENOBUFS,      ENOSPC,       EDQUOT,
	    EMFILE,   ENFILE,      ESHUTDOWN, ENOTCONN,     ECONNRESET,   EPIPE,        EINTR,
	    ENETDOWN, ENETUNREACH, EHOSTDOWN, EHOSTUNREACH, ECONNREFUSED, ECONNABORTED, EADDRINUSE,
	};

	for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
		if (code == -codes[i])
			return true;
	return false;
}

#undef F
#define F(...) MESSAGE_FIELD(node_position, __VA_ARGS__)

static const struct field answer_fields[] = {
    F(instance, FIELD_STRING, FIELD_OPTIONAL),
    F(sequence, FIELD_INT, FIELD_OPTIONAL),
};
const struct message node_position_message = {"position of a node", sizeof(struct node_position),
                                              answer_fields, ARRAY_SIZE(answer_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(node_position)

#undef F
#define F(...) MESSAGE_FIELD(stop_request, __VA_ARGS__)

static const struct field stop_fields[] = {
    F(controller, FIELD_STRING, FIELD_OPTIONAL),
    F(cluster, FIELD_STRING, FIELD_OPTIONAL),
    F(epoch, FIELD_INT, FIELD_OPTIONAL),
    F(run, FIELD_INT, FIELD_REQUIRED, .min = 1, .max = INT64_MAX),
    F(attempt, FIELD_INT, FIELD_REQUIRED, .min = 1, .max = INT32_MAX),
    F(save, FIELD_NUMBER, FIELD_OPTIONAL),
    F(grace, FIELD_NUMBER, FIELD_OPTIONAL, .absent = 30),
    F(foreign, FIELD_BOOL, FIELD_OPTIONAL),
};
const struct message stop_request_message = {"stop request", sizeof(struct stop_request), stop_fields,
                                             ARRAY_SIZE(stop_fields), MESSAGE_VERSIONED};
MESSAGE_DEFINE_DECODE(stop_request)

static const struct field drain_fields[] = {
    MESSAGE_FIELD(drain_request, reason, FIELD_STRING, FIELD_OPTIONAL),
    MESSAGE_FIELD(drain_request, keep_runs, FIELD_BOOL, FIELD_OPTIONAL),
};
const struct message drain_request_message = {"request body", sizeof(struct drain_request), drain_fields,
                                              ARRAY_SIZE(drain_fields), MESSAGE_STRICT};
MESSAGE_DEFINE_DECODE(drain_request)

static int compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return x < y ? -1 : x > y;
}

/* Sorts the list. The number that it has twice, or -1. */
static int64_t find_double(int64_t *list, size_t count)
{
	qsort(list, count, sizeof(*list), compare);
	for (size_t i = 1; i < count; i++)
		if (list[i] == list[i - 1])
			return list[i];
	return -1;
}

static int check_ranks(struct start_request *q, struct error *err)
{
	_cleanup_free_ int64_t *ranks = NULL, *slots = NULL;
	size_t slot_count = 0, n = 0;
	int64_t twice;

	if (q->rank_count == 0)
		return error_set(err, -EINVAL, "start request: ranks: at least one is needed");
	for (size_t i = 0; i < q->rank_count; i++)
		slot_count += MAX(q->ranks[i].slot_count, 1u);
	ranks = calloc(q->rank_count, sizeof(*ranks));
	slots = calloc(slot_count, sizeof(*slots));
	if (!ranks || !slots)
		return error_oom(err);
	for (size_t i = 0; i < q->rank_count; i++) {
		struct start_rank *rank = &q->ranks[i];

		if (rank->slots && rank->slot_count == 0)
			return error_set(err, -EINVAL,
			                 "start request: ranks[%zu].slots: a list of numbers is needed", i);
		if (rank->slot_count > 0)
			rank->slot = rank->slots[0];
		if (rank->slot < 0)
			return error_set(err, -EINVAL, "start request: ranks[%zu].slot: missing", i);
		if (rank->rank >= q->world_size)
			return error_set(err, -ERANGE,
			                 "start request: ranks[%zu].rank: %lld is out of range; world_size "
			                 "is %lld",
			                 i, (long long)rank->rank, (long long)q->world_size);
		ranks[i] = rank->rank;
		for (size_t k = 0; k < rank->slot_count; k++)
			slots[n++] = rank->slots[k];
		if (rank->slot_count == 0)
			slots[n++] = rank->slot;
	}
	if ((twice = find_double(ranks, q->rank_count)) >= 0)
		return error_set(err, -EINVAL, "start request: ranks: rank %lld twice", (long long)twice);
	if ((twice = find_double(slots, n)) >= 0)
		return error_set(err, -EINVAL, "start request: ranks: slot %lld twice", (long long)twice);
	return 0;
}

static int check_start(struct start_request *q, struct error *err)
{
	const char *id = q->cluster ? q->cluster : "";

	/* It is a part of names of files. */
	if (strlen(id) > CLUSTER_ID_MAX || id[strspn(id, "0123456789abcdef")])
		return error_set(err, -EINVAL,
		                 "start request: cluster: at most %d hexadecimal digits are possible",
		                 CLUSTER_ID_MAX);
	if (q->config->task == RUN_COMMAND &&
	    (!q->config->command || !q->config->command[0] || !q->config->command[0][0]))
		return error_set(err, -EINVAL,
		                 "start request: config: command: missing; the program to run is needed");
	return check_ranks(q, err);
}

int start_request_decode(const json_t *json, struct start_request *q, struct error *err)
{
	int r = message_decode(&start_request_message, json, q, err);

	if (r < 0)
		return r;
	r = check_start(q, err);
	if (r < 0) {
		start_request_release(q);
		return r;
	}
	if (q->local_world_size == 0)
		q->local_world_size = (int64_t)q->rank_count;
	if (!run_config_unknown_key(json_object_get(json, "config"), q->unknown_key, sizeof(q->unknown_key)))
		q->unknown_key[0] = '\0';
	return 0;
}
