/* SPDX-License-Identifier: Apache-2.0 */
/* How the next token is drawn from a model's logits. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct sampling {
	double temperature; /* 0: greedy */
	int64_t top_k;      /* 0: all */
	double top_p;       /* 1: all */
	uint64_t seed;
};
/* The next id, chosen on the host in fp32 from generator_logits: temperature, then top_k, then top_p, as
 * transformers does. place: position of the choice in the sequence; the same (seed, place, logits) give the
 * same id. Greedy takes the lowest id among equals. */
int32_t sampling_choose(const struct sampling *s, const float *logits, int64_t vocab, int64_t place,
                        void *work); /* work: sampling_work_bytes(vocab) */
size_t sampling_work_bytes(int64_t vocab);
