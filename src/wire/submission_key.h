/* SPDX-License-Identifier: Apache-2.0 */
/* The key of a submission: a header by which the controller knows one that is repeated, because its answer
 * was lost, and answers it with the run that there is. */
#pragma once

#include <stdbool.h>

#define SUBMISSION_KEY_HEADER "Dtrain-Key"

enum { SUBMISSION_KEY_MAX = 64 };

/* 1 to SUBMISSION_KEY_MAX letters, digits, - and _. */
bool submission_key_is_valid(const char *key);
