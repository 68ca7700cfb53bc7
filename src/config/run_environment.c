/* SPDX-License-Identifier: Apache-2.0 */
/* Variables of a run's environment: what they may look like, and those that dtrain sets itself. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "config/run.h"
#include "config/run_checks.h"

bool run_variable_is_reserved(const char *name)
{
	static const char *const names[] = {
	    "RANK",
	    "WORLD_SIZE",
	    "LOCAL_RANK",
	    "LOCAL_WORLD_SIZE",
	    "LOCAL_SIZE",
	    "GROUP_RANK",
	    "GROUP_WORLD_SIZE",
	    "CROSS_RANK",
	    "CROSS_SIZE",
	    "ROLE_RANK",
	    "ROLE_WORLD_SIZE",
	    "ROLE_NAME",
	    "MASTER_ADDR",
	    "MASTER_PORT",
	    "TORCHELASTIC_RUN_ID",
	    "TORCHELASTIC_RESTART_COUNT",
	    "TORCHELASTIC_MAX_RESTARTS",
	    "TORCHELASTIC_USE_AGENT_STORE",
	    "TORCHELASTIC_ERROR_FILE",
	};
	/* Of ours, these are for who runs it to set. */
	static const char *const free_names[] = {"DTRAIN_LIBRARY_PATH", "DTRAIN_CPU_ISA"};
	size_t n = strcspn(name, "=");

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (strlen(names[i]) == n && strncmp(names[i], name, n) == 0)
			return true;
	for (size_t i = 0; i < ARRAY_SIZE(free_names); i++)
		if (strlen(free_names[i]) == n && strncmp(free_names[i], name, n) == 0)
			return false;
	return str_starts(name, "DTRAIN_");
}

int run_check_variable(const char *entry, const char *where, struct error *err)
{
	size_t n = strcspn(entry, "=");

	if (n == 0 || !entry[n])
		return error_set(err, -EINVAL, "%s: \"%.100s\" is not of the form NAME=VALUE", where, entry);
	if (run_variable_is_reserved(entry))
		return error_set(err, -EINVAL, "%s: %.*s: dtrain sets it for each rank itself; leave it out",
		                 where, (int)MIN(n, 100), entry);
	if (!str_is_utf8(entry))
		return error_set(err, -EINVAL, "%s: %.*s: not valid UTF-8; convert it, or leave it out",
		                 where, (int)MIN(n, 100), entry);
	return 0;
}

int run_config_set_variable(struct run_config *c, const char *entry, bool keep, const char *where,
                            struct error *err)
{
	size_t n = strcspn(entry, "=") + 1, count = 0;
	char *copy, **list;
	int r = run_check_variable(entry, where, err);

	if (r < 0)
		return r;
	for (; c->environment && c->environment[count]; count++)
		if (strncmp(c->environment[count], entry, n) == 0) {
			if (keep)
				return 0;
			copy = strdup(entry);
			if (!copy)
				return error_oom(err);
			free(c->environment[count]);
			c->environment[count] = copy;
			return 0;
		}
	list = reallocarray(c->environment, count + 2, sizeof(*list));
	if (!list)
		return error_oom(err);
	c->environment = list;
	list[count] = strdup(entry);
	list[count + 1] = NULL;
	return list[count] ? 0 : error_oom(err);
}
