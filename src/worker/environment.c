/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the variables that the launcher sets for a worker. */
#include "worker/environment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/str.h"

static int read_number(const char *name, int64_t min, int64_t max, int64_t fallback, int64_t *out,
                       struct error *err)
{
	const char *v = getenv(name);

	*out = fallback;
	if (v && str_to_int64(v, min, max, out) < 0)
		return error_set(err, -EINVAL,
		                 "%s=%s in the environment: expected a number from %lld to %lld", name, v,
		                 (long long)min, (long long)max);
	return 0;
}

static const char *read_text(const char *name)
{
	const char *v = getenv(name);

	return v && *v ? v : NULL;
}

int environment_read(struct environment *env, struct error *err)
{
	int64_t rank, world_size, local_rank, local_world_size, device;

	*env = (struct environment){0};
	if (read_number("WORLD_SIZE", 1, 1 << 20, 1, &world_size, err) < 0 ||
	    read_number("RANK", 0, world_size - 1, 0, &rank, err) < 0 ||
	    read_number("LOCAL_RANK", 0, world_size - 1, 0, &local_rank, err) < 0 ||
	    read_number("LOCAL_WORLD_SIZE", 1, world_size, 0, &local_world_size, err) < 0 ||
	    read_number("DTRAIN_DEVICE", 0, 4096, local_rank, &device, err) < 0 ||
	    read_number("DTRAIN_ATTEMPT", 0, INT64_MAX, 1, &env->attempt, err) < 0 ||
	    read_number("DTRAIN_EPOCH", 0, INT64_MAX, 0, &env->epoch, err) < 0 ||
	    read_number("DTRAIN_CHECKPOINT", 0, INT64_MAX, 0, &env->checkpoint, err) < 0)
		return err->code;
	env->rank = rank;
	env->world_size = world_size;
	env->local_world_size = (int)local_world_size;
	env->device = (int)device;
	env->config = read_text("DTRAIN_CONFIG");
	env->run_id = read_text("DTRAIN_RUN_ID");
	env->socket = read_text("DTRAIN_SOCKET");
	env->lease = read_text("DTRAIN_LEASE");
	env->error_file = read_text("TORCHELASTIC_ERROR_FILE");
	env->cluster = read_text("DTRAIN_CLUSTER");
	env->checkpoint_node = read_text("DTRAIN_CHECKPOINT_NODE");
	env->node = read_text("DTRAIN_NODE");
	if (!env->node) {
		if (gethostname(env->host, sizeof(env->host) - 1) < 0 || !env->host[0])
			snprintf(env->host, sizeof(env->host), "localhost");
		env->node = env->host;
	}
	env->rendezvous_dir = read_text("DTRAIN_RENDEZVOUS_DIR");
	if (!env->config)
		return error_set(err, -EINVAL,
		                 "DTRAIN_CONFIG is not set: workers are started by dtraind; "
		                 "dtrain submit is what you want");
	if (env->socket && !env->run_id)
		return error_set(err, -EINVAL, "DTRAIN_SOCKET is set, but DTRAIN_RUN_ID is not");
	if (env->world_size > 1 && !env->socket && !env->rendezvous_dir)
		return error_set(err, -EINVAL,
		                 "WORLD_SIZE=%d without DTRAIN_SOCKET: the ranks cannot find each other",
		                 env->world_size);
	return 0;
}
