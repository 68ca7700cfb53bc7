/* SPDX-License-Identifier: Apache-2.0 */
/* How large a model is, in words. */
#include "dtrain/model_words.h"

#include <stdio.h>

#include "base/str.h"

const char *model_size_words(char *text, size_t size, const struct model_config *m)
{
	char all[32], active[32];

	str_millions(all, sizeof(all), model_config_parameters(m));
	str_millions(active, sizeof(active), model_config_active_parameters(m));
	if (m->experts)
		snprintf(text, size, "%s parameters, %s of them for each token (%d of %d experts)", all,
		         active, m->chosen_experts, m->experts);
	else
		snprintf(text, size, "%s parameters", all);
	return text;
}
