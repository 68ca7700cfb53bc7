/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The training process: one per device, started by the node's launcher with everything in its environment.
 * Ends with 0: done; 1: an error, one line of it on stderr and at the service; 128 + signal: stopped.
 */
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "worker/environment.h"
#include "worker/service_client.h"
#include "worker/stop.h"
#include "worker/tasks.h"

static int read_config(const char *path, struct run_config **out, struct error *err)
{
	_cleanup_json_ json_t *json = NULL;
	int r = json_read_file(path, &json, err);

	if (r == 0 && run_config_from_json(json, out, err) < 0)
		r = error_prefix(err, "%s", path);
	return r;
}

static int run(const struct environment *env, struct service_client *service, struct error *err)
{
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	int r = read_config(env->config, &c, err);

	if (r < 0)
		return r;
	if (c->directory && chdir(c->directory) < 0)
		return error_errno(err, -errno, "cannot use the working directory %s", c->directory);
	if (run_task_trains(c->task))
		return train_task(c, env, service, err);
	if (c->task == RUN_GENERATE)
		return generate_task(c, env, err);
	return error_set(err, -EINVAL, "a command is not run by the native worker");
}

int worker_main(void)
{
	_cleanup_(service_client_destroyp) struct service_client *service = NULL;
	struct error err = ERROR_INIT;
	struct environment env;
	int r;

	/* Large blocks leave no holes in the heap, and are given back to the system when they are freed.
	 * Small ones are merged when they are freed: else those that glibc cuts off an aligned block, in
	 * which oneDNN copies matrices, would divide the free memory, and each product would take more of the
	 * heap. Its cache of each thread is turned off by GLIBC_TUNABLES, which the node sets. */
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	mallopt(M_MXFAST, 0);
	stop_init();
	log_init("dtrain-worker", LOG_INFO);
	/* The log is read while the run goes on, hence line by line. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	if ((r = environment_read(&env, &err)) >= 0 &&
	    (r = service_client_create(&env, &service, &err)) >= 0 && (r = run(&env, service, &err)) >= 0)
		return r > 0 ? stop_exit_status() : 0;
	for (char *c = err.message; *c; c++)
		if (*c == '\n')
			*c = ' ';
	fflush(stdout);
	fprintf(stderr, "error: %s\n", err.message);
	if (service)
		service_client_error(service, &err);
	return 1;
}
