/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain-worker-… --measure: the rates of the device, as JSON on the standard output, for `dtrain
 * estimate`. */
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
#include "worker/load_processes.h"
#include "worker/service_client.h"
#include "worker/tasks.h"

DEFINE_CLEANUP(struct device *, device_destroy)
DEFINE_CLEANUP(struct comm *, comm_destroy)

/* Each process that is measured takes about this much memory. */
#define RANK_MEMORY ((int64_t)512 << 20)

/* A set of rates: threads of a rank, and ranks that run at the same time. */
struct measured_set {
	int threads, ranks;
};

/* One rank of one thread, as many as there are processors and memory for, and one of all threads. A GPU has
 * one set, and 0 threads. */
static int list_sets(struct measured_set sets[3])
{
	int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE) / 2 / RANK_MEMORY;
	cpu_set_t set;
	int all = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1, n = 0;

	sets[n++] = (struct measured_set){1, 1};
	if (all > 1 && memory > 1)
		sets[n++] = (struct measured_set){1, (int)MIN(all, memory)};
	if (all > 1)
		sets[n++] = (struct measured_set){all, 1};
	return n;
}

/* A rank of one thread that does what is measured, again and again (load_processes.h). */
static int load_processor(int ready, struct error *err)
{
	_cleanup_(device_destroyp) struct device *dev = NULL;
	_cleanup_free_ struct rate_set *set = calloc(1, sizeof(*set));
	int r;

	if (!set)
		return error_oom(err);
	if ((r = device_create(&(struct device_options){.threads = 1}, &dev, err)) < 0)
		return r;
	set->threads = set->ranks = 1;
	load_ready(ready);
	while ((r = rates_measure(dev, set, err)) == 0)
		;
	return r;
}

/* Rates of one rank, while the other ranks of the set do the same. */
static int measure_set(struct device *dev, struct rate_set *set, struct load_processes *load,
                       struct error *err)
{
	int r;

	if (set->ranks == 1)
		return rates_measure(dev, set, err);
	if ((r = load_processes_start(load, err)) < 0 || (r = rates_measure(dev, set, err)) < 0 ||
	    (r = load_processes_check(load, err)) < 0)
		return r;
	load_processes_end(load);
	return 0;
}

static int measure_sets(struct rates *rates, struct load_processes *load, struct error *err)
{
	struct measured_set sets[3];
	int n = list_sets(sets), r;

	for (int i = 0; i < n; i++) {
		_cleanup_(device_destroyp) struct device *dev = NULL;
		struct rate_set *set = &rates->set[rates->sets];

		r = device_create(&(struct device_options){.threads = sets[i].threads}, &dev, err);
		if (r < 0)
			return r;
		set->ranks = sets[i].ranks;
		set->threads = str_starts(device_describe(dev), "cpu") ? sets[i].threads : 0;
		if (set->ranks > 1)
			fprintf(stderr, "measuring %s, %d ranks at the same time\n", device_describe(dev),
			        set->ranks);
		else
			fprintf(stderr, "measuring %s\n", device_describe(dev));
		if ((r = measure_set(dev, set, load, err)) < 0)
			return r;
		snprintf(rates->device, sizeof(rates->device), "%s", device_describe(dev));
		rates->sets++;
		if (set->threads == 0)
			break;
	}
	return 0;
}

/* ---- collectives: between this process and a child ---- */

#define RANKS 2

static int measure_rank(int rank, const char *directory, struct rates *out, struct error *err)
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
	return rates_measure_links(dev, comm, out->gather, out->reduce, err);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
	return remove(path);
}

/* Before this process has threads, which a child would not have. */
static int measure_links(struct rates *out, struct error *err)
{
	char directory[] = "/tmp/dtrain-measure-XXXXXX";
	_cleanup_free_ struct rates *ignored = calloc(1, sizeof(*ignored));
	pid_t child;
	int r, status;

	if (!ignored)
		return error_oom(err);
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

static int measure_all(struct rates *rates, struct error *err)
{
	struct load_processes load;
	struct measured_set sets[3];
	int n = list_sets(sets), ranks = 1, r;

	for (int i = 0; i < n; i++)
		ranks = MAX(ranks, sets[i].ranks);
	r = load_processes_create(&load, ranks - 1, load_processor, err);
	if (r == 0 && (r = measure_links(rates, err)) == 0)
		r = measure_sets(rates, &load, err);
	load_processes_end(&load);
	return r;
}

int measure_main(void)
{
	_cleanup_free_ struct rates *rates = calloc(1, sizeof(*rates));
	_cleanup_json_ json_t *json = NULL;
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;

	if (!rates || measure_all(rates, &err) < 0) {
		fprintf(stderr, "error: %s\n", rates ? err.message : "out of memory");
		return 1;
	}
	snprintf(rates->version, sizeof(rates->version), "%s", DTRAIN_VERSION);
	json = rates_encode(rates);
	text = json_to_string(json);
	if (!text || puts(text) < 0 || fflush(stdout) != 0) {
		fprintf(stderr, "error: cannot write the rates: %s\n", strerror(errno));
		return 1;
	}
	return 0;
}
