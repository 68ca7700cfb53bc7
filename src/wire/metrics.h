/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rank 0 of a native run reports of its progress: a report to the service, POST /v1/runs/ID/metrics, and
 * the same line in metrics.jsonl, which also has marks. Reports of other programs may have any members:
 * whoever shows them reads them with progress_read (run_view.h).
 */
#pragma once

#include "wire/message.h"

/* NaN: not known. */
struct metrics_report {
	int64_t step, steps;
	double epoch, loss, learning_rate, grad_norm; /* null where not known */
	int64_t tokens;
	double tokens_per_second, eta_seconds; /* null where not known */
	double time;                           /* Unix seconds */
	/* Of a step, the mean since the report before; optional. */
	double step_seconds, compute_seconds, communication_seconds, data_seconds;
	/* Of rank 0: the most it had; what the plan takes; optional: 0, not known. */
	int64_t memory_bytes, device_memory_bytes;
	int64_t slowest_rank;              /* optional: -1, none */
	char *slowest_node;                /* optional */
	double slowest_seconds;            /* of a step of that rank, waiting apart; optional */
	double loss_scale;                 /* of fp16; optional: 0, another precision */
	int64_t skipped_steps;             /* of fp16, whose gradients overflowed; optional: 0 */
	double eval_loss, eval_perplexity; /* optional: not evaluated at this step */
};

MESSAGE_DECLARE(metrics_report)

/* The run started, resumed from a checkpoint, saved a checkpoint, or ended. Optional is all behind `time`. */
struct metrics_mark {
	char *event; /* "start", "resume", "checkpoint", "stopped", "model" */
	int64_t step;
	double time;     /* Unix seconds */
	int64_t attempt; /* 0: not told */
	int64_t ranks;   /* 0: not told */
	char *precision; /* of "start" and "resume" */
	char *from;      /* the checkpoint of "resume" */
	char *path;      /* of "checkpoint" and "model" */
	char *signal;    /* of "stopped" */
};

MESSAGE_DECLARE(metrics_mark)

/* What all lines of metrics.jsonl have. */
struct metrics_step {
	int64_t step;
};

MESSAGE_DECLARE(metrics_step)
