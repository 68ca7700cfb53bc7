/* SPDX-License-Identifier: Apache-2.0 */
/* The output directory of a training run: what it has at the start, the checkpoints and the final model. Rank
 * 0 opens it and publishes in it; all ranks write their parts of what is saved. Where nodes do not share it,
 * one rank of each other node does the same with the directory of that name there. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/claim.h"
#include "engine/checkpoint/parameters.h"
#include "engine/checkpoint/weights.h"
#include "engine/comm/comm.h"
#include "engine/device/device.h"

struct saver;

/* What a run does about a checkpoint that it finds. */
enum saver_resume {
	SAVER_RESUME_AUTO,  /* resumes from it */
	SAVER_RESUME_NEVER, /* does not, unless this is a later attempt of the run that wrote it */
	SAVER_RESUME_MUST,  /* resumes from it, and fails where there is none */
};

/* Strings are borrowed until saver_free. */
struct saver_options {
	struct claim claim; /* its directory is the output directory */
	int rank, world_size;
	const char *node; /* names this machine */
	double timeout_s; /* of a collective; a disk that takes nothing for so long is a failure, too */
	/* Where not all nodes find the directory of rank 0, rank 0 writes what the others hold. Without, each
	 * node has a directory of its own with what its ranks hold, and rank 0 writes the model. */
	bool gather;
	bool background; /* checkpoints are copied to host memory, and written while the training goes on */
	enum saver_resume resume;
	/* Of earlier attempts of this run: step of the newest checkpoint, and where rank 0 saved it. Where
	 * the ranks find none, the run fails rather than begins again. 0, NULL: not known. */
	int64_t known_step;
	const char *known_node;
	bool overwrite;           /* removes checkpoints that the run does not go on from */
	int64_t keep;             /* newest checkpoints to keep; 0: all */
	uint64_t max_shard_bytes; /* of a file of weights */
	const char *config;       /* path of the config.json that the model was made from */
	const char *source;       /* directory of the model; NULL: it was made from nothing */
	const char *tokenizer;    /* directory or file of the tokenizer */
	/* What trainer_state.json and state.json record of the run. */
	double epochs;
	int64_t micro_batch, log_steps, eval_steps, save_steps;
	uint64_t seed;
	/* Takes a line for the log; on rank 0 alone. */
	void (*notify)(void *context, const char *message);
	void *context;
};

/* Called before any work. Makes the output directory, checks that it can be written and that this run may use
 * its contents, claims it until saver_free, removes what an interrupted save has left, and finds the
 * checkpoint to resume from. The directory is marked as this attempt's before anything in it is removed. A
 * run that is refused leaves it as it was. */
int saver_open(const struct saver_options *options, struct saver **out, struct error *err);
void saver_free(struct saver *s);
DEFINE_CLEANUP(struct saver *, saver_free)

/* Called by all ranks once they are connected (comm NULL: one rank). Compares the files of the newest
 * checkpoint with what was saved; where it is damaged or incomplete, says so and takes the one before it. An
 * error where there are checkpoints, but none can be used. */
int saver_find(struct saver *s, struct device *dev, struct comm *comm, struct error *err);
/* Whether there is a checkpoint to resume from; after saver_find known to all ranks, with step, tokens and
 * examples of its state. */
bool saver_resumes(const struct saver *s);
/* Reads it into the trainer. Called by all ranks. */
int saver_resume(struct saver *s, const struct weights_place *place, struct error *err);
/* Its path, and all of its state; NULL on other ranks than 0. */
const char *saver_resume_path(const struct saver *s);
const struct checkpoint_state *saver_resume_state(const struct saver *s);

/* Writes a small file beside the checkpoints, in place of one of that name, in each directory that has some:
 * called by all ranks after saver_find, each with the same text. */
int saver_write_beside(struct saver *s, const char *name, const char *text, struct error *err);

/* What is saved. Borrowed until saver_free, but for the fingerprint, which is copied. */
struct saver_contents {
	struct device *dev;
	struct comm *comm; /* NULL: one rank */
	struct parameter_access parameters;
	enum dtype precision; /* of the saved weights */
	const char *precision_name;
	const char *strategy;  /* its name */
	const char *optimizer; /* its name */
	bool master;           /* where the precision is not fp32: a checkpoint has fp32 master weights too */
	bool scores;           /* the model ends in a score */
	const struct peft_config *adapter; /* of what is saved instead of the model; NULL: the model is */
	int32_t bos, eos, pad;             /* the tokenizer's; -1: none */
	const int32_t *stops;              /* ids that end an answer, for generation_config.json */
	size_t n_stops;
	const char *chat_template; /* saved in place of the tokenizer's own; NULL: that stays */
	const char *fingerprint;   /* of what decides the bits (struct checkpoint_state) */
};
/* Called once the trainer exists, before the first save. */
int saver_attach(struct saver *s, const struct saver_contents *contents, struct error *err);
/* Says that the trainer resumed from the checkpoint of that step, which is not written again. */
void saver_resumed(struct saver *s, int64_t step);

/* Keeps an entry for the log_history of trainer_state.json. */
int saver_log(struct saver *s, const struct checkpoint_log *log, struct error *err);
/* How far the run is. */
struct saver_progress {
	int64_t step, steps;                   /* done, and of the whole run */
	int64_t tokens;                        /* seen in this process by all ranks together */
	int64_t examples;                      /* rows of the data seen, over all epochs */
	double epoch;                          /* epochs done */
	const struct loss_scaler *loss_scaler; /* NULL: none */
};
/* Called by all ranks. With `background` it returns as soon as the parameters are copied; a save that is
 * still in progress is waited for first. */
int saver_checkpoint(struct saver *s, const struct saver_progress *at, struct error *err);
/* Called by all ranks after each step: the ranks agree on a save that is in progress. Does nothing
 * without. */
int saver_poll(struct saver *s, struct error *err);
/* Until the checkpoint is published. */
int saver_wait(struct saver *s, struct error *err);
int saver_final(struct saver *s, const struct saver_progress *at, struct error *err);
int64_t saver_saved_step(const struct saver *s); /* of the newest published checkpoint; -1: none */
