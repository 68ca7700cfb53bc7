/* SPDX-License-Identifier: Apache-2.0 */
/* How large a model is, in words. */
#pragma once

#include <stddef.h>

#include "engine/model/model_config.h"

/* "1235.8 M parameters", or of a mixture of experts also how many of them a token passes; into text, which is
 * returned. */
const char *model_size_words(char *text, size_t size, const struct model_config *m);
