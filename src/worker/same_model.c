/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the model or the adapter of a checkpoint is that of the run which goes on from it. Weights of the
 * same names and sizes may belong to another: one with other heads, or an adapter with another factor. */
#include <errno.h>
#include <math.h>

#include "base/file.h"
#include "base/str.h"
#include "worker/training.h"

/* The path of `file` in the checkpoint; *found: whether it is there. */
static char *checkpoint_file(const struct training *t, const char *file, bool *found)
{
	char *path = str_path_join(saver_resume_path(t->saver), file);

	*found = path && file_exists(path);
	return path;
}

static int differs(const struct training *t, struct error *err, const char *what, double was, double is)
{
	return error_set(err, -EINVAL,
	                 "%s was saved with %s %g, and the run has %g; expected %g, another output.dir, or "
	                 "output.resume = \"never\"",
	                 saver_resume_path(t->saver), what, was, is, was);
}

static int check_config(const struct training *t, const char *path, struct error *err)
{
	struct model_config saved;
	double value[2];
	const char *key;
	int r = model_config_read(path, &saved, err);

	if (r < 0)
		return r;
	if (saved.scores != t->model.scores)
		return error_set(
		    err, -EINVAL,
		    "%s is of a model %s scores, and the run trains one %s; another output.dir is needed",
		    saver_resume_path(t->saver), saved.scores ? "of" : "without",
		    saved.scores ? "of logits" : "of scores");
	key = model_config_difference(&saved, &t->model, value);
	if (key && isnan(value[0]))
		return error_set(
		    err, -EINVAL,
		    "%s is of a model with another %s than the run's; another output.dir is needed, or "
		    "output.resume = \"never\"",
		    saver_resume_path(t->saver), key);
	return key ? differs(t, err, key, value[0], value[1]) : 0;
}

static bool has_all(char *const *list, char *const *of)
{
	for (; of && *of; of++) {
		char *const *at = list;

		while (at && *at && !str_eq(*at, *of))
			at++;
		if (!at || !*at)
			return false;
	}
	return true;
}

static bool same_names(char *const *a, char *const *b)
{
	return has_all(a, b) && has_all(b, a);
}

static int compare_adapters(const struct training *t, const struct peft_config *saved, struct error *err)
{
	const struct peft_config *now = &t->adapter;
	const char *path = saver_resume_path(t->saver);
	/* What is stored of PiSSA has twice the rank, and its own alpha. */
	bool stored = t->options.tuning.rank != now->rank, same_targets;

	if (saved->rank != now->rank)
		return differs(t, err, stored ? "an adapter rank of" : "lora.rank", (double)saved->rank,
		               (double)now->rank);
	if (fabs(saved->alpha - now->alpha) > 1e-6 * fabs(now->alpha))
		return differs(t, err, stored ? "an adapter alpha of" : "lora.alpha", saved->alpha,
		               now->alpha);
	if (saved->rslora != now->rslora || saved->dora != now->dora)
		return error_set(err, -EINVAL,
		                 "%s was saved with lora.%s = %s; expected the same, another output.dir, or "
		                 "output.resume = \"never\"",
		                 path, saved->rslora != now->rslora ? "rslora" : "dora",
		                 (saved->rslora != now->rslora ? saved->rslora : saved->dora) ? "true"
		                                                                              : "false");
	same_targets = same_names(saved->targets, now->targets) &&
	               str_eq(saved->target_pattern ? saved->target_pattern : "",
	                      now->target_pattern ? now->target_pattern : "");
	if (!same_targets || !same_names(saved->modules_to_save, now->modules_to_save))
		return error_set(
		    err, -EINVAL,
		    "%s was saved with other modules of lora.%s; expected those of its %s, another "
		    "output.dir, or output.resume = \"never\"",
		    path, same_targets ? "modules_to_save" : "target", PEFT_CONFIG_FILE);
	return 0;
}

static int check_adapter(const struct training *t, const char *path, struct error *err)
{
	struct peft_config saved = {0};
	int r = peft_config_read(path, &saved, err);

	if (r == 0)
		r = compare_adapters(t, &saved, err);
	peft_config_free(&saved);
	return r;
}

int training_check_model(const struct training *t, struct error *err)
{
	bool adapts = trainer_layout(t->trainer)->adapts, has_adapter, has_config;
	_cleanup_free_ char *adapter = NULL, *config = NULL;

	if (!training_first_rank(t))
		return 0;
	adapter = checkpoint_file(t, PEFT_CONFIG_FILE, &has_adapter);
	config = checkpoint_file(t, "config.json", &has_config);
	if (!adapter || !config)
		return error_oom(err);
	if (has_adapter != adapts && (has_adapter || has_config))
		return error_set(err, -EINVAL,
		                 "%s has %s, and the run trains %s; another output.dir is needed, or "
		                 "output.resume = \"never\"",
		                 saver_resume_path(t->saver), has_adapter ? "an adapter" : "a whole model",
		                 adapts ? "an adapter" : "a whole model");
	if (has_adapter)
		return check_adapter(t, saver_resume_path(t->saver), err);
	return has_config ? check_config(t, config, err) : 0;
}
