/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators that have been split from one another: the first failure of one is that of all. */
#include <stdlib.h>

#include "engine/comm/nccl/internal.h"

int family_join(struct comm *c, struct family *family, struct error *err)
{
	if (!family) {
		family = calloc(1, sizeof(*family));
		if (!family)
			return error_oom(err);
		pthread_mutex_init(&family->lock, NULL);
	}
	pthread_mutex_lock(&family->lock);
	c->family = family;
	c->sibling = family->members;
	family->members = c;
	family->count++;
	c->failure = family->failure;
	c->failed = family->failure.code;
	pthread_mutex_unlock(&family->lock);
	return 0;
}

void family_leave(struct comm *c)
{
	struct family *f = c->family;
	struct comm **at;
	int left;

	if (!f)
		return;
	pthread_mutex_lock(&f->lock);
	for (at = &f->members; *at != c; at = &(*at)->sibling)
		;
	*at = c->sibling;
	left = --f->count;
	pthread_mutex_unlock(&f->lock);
	c->family = NULL;
	if (left)
		return;
	pthread_mutex_destroy(&f->lock);
	free(f);
}

static void *stop_member(void *context)
{
	struct comm *c = context;
	ncclComm_t nccl;

	(void)cudaSetDevice(c->dev->index);
	pthread_mutex_lock(&c->lock);
	nccl = c->nccl;
	if (!nccl) {
		pthread_mutex_unlock(&c->lock);
		return NULL;
	}
	c->aborting++;
	pthread_mutex_unlock(&c->lock);
	ncclCommAbort(nccl);
	pthread_mutex_lock(&c->lock);
	/* This is set only now because NCCL, while it was still making the communicator, may have stored it
	 * there again. */
	c->nccl = NULL;
	c->aborting--;
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

void family_fail(struct family *f, const struct error *failure)
{
	pthread_t *threads;
	int started = 0;

	pthread_mutex_lock(&f->lock);
	if (f->failed) {
		pthread_mutex_unlock(&f->lock);
		return;
	}
	f->failure = *failure;
	atomic_store(&f->failed, true);
	/* Before their kernels end, so that a caller who waits for them sees it. */
	for (struct comm *m = f->members; m; m = m->sibling) {
		pthread_mutex_lock(&m->lock);
		m->failure = f->failure;
		m->failed = f->failure.code;
		pthread_mutex_unlock(&m->lock);
	}
	threads = calloc(f->count, sizeof(*threads));
	for (struct comm *m = f->members; m; m = m->sibling)
		/* Without a thread, in this one. */
		if (!threads || !m->sibling || pthread_create(&threads[started], NULL, stop_member, m))
			stop_member(m);
		else
			started++;
	for (int i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	pthread_mutex_unlock(&f->lock);
	free(threads);
}
