/* SPDX-License-Identifier: Apache-2.0 */
/* Moves parameters between safetensors and memory: the fill (layout.h) that trainer_load and generator_create
 * call, and the access by which the saver reads and writes the state of a trainer. */
#pragma once

#include "engine/checkpoint/safetensors.h"
#include "engine/model/layout.h"

/* The state of a parameter that is saved. */
enum parameter_state {
	STATE_WEIGHTS, /* the master weights, or the weights where there is no master copy */
	STATE_MOMENT1,
	STATE_MOMENT2
};

/* Access to the state of all parameters, which the trainer holds (trainer_access): pieces of it in fp32, on
 * the host. Elements are [first, first + n) of p. */
struct parameter_access {
	const struct model_layout *layout;
	void *context;
	/* As many ranks hold the same elements of each parameter (all of them with ddp; 0: all, too), and
	 * this one is the replica-th of them. Together the ranks of one replica, which are consecutive, hold
	 * everything, each element once. */
	int replicas, replica;
	/* The elements of p that this rank holds: their number, which may be 0, and the first of them. The
	 * same for all kinds of state. NULL: all of them. */
	int64_t (*held)(void *context, const struct model_parameter *p, int64_t *first);
	/* Whether there is such a state of p: an optimizer may keep one moment, or none. NULL: there is. */
	bool (*keeps)(void *context, enum parameter_state which, const struct model_parameter *p);
	/* Of elements that this rank holds; -ENOTSUP where it does not hold them all. */
	int (*read)(void *context, enum parameter_state which, const struct model_parameter *p, int64_t first,
	            int64_t n, float *out, struct error *err);
	/* The same of any elements, from the ranks that hold them. A collective: every rank calls it with the
	 * same arguments, but for out, which may be NULL. */
	int (*gather)(void *context, enum parameter_state which, const struct model_parameter *p,
	              int64_t first, int64_t n, float *out, struct error *err);
	/* Elements that this rank does not hold are left out. */
	int (*write)(void *context, enum parameter_state which, const struct model_parameter *p,
	             int64_t first, int64_t n, const float *in, struct error *err);
	/* Loads all weights from fill, and computes what follows from them. */
	int (*load)(void *context, model_fill_fn fill, void *fill_context, struct error *err);
};

/* Checks that every parameter is there with its shape, and no tensor that hf_check refuses. */
int parameters_check(const struct model_layout *layout, const struct safetensors *st, const char *where,
                     struct error *err);
/* The same of files that a new run begins with: a head that begins at random need not be there. */
int parameters_check_start(const struct model_layout *layout, const struct safetensors *st, const char *where,
                           struct error *err);
/* The same of an adapter's file: what is trained, under the names that it is saved with. */
int parameters_check_adapter(const struct model_layout *layout, const struct safetensors *st,
                             const char *where, struct error *err);
/* Checks that no value is NaN or infinite, since it could not be trained; else -EDOM naming tensor, file and
 * element. `in` has elements [first, first + n) of the tensor. */
int parameters_check_finite(const char *tensor, const char *file, int64_t first, const float *in, int64_t n,
                            struct error *err);
/* The same for an optimizer's moments, in which a squared gradient may have overflowed while the run went on.
 * A NaN is -EDOM. *infinite, which the caller has set to -1, becomes the first element that is infinite. */
int parameters_check_moments(const char *tensor, const char *file, int64_t first, const float *in, int64_t n,
                             int64_t *infinite, struct error *err);
/* context: the struct safetensors, checked. Values have to be finite. */
int parameters_fill(void *safetensors, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                    struct error *err);
/* The same of a file that has what is trained under the names that it is saved with. */
int parameters_fill_saved(void *safetensors, const struct model_parameter *p, int64_t first, int64_t n,
                          float *out, struct error *err);
