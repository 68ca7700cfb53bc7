/* SPDX-License-Identifier: Apache-2.0 */
/* Has a worker measure the rates of this machine's devices, and keeps them for later estimates. */
#include "dtrain/rates_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"

enum { LARGEST = 1 << 20 };

/* The engine that this machine would run, and its worker. */
static char *find_worker(enum device_engine *engine)
{
	const char *in = getenv("DTRAIN_WORKER_DIR") ?: PKGLIBEXECDIR;
	_cleanup_free_ char *cuda = str_path_join(in, "dtrain-worker-cuda");

	*engine = DEVICE_ENGINE_CPU;
	if (cuda && access(cuda, X_OK) == 0 && file_exists("/dev/nvidiactl")) {
		*engine = DEVICE_ENGINE_CUDA;
		return steal_pointer(cuda);
	}
	return str_path_join(in, "dtrain-worker-cpu");
}

static int read_all(int fd, char **text, size_t *len, struct error *err)
{
	_cleanup_strbuf_ struct strbuf b = {0};
	char part[4096];
	ssize_t n;

	while ((n = read(fd, part, sizeof(part))) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return error_errno(err, -errno, "cannot read from the worker");
		strbuf_add(&b, part, (size_t)n);
		if (b.len > LARGEST)
			return error_set(err, -EFBIG, "the worker prints more than %d bytes", LARGEST);
	}
	*len = b.len;
	*text = strbuf_steal(&b);
	return *text ? 0 : error_oom(err);
}

/* A run does not get these settings of libraries from the shell in which it is submitted: what is measured
 * with them, say with the kernels of OPENBLAS_CORETYPE, would not hold for it. */
static void measure_as_a_run(void)
{
	static const char *const settings[] = {"OPENBLAS_", "OMP_", "DNNL_", "ONEDNN_", "UCX_", "MALLOC_"};

	for (char **e = environ; *e;) {
		_cleanup_free_ char *name = strndup(*e, strcspn(*e, "="));
		bool is_setting = false;

		for (size_t i = 0; i < ARRAY_SIZE(settings) && name; i++)
			is_setting |= str_starts(name, settings[i]);
		if (is_setting && unsetenv(name) == 0)
			e = environ;
		else
			e++;
	}
	setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1); /* node/request.c */
}

/* What a program prints; its messages go to the standard error. */
static int run_worker(const char *path, char **text, size_t *len, struct error *err)
{
	int pipes[2], r, status;
	pid_t child;

	if (pipe(pipes) < 0)
		return error_errno(err, -errno, "cannot make a pipe");
	child = fork();
	if (child == 0) {
		dup2(pipes[1], STDOUT_FILENO);
		close(pipes[0]);
		close(pipes[1]);
		measure_as_a_run();
		execl(path, path, "--measure", (char *)NULL);
		fprintf(stderr, "dtrain: cannot execute %s: %s\n", path, strerror(errno));
		_exit(127);
	}
	close(pipes[1]);
	r = child < 0 ? error_errno(err, -errno, "cannot start %s", path)
	              : read_all(pipes[0], text, len, err);
	close(pipes[0]);
	while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (r == 0 && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
		r = error_set(err, -EIO, "%s --measure has failed", path);
	return r;
}

int rates_file_measure(char **path, struct error *err)
{
	enum device_engine engine;
	_cleanup_free_ char *worker = find_worker(&engine), *text = NULL;
	_cleanup_free_ char *to = hardware_rates_path(engine), *in = NULL;
	_cleanup_free_ struct rates *rates = malloc(sizeof(*rates));
	_cleanup_json_ json_t *json = NULL;
	size_t len;
	int r;

	if (!worker || !to || !rates || !(in = strndup(to, (size_t)(strrchr(to, '/') - to))))
		return error_oom(err);
	if ((r = run_worker(worker, &text, &len, err)) < 0 ||
	    (r = json_parse(text, len, worker, &json, err)) < 0 ||
	    (r = rates_decode(json, worker, rates, err)) < 0 || (r = file_mkdirs(in, 0755, err)) < 0 ||
	    (r = file_write_atomic(to, text, len, 0644, err)) < 0)
		return r;
	*path = steal_pointer(to);
	return 0;
}
