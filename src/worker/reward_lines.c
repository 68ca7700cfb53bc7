/* SPDX-License-Identifier: Apache-2.0 */
/* Takes apart the lines of the program that gives rewards. */
#include "worker/reward_lines.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

_Static_assert(POLICY_PARTS_MOST == 8, "the message says so");
#define MOST_PARTS "8"

#define BLANKS " \t\r"

static int refuse(const struct reward_lines *l, const char *program, const char *expected, struct error *err)
{
	char shown[64];

	snprintf(shown, sizeof(shown), "%.60s", l->line);
	str_make_utf8(shown);
	return error_set(err, -EINVAL, "%s has written \"%s\"; expected %s", program, shown, expected);
}

/* A number that a blank or the end of the line ends; *at is behind it then. */
static bool take_number(const char **at, double *number)
{
	char *end;

	/* strtod would skip blanks. */
	if (strchr(BLANKS, **at))
		return false;
	*number = strtod(*at, &end);
	if (end == *at || !isfinite(*number) || (*end && !strchr(BLANKS, *end)))
		return false;
	*at = end;
	return true;
}

/* NAME=, behind which *at is then; not a name that is there. */
static bool take_name(const char **at, struct policy_parts *found)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
	char *name = found->name[found->count];
	size_t n = strspn(*at, letters);

	if (n == 0 || n >= POLICY_PART_NAME || (*at)[n] != '=')
		return false;
	memcpy(name, *at, n);
	name[n] = '\0';
	*at += n + 1;
	for (int i = 0; i < found->count; i++)
		if (str_eq(found->name[i], name))
			return false;
	return true;
}

/* NAME=NUMBER …, to the end of the line. */
static bool take_parts(const char *at, struct policy_parts *found, double *values)
{
	for (found->count = 0; at += strspn(at, BLANKS), *at; found->count++)
		if (found->count == POLICY_PARTS_MOST || !take_name(&at, found) ||
		    !take_number(&at, &values[found->count]))
			return false;
	return found->count > 0;
}

static bool same_names(const struct policy_parts *a, const struct policy_parts *b)
{
	bool same = a->count == b->count;

	for (int i = 0; i < a->count && same; i++)
		same = str_eq(a->name[i], b->name[i]);
	return same;
}

static int refuse_names(const struct reward_lines *l, const char *program, const struct policy_parts *parts,
                        struct error *err)
{
	_cleanup_strbuf_ struct strbuf names = {0};

	strbuf_adds(&names, parts->count ? "the names of its first line in each:"
	                                 : "a number alone, as in its first line");
	for (int i = 0; i < parts->count; i++) {
		strbuf_addc(&names, ' ');
		strbuf_adds(&names, parts->name[i]);
	}
	return names.failed ? error_oom(err) : refuse(l, program, names.data, err);
}

/* Of the line that has ended. `values`: of its parts. */
static int take_reward(struct reward_lines *l, const char *program, struct policy_parts *parts,
                       double *reward, double values[POLICY_PARTS_MOST], struct error *err)
{
	struct policy_parts found = {.known = true};
	const char *at = l->line;
	bool good;

	l->line[l->len] = '\0';
	/* A NUL byte ends the text, but not the line. */
	good = strlen(l->line) == l->len;
	if (good && strchr(l->line, '=')) {
		good = take_parts(at, &found, values);
		*reward = 0;
		for (int i = 0; i < found.count; i++)
			*reward += values[i];
		good = good && isfinite(*reward);
	} else if (good) {
		at += strspn(at, BLANKS);
		good = take_number(&at, reward) && !at[strspn(at, BLANKS)];
	}
	if (!good)
		return refuse(l, program,
		              "a line with a finite number for each completion, or with up to " MOST_PARTS
		              ", each as NAME=NUMBER, with different names of up to 39 letters, digits, "
		              "underscores, hyphens and periods",
		              err);
	if (parts->known && !same_names(parts, &found))
		return refuse_names(l, program, parts, err);
	found.values = parts->values;
	*parts = found;
	return 0;
}

int reward_lines_add(struct reward_lines *l, const char *program, const char *bytes, size_t len, int64_t n,
                     int64_t *done, double *rewards, struct policy_parts *parts, struct error *err)
{
	for (size_t i = 0; i < len; i++) {
		double reward, values[POLICY_PARTS_MOST] = {0};
		int r;

		if (bytes[i] != '\n') {
			if (l->len + 1 >= sizeof(l->line))
				return error_set(err, -EINVAL,
				                 "%s has written a line of more than %d bytes; "
				                 "expected a number, or some with names",
				                 program, REWARD_LINE_MOST - 1);
			l->line[l->len++] = bytes[i];
			continue;
		}
		if ((r = take_reward(l, program, parts, &reward, values, err)) < 0)
			return r;
		if (*done == n)
			return error_set(err, -EINVAL, "%s has written more lines than it was given",
			                 program);
		memcpy(parts->values + *done * POLICY_PARTS_MOST, values, sizeof(values));
		rewards[(*done)++] = reward;
		l->len = 0;
	}
	return 0;
}
