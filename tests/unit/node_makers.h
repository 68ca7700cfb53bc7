/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a node, each made and released: the work of calls_fail_in_turn and of memory_fails_in_turn.
 * context: the struct fixture, after fixture_prepare. */
#pragma once

#include "node_fixture.h"

#include "base/str.h"
#include "node/attempts.h"
#include "node/launcher.h"
#include "node/lease.h"
#include "node/log_reader.h"
#include "node/preflight_process.h"
#include "node/slots.h"
#include "node/starts.h"

static inline int make_spare(void *context, struct error *err)
{
	const struct fixture *f = context;
	struct preflight_spare *spare;
	int r = preflight_spare_create(f->event, &spare, err);

	if (r == 0)
		preflight_spare_destroy(spare);
	return r;
}

static inline int make_starts(void *context, struct error *err)
{
	const struct fixture *f = context;
	struct starts *starts = NULL;
	int r = starts_create(f->event, f->config, &(struct starts_callbacks){0}, &starts, err);

	ck_assert_int_eq(starts != NULL, r == 0);
	starts_destroy(starts);
	return r;
}

static inline int make_lease(void *context, struct error *err)
{
	const struct fixture *f = context;
	struct lease *lease;
	int r = lease_create(f->event, f->dir, NULL, NULL, &lease, err);

	if (r == 0)
		lease_destroy(lease);
	return r;
}

static inline int make_attempts(void *context, struct error *err)
{
	const struct fixture *f = context;
	struct attempts *attempts;
	int r = attempts_create(f->event, &attempts, err);

	if (r == 0)
		attempts_destroy(attempts);
	return r;
}

/* Of the file "log" in the directory of the fixture, which has to exist. */
static inline int make_log_reader(void *context, struct error *err)
{
	const struct fixture *f = context;
	_cleanup_free_ char *log = str_path_join(f->dir, "log");
	struct log_reader *reader;
	int r;

	if (!log)
		return -ENOMEM;
	r = log_reader_open(f->event, log, -1, true, NULL, NULL, &reader, err);
	if (r == 0)
		log_reader_close(reader);
	return r;
}

/* Listens, and connects to that. */
static inline int make_launcher(void *context, struct error *err)
{
	const struct fixture *f = context;
	const struct launcher_owner owner = {.event = f->event, .run = 7};
	_cleanup_free_ char *socket = str_path_join(f->dir, "launch.sock");
	struct launcher *launcher, *second;
	int fd, r;

	if (!socket)
		return -ENOMEM;
	unlink(socket);
	r = launcher_listen(&owner, f->dir, &fd, &launcher, err);
	if (r < 0)
		return r;
	ck_assert(launcher_is_connected(launcher));
	r = launcher_connect(&owner, f->dir, &second, err);
	if (r == 0)
		launcher_destroy(second);
	close(fd);
	launcher_destroy(launcher);
	return r;
}

static inline void on_slot_fault(void *context, int slot, const char *text)
{
}

static inline void on_slots_changed(void *context)
{
}

static const struct slots_callbacks idle_slots = {NULL, on_slot_fault, on_slots_changed};

static inline int make_slots(void *context, struct error *err)
{
	const struct fixture *f = context;
	struct slots *slots;
	int r = slots_create(f->event, f->config, "n1", 0, &idle_slots, &slots, err);

	if (r < 0)
		return r;
	ck_assert_int_eq(slots_count(slots), 2);
	slots_destroy(slots);
	return 0;
}
