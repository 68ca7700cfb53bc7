/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from the words that say what is trained. */
#include "engine/model/tuning.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

int64_t tuning_stored_rank(const struct model_tuning *t)
{
	return t->init == LORA_INIT_PISSA ? 2 * t->rank : t->rank;
}

double tuning_scale(const struct model_tuning *t)
{
	return t->alpha / (t->rslora ? sqrt((double)t->rank) : (double)t->rank);
}

int lora_init_parse(const char *name, enum lora_init *out)
{
	static const char *const names[] = {[LORA_INIT_DEFAULT] = "default", [LORA_INIT_PISSA] = "pissa"};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (str_eq(names[i], name)) {
			*out = (enum lora_init)i;
			return 0;
		}
	return -EINVAL;
}

bool tuning_names(const char *name, const char *module)
{
	size_t n = strlen(name);

	for (const char *at = module; n > 0 && (at = strstr(at, name)); at++)
		if ((at == module || at[-1] == '.') && (at[n] == '\0' || at[n] == '.'))
			return true;
	return false;
}
