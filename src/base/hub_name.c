/* SPDX-License-Identifier: Apache-2.0 */
/* Where the files of a model are looked for, a user may have named it as other programs fetch it. */
#include "base/hub_name.h"

#include <string.h>

#include "base/str.h"

bool is_hub_name(const char *path)
{
	const char *slash = strchr(path, '/');

	return slash && slash > path && slash[1] && !strchr(slash + 1, '/') && !strchr(".~", *path) &&
	       !str_ends(path, ".json");
}
