/* SPDX-License-Identifier: Apache-2.0 */
/* A run as the controller shows it: in the answers to GET /v1/runs and GET /v1/runs/ID, and in events. */
#pragma once

#include "wire/report.h"

enum run_state {
	RUN_QUEUED,
	RUN_STARTING,
	RUN_RUNNING,
	RUN_STOPPING,
	RUN_SUCCEEDED,
	RUN_FAILED,
	RUN_CANCELLED,
	RUN_TIMED_OUT, /* its time limit was reached */
	RUN_STATES,
	RUN_OTHER, /* in answers: a newer service has more states */
};

/* By enum run_state. The words that are known end with NULL; that of RUN_OTHER follows. */
extern const char *const run_states[];

static inline bool run_state_final(enum run_state state)
{
	return state >= RUN_SUCCEEDED && state < RUN_STATES;
}

struct run_rank {
	int64_t rank;
	char *node;
	int64_t slot; /* the first of its slots */
	int64_t *slots;
	size_t slot_count; /* 0: `slot` is its only one */
	enum rank_state state;
	int64_t pid;         /* 0: there was no process */
	int64_t exit_status; /* -1: it has not exited */
	char *signal;        /* "SIGKILL"; NULL: it was not killed */
	double ended;        /* Unix seconds, of the controller's clock; 0: it has not */
	bool stopped;        /* it ended because its node stopped it */
	bool oom, core_dumped;
};

MESSAGE_DECLARE(run_rank)

struct run_view {
	int64_t id;
	char *name, *user;
	int64_t uid, gid; /* -1: not told */
	char *task;
	enum run_state state;
	int64_t attempt, version;         /* the version grows with every change */
	double submitted, started, ended; /* Unix seconds; 0: not yet */
	char **nodes;                     /* of the newest attempt */
	char **spares;                    /* kept for the next one; NULL: none */
	int64_t world_size;               /* 0: not known before it is placed */
	struct run_rank *ranks;
	size_t rank_count;
	char *reason;        /* why it waits, or the first cause of its failure; NULL: nothing */
	char *detail;        /* for its owner alone; NULL: nothing, or not for this caller */
	int64_t exit_status; /* -1: none */
	json_t *progress;    /* the last report of its rank 0: progress_read; NULL: none yet */
	char *directory, *output;
	int64_t max_restarts, max_node_failures; /* optional, all of these: 0 */
	int64_t restarts, node_failures;         /* attempts that followed such a failure */
	int64_t checkpoint;                      /* step of the newest one that is known */
	char *last_failure;                      /* of the attempt before; NULL: none */
	char *last_detail;                       /* of that failure, for the owner alone; NULL: as detail */
	double time_limit;                       /* seconds; 0: none */
	double time_used; /* of it, by attempts that have ended; 0: none, or there is no limit */
	json_t *config;   /* for its owner alone, in the answer to GET /v1/runs/ID; NULL otherwise */
};

MESSAGE_DECLARE(run_view)

static inline bool run_view_final(const struct run_view *run)
{
	return run_state_final(run->state) || (run->state == RUN_OTHER && run->ended > 0);
}

/* GET /v1/runs. The controller makes this answer run by run, as text: between the two below, a comma between
 * two runs. So thousands of them are never there as structs and JSON at once. */
#define RUN_LIST_BEGIN "{\"runs\":["
#define RUN_LIST_END   "]}\n"
struct run_list {
	struct run_view *runs; /* the newest first */
	size_t count;
};

MESSAGE_DECLARE(run_list)

/* The body of POST /v1/runs. The run file in it is checked by run_config_from_json. */
struct submit_request {
	json_t *config;
};

MESSAGE_DECLARE(submit_request)

/* The answer to POST and DELETE: what became of the run. */
struct run_accepted {
	int64_t id;
	enum run_state state;
};

MESSAGE_DECLARE(run_accepted)

/* A line of GET /v1/events, at each change of a run's state. */
struct run_event {
	double time; /* Unix seconds */
	int64_t run;
	char *name;
	enum run_state state;
	int64_t attempt;
	char *reason; /* NULL: none */
	char **nodes;
};

MESSAGE_DECLARE(run_event)

/* What a report of a run's rank 0 says of its progress. A run may be any program, and its reports may have
 * any members of any type: what is not there, or of another type, is not known. */
struct progress {
	bool has_step, has_loss, has_eval_loss, has_learning_rate, has_tokens_per_second, has_eta_seconds;
	bool has_reward, has_eval_reward; /* of a run that learns from rewards */
	int64_t step, steps;              /* 0: not known */
	double loss, eval_loss;           /* 0: not known */
	double reward, eval_reward;       /* 0: not known */
	double learning_rate;             /* 0: not known */
	double tokens_per_second;         /* 0: not known */
	double eta_seconds;               /* 0: not known */
	const char *message;              /* borrowed from the report; NULL: none */
};

void progress_read(const json_t *report, struct progress *out);
