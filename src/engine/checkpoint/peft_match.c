/* SPDX-License-Identifier: Apache-2.0 */
/* Which modules an adapter's configuration names, with which rank and scale. */
#include <errno.h>
#include <math.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/str.h"
#include "engine/checkpoint/peft.h"

#define MATCH_STEPS 200000 /* of one regular expression on one name; a harmless one needs some hundreds */
#define ALL_LINEAR  "all-linear"

static void code_freep(pcre2_code **code)
{
	pcre2_code_free(*code);
}

static void data_freep(pcre2_match_data **data)
{
	pcre2_match_data_free(*data);
}

static void context_freep(pcre2_match_context **context)
{
	pcre2_match_context_free(*context);
}

/* Whether the whole of `name` is before + pattern + behind: 1 or 0. *number: the digits of the group that
 * `behind` has at its end, where it is not NULL. */
static int match(const char *before, const char *pattern, const char *behind, uint32_t options,
                 const char *name, int64_t *number, struct error *err)
{
	_cleanup_free_ char *whole = str_printf("%s%s%s", before, pattern, behind);
	_cleanup_(code_freep) pcre2_code *code = NULL;
	_cleanup_(data_freep) pcre2_match_data *data = NULL;
	_cleanup_(context_freep) pcre2_match_context *context = pcre2_match_context_create(NULL);
	unsigned char digits[24], message[128];
	size_t n = sizeof(digits), at;
	int code_error, r;

	if (!whole || !context)
		return error_oom(err);
	code = pcre2_compile((PCRE2_SPTR)whole, PCRE2_ZERO_TERMINATED,
	                     PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C | options,
	                     &code_error, &at, NULL);
	if (!code) {
		pcre2_get_error_message(code_error, message, sizeof(message));
		return error_set(err, -EINVAL, "regular expression \"%.80s\": %s", pattern, (char *)message);
	}
	data = pcre2_match_data_create_from_pattern(code, NULL);
	if (!data)
		return error_oom(err);
	pcre2_set_match_limit(context, MATCH_STEPS);
	r = pcre2_match(code, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, data, context);
	if (r == PCRE2_ERROR_NOMATCH)
		return 0;
	if (r < 0)
		return error_set(err, -EINVAL, "regular expression \"%.80s\" takes too long on %.80s",
		                 pattern, name);
	if (number && (pcre2_substring_copy_byname(data, (PCRE2_SPTR) "dtrain_layer", digits, &n) < 0 ||
	               str_to_int64((char *)digits, 0, INT32_MAX, number) < 0))
		return 0;
	return 1;
}

static int match_whole(const char *pattern, const char *name, struct error *err)
{
	return match("(?:", pattern, ")", PCRE2_ANCHORED | PCRE2_ENDANCHORED, name, NULL, err);
}

static bool ends_with_name(char *const *list, const char *module)
{
	for (; list && *list; list++) {
		size_t n = strlen(*list), m = strlen(module);

		if (str_eq(*list, module) ||
		    (m > n && module[m - n - 1] == '.' && str_eq(module + m - n, *list)))
			return true;
	}
	return false;
}

/* The last part of a name. */
static const char *leaf(const char *module)
{
	const char *dot = strrchr(module, '.');

	return dot ? dot + 1 : module;
}

/* Everything that is not linear has another kind of weight, apart from embeddings. */
static bool is_linear(const char *module)
{
	static const char *const others[] = {"lm_head", "score", "embed_tokens", "wte", "wpe", "embed_out"};

	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		if (str_eq(leaf(module), others[i]))
			return false;
	return true;
}

static int in_layers(const struct peft_config *c, const char *module, struct error *err)
{
	int64_t layer = -1;
	int r;

	if (!c->layers)
		return 1;
	if (!c->layers_pattern) {
		r = match("", ".*?\\.[^.]*\\.(?<dtrain_layer>\\d+)\\.", "", PCRE2_ANCHORED, module, &layer,
		          err);
	} else {
		r = 0;
		for (char **p = c->layers_pattern; *p && r == 0; p++)
			r = match("(?:^|.*?\\.)", *p, "\\.(?<dtrain_layer>\\d+)\\.", PCRE2_ANCHORED, module,
			          &layer, err);
	}
	if (r <= 0)
		return r;
	for (size_t i = 0; i < c->n_layers; i++)
		if (c->layers[i] == layer)
			return 1;
	return 0;
}

bool peft_config_saves(const struct peft_config *c, const char *module)
{
	for (char **p = c->modules_to_save; p && *p; p++) {
		size_t n = strlen(*p);

		for (const char *at = module; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL)
			if (!strncmp(at, *p, n) && (at[n] == '\0' || at[n] == '.'))
				return true;
	}
	return false;
}

static int find_pattern(const struct peft_pattern *p, size_t count, const char *module, double *out,
                        struct error *err)
{
	int r = 0;

	for (size_t i = 0; i < count && r == 0; i++) {
		r = match("(?:.*\\.)?(?:", p[i].pattern, ")$", PCRE2_ANCHORED, module, NULL, err);
		if (r > 0)
			*out = p[i].value;
	}
	return r;
}

int peft_config_match(const struct peft_config *c, const char *module, int64_t *rank, double *scale,
                      struct error *err)
{
	double r_value = (double)c->rank, alpha = c->alpha;
	int r;

	if (ends_with_name(c->excluded, module) || peft_config_saves(c, module))
		return 0;
	if (c->excluded_pattern) {
		r = match_whole(c->excluded_pattern, module, err);
		if (r != 0)
			return r < 0 ? error_prefix(err, "exclude_modules") : 0;
	}
	if (c->target_pattern && strcasecmp(c->target_pattern, ALL_LINEAR) == 0) {
		r = is_linear(module);
	} else if (c->target_pattern) {
		r = match_whole(c->target_pattern, module, err);
		if (r < 0)
			return error_prefix(err, "target_modules");
	} else {
		r = ends_with_name(c->targets, module);
		if (r > 0)
			r = in_layers(c, module, err);
		if (r < 0)
			return error_prefix(err, "layers_pattern");
	}
	if (r == 0)
		return 0;
	if (find_pattern(c->rank_pattern, c->n_rank_pattern, module, &r_value, err) < 0)
		return error_prefix(err, "rank_pattern");
	if (find_pattern(c->alpha_pattern, c->n_alpha_pattern, module, &alpha, err) < 0)
		return error_prefix(err, "alpha_pattern");
	*rank = (int64_t)r_value;
	*scale = c->rslora ? alpha / sqrt(r_value) : alpha / r_value;
	return 1;
}
