/* SPDX-License-Identifier: Apache-2.0 */
/* Names of models on hubs, from which nothing is fetched. */
#pragma once

#include <stdbool.h>

/* "OWNER/NAME", such as meta-llama/Llama-3.2-1B, which may as well be a relative path. */
bool is_hub_name(const char *path);
/* What the error for such a path that does not exist ends with. */
#define HUB_HINT "nothing is fetched from hubs here; download the model and name its directory"
