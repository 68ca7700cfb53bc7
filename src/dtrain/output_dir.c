/* SPDX-License-Identifier: Apache-2.0 */
/* The rules are the saver's (engine/checkpoint/saver_find.c); what only several nodes together can tell is
 * left out. */
#include "dtrain/output_dir.h"

#include "base/str.h"
#include "engine/checkpoint/checkpoint.h"

int output_dir_check(const struct run_config *config, char **checkpoint, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(config->directory, config->output.dir);
	bool looks = !str_eq(config->output.resume, "never"), used;
	int64_t step;
	int r;

	*checkpoint = NULL;
	if (!path)
		return error_oom(err);
	if (looks && ((r = checkpoint_find(path, INT64_MAX, checkpoint, &step, err)) < 0 || *checkpoint))
		return r;
	/* With several ranks, another node may have one. */
	if (str_eq(config->output.resume, "must") &&
	    config->resources.nodes.high * config->resources.devices_per_node == 1)
		return checkpoint_output_lacks(config->output.dir, err);
	r = checkpoint_output_in_use(path, &used, err);
	return r < 0 || !used || config->output.overwrite
	           ? r
	           : checkpoint_output_refuse(config->output.dir, looks, err);
}
