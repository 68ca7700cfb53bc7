/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of a run. output.dir/checkpoint-STEP/ is a Hugging Face directory with trainer_state.json and,
 * in dtrain/, what a resume needs beyond the weights:
 *
 *     state.json                      the step and what has to be the same for the same bits
 *     rank-R-of-W.safetensors         moments (fp32) and, where the weights are saved in less, master
 * weights, each rank's own part of them (save_plan.h) rank-R-of-W.json, index.json    what each rank has
 * written, with hashes (manifest.h)
 *
 * Each piece says which elements of which parameter it has, hence any number of ranks reads it. Checkpoints
 * of earlier versions have optimizer.safetensors instead: m.NAME, v.NAME and master.NAME, whole. A directory
 * is written as checkpoint-STEP.ATTEMPT.tmp, synced, then renamed: a name without .tmp is complete.
 *
 * Where each node has an output.dir of its own, that of rank 0's node has all of this but the parts of the
 * ranks of other nodes. A directory of another node has the parts of its ranks, state.json and index.json.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/checkpoint/hf.h"
#include "engine/optim/scaler.h"

/* Of a run with a reference model: its log-probabilities (worker/reference.h). */
#define REFERENCE_FILE "reference.logps"

/* Removes what an interrupted save has left in `output`. Only the process that writes there may call it. */
int checkpoint_clean(const char *output, struct error *err);

/* Finds the newest complete checkpoint with a state to resume from whose step is below `before`: its path
 * (owned by the caller) and step. *path is NULL where there is none, or no directory `output`. */
int checkpoint_find(const char *output, int64_t before, char **path, int64_t *step, struct error *err);

/* Whether `output` has files that those of a new run would be mixed with; false where it does not exist.
 * Files that a run leaves when it ends before its first checkpoint (metrics, REFERENCE_FILE, an interrupted
 * save) do not count. */
int checkpoint_output_in_use(const char *output, bool *used, struct error *err);
/* Sets err to why a run is refused such a directory; looked: there is no checkpoint in it, either. Returns
 * -ENOTEMPTY. */
int checkpoint_output_refuse(const char *output, bool looked, struct error *err);
/* Sets err to that output.resume = "must" finds no checkpoint. Returns -ENOENT. */
int checkpoint_output_lacks(const char *output, struct error *err);

/* output/NAME.ATTEMPT.tmp, where a directory is filled; the attempts of a run have different ones. Owned by
 * the caller; NULL: out of memory. */
char *checkpoint_tmp(const char *output, const char *name, int64_t attempt);
/* Makes that directory, empty. */
int checkpoint_begin(const char *tmp, struct error *err);
/* Syncs tmp and renames it to output/NAME. A directory that has that name is replaced in one step. */
int checkpoint_publish(const char *output, const char *name, const char *tmp, struct error *err);
/* The final model: the files of tmp move into `output` itself, the weights last; shards of an older final
 * model that the new one does not have are removed, and so is tmp. */
int checkpoint_publish_files(const char *output, const char *tmp, struct error *err);
/* Removes the oldest checkpoints with a state of ours beyond the newest `keep` (0: none is removed) of those
 * up to `step`. Later ones, from which a run has gone back, neither count nor are removed. */
int checkpoint_prune(const char *output, int64_t keep, int64_t step, struct error *err);
/* Removes all checkpoints that this program wrote, and the metrics: for output.overwrite. */
int checkpoint_remove_all(const char *output, struct error *err);

/* The contents of state.json, and of trainer_state.json, which transformers.TrainerState can read. */
struct checkpoint_state {
	int64_t step, steps;
	double epoch, epochs;
	int64_t tokens;
	/* rows of the data seen, over all epochs; after load, -1 where the file does not say */
	int64_t examples;
	int world_size;
	int64_t micro_batch, log_steps, eval_steps, save_steps;
	uint64_t seed;
	const char *fingerprint; /* of what decides the bits: rows, batch, order; compared at resume */
	/* The precision of the training: "fp32", "bf16", "fp16" or "fp8"; after load, fp32 where the file
	 * does not say. */
	const char *precision;
	const char *strategy;  /* shard_strategy_name; after load, NULL where the file does not say */
	const char *optimizer; /* whose moments it has; after load, "adamw" where the file does not say */
	struct loss_scaler loss_scaler; /* without its options; scale 0: none */
	json_t *log_history;            /* array; borrowed by save, owned by the caller after load */
};
/* resume: dtrain/state.json too; without, trainer_state.json alone (the final model). */
int checkpoint_state_save(const char *directory, const struct checkpoint_state *state, bool resume,
                          struct error *err);
/* dtrain/state.json alone, which is what there is of it on other nodes than that of rank 0. */
int checkpoint_resume_state_save(const char *directory, const struct checkpoint_state *state,
                                 struct error *err);
/* fingerprint points into *owner, which the caller frees with json_decref. Without trainer_state.json there
 * is no log history. */
int checkpoint_state_load(const char *directory, struct checkpoint_state *state, json_t **owner,
                          struct error *err);
/* The same in two steps, so that one rank can read for another; trainer_state may be NULL. */
int checkpoint_state_read(const char *directory, json_t **state_json, json_t **trainer_state,
                          struct error *err);
int checkpoint_state_parse(const char *directory, json_t *state_json, const json_t *trainer_state,
                           struct checkpoint_state *state, json_t **owner, struct error *err);
/* One entry of log_history. Values that are NaN are left out, as absent. */
struct checkpoint_log {
	int64_t step;
	double epoch, loss, learning_rate, grad_norm, eval_loss;
};
int checkpoint_log_add(json_t *log_history, const struct checkpoint_log *log, struct error *err);
