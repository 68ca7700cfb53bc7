/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sampler: which row a rank sees when. (Ranks that share their rows are one rank here.) An epoch is a
 * permutation of all rows, a function of (seed, epoch); global step s takes the next world_size · micro_batch
 * · accumulation places of it, micro-step a gives rank r the places (a · world_size + r) · micro_batch + b.
 * So any split of the same global batch sees the same rows. The last step of an epoch is short where the rows
 * do not divide: no row twice, none left out (row -1 marks an empty place).
 *
 * Steps are counted from the start of the run, but a run may go on with another global batch than before.
 * Then its position is the number of rows that it has seen, over all epochs: the epoch goes on at that row.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sampler {
	int64_t rows;
	int world_size, rank, micro_batch, accumulation;
	uint64_t seed;
	bool shuffle;
	/* Set by sampler_start; 0, 0 where all steps of the run have this global batch. */
	int64_t start_step, start_rows;
};
int64_t sampler_steps_per_epoch(const struct sampler *s);
/* Before step `step`, `rows` rows were seen; earlier steps are not asked for from then on. */
void sampler_start(struct sampler *s, int64_t step, int64_t rows);
/* Rows seen before step `step`, over all epochs. */
int64_t sampler_seen(const struct sampler *s, int64_t step);
/* The first step before which at least that many rows were seen. */
int64_t sampler_steps_until(const struct sampler *s, int64_t rows);
/* Epochs done before step `step`, fractional. */
double sampler_epochs(const struct sampler *s, int64_t step);
/* out[accumulation · micro_batch]: this rank's rows of global step `step` (from 0, counted over all
 * epochs). */
void sampler_step(const struct sampler *s, int64_t step, int64_t *out);
/* All ranks' rows of a step, out[accumulation · world_size · micro_batch]: for the global count of
 * targets. */
void sampler_step_all(const struct sampler *s, int64_t step, int64_t *out);
/* Place p of epoch e: a permutation computed without storing it (Feistel network, cycle walking), the same on
 * every machine. */
int64_t sampler_permute(const struct sampler *s, int64_t epoch, int64_t place);
