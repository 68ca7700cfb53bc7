/* SPDX-License-Identifier: Apache-2.0 */
/* The names that other programs have for the keys of a run file. */
#pragma once

#include "config/keys.h"

extern const struct key_name run_other_names[]; /* ends with a name that is NULL */
