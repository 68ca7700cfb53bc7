/* SPDX-License-Identifier: Apache-2.0 */
/* What of a model is trained, and what gets adapters: the first step of making a layout. */
#pragma once

#include "engine/model/layout.h"

/* Of a role in a base unit. */
struct choice {
	bool there, trained, adapted;
};

/* Fills choices[layers + 2][PARAMETER_ROLES]. tuning NULL: everything is trained. -EINVAL, with a message in
 * words of the run file, where it names what the model does not have, or what cannot be trained so. */
int choice_make(const struct model_config *c, const struct model_tuning *tuning, struct choice *choices,
                struct error *err);
