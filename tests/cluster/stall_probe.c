/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of a run that makes the calls of the communicator over NCCL after a collective has made no progress:
 * rank 0 asks for the state of the others, rank 1 has reported another collective, rank 2 has only started.
 * Rank 0 prints the answers, while another of its threads waits at the same rendezvous.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/comm/nccl/stall.h"
#include "worker/environment.h"
#include "worker/service_client.h"

static void *wait_for_nothing(void *context)
{
	const struct kv_store *store = context;
	void *data = NULL;
	size_t len;

	return store->get(store->context, "world/never", 3000, &data, &len, NULL) == -ETIMEDOUT ? context
	                                                                                        : NULL;
}

static int await(const struct kv_store *store, const char *key, struct error *err)
{
	_cleanup_free_ void *data = NULL;
	size_t len;

	return store->get(store->context, key, 20000, &data, &len, err);
}

static int probe(const struct environment *env, const struct kv_store *store, struct error *err)
{
	const struct comm_options o = {.rank = env->rank,
	                               .world_size = env->world_size,
	                               .store = store,
	                               .group = "world",
	                               .node = env->node};
	struct stall stall;
	pthread_t thread;
	char words[480];
	double start;
	void *waited;
	int r;

	stall_init(&stall, &o, NULL);
	r = stall_report(&stall, BOOTSTRAPPING, 0, "", err);
	if (r == 0 && env->rank == 1)
		r = stall_report(&stall, COMPLETED, 811, "all-gather", err);
	if (r == 0)
		r = store->put(store->context,
		               env->rank == 1   ? "world/one"
		               : env->rank == 2 ? "world/two"
		                                : "world/zero",
		               "x", 1, err);
	if (r < 0 || env->rank != 0)
		return r < 0 ? r : await(store, "world/end", err);
	if ((r = await(store, "world/one", err)) < 0 || (r = await(store, "world/two", err)) < 0)
		return r;
	if (pthread_create(&thread, NULL, wait_for_nothing, (void *)store))
		return -EAGAIN;
	usleep(200000);
	start = clock_monotonic();
	stall_ask(&stall, 812, "all-reduce", words, sizeof(words));
	printf("%s\n%s\n", words, clock_monotonic() - start < 2 ? "at once" : "late");
	pthread_join(thread, &waited);
	printf("%s\n", waited ? "waited" : "did not wait");
	return store->put(store->context, "world/end", "x", 1, err);
}

int main(void)
{
	_cleanup_(service_client_destroyp) struct service_client *service = NULL;
	struct error err = ERROR_INIT;
	struct environment env;
	int r;

	setenv("DTRAIN_CONFIG", "/dev/null", 1); /* a worker of our own has one */
	r = environment_read(&env, &err);
	if (r == 0)
		r = service_client_create(&env, &service, &err);
	if (r == 0)
		r = probe(&env, service_client_store(service), &err);
	if (r < 0)
		fprintf(stderr, "error: %s\n", err.message);
	return r < 0;
}
