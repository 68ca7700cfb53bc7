/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses by the names in a run file what of a model is trained, and checks these names. */
#include "engine/model/choice.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "engine/model/roles.h"

struct chooser {
	const struct model_config *c;
	const struct model_tuning *tuning;
	int base_units;
	struct choice *choice;
	bool *used[3]; /* of the names in target, saved or modules, extra: whether they name something */
};

static bool is_named(char *const *list, const char *module, bool whole, bool *used)
{
	bool named = false;

	for (int i = 0; list && list[i]; i++) {
		size_t n = strlen(list[i]), length = strlen(module);
		bool ends = str_ends(module, list[i]) && (n == length || module[length - n - 1] == '.');

		if (str_eq(list[i], "all") || (whole ? ends : tuning_names(list[i], module))) {
			used[i] = true;
			named = true;
		}
	}
	return named;
}

static bool in_layers(const struct model_tuning *t, int layers, int layer)
{
	return layer >= 0 && layer < layers &&
	       (t->layers < 0 ? layer < -t->layers : layer >= layers - t->layers);
}

/* The name of the role's module, without the number of an expert: all experts are trained, or none is. */
static void module_name(const struct chooser *ch, enum parameter_role role, int base, char *module,
                        size_t size)
{
	role_parameter_name(ch->c, role, base, -1, module, size);
	*strrchr(module, '.') = '\0'; /* .weight or .bias */
}

static bool names_role(const struct chooser *ch, char *const *list, enum parameter_role role, int base,
                       bool whole, bool *used)
{
	/* Gate and up of an expert are one product, and lie behind each other: a name of one stands for both.
	 */
	bool pair = role_of_experts(ch->c, role) && role != PARAMETER_DOWN;
	char module[96];
	bool named;

	module_name(ch, pair ? PARAMETER_GATE : role, base, module, sizeof(module));
	named = is_named(list, module, whole, used);
	if (!pair)
		return named;
	module_name(ch, PARAMETER_UP, base, module, sizeof(module));
	return is_named(list, module, whole, used) || named;
}

static bool is_of_mixture(const struct chooser *ch, enum parameter_role role)
{
	return role == PARAMETER_ROUTER || role_of_experts(ch->c, role);
}

static struct choice choose_by_names(const struct chooser *ch, enum parameter_role role, int base)
{
	const struct model_tuning *t = ch->tuning;
	struct choice choice = {.there = true, .trained = true};
	bool block = role_unit(ch->c, role) == 1;
	int64_t shape[3];

	if (role_shape(ch->c, role, base, shape) == 0 || role_unit(ch->c, role) != (block ? 1 : base) ||
	    block != (base > 0 && base < ch->base_units - 1))
		return (struct choice){.there = false};
	if (!t || t->kind == TUNE_ALL)
		return choice;
	if (t->kind == TUNE_LORA) {
		choice.trained = names_role(ch, t->saved, role, base, false, ch->used[1]);
		/* Experts and their router have no adapters: to PEFT they are no linear modules. */
		choice.adapted = block && role_shape(ch->c, role, base, shape) == 2 &&
		                 !is_of_mixture(ch, role) &&
		                 names_role(ch, t->target, role, base, true, ch->used[0]);
		return choice;
	}
	choice.trained = block
	                     ? in_layers(t, ch->c->layers, base - 1) &&
	                           (!t->modules || names_role(ch, t->modules, role, base, false, ch->used[1]))
	                     : names_role(ch, t->extra, role, base, false, ch->used[2]);
	return choice;
}

static struct choice choose(const struct chooser *ch, enum parameter_role role, int base)
{
	bool values = role == PARAMETER_VALUE && ch->c->values && base == ch->base_units - 1;
	struct choice choice = role == PARAMETER_VALUE ? (struct choice){.there = values, .trained = values}
	                                               : choose_by_names(ch, role, base);

	/* A head of scores is trained whatever is named, as PEFT does. So is a value head, which has no name.
	 */
	if (role == PARAMETER_HEAD && ch->c->scores)
		choice.trained = choice.there;
	return choice;
}

static size_t list_length(char *const *list)
{
	size_t n = 0;

	while (list && list[n])
		n++;
	return n;
}

static int check_names(char *const *list, const bool *used, const char *key, const char *expected,
                       struct error *err)
{
	for (int i = 0; list && list[i]; i++)
		if (!used[i])
			return error_set(err, -EINVAL, "%s: the model has no %s; expected %s", key, list[i],
			                 expected);
	return 0;
}

/* A rank above the smaller side of a matrix is refused: the adapter could not compute more than with that.
 * Two matrices of linear attention have so few rows that "all" would name no larger rank: the larger side
 * counts there, unless it is PiSSA, which needs a rank that they have. */
static int check_rank(const struct chooser *ch, enum parameter_role role, int base, struct error *err)
{
	bool small = role == PARAMETER_DELTA_B || role == PARAMETER_DELTA_A;
	int64_t shape[3] = {0}, least;
	char name[96];

	role_shape(ch->c, role, base, shape);
	least =
	    small && ch->tuning->init != LORA_INIT_PISSA ? MAX(shape[0], shape[1]) : MIN(shape[0], shape[1]);
	if (ch->tuning->rank <= least)
		return 0;
	role_parameter_name(ch->c, role, base, -1, name, sizeof(name));
	return error_set(
	    err, -EINVAL,
	    "lora.rank: %lld is more than %s, a matrix of %lld x %lld, has; expected at most %lld",
	    (long long)ch->tuning->rank, name, (long long)shape[0], (long long)shape[1], (long long)least);
}

static int choose_all(const struct chooser *ch, struct error *err)
{
	const char *linears =
	    ch->c->experts ? "\"all\", or modules of its attention such as \"q_proj\", \"o_proj\" (experts "
	                     "have no adapters)"
	                   : "\"all\", or modules of its layers such as \"q_proj\", \"down_proj\"";
	static const char outside[] = "modules such as \"embed_tokens\", \"norm\"";
	const struct model_tuning *t = ch->tuning;
	bool lora = t && t->kind == TUNE_LORA;
	int r;

	for (int u = 0; u < ch->base_units; u++)
		for (int role = 0; role < PARAMETER_ROLES; role++) {
			struct choice *one = &ch->choice[u * PARAMETER_ROLES + role];

			*one = choose(ch, (enum parameter_role)role, u);
			if (lora && one->trained && is_of_mixture(ch, (enum parameter_role)role))
				return error_set(
				    err, -EINVAL,
				    "lora.modules_to_save: experts and their router cannot be saved beside "
				    "adapters; expected %s",
				    outside);
			if (one->trained && one->adapted)
				return error_set(err, -EINVAL,
				                 "lora.modules_to_save and lora.target both name %s",
				                 role_name((enum parameter_role)role));
			if (one->adapted && (r = check_rank(ch, (enum parameter_role)role, u, err)) < 0)
				return r;
		}
	if (!t || t->kind == TUNE_ALL)
		return 0;
	if (lora && ch->c->tied && list_length(t->saved) > 0 && (ch->choice[PARAMETER_EMBEDDING].trained))
		return error_set(
		    err, -EINVAL,
		    "lora.modules_to_save: the head of this model is tied to embed_tokens, and PEFT "
		    "would load one without the other; expected modules of a model that is not tied");
	r = lora ? check_names(t->target, ch->used[0], "lora.target", linears, err) : 0;
	if (r == 0)
		r = lora ? check_names(t->saved, ch->used[1], "lora.modules_to_save", outside, err)
		         : check_names(t->modules, ch->used[1], "train.freeze_trainable_modules",
		                       "\"all\", or modules of its layers such as \"self_attn\", \"mlp\"",
		                       err);
	return r == 0 && !lora
	           ? check_names(t->extra, ch->used[2], "train.freeze_extra_modules", outside, err)
	           : r;
}

static void chooser_free(struct chooser *ch)
{
	for (size_t i = 0; i < ARRAY_SIZE(ch->used); i++)
		free(ch->used[i]);
}

int choice_make(const struct model_config *c, const struct model_tuning *tuning, struct choice *choices,
                struct error *err)
{
	_cleanup_(chooser_free) struct chooser ch = {
	    .c = c, .tuning = tuning, .base_units = c->layers + 2, .choice = choices};
	char *const *const lists[] = {tuning ? tuning->target : NULL,
	                              !tuning                     ? NULL
	                              : tuning->kind == TUNE_LORA ? tuning->saved
	                                                          : tuning->modules,
	                              tuning ? tuning->extra : NULL};

	for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
		ch.used[i] = calloc(list_length(lists[i]) + 1, sizeof(bool));
		if (!ch.used[i])
			return error_oom(err);
	}
	return choose_all(&ch, err);
}
