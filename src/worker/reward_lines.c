/* SPDX-License-Identifier: Apache-2.0 */
/* Takes apart the lines of the program that gives rewards. */
#include "worker/reward_lines.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/str.h"

/* Of the line that has ended. */
static int take_reward(struct reward_lines *l, const char *program, double *reward, struct error *err)
{
	char *end, shown[64];
	bool number;

	l->line[l->len] = '\0';
	*reward = strtod(l->line, &end);
	number = end != l->line && isfinite(*reward);
	while (*end == ' ' || *end == '\t' || *end == '\r')
		end++;
	/* A NUL byte ends the text, but not the line. */
	if (number && end == l->line + l->len)
		return 0;
	snprintf(shown, sizeof(shown), "%.60s", l->line);
	str_make_utf8(shown);
	return error_set(err, -EINVAL,
	                 "%s has written \"%s\"; expected a line with a finite number for each "
	                 "completion",
	                 program, shown);
}

int reward_lines_add(struct reward_lines *l, const char *program, const char *bytes, size_t len, int64_t n,
                     int64_t *done, double *rewards, struct error *err)
{
	for (size_t i = 0; i < len; i++) {
		double reward;
		int r;

		if (bytes[i] != '\n') {
			if (l->len + 1 >= sizeof(l->line))
				return error_set(err, -EINVAL,
				                 "%s has written a line of more than %d bytes; "
				                 "expected a number",
				                 program, REWARD_LINE_MOST - 1);
			l->line[l->len++] = bytes[i];
			continue;
		}
		if ((r = take_reward(l, program, &reward, err)) < 0)
			return r;
		if (*done == n)
			return error_set(err, -EINVAL, "%s has written more lines than it was given",
			                 program);
		rewards[(*done)++] = reward;
		l->len = 0;
	}
	return 0;
}
