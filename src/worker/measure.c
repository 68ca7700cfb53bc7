/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain-worker-… --measure: the rates of the device, as JSON on the standard output, for `dtrain estimate`.
 */
#include <errno.h>
#include <ftw.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/device/sizes.h"
#include "engine/train/measure.h"
#include "worker/service_client.h"
#include "worker/tasks.h"

DEFINE_CLEANUP(struct device *, device_destroy)
DEFINE_CLEANUP(struct comm *, comm_destroy)

/* The threads of the sets: one, and all. A GPU has one set, and 0 of them. */
static int thread_counts(int counts[2])
{
	cpu_set_t set;
	int all = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

	counts[0] = 1;
	counts[1] = all;
	return all > 1 ? 2 : 1;
}

static int measure_sets(struct rates *rates, struct error *err)
{
	int counts[2], n = thread_counts(counts), r;

	for (int i = 0; i < n; i++) {
		_cleanup_(device_destroyp) struct device *dev = NULL;

		r = device_create(&(struct device_options){.threads = counts[i]}, &dev, err);
		if (r < 0)
			return r;
		fprintf(stderr, "measuring %s\n", device_describe(dev));
		rates->set[i].threads = str_starts(device_describe(dev), "cpu") ? counts[i] : 0;
		if ((r = rates_measure(dev, &rates->set[i], err)) < 0)
			return r;
		snprintf(rates->device, sizeof(rates->device), "%s", device_describe(dev));
		rates->sets = i + 1;
		if (rates->set[i].threads == 0)
			break;
	}
	return 0;
}

/* ---- collectives: between this process and a child ---- */

#define RANKS 2

static int measure_rank(int rank, const char *directory, double out[RATE_LENGTHS], struct error *err)
{
	const struct environment env = {
	    .rank = rank, .world_size = RANKS, .attempt = 1, .rendezvous_dir = directory};
	_cleanup_(device_destroyp) struct device *dev = NULL;
	_cleanup_(service_client_destroyp) struct service_client *service = NULL;
	_cleanup_(comm_destroyp) struct comm *comm = NULL;
	struct comm_options o = {.rank = rank, .world_size = RANKS, .timeout_s = 60, .group = "measure"};
	struct device_sizing sizing;
	int64_t memory;
	int r;

	if ((r = device_create(&(struct device_options){.threads = 1}, &dev, err)) < 0 ||
	    (r = service_client_create(&env, &service, err)) < 0)
		return r;
	/* Those of GPUs are the table's: a machine may have one alone. */
	device_get_sizing(dev, &sizing, &memory);
	if (sizing.engine != DEVICE_ENGINE_CPU)
		return 0;
	o.store = service_client_store(service);
	if ((r = comm_create(dev, &o, &comm, err)) < 0)
		return r;
	return rates_measure_gather(dev, comm, out, err);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
	return remove(path);
}

/* Before this process has threads, which a child would not have. */
static int measure_gather(double out[RATE_LENGTHS], struct error *err)
{
	char directory[] = "/tmp/dtrain-measure-XXXXXX";
	double ignored[RATE_LENGTHS];
	pid_t child;
	int r, status;

	if (!mkdtemp(directory))
		return error_errno(err, -errno, "cannot make a directory in /tmp");
	fprintf(stderr, "measuring collectives of %d ranks\n", RANKS);
	child = fork();
	if (child == 0)
		_exit(measure_rank(1, directory, ignored, err) < 0);
	r = child < 0 ? error_errno(err, -errno, "cannot fork") : measure_rank(0, directory, out, err);
	if (r < 0 && child > 0)
		kill(child, SIGKILL);
	while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	nftw(directory, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
	return r;
}

int measure_main(void)
{
	_cleanup_free_ struct rates *rates = calloc(1, sizeof(*rates));
	_cleanup_json_ json_t *json = NULL;
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;

	if (!rates || measure_gather(rates->gather, &err) < 0 || measure_sets(rates, &err) < 0) {
		fprintf(stderr, "error: %s\n", rates ? err.message : "out of memory");
		return 1;
	}
	json = rates_encode(rates);
	text = json_to_string(json);
	if (!text || puts(text) < 0 || fflush(stdout) != 0) {
		fprintf(stderr, "error: cannot write the rates: %s\n", strerror(errno));
		return 1;
	}
	return 0;
}
