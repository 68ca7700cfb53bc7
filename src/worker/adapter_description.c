/* SPDX-License-Identifier: Apache-2.0 */
/* The description of the adapter that a run trains, as PEFT's configuration has it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "worker/training.h"

static int add_once(char **list, const char *name, size_t n, struct error *err)
{
	for (; *list; list++)
		if (strlen(*list) == n && !memcmp(*list, name, n))
			return 0;
	*list = strndup(name, n);
	return *list ? 0 : error_oom(err);
}

/* A module that lies in another one of the list is saved with it; PEFT would wrap it a second time. */
static void drop_inner(char **list)
{
	size_t n = 0, kept = 0;

	while (list[n])
		n++;
	for (size_t i = 0; i < n; i++) {
		bool inner = false;

		for (size_t j = 0; j < n && !inner; j++)
			inner = j != i && str_starts(list[i], list[j]) && list[i][strlen(list[j])] == '.';
		if (inner)
			list[i][0] = '\0';
	}
	for (size_t i = 0; i < n; i++)
		if (list[i][0] != '\0')
			list[kept++] = list[i];
		else
			free(list[i]);
	list[kept] = NULL;
}

/* The modules that have an adapter, by the last part of their names; and those that are trained whole, by
 * their whole names: PEFT takes a name for the end of another, so that "norm" would name q_norm, too. */
static int list_modules(struct training *t, struct error *err)
{
	const struct model_layout *l = trainer_layout(t->trainer);
	int r = 0;

	t->targets = calloc((size_t)l->parameters + 1, sizeof(*t->targets));
	t->whole = calloc((size_t)l->parameters + 1, sizeof(*t->whole));
	if (!t->targets || !t->whole)
		return error_oom(err);
	for (int i = 0; i < l->parameters && r == 0; i++) {
		const struct model_parameter *p = &l->parameter[i];
		const char *end = strstr(p->name, ".lora_A."), *name = end;

		while (name && name > p->name && name[-1] != '.')
			name--;
		if (p->part == PART_LORA_A && end)
			r = add_once(t->targets, name, (size_t)(end - name), err);
		else if (p->part == PART_WEIGHT && !p->frozen && !p->in_state)
			r = add_once(t->whole, p->name, (size_t)(strrchr(p->name, '.') - p->name), err);
	}
	drop_inner(t->whole);
	return r;
}

/* In a multimodal model other parts may have modules of the same names, so that the adapter's are named by a
 * regular expression. */
static int make_pattern(struct training *t, struct error *err)
{
	_cleanup_strbuf_ struct strbuf b = {0};

	strbuf_adds(&b, "model\\.language_model\\..*\\.(");
	for (char **name = t->targets; *name; name++)
		strbuf_addf(&b, "%s%s", name > t->targets ? "|" : "", *name);
	strbuf_adds(&b, ")");
	if (b.failed)
		return error_oom(err);
	t->target_pattern = strbuf_steal(&b);
	return 0;
}

int training_describe_adapter(struct training *t, struct error *err)
{
	const struct model_tuning *tuning = &t->options.tuning;
	int64_t rank = tuning_stored_rank(tuning);
	/* The same factor at that rank. */
	double alpha = tuning_scale(tuning) * (tuning->rslora ? sqrt((double)rank) : (double)rank);
	int r = trainer_layout(t->trainer)->adapts ? list_modules(t, err) : 0;

	if (r == 0 && t->model.multimodal && t->targets && t->targets[0])
		r = make_pattern(t, err);

	t->adapter = (struct peft_config){.rank = rank,
	                                  .alpha = rank == tuning->rank ? tuning->alpha : alpha,
	                                  .dropout = tuning->dropout,
	                                  .rslora = tuning->rslora,
	                                  .dora = tuning->dora,
	                                  .fan_in_fan_out = t->model.transposed,
	                                  .targets = t->target_pattern ? NULL : t->targets,
	                                  .target_pattern = t->target_pattern,
	                                  .modules_to_save = t->whole,
	                                  .base_model = t->c->model.path,
	                                  .task_type = (char *)(t->model.scores ? "SEQ_CLS" : "CAUSAL_LM")};
	return r;
}
