/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learning rates. Step 0 is the first optimizer step; linear, cosine and constant with warm-up are
 * transformers' get_*_schedule_with_warmup (so with warm-up the very first step has rate 0), wsd is its
 * get_wsd_schedule: warm-up, a constant rate, and decay in the last part. At the end the rate is `floor`.
 */
#pragma once

#include <stdint.h>

enum schedule_kind { SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_CONSTANT, SCHEDULE_WSD };

struct schedule {
	enum schedule_kind kind;
	double peak, floor;
	int64_t steps, warmup; /* in optimizer steps */
	int64_t decay;         /* wsd: the last steps that decay */
};

double schedule_rate(const struct schedule *s, int64_t step);
/* -EINVAL where name is none of linear, cosine, constant, wsd. */
int schedule_kind_parse(const char *name, enum schedule_kind *out);
