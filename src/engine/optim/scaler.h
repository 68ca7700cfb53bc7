/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loss scaling for fp16 (Micikevicius et al. 2018), by the rules of DeepSpeed's DynamicLossScaler: the loss
 * is multiplied by a factor, so that small gradients do not vanish in fp16. A step whose gradients overflow
 * is skipped; `hysteresis` overflows, and each one after them, halve the factor; it is doubled after every
 * `window` steps in a row without one.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct loss_scaler_options {
	double fixed;       /* above 0: the factor, which does not change */
	int64_t power;      /* the first factor is 2^power */
	int64_t window;     /* at least 1 */
	int64_t hysteresis; /* at least 1 */
	bool consecutive;   /* a step without overflow restores the hysteresis; false: only a doubling does */
	double least;       /* the factor does not become less; an overflow at it is an error */
};

struct loss_scaler {
	struct loss_scaler_options o;
	double scale;
	int64_t steps;         /* all, skipped ones too */
	int64_t last_overflow; /* the step, from 0; -1: none */
	int64_t hysteresis;    /* what is left of it */
	int64_t skipped;       /* steps that overflowed */
};

void loss_scaler_start(struct loss_scaler *s, const struct loss_scaler_options *o);
/* After each step. -ERANGE: the gradients overflowed at the least factor. */
int loss_scaler_update(struct loss_scaler *s, bool overflow, struct error *err);
/* Goes on from the state of another, with its own options. A fixed factor stays what they say. */
void loss_scaler_resume(struct loss_scaler *s, const struct loss_scaler *state);

/* The state without the options, as an object (NULL: out of memory), and back. `where` names it in errors. */
json_t *loss_scaler_to_json(const struct loss_scaler *s);
int loss_scaler_from_json(struct loss_scaler *s, const json_t *object, const char *where, struct error *err);
