/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for NCCL: ranks are threads of one process; the thread of the last rank that calls a collective
 * carries it out. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nccl.h>

#include "engine/comm/nccl/library.h"
#include "engine/device/dtype.h"

enum { RANKS = 8, GROUPS = 256, REGISTERED = 64 };
enum what { REDUCE, SCATTER, GATHER, BROADCAST, ALL_TO_ALL, SEND, RECEIVE };

struct call {
	enum what what;
	const void *from;
	void *to;
	size_t n;
	ncclDataType_t type;
	ncclRedOp_t op;
	int root;
	cudaStream_t stream;
	int group, place; /* how many are in its group, and which of them it is; 0: it is in none */
};

struct region {
	void *at;
	size_t n;
};

struct fake_comm {
	struct group *group;
	int rank, polls;
	bool aborted;
	bool connected; /* the first collective is queued when all ranks have called it */
	bool splits;    /* has called ncclCommSplit, which the other ranks have not yet all called */
	int color, key;
	ncclComm_t *part;
	int queued; /* calls not yet done */
	struct call call[256];
	int registered;
	struct region region[REGISTERED];
	int windows;
	struct region window[REGISTERED];
	bool registers; /* a window, for which it waits for the other ranks */
	struct region next;
	void **handle;
	ncclResult_t error; /* kept */
};

/* The ranks of one id; never freed, since a test is short. */
static struct group {
	int n, joined;
	bool died; /* a rank of it */
	struct fake_comm *rank[RANKS];
} groups[GROUPS];

/* The group that a thread has begun. */
static _Thread_local struct {
	bool open;
	int n;
	struct fake_comm *comm[64];
	struct call call[64];
} grouped;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int ids, abort_fills = -1, refused_rank = -1, refused_after, allocated, in_groups;
static int has_windows, refused_window = -1;
static int windows_fail;

void simt_nccl_abort_fills(int byte)
{
	pthread_mutex_lock(&lock);
	abort_fills = byte;
	pthread_mutex_unlock(&lock);
}

void simt_nccl_die(ncclComm_t c)
{
	pthread_mutex_lock(&lock);
	c->group->died = true;
	pthread_mutex_unlock(&lock);
}

int nccl_load(struct error *err)
{
	return 0;
}

const char *ncclGetErrorString(ncclResult_t r)
{
	return r == ncclSuccess ? "no error" : "an error";
}

const char *ncclGetLastError(ncclComm_t c)
{
	return "";
}

ncclResult_t ncclGetVersion(int *v)
{
	*v = 22803;
	return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	pthread_mutex_lock(&lock);
	memset(id, 0, sizeof(*id));
	id->internal[0] = (char)ids++;
	pthread_mutex_unlock(&lock);
	return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	struct fake_comm *c = calloc(1, sizeof(*c));

	pthread_mutex_lock(&lock);
	c->group = &groups[(unsigned char)id.internal[0] % GROUPS];
	c->group->n = n;
	c->group->joined++;
	c->group->rank[rank] = c;
	c->rank = rank;
	*out = c;
	pthread_mutex_unlock(&lock);
	return config->blocking ? ncclInvalidUsage : ncclInProgress;
}

/* An error in the use of NCCL ends the program: the real library would continue with memory of other
 * ranks. */
__attribute__((noreturn)) static void wrong(const char *what)
{
	fprintf(stderr, "NCCL's stand-in: %s\n", what);
	abort();
}

/* NCCL refuses a call to a communicator that is still in progress, which then has failed. Under the lock. */
static void check_ready(const struct fake_comm *c)
{
	if (c->splits || c->registers || c->group->joined < c->group->n)
		wrong("a communicator is used while it is in progress");
	if (c->error)
		wrong("a communicator is used that has failed");
}

static int place_in_part(const struct group *g, const struct fake_comm *c)
{
	int place = 0;

	for (int r = 0; r < g->n; r++)
		place += g->rank[r]->color == c->color &&
		         (g->rank[r]->key < c->key || (g->rank[r]->key == c->key && r < c->rank));
	return place;
}

/* When all ranks of the group have called ncclCommSplit. */
static void split(struct group *g)
{
	struct fake_comm *parts[RANKS] = {0};

	for (int r = 0; r < g->n; r++) {
		const struct fake_comm *c = g->rank[r];
		struct group *into = NULL;

		if (c->color == NCCL_SPLIT_NOCOLOR)
			continue;
		for (int other = 0; other < r; other++)
			if (g->rank[other]->color == c->color)
				into = parts[other]->group;
		if (!into)
			into = &groups[ids++ % GROUPS];
		parts[r] = calloc(1, sizeof(*parts[r]));
		parts[r]->group = into;
		parts[r]->rank = place_in_part(g, c);
		into->rank[parts[r]->rank] = parts[r];
		into->n = ++into->joined;
	}
	for (int r = 0; r < g->n; r++) {
		*g->rank[r]->part = parts[r];
		g->rank[r]->splits = false;
	}
}

/* The part is made when all ranks have called, and not before: until then *part is NULL and the communicator
 * is in progress, although the call returns success, as NCCL's does. */
ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *part, ncclConfig_t *config)
{
	bool all = true;

	pthread_mutex_lock(&lock);
	check_ready(c);
	*part = NULL;
	c->splits = true;
	c->color = color;
	c->key = key;
	c->part = part;
	for (int r = 0; r < c->group->n; r++)
		all = all && c->group->rank[r] && c->group->rank[r]->splits;
	if (all)
		split(c->group);
	pthread_mutex_unlock(&lock);
	return config->blocking ? ncclInvalidUsage : ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
	return ncclInProgress;
}

static size_t type_size(ncclDataType_t type)
{
	return type == ncclUint8 ? 1 : type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : 2;
}

static void leave(struct fake_comm *c)
{
	c->aborted = true;
	for (int i = 0; i < c->queued; i++) {
		if (abort_fills >= 0)
			memset(c->call[i].to, abort_fills, c->call[i].n * type_size(c->call[i].type));
		simt_stream_end(c->call[i].stream);
	}
	c->queued = 0;
	c->group->rank[c->rank] = NULL;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
	return ncclCommAbort(c);
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
	if (grouped.open)
		wrong("a communicator is aborted before the group has ended");
	pthread_mutex_lock(&lock);
	leave(c);
	pthread_mutex_unlock(&lock);
	free(c);
	return ncclSuccess;
}

ncclResult_t ncclCommRegister(ncclComm_t c, void *p, size_t n, void **handle)
{
	ncclResult_t r = ncclSuccess;

	pthread_mutex_lock(&lock);
	if (c->rank == refused_rank && c->registered == refused_after)
		r = ncclUnhandledCudaError;
	else if (c->registered == REGISTERED)
		r = ncclInvalidUsage;
	else
		c->region[c->registered++] = (struct region){ *handle = p, n};
	pthread_mutex_unlock(&lock);
	return r;
}

ncclResult_t ncclCommDeregister(ncclComm_t c, void *handle)
{
	ncclResult_t r = ncclInvalidArgument;

	pthread_mutex_lock(&lock);
	if (c->queued)
		wrong("a buffer is deregistered while a collective is under way");
	for (int i = 0; i < c->registered && r; i++)
		if (c->region[i].at == handle) {
			c->region[i] = c->region[--c->registered];
			r = ncclSuccess;
		}
	pthread_mutex_unlock(&lock);
	return r;
}

bool nccl_has_windows(void)
{
	return __atomic_load_n(&has_windows, __ATOMIC_RELAXED);
}

void simt_nccl_windows(int has, int refused)
{
	pthread_mutex_lock(&lock);
	__atomic_store_n(&has_windows, has, __ATOMIC_RELAXED);
	refused_window = refused;
	pthread_mutex_unlock(&lock);
}

void simt_nccl_fail_windows(int fail)
{
	pthread_mutex_lock(&lock);
	windows_fail = fail;
	pthread_mutex_unlock(&lock);
}

int simt_nccl_window_count(ncclComm_t c)
{
	int n;

	pthread_mutex_lock(&lock);
	n = c->windows;
	pthread_mutex_unlock(&lock);
	return n;
}

/* When all ranks have called; the handles are there then, and not before. Success is returned at once, as
 * NCCL does. */
ncclResult_t nccl_window_register(ncclComm_t c, void *p, size_t n, void **handle)
{
	bool all = true;

	pthread_mutex_lock(&lock);
	check_ready(c);
	c->registers = true;
	c->next = (struct region){p, n};
	c->handle = handle;
	for (int r = 0; r < c->group->n; r++)
		all = all && c->group->rank[r] && c->group->rank[r]->registers;
	for (int r = 0; r < c->group->n && all; r++) {
		struct fake_comm *other = c->group->rank[r];

		if (other->next.n != n)
			wrong("windows differ in size");
		other->registers = false;
		if (windows_fail)
			other->error = ncclUnhandledCudaError;
		if (windows_fail || r == refused_window || other->windows == REGISTERED)
			continue;
		other->window[other->windows++] = other->next;
		*other->handle = other->next.at;
	}
	pthread_mutex_unlock(&lock);
	return ncclSuccess;
}

ncclResult_t nccl_window_deregister(ncclComm_t c, void *handle)
{
	ncclResult_t r = ncclInvalidArgument;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < c->windows && r; i++)
		if (c->window[i].at == handle) {
			c->window[i] = c->window[--c->windows];
			r = ncclSuccess;
		}
	pthread_mutex_unlock(&lock);
	return r;
}

ncclResult_t ncclMemAlloc(void **p, size_t n)
{
	*p = simt_malloc(n);
	if (*p)
		__atomic_fetch_add(&allocated, 1, __ATOMIC_RELAXED);
	return *p ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void *p)
{
	simt_free(p);
	__atomic_fetch_sub(&allocated, 1, __ATOMIC_RELAXED);
	return ncclSuccess;
}

int simt_nccl_registered(ncclComm_t c)
{
	int n;

	pthread_mutex_lock(&lock);
	n = c->registered;
	pthread_mutex_unlock(&lock);
	return n;
}

int simt_nccl_allocated(void)
{
	return __atomic_load_n(&allocated, __ATOMIC_RELAXED);
}

void simt_nccl_refuse(int rank, int after)
{
	pthread_mutex_lock(&lock);
	refused_rank = rank;
	refused_after = after;
	pthread_mutex_unlock(&lock);
}

/* Whether the data of a rank's next call are in a registered buffer. */
static bool is_registered(const struct fake_comm *c)
{
	const char *from = c->call[0].from;

	for (int i = 0; i < c->registered; i++)
		if (from >= (char *)c->region[i].at && from < (char *)c->region[i].at + c->region[i].n)
			return true;
	return false;
}

/* Where in a window the data are that the other ranks read, or write; -1: in none. */
static int64_t place_in_window(const struct fake_comm *c)
{
	bool written = c->call[0].what == GATHER || c->call[0].what == BROADCAST;
	const char *data = written ? c->call[0].to : c->call[0].from;

	for (int i = 0; i < c->windows; i++)
		if (data >= (char *)c->window[i].at && data < (char *)c->window[i].at + c->window[i].n)
			return data - (char *)c->window[i].at;
	return -1;
}

static double get(const void *p, size_t i, ncclDataType_t t)
{
	return t == ncclFloat64    ? ((const double *)p)[i]
	       : t == ncclBfloat16 ? bf16_to_float(((const uint16_t *)p)[i])
	       : t == ncclFloat16  ? f16_to_float(((const uint16_t *)p)[i])
	                           : ((const float *)p)[i];
}

static void set(void *p, size_t i, ncclDataType_t t, double x)
{
	if (t == ncclFloat64)
		((double *)p)[i] = x;
	else if (t == ncclBfloat16)
		((uint16_t *)p)[i] = bf16_from_float((float)x);
	else if (t == ncclFloat16)
		((uint16_t *)p)[i] = f16_from_float((float)x);
	else
		((float *)p)[i] = (float)x;
}

static double reduced(const struct group *g, size_t i)
{
	const struct call *k = &g->rank[0]->call[0];
	double x = get(k->from, i, k->type);

	for (int r = 1; r < g->n; r++) {
		double y = get(g->rank[r]->call[0].from, i, k->type);

		x = k->op == ncclMax ? (y > x ? y : x) : x + y;
	}
	return x;
}

/* The first call of every rank, when all ranks have called. */
static void carry_out(struct group *g)
{
	const struct call *k = &g->rank[0]->call[0];
	size_t size = type_size(k->type);
	size_t all = k->what == SCATTER ? k->n * (size_t)g->n : k->n;

	for (int r = 1; r < g->n; r++)
		if (is_registered(g->rank[r]) != is_registered(g->rank[0]))
			wrong("one rank's buffer is registered, another's is not");
	for (int r = 1; r < g->n; r++)
		if (place_in_window(g->rank[r]) != place_in_window(g->rank[0]))
			wrong("the buffers are at different places of their windows");
	for (int r = 1; r < g->n; r++)
		if (g->rank[r]->call[0].group != k->group || g->rank[r]->call[0].place != k->place)
			wrong("the ranks have other groups");
	for (size_t i = 0; i < all && (k->what == REDUCE || k->what == SCATTER); i++) {
		double x = reduced(g, i);

		for (int r = 0; r < g->n; r++) {
			if (k->what == REDUCE)
				set(g->rank[r]->call[0].to, i, k->type, x);
			else if (i / k->n == (size_t)r)
				set(g->rank[r]->call[0].to, i % k->n, k->type, x);
		}
	}
	for (int r = 0; r < g->n && k->what == GATHER; r++)
		for (int from = 0; from < g->n; from++)
			memmove((char *)g->rank[r]->call[0].to + (size_t)from * k->n * size,
			        g->rank[from]->call[0].from, k->n * size);
	for (int r = 0; r < g->n && k->what == ALL_TO_ALL; r++)
		for (int from = 0; from < g->n; from++)
			memcpy((char *)g->rank[r]->call[0].to + (size_t)from * k->n * size,
			       (const char *)g->rank[from]->call[0].from + (size_t)r * k->n * size,
			       k->n * size);
	for (int r = 0; r < g->n && k->what == BROADCAST; r++)
		memmove(g->rank[r]->call[0].to, g->rank[k->root]->call[0].from, k->n * size);
	for (int r = 0; r < g->n; r++) {
		struct fake_comm *c = g->rank[r];

		c->connected = true;
		simt_stream_end(c->call[0].stream);
		memmove(&c->call[0], &c->call[1], (size_t)--c->queued * sizeof(c->call[0]));
	}
}

/* Carries out the next collective, where every rank has called it and its stream has come to it. Ranks that
 * call different ones wait for each other, as they do with NCCL. */
static void proceed(struct group *g)
{
	for (int r = 0; r < g->n; r++) {
		struct fake_comm *c = g->rank[r];

		if (!c || !c->queued || c->call[0].what != g->rank[0]->call[0].what ||
		    simt_stream_waits(c->call[0].stream))
			return;
	}
	carry_out(g);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *r)
{
	if (!c)
		return ncclInvalidArgument;
	if (grouped.open)
		wrong("the state of a communicator is asked for before the group has ended");
	pthread_mutex_lock(&lock);
	if (!c->group->died)
		proceed(c->group);
	*r = c->group->died ? ncclRemoteError
	     : c->error     ? c->error
	     : c->splits || c->registers || c->group->joined < c->group->n || (c->queued && !c->connected) ||
	             c->polls++ % 4 == 3
	         ? ncclInProgress
	         : ncclSuccess;
	pthread_mutex_unlock(&lock);
	return ncclSuccess;
}

static ncclResult_t add(struct fake_comm *c, struct call call)
{
	if (grouped.open) {
		if (grouped.n == 64)
			wrong("a group of more than 64 collectives");
		grouped.comm[grouped.n] = c;
		grouped.call[grouped.n++] = call;
		return ncclSuccess;
	}
	pthread_mutex_lock(&lock);
	check_ready(c);
	simt_stream_begin(call.stream);
	c->call[c->queued++] = call;
	proceed(c->group);
	pthread_mutex_unlock(&lock);
	return ncclInProgress;
}

ncclResult_t ncclGroupStart(void)
{
	if (grouped.open)
		wrong("a group begins within another");
	grouped.open = true;
	grouped.n = 0;
	return ncclSuccess;
}

/* A group that sends to all ranks and receives from them, each from the next place of a buffer, is one
 * collective. */
static void join_messages(void)
{
	const struct call *out = &grouped.call[0], *in = &grouped.call[1];
	struct call all = *out;
	int ranks = grouped.n / 2;

	if (grouped.n == 0 || out->what != SEND)
		return;
	for (int i = 0; i < ranks; i++) {
		const struct call *sends = &grouped.call[2 * i], *receives = &grouped.call[2 * i + 1];
		size_t at = (size_t)i * out->n * type_size(out->type);

		if (sends->what != SEND || receives->what != RECEIVE || sends->root != i ||
		    receives->root != i || sends->n != out->n || receives->n != out->n ||
		    sends->from != (const char *)out->from + at || receives->to != (char *)in->to + at)
			wrong("messages that are no exchange of all ranks");
	}
	if (grouped.n != 2 * grouped.comm[0]->group->n)
		wrong("messages that are not for all ranks");
	all.what = ALL_TO_ALL;
	all.to = in->to;
	grouped.call[0] = all;
	grouped.n = 1;
}

/* Nothing of a group has begun before. */
ncclResult_t ncclGroupEnd(void)
{
	if (!grouped.open)
		wrong("a group ends that has not begun");
	grouped.open = false;
	join_messages();
	for (int i = 0; i < grouped.n; i++) {
		if (grouped.call[i].stream != grouped.call[0].stream)
			wrong("the collectives of a group are on different streams");
		if (grouped.n > 1) {
			grouped.call[i].group = grouped.n;
			grouped.call[i].place = i;
			__atomic_fetch_add(&in_groups, 1, __ATOMIC_RELAXED);
		}
		(void)add(grouped.comm[i], grouped.call[i]);
	}
	return ncclInProgress;
}

int simt_nccl_grouped(void)
{
	return __atomic_load_n(&in_groups, __ATOMIC_RELAXED);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t t, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t s)
{
	return add(c, (struct call){
	                  .what = REDUCE, .from = from, .to = to, .n = n, .type = t, .op = op, .stream = s});
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t n, ncclDataType_t t, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t s)
{
	return add(c, (struct call){
	                  .what = SCATTER, .from = from, .to = to, .n = n, .type = t, .op = op, .stream = s});
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t s)
{
	return add(c, (struct call){.what = GATHER, .from = from, .to = to, .n = n, .type = t, .stream = s});
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                           cudaStream_t s)
{
	return add(
	    c, (struct call){
	           .what = BROADCAST, .from = from, .to = to, .n = n, .type = t, .root = root, .stream = s});
}

ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
	return add(c,
	           (struct call){.what = SEND, .from = from, .n = n, .type = t, .root = peer, .stream = s});
}

ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
	return add(c, (struct call){.what = RECEIVE, .to = to, .n = n, .type = t, .root = peer, .stream = s});
}
