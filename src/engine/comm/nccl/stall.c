/* SPDX-License-Identifier: Apache-2.0 */
/* Reports where this rank is in the key-value store, and reads where the others are. */
#include "engine/comm/nccl/stall.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"

#define ANSWERS_TIMEOUT 10.0 /* seconds for all the answers together */
#define SLOW            4.0  /* seconds; an answer that takes longer counts as none */

/* A message names this many ranks, and gives the number of the others. */
enum { NAMED = 4 };

static const char *const state_names[] = {[BOOTSTRAPPING] = "bootstrapping",
                                          [PROGRESSING] = "progressing",
                                          [QUEUED] = "queued",
                                          [RUNNING] = "running",
                                          [COMPLETED] = "completed"};

struct place {
	enum progress_state state;
	uint64_t collective;
	char kind[24], host[65];
};

/* The text so far, and how many ranks it names. */
struct answer {
	char *words;
	size_t size, at;
	int named, more;
};

void stall_init(struct stall *s, const struct comm_options *o, const int *numbers)
{
	memset(s, 0, sizeof(*s));
	s->rank = o->rank;
	s->size = o->world_size;
	s->numbers = numbers;
	if (o->store)
		s->store = *o->store;
	snprintf(s->group, sizeof(s->group), "%s", o->group ? o->group : "world");
	if (o->node)
		snprintf(s->node, sizeof(s->node), "%s", o->node);
	else
		(void)gethostname(s->node, sizeof(s->node) - 1);
}

static const char *key_of(const struct stall *s, int rank, char *key, size_t size)
{
	snprintf(key, size, "%s/at/%d", s->group, rank);
	return key;
}

int stall_report(const struct stall *s, enum progress_state state, uint64_t collective, const char *kind,
                 struct error *err)
{
	char key[128], value[160];
	int n;

	n = snprintf(value, sizeof(value), "%s %" PRIu64 " %s %s", state_names[state], collective,
	             *kind ? kind : "-", *s->node ? s->node : "-");
	return s->store.put(s->store.context, key_of(s, s->rank, key, sizeof(key)), value, (size_t)n, err);
}

static int parse(const char *data, size_t len, struct place *p)
{
	char text[192], state[16];

	if (len >= sizeof(text))
		return -EPROTO;
	memcpy(text, data, len);
	text[len] = '\0';
	if (sscanf(text, "%15s %" SCNu64 " %23s %64s", state, &p->collective, p->kind, p->host) != 4)
		return -EPROTO;
	for (size_t i = 0; i < ARRAY_SIZE(state_names); i++)
		if (str_eq(state, state_names[i])) {
			p->state = (enum progress_state)i;
			return 0;
		}
	return -EPROTO;
}

/* Returns -ENOENT where that rank has written nothing. */
static int read_place(const struct stall *s, int rank, struct place *p, struct error *err)
{
	_cleanup_free_ void *data = NULL;
	double before = clock_monotonic();
	char key[128];
	size_t len = 0;
	int r = s->store.get(s->store.context, key_of(s, rank, key, sizeof(key)), 0, &data, &len, err);

	if (r == -ETIMEDOUT)
		return clock_monotonic() - before < SLOW ? -ENOENT : r;
	if (r == 0 && parse(data, len, p) < 0)
		return error_set(err, -EPROTO, "%s is not what this version writes there", key);
	return r;
}

__attribute__((format(printf, 2, 3))) static void name_rank(struct answer *a, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (a->named == NAMED) {
		a->more++;
		return;
	}
	if (a->named++ && a->at + 2 < a->size)
		a->at += (size_t)snprintf(a->words + a->at, a->size - a->at, ", ");
	va_start(ap, fmt);
	n = vsnprintf(a->words + a->at, a->size - a->at, fmt, ap);
	va_end(ap);
	a->at = MIN(a->at + (size_t)MAX(n, 0), a->size - 1);
}

/* Adds another rank to the text, if its place explains why the collective makes no progress. */
static void describe_place(struct answer *a, int rank, const struct place *p, uint64_t collective,
                           const char *kind)
{
	if (collective == 0)
		return;
	if (p->state == BOOTSTRAPPING || p->state == PROGRESSING)
		name_rank(a, "rank %d on %s has not reported: it hangs or has ended", rank, p->host);
	else if (p->state == COMPLETED && p->collective == 0)
		name_rank(a, "rank %d on %s has not begun it", rank, p->host);
	else if (p->state == COMPLETED && p->collective < collective)
		name_rank(a, "rank %d on %s is past %s (collective %" PRIu64 ") and has not begun it", rank,
		          p->host, p->kind, p->collective);
	else if (p->state == QUEUED && p->collective <= collective)
		name_rank(a, "the GPU of rank %d on %s has not reached %s (collective %" PRIu64 ")", rank,
		          p->host, p->kind, p->collective);
	else if (p->state == RUNNING && p->collective < collective)
		name_rank(a, "rank %d on %s is still in %s (collective %" PRIu64 ")", rank, p->host, p->kind,
		          p->collective);
	else if (p->state == RUNNING && p->collective == collective && !str_eq(p->kind, kind))
		name_rank(a, "rank %d on %s runs %s in its place: the ranks' calls differ", rank, p->host,
		          p->kind);
}

void stall_ask(const struct stall *s, uint64_t collective, const char *kind, char *words, size_t size)
{
	struct answer a = {.words = words, .size = size};
	double until = clock_monotonic() + ANSWERS_TIMEOUT;
	struct error err = ERROR_INIT;
	int asked = 0, r = 0;

	*words = '\0';
	for (int rank = 0; rank < s->size && clock_monotonic() < until; rank++, asked++) {
		int number = s->numbers ? s->numbers[rank] : rank;
		struct place p;

		if (rank == s->rank)
			continue;
		r = read_place(s, rank, &p, &err);
		if (r == -ENOENT && collective)
			name_rank(&a, "rank %d has not reported: it hangs or has ended", number);
		else if (r == -ENOENT)
			name_rank(&a, "rank %d has not begun to connect", number);
		else if (r < 0)
			break;
		else
			describe_place(&a, number, &p, collective, kind);
	}
	if (a.more)
		a.at += (size_t)snprintf(words + a.at, size - a.at, " and %d more", a.more);
	if (a.named)
		return;
	if (r < 0 && r != -ENOENT)
		snprintf(words, size, "where the other ranks are is not known: %s", err.message);
	else if (asked < s->size)
		snprintf(words, size, "the ranks up to %d have reached it; where the others are is not known",
		         asked - 1);
	else
		snprintf(words, size, "every rank is there: check the network (NCCL_DEBUG=INFO says more)");
}
