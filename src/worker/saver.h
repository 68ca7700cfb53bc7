/* SPDX-License-Identifier: Apache-2.0 */
/* The output directory of a training run: what is there at the start, checkpoints, the final model. Rank 0
 * alone touches it. Saving is for all ranks: while rank 0 writes the others wait for it, and it tells them
 * that it goes on, so that a slow disk is no stall of a collective, and one that stands still is. */
#pragma once

#include "base/cleanup.h"
#include "base/error.h"
#include "config/run.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/train/trainer.h"
#include "worker/environment.h"

struct saver;

/* Before any work: output.dir is made, can be written and is this run's alone until saver_free, leftovers of
 * an interrupted save are gone, and what is there may be used; finds the checkpoint to resume from. c and env
 * are borrowed. */
int saver_open(const struct run_config *c, const struct environment *env, struct saver **out,
               struct error *err);
void saver_free(struct saver *s);
DEFINE_CLEANUP(struct saver *, saver_free)

/* The checkpoint to resume from, or NULL. Other ranks learn it from rank 0. */
const char *saver_resume_path(const struct saver *s);
const struct checkpoint_state *saver_resume_state(const struct saver *s);

/* Once trainer and tokenizer are there (all borrowed; comm may be NULL). fingerprint decides whether a resume
 * is the same run. */
int saver_attach(struct saver *s, struct device *dev, struct comm *comm, struct trainer *t,
                 const struct tokenizer *tok, enum dtype precision, const char *fingerprint,
                 struct error *err);
/* The trainer goes on from a checkpoint, which makes its step: that one need not be written again. */
void saver_resumed(struct saver *s, int64_t step);

/* Keeps what trainer_state.json tells of each report. */
int saver_log(struct saver *s, const struct train_log *log, struct error *err);
int saver_checkpoint(struct saver *s, int64_t step, struct error *err);
int64_t saver_saved_step(const struct saver *s); /* of the newest checkpoint; -1: none */
int saver_final(struct saver *s, struct error *err);
