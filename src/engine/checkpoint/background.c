/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a thread for one function, and hands its result back to the caller. */
#include "engine/checkpoint/background.h"

#include "base/thread.h"

static void *background_main(void *context)
{
	struct background *b = context;

	b->result = b->run(b->context, &b->err);
	atomic_store(&b->done, true);
	return NULL;
}

int background_start(struct background *b, int (*run)(void *context, struct error *err), void *context,
                     struct error *err)
{
	int r;

	b->run = run;
	b->context = context;
	b->result = 0;
	b->err = (struct error)ERROR_INIT;
	atomic_store(&b->done, false);
	r = thread_start(&b->thread, background_main, b);
	b->running = r == 0;
	return r == 0 ? 0 : error_errno(err, r, "cannot start a thread to write the checkpoint");
}

int background_join(struct background *b, struct error *err)
{
	if (!b->running)
		return 0;
	pthread_join(b->thread, NULL);
	b->running = false;
	if (b->result < 0 && err)
		*err = b->err;
	return b->result;
}
