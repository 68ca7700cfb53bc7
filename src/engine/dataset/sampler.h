/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sampler: which row a rank sees when. An epoch is a permutation of all rows, a function of (seed,
 * epoch); global step s takes the next world_size · micro_batch · accumulation places of it, micro-step a
 * gives rank r the places (a · world_size + r) · micro_batch + b. So any split of the same global batch sees
 * the same rows. The last step of an epoch is short where the rows do not divide: no row twice, none left out
 * (row -1 marks an empty place).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sampler {
	int64_t rows;
	int world_size, rank, micro_batch, accumulation;
	uint64_t seed;
	bool shuffle;
};
int64_t sampler_steps_per_epoch(const struct sampler *s);
/* out[accumulation · micro_batch]: this rank's rows of global step `step` (from 0, counted over all epochs).
 */
void sampler_step(const struct sampler *s, int64_t step, int64_t *out);
/* All ranks' rows of a step, out[accumulation · world_size · micro_batch]: for the global count of targets.
 */
void sampler_step_all(const struct sampler *s, int64_t step, int64_t *out);
/* Place p of epoch e: a permutation computed without storing it (Feistel network, cycle walking), the same on
 * every machine. */
int64_t sampler_permute(const struct sampler *s, int64_t epoch, int64_t place);
