/* SPDX-License-Identifier: Apache-2.0 */
/* The saver's own: what finding (saver_find.c) and saving (saver.c) share. */
#pragma once

#include <jansson.h>

#include "engine/checkpoint/places.h"
#include "engine/checkpoint/resume.h"
#include "engine/checkpoint/save_plan.h"
#include "engine/checkpoint/saver.h"
#include "engine/checkpoint/saving.h"

struct saver {
	struct saver_options o;
	bool writer;    /* rank 0 */
	bool publishes; /* rank 0, and the writer of each directory that is not that of rank 0 */
	int claimed; /* file descriptor of the claim on the directory, while it is held; -1: another rank's */
	char *resume_path;
	struct checkpoint_state resumed; /* its history is `history` */
	json_t *resumed_owner, *history;

	bool resumes;
	bool again;    /* a later attempt of the run whose files rank 0 has found: not refused */
	bool looks;    /* for checkpoints, in its directory */
	int64_t found; /* step of the newest of these; -1: none */
	struct resume *resume;

	struct saver_contents from;
	char *fingerprint;
	struct ranks ranks;
	struct places places;      /* which ranks find the same directory */
	bool *shares;              /* of each rank: whether that is the directory of rank 0 */
	bool gathers;              /* rank 0 writes everything */
	bool local;                /* rank 0 writes the model, and each rank its state, on its node */
	void *records;             /* device: what the ranks gather while they save */
	struct safetensors *whole; /* of a multimodal model, on rank 0 */
	struct save_plan *plan;    /* of a checkpoint */
	void *copy;                /* host: plan->bytes; NULL: not in the background */
	int64_t saved_step;        /* of the newest checkpoint, -1: none */

	/* The save that is in progress. */
	struct saving *saving; /* NULL: none */
	bool final;
	char *name, *tmp;
	double started_at;
	struct checkpoint_state state; /* its history is a copy */
	const char *listed[3];
	size_t n_listed;
};

static inline const char *saver_directory(const struct saver *s)
{
	return s->o.claim.directory;
}

/* A line for the log of the run. */
void saver_notify(const struct saver *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* On rank 0: claims the directory, and takes the newest checkpoint in it into s->resumed, where the run may
 * resume. */
int saver_open_directory(struct saver *s, struct error *err);
/* Finds out which ranks share a directory, unless that is known. From here on one rank of each is its
 * writer. */
int saver_open_places(struct saver *s, const struct ranks *ranks, struct error *err);
/* Frees what is known of the checkpoint that was found. */
void saver_forget_checkpoint(struct saver *s);
