/* SPDX-License-Identifier: Apache-2.0 */
/* Reads from the index of a checkpoint which node rank 0 wrote the model on. */
#include "engine/checkpoint/elsewhere.h"

#include <errno.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/str.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/manifest.h"

enum { INDEX_MAX = 1 << 30 };

void checkpoint_say_elsewhere(const char *directory, struct error *err)
{
	_cleanup_free_ char *newest = NULL, *path = NULL, *text = NULL, *model = NULL;
	_cleanup_(manifest_index_free) struct manifest_index index = {0};
	struct error why = *err;
	int64_t step;
	size_t len;

	/* The directory is a checkpoint, or an output directory with some. */
	path = str_path_join(directory, MANIFEST_INDEX);
	if (path && !file_exists(path) && checkpoint_find(directory, INT64_MAX, &newest, &step, NULL) == 0 &&
	    newest) {
		free(path);
		path = str_path_join(newest, MANIFEST_INDEX);
	}
	model = str_path_join(newest ? newest : directory, "config.json");
	if (!path || !model || file_exists(model) || file_read(path, INDEX_MAX, &text, &len, NULL) < 0 ||
	    manifest_index_parse(text, len, path, &index, NULL) < 0)
		return;
	error_set(err, err->code,
	          "%.500s; here are only parts of the checkpoints: rank 0 wrote the model on node %s",
	          why.message, index.ranks[0].node);
}
