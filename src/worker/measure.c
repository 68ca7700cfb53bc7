/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain-worker-… --measure: the rates of the device, as JSON on the standard output, for `dtrain estimate`.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/train/measure.h"
#include "worker/tasks.h"

DEFINE_CLEANUP(struct device *, device_destroy)

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

int measure_main(void)
{
	_cleanup_free_ struct rates *rates = calloc(1, sizeof(*rates));
	_cleanup_json_ json_t *json = NULL;
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;

	if (!rates || measure_sets(rates, &err) < 0) {
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
