/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of runs as they are shown. */
#include "wire/run_view.h"

#include "base/json.h"

const char *const run_states[] = {
    [RUN_QUEUED] = "queued",       [RUN_STARTING] = "starting",   [RUN_RUNNING] = "running",
    [RUN_STOPPING] = "stopping",   [RUN_SUCCEEDED] = "succeeded", [RUN_FAILED] = "failed",
    [RUN_CANCELLED] = "cancelled", [RUN_TIMED_OUT] = "timed-out", [RUN_STATES] = NULL,
    [RUN_OTHER] = "unknown",
};

#define F(...) MESSAGE_FIELD(run_rank, __VA_ARGS__)

static const struct field rank_fields[] = {
    F(rank, FIELD_INT, FIELD_REQUIRED, .max = INT32_MAX),
    F(node, FIELD_STRING, FIELD_REQUIRED),
    F(slot, FIELD_INT, FIELD_REQUIRED),
    F(slots, FIELD_INTS, FIELD_OPTIONAL, .count_offset = offsetof(struct run_rank, slot_count)),
    F(state, FIELD_ENUM, FIELD_REQUIRED, .names = rank_states, .other = RANK_OTHER),
    F(pid, FIELD_INT, FIELD_OPTIONAL),
    F(exit_status, FIELD_INT, FIELD_OPTIONAL, .absent = -1),
    F(signal, FIELD_STRING, FIELD_OPTIONAL),
    F(ended, FIELD_NUMBER, FIELD_OPTIONAL),
    F(stopped, FIELD_BOOL, FIELD_DEFAULT),
    F(oom, FIELD_BOOL, FIELD_OPTIONAL),
    F(core_dumped, FIELD_BOOL, FIELD_OPTIONAL),
};
const struct message run_rank_message = {"rank", sizeof(struct run_rank), rank_fields,
                                         ARRAY_SIZE(rank_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(run_rank)

#undef F
#define F(...) MESSAGE_FIELD(run_view, __VA_ARGS__)

static const struct field run_fields[] = {
    F(id, FIELD_INT, FIELD_REQUIRED),
    F(name, FIELD_STRING, FIELD_NULL),
    F(user, FIELD_STRING, FIELD_NULL),
    F(uid, FIELD_INT, FIELD_DEFAULT, .absent = -1),
    F(gid, FIELD_INT, FIELD_DEFAULT, .absent = -1),
    F(task, FIELD_STRING, FIELD_NULL),
    F(state, FIELD_ENUM, FIELD_REQUIRED, .names = run_states, .other = RUN_OTHER),
    F(attempt, FIELD_INT, FIELD_DEFAULT),
    F(version, FIELD_INT, FIELD_DEFAULT),
    F(submitted, FIELD_NUMBER, FIELD_NULL),
    F(started, FIELD_NUMBER, FIELD_NULL),
    F(ended, FIELD_NUMBER, FIELD_NULL),
    F(nodes, FIELD_STRINGS, FIELD_DEFAULT),
    F(spares, FIELD_STRINGS, FIELD_OPTIONAL),
    F(world_size, FIELD_INT, FIELD_NULL),
    F(ranks, FIELD_STRUCTS, FIELD_DEFAULT, .count_offset = offsetof(struct run_view, rank_count),
      .message = &run_rank_message),
    F(reason, FIELD_STRING, FIELD_NULL),
    F(detail, FIELD_STRING, FIELD_OPTIONAL),
    F(exit_status, FIELD_INT, FIELD_NULL, .absent = -1),
    F(progress, FIELD_OBJECT, FIELD_NULL),
    F(directory, FIELD_STRING, FIELD_NULL),
    F(output, FIELD_STRING, FIELD_NULL),
    F(max_restarts, FIELD_INT, FIELD_OPTIONAL),
    F(max_node_failures, FIELD_INT, FIELD_OPTIONAL),
    F(restarts, FIELD_INT, FIELD_OPTIONAL),
    F(node_failures, FIELD_INT, FIELD_OPTIONAL),
    F(checkpoint, FIELD_INT, FIELD_OPTIONAL),
    F(last_failure, FIELD_STRING, FIELD_OPTIONAL),
    F(last_detail, FIELD_STRING, FIELD_OPTIONAL),
    F(time_limit, FIELD_NUMBER, FIELD_OPTIONAL),
    F(time_used, FIELD_NUMBER, FIELD_OPTIONAL),
    F(config, FIELD_OBJECT, FIELD_OPTIONAL),
};
const struct message run_view_message = {"run", sizeof(struct run_view), run_fields, ARRAY_SIZE(run_fields),
                                         MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(run_view)

static const struct field list_fields[] = {
    MESSAGE_FIELD(run_list, runs, FIELD_STRUCTS, FIELD_REQUIRED,
                  .count_offset = offsetof(struct run_list, count), .message = &run_view_message),
};
const struct message run_list_message = {"list of runs", sizeof(struct run_list), list_fields,
                                         ARRAY_SIZE(list_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(run_list)

static const struct field submit_fields[] = {
    MESSAGE_FIELD(submit_request, config, FIELD_OBJECT, FIELD_REQUIRED),
};
const struct message submit_request_message = {"request body", sizeof(struct submit_request), submit_fields,
                                               ARRAY_SIZE(submit_fields), MESSAGE_STRICT};
MESSAGE_DEFINE_DECODE(submit_request)

#undef F
#define F(...) MESSAGE_FIELD(run_accepted, __VA_ARGS__)

static const struct field accepted_fields[] = {
    F(id, FIELD_INT, FIELD_REQUIRED),
    F(state, FIELD_ENUM, FIELD_REQUIRED, .names = run_states, .other = RUN_OTHER),
};
const struct message run_accepted_message = {"run", sizeof(struct run_accepted), accepted_fields,
                                             ARRAY_SIZE(accepted_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(run_accepted)

#undef F
#define F(...) MESSAGE_FIELD(run_event, __VA_ARGS__)

static const struct field event_fields[] = {
    F(time, FIELD_NUMBER, FIELD_REQUIRED),
    F(run, FIELD_INT, FIELD_REQUIRED),
    F(name, FIELD_STRING, FIELD_REQUIRED),
    F(state, FIELD_ENUM, FIELD_REQUIRED, .names = run_states, .other = RUN_OTHER),
    F(attempt, FIELD_INT, FIELD_REQUIRED),
    F(reason, FIELD_STRING, FIELD_NULL),
    F(nodes, FIELD_STRINGS, FIELD_DEFAULT),
};
const struct message run_event_message = {"event", sizeof(struct run_event), event_fields,
                                          ARRAY_SIZE(event_fields), MESSAGE_OPEN};
MESSAGE_DEFINE_DECODE(run_event)

void progress_read(const json_t *report, struct progress *out)
{
	*out = (struct progress){
	    .has_step = json_is_integer(json_object_get(report, "step")),
	    .has_loss = json_is_number(json_object_get(report, "loss")),
	    .has_eval_loss = json_is_number(json_object_get(report, "eval_loss")),
	    .has_reward = json_is_number(json_object_get(report, "reward")),
	    .has_eval_reward = json_is_number(json_object_get(report, "eval_reward")),
	    .has_learning_rate = json_is_number(json_object_get(report, "learning_rate")),
	    .has_tokens_per_second = json_is_number(json_object_get(report, "tokens_per_second")),
	    .has_eta_seconds = json_is_number(json_object_get(report, "eta_seconds")),
	    .step = json_get_int(report, "step", 0),
	    .steps = json_get_int(report, "steps", 0),
	    .loss = json_get_number(report, "loss", 0),
	    .eval_loss = json_get_number(report, "eval_loss", 0),
	    .reward = json_get_number(report, "reward", 0),
	    .eval_reward = json_get_number(report, "eval_reward", 0),
	    .learning_rate = json_get_number(report, "learning_rate", 0),
	    .tokens_per_second = json_get_number(report, "tokens_per_second", 0),
	    .eta_seconds = json_get_number(report, "eta_seconds", 0),
	    .message = json_get_string(report, "message", NULL),
	};
}
