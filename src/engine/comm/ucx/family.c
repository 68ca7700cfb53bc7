/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators that have been split from one another: the first failure of one is that of all. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "engine/comm/ucx/internal.h"

/* Under the family's lock. */
static void take_failure(struct comm *c)
{
	pthread_mutex_lock(&c->lock);
	c->failure = c->family->failure;
	c->failed_rank = c->family->failed_rank;
	atomic_store(&c->failed, c->failure.code);
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

int family_join(struct comm *c, struct family *family, struct error *err)
{
	if (!family) {
		family = calloc(1, sizeof(*family));
		if (!family)
			return error_oom(err);
		pthread_mutex_init(&family->lock, NULL);
		family->size = c->size;
		family->hosts = calloc(c->size, sizeof(*family->hosts));
		if (!family->hosts) {
			pthread_mutex_destroy(&family->lock);
			free(family);
			return error_oom(err);
		}
	}
	pthread_mutex_lock(&family->lock);
	c->family = family;
	c->sibling = family->members;
	family->members = c;
	family->count++;
	if (family->failure.code)
		take_failure(c);
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
	free(f->hosts);
	free(f);
}

void family_wake(struct comm *c)
{
	uint64_t one = 1;

	(void)!write(c->wake_fd, &one, sizeof(one));
}

/* Not all communicators of the family may have taken the failure over yet. */
int family_check(struct comm *c, struct error *err)
{
	int r;

	pthread_mutex_lock(&c->family->lock);
	r = c->family->failure.code;
	if (r < 0 && err)
		*err = c->family->failure;
	pthread_mutex_unlock(&c->family->lock);
	return r;
}

int comm_fail(struct comm *c, int code, int number, const char *fmt, ...)
{
	struct family *f = c->family;
	va_list ap;

	pthread_mutex_lock(&f->lock);
	if (!f->failure.code) {
		va_start(ap, fmt);
		vsnprintf(f->failure.message, sizeof(f->failure.message), fmt, ap);
		va_end(ap);
		f->failure.code = code;
		f->failed_rank = number;
		for (struct comm *m = f->members; m; m = m->sibling) {
			take_failure(m);
			if (m->thread_started)
				family_wake(m);
		}
	}
	code = f->failure.code;
	pthread_mutex_unlock(&f->lock);
	return code;
}
