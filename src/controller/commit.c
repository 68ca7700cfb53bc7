/* SPDX-License-Identifier: Apache-2.0 */
/* What has changed is written into the store: nothing is answered, started or told before it is on disk. */
#include "base/log.h"
#include "controller/internal.h"

#define LAZY_COMMIT_SECONDS 1.0 /* what need not be on disk at once is there after so long */

void commit_changes(struct controller *c, void (*done)(struct controller *c, int code))
{
	struct error err = ERROR_INIT;
	int code = 0;

	for (size_t i = 0; i < c->queue.count && code == 0; i++)
		if (c->queue.list[i]->dirty)
			code = store_update(c->store, c->queue.list[i], &err);
	if (code == 0)
		code = store_commit(c->store, &err);
	else /* nothing of it: submissions in there are about to be refused */
		store_rollback(c->store);
	if (code < 0)
		log_err("the store cannot be written: %s", err.message);
	else {
		c->announced = store_highest(c->store);
		for (size_t i = 0; i < c->queue.count; i++)
			c->queue.list[i]->dirty = false;
	}
	c->commit = code < 0;
	submissions_answer(c, code, &err);
	done(c, code);
}

void commit_lazily(struct controller *c)
{
	if (c->lazy_commit)
		return;
	c->lazy_commit = true;
	controller_set_timer(c, CONTROLLER_LAZY_COMMIT, controller_now(c) + LAZY_COMMIT_SECONDS);
}
