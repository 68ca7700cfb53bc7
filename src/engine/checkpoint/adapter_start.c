/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the adapter that a run goes on from, and compares it with the run's keys. */
#include "engine/checkpoint/adapter_start.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "engine/checkpoint/parameters.h"

/* A number that has been through a message or a file with fewer digits is the same. */
static bool same_number(double a, double b)
{
	return fabs(a - b) <= 1e-6 * fabs(b);
}

/* rank_pattern and alpha_pattern can give a module other values than the adapter's, which a run does not
 * have. */
static int check_modules(const struct peft_adapter *a, const char *directory, const struct model_tuning *now,
                         struct error *err)
{
	for (size_t i = 0; i < a->n_modules; i++) {
		const struct peft_module *m = &a->modules[i];

		if (m->rank != now->rank || !same_number(m->scale, tuning_scale(now)))
			return error_set(err, -ENOTSUP,
			                 "lora.from: the adapter in %s gives %s the rank %" PRId64
			                 " and the scale %.9g (rank_pattern, alpha_pattern); expected rank "
			                 "%" PRId64 " and scale %.9g for every module, as lora.rank and "
			                 "lora.alpha give them",
			                 directory, m->name, m->rank, m->scale, now->rank, tuning_scale(now));
	}
	return 0;
}

int adapter_open(const char *directory, const struct model_tuning *now, const struct model_layout *layout,
                 struct peft_adapter **out, struct error *err)
{
	_cleanup_(peft_adapter_closep) struct peft_adapter *a = NULL;
	const struct peft_config *c;
	int r = peft_adapter_open(directory, NULL, 0, &a, err);

	if (r < 0)
		return error_prefix(err, "lora.from");
	c = &a->config;
	if (c->rank != now->rank || !same_number(c->alpha, now->alpha) || c->rslora != now->rslora ||
	    c->dora != now->dora)
		return error_set(
		    err, -EINVAL,
		    "lora.from: the adapter in %s has rank %" PRId64 ", alpha %.9g%s%s; expected "
		    "lora.rank = %" PRId64 ", lora.alpha = %.9g and the same variant in the run file",
		    directory, c->rank, c->alpha, c->rslora ? ", rslora" : "", c->dora ? ", dora" : "",
		    c->rank, c->alpha);
	if (c->init == PEFT_INIT_PISSA)
		return error_set(
		    err, -ENOTSUP,
		    "lora.from: the adapter in %s belongs to weights that PiSSA changed, not to those "
		    "of the base; save it with path_initial_model_for_weight_conversion first",
		    directory);
	if ((r = check_modules(a, directory, now, err)) < 0)
		return r;
	r = parameters_check_adapter(layout, a->tensors, directory, err);
	if (r < 0)
		return error_prefix(err, "lora.from");
	*out = steal_pointer(a);
	return 0;
}
