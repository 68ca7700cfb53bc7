/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a request to start an attempt, and describes it for dtrain-launch. */
#include "node/request.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "node/clusters.h"
#include "node/gpu/affinity.h"
#include "node/tmp_dirs.h"

static const char DEFAULT_PATH[] = "/usr/local/bin:/usr/bin:/bin";

void request_free(struct request *request)
{
	start_request_release(&request->start);
	free(request->cgroup);
	free(request->service);
	free(request->ranks);
	free(request->slots);
	free(request);
}

bool request_has_slot(const struct request *q, int slot)
{
	for (size_t i = 0; i < q->slot_count; i++)
		if (q->slots[i] == slot)
			return true;
	return false;
}

/* The ranks with the slots of all of them in one list. */
static int copy_ranks(struct request *q, struct error *err)
{
	size_t count = q->start.rank_count, slot_count = 0;

	for (size_t i = 0; i < count; i++)
		slot_count += MAX(q->start.ranks[i].slot_count, 1u);
	q->ranks = calloc(count + 1, sizeof(*q->ranks));
	q->slots = calloc(slot_count + 1, sizeof(*q->slots));
	if (!q->ranks || !q->slots)
		return error_oom(err);
	for (; q->rank_count < count; q->rank_count++) {
		const struct start_rank *rank = &q->start.ranks[q->rank_count];
		struct request_rank *own = &q->ranks[q->rank_count];

		*own = (struct request_rank){.rank = (int)rank->rank,
		                             .local_rank = (int)rank->local_rank,
		                             .slot = (int)rank->slot,
		                             .first = q->slot_count,
		                             .slot_count = MAX(rank->slot_count, 1u)};
		for (size_t k = 0; k < own->slot_count; k++)
			q->slots[q->slot_count++] = (int)(rank->slot_count ? rank->slots[k] : rank->slot);
	}
	return 0;
}

int request_new(struct start_request *start, struct request **out, struct error *err)
{
	_cleanup_(request_freep) struct request *q = calloc(1, sizeof(*q));
	int r;

	if (!q) {
		start_request_release(start);
		return error_oom(err);
	}
	q->start = *start;
	*start = (struct start_request){0};
	q->run = q->start.run;
	q->attempt = q->start.attempt;
	q->cluster = q->start.cluster ? q->start.cluster : "";
	q->epoch = q->start.epoch;
	q->user = q->start.user;
	q->uid = (uid_t)q->start.uid;
	q->config = q->start.config;
	q->world_size = (int)q->start.world_size;
	q->node_count = (int)q->start.nodes;
	q->node_rank = (int)q->start.node_rank;
	q->local_world_size = (int)q->start.local_world_size;
	q->master_addr = q->start.master_addr ? q->start.master_addr : "127.0.0.1";
	q->master_port = (int)q->start.master_port;
	q->native = q->config->task != RUN_COMMAND;
	r = copy_ranks(q, err);
	if (r < 0)
		return r;
	*out = steal_pointer(q);
	return 0;
}

/* The value of NAME in the run's own environment, or NULL. */
static const char *user_variable(const struct request *q, const char *name)
{
	size_t n = strlen(name);
	const char *found = NULL;

	for (char **entry = q->config->environment; entry && *entry; entry++)
		if (!strncmp(*entry, name, n) && (*entry)[n] == '=')
			found = *entry + n + 1;
	return found;
}

const char *request_engine(const struct request *q, const struct request_place *place)
{
	if (!q->native)
		return NULL;
	return place->devices->list[q->ranks[0].slot].gpu ? "cuda" : "cpu";
}

int request_program(const struct request *q, const struct request_place *place, char **program,
                    const char **path, struct error *err)
{
	if (q->native)
		*program =
		    str_printf("%s/dtrain-worker-%s", place->config->worker_dir, request_engine(q, place));
	else
		*program = strdup(q->config->command[0]);
	*path = user_variable(q, "PATH") ?: DEFAULT_PATH;
	return *program ? 0 : error_oom(err);
}

char *request_log_path(const char *logs, int rank)
{
	return str_printf("%s/rank-%d.log", logs, rank);
}

/* In the directory for temporary files, which is the user's and goes with the attempt: dtrain-launch reads it
 * before. */
static char *error_path(const struct request *q, const struct request_place *place, int rank)
{
	_cleanup_free_ char *tmp = tmp_dirs_path(place->config, q->run, q->attempt);

	return tmp ? str_printf("%s/error-%d.json", tmp, rank) : NULL;
}

/* A list of "K=V" that grows. */
struct environment {
	char **list; /* ends with NULL */
	size_t count;
	bool failed; /* out of memory */
};

/* A later value takes the place of an earlier one. What is not UTF-8 is in no message, and left out. */
static void __attribute__((format(printf, 3, 4)))
set(struct environment *env, const char *name, const char *fmt, ...)
{
	_cleanup_strbuf_ struct strbuf entry = {0};
	size_t at = 0, length = strlen(name) + 1;
	char **grown;
	va_list ap;

	strbuf_addf(&entry, "%s=", name);
	va_start(ap, fmt);
	strbuf_addv(&entry, fmt, ap);
	va_end(ap);
	if (entry.failed) {
		env->failed = true;
		return;
	}
	if (!str_is_utf8(entry.data))
		return;
	while (at < env->count && strncmp(env->list[at], entry.data, length) != 0)
		at++;
	if (at < env->count) {
		free(env->list[at]);
		env->list[at] = strbuf_steal(&entry);
		return;
	}
	grown = reallocarray(env->list, env->count + 2, sizeof(*grown));
	if (!grown) {
		env->failed = true;
		return;
	}
	env->list = grown;
	env->list[env->count++] = strbuf_steal(&entry);
	env->list[env->count] = NULL;
}

static void set_base(struct environment *env, const struct request *q, const struct request_place *place,
                     const struct run_user *user)
{
	_cleanup_free_ char *tmp = tmp_dirs_path(place->config, q->run, q->attempt);

	set(env, "PATH", "%s", DEFAULT_PATH);
	set(env, "HOME", "%s", user->home);
	set(env, "USER", "%s", user->name);
	set(env, "LOGNAME", "%s", user->name);
	set(env, "SHELL", "%s", user->shell);
	set(env, "LANG", "%s", getenv("LANG") ?: "C.UTF-8");
	if (tmp)
		set(env, "TMPDIR", "%s", tmp);
	else
		env->failed = true;
	set(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
	if (!q->native) /* what Python prints is in the log at once */
		set(env, "PYTHONUNBUFFERED", "1");
	else /* freed memory is merged at once, so that a rank takes what the plan says (worker/main.c) */
		set(env, "GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
	if (place->config->port_low) /* what ranks of ours listen on, and programs over UCX */
		set(env, "UCX_TCP_PORT_RANGE", "%d-%d", place->config->port_low, place->config->port_high);
	for (char **entry = q->config->environment; entry && *entry; entry++) {
		const char *equals = strchr(*entry, '=');

		if (equals && equals > *entry) {
			_cleanup_free_ char *name = strndup(*entry, equals - *entry);

			if (name)
				set(env, name, "%s", equals + 1);
			else
				env->failed = true;
		}
	}
}

/* The name of a GPU for CUDA. By its number, which every program can read, unless numbers may mislead. */
static void add_gpu_name(struct strbuf *b, const struct devices *devices, const struct node_device *d)
{
	strbuf_adds(b, b->len ? "," : "");
	if (devices->by_uuid)
		strbuf_adds(b, d->uuid);
	else
		strbuf_addf(b, "%d", d->index);
}

/* What the devices mean to a program. A list of GPUs is in the order of local ranks, the same for all of
 * them: a program takes the LOCAL_RANK-th. CUDA lets a process use one MIG device only: its rank sees that
 * one, as the first. */
static void set_devices(struct environment *env, const struct request *q, const struct request_place *place,
                        const struct request_rank *rank)
{
	const struct node_device *device = &place->devices->list[rank->slot];
	int64_t threads = q->config->resources.threads;
	struct strbuf gpus = {0}, slots = {0};
	int seen = 0, own = 0;

	for (int local = 0; local < (int)q->rank_count; local++)
		for (size_t i = 0; i < q->rank_count; i++)
			for (size_t k = 0; q->ranks[i].local_rank == local && k < q->ranks[i].slot_count;
			     k++) {
				int slot = q->slots[q->ranks[i].first + k];
				const struct node_device *d = &place->devices->list[slot];

				strbuf_addf(&slots, "%s%d", slots.len ? "," : "", slot);
				if (!d->gpu || (device->mig ? d != device : d->mig))
					continue;
				if (d == device)
					own = seen;
				seen++;
				add_gpu_name(&gpus, place->devices, d);
			}
	if (gpus.len) {
		set(env, "CUDA_VISIBLE_DEVICES", "%s", gpus.data);
		set(env, "CUDA_DEVICE_ORDER", "PCI_BUS_ID");
		set(env, "DTRAIN_DEVICE", "%d", own);
	} else if (getenv("CUDA_VISIBLE_DEVICES")) {
		set(env, "CUDA_VISIBLE_DEVICES", "%s", ""); /* as it is for dtraind, which saw none */
	}
	env->failed = env->failed || gpus.failed || slots.failed;
	set(env, "DTRAIN_SLOT", "%d", rank->slot);
	set(env, "DTRAIN_SLOTS", "%s", slots.data ? slots.data : "");
	strbuf_free(&gpus);
	strbuf_free(&slots);
	if (user_variable(q, "OMP_NUM_THREADS"))
		return;
	if (threads > 0)
		set(env, "OMP_NUM_THREADS", "%lld", (long long)threads);
	else if (q->native || !device->gpu)
		set(env, "OMP_NUM_THREADS", "%d", device->threads * (int)rank->slot_count);
	else if (q->local_world_size > 1)
		set(env, "OMP_NUM_THREADS", "1"); /* torchrun's rule */
}

/* The CPUs for a rank, owned by the caller; NULL: any. */
static char *rank_cpus(const struct request *q, const struct request_place *place, size_t which)
{
	int64_t threads = q->config->resources.threads;
	_cleanup_free_ int *slots = calloc(q->rank_count, sizeof *slots);
	cpu_set_t allowed, cpus;

	if (q->ranks[which].slot_count > 1) /* it has all that is near to several */
		return NULL;
	if (!slots || sched_getaffinity(0, sizeof allowed, &allowed) < 0)
		return NULL;
	for (size_t i = 0; i < q->rank_count; i++)
		slots[i] = q->ranks[i].slot;
	return affinity_share(place->devices, slots, q->rank_count, which, (int)threads, &allowed, &cpus)
	           ? affinity_format(&cpus)
	           : NULL;
}

/* The NUMA node that is near to all its devices; -1: none, or it is not known. */
static int64_t rank_numa(const struct request *q, const struct request_place *place, size_t which)
{
	const struct request_rank *rank = &q->ranks[which];
	int numa = -1;

	for (size_t i = 0; i < rank->slot_count; i++) {
		const struct node_device *d = &place->devices->list[q->slots[rank->first + i]];

		if (!d->gpu || d->numa < 0 || (i > 0 && d->numa != numa))
			return -1;
		numa = d->numa;
	}
	return numa;
}

static void set_torchrun(struct environment *env, const struct request *q, const struct request_place *place,
                         const struct request_rank *rank)
{
	_cleanup_free_ char *error_file = error_path(q, place, rank->rank);

	/* Attempts that follow neither, such as after a drain, are in the count, too. */
	const int64_t most = q->config->resources.max_restarts + q->config->resources.max_node_failures;
	const struct {
		const char *name;
		long long value;
	} numbers[] = {
	    {"RANK", rank->rank},
	    {"WORLD_SIZE", q->world_size},
	    {"LOCAL_RANK", rank->local_rank},
	    {"LOCAL_WORLD_SIZE", q->local_world_size},
	    {"LOCAL_SIZE", q->local_world_size},
	    {"GROUP_RANK", q->node_rank},
	    {"GROUP_WORLD_SIZE", q->node_count},
	    {"CROSS_RANK", q->node_rank},
	    {"CROSS_SIZE", q->node_count},
	    {"ROLE_RANK", rank->rank},
	    {"ROLE_WORLD_SIZE", q->world_size},
	    {"TORCHELASTIC_RUN_ID", q->run},
	    {"TORCHELASTIC_RESTART_COUNT", q->attempt - 1},
	    {"TORCHELASTIC_MAX_RESTARTS", MAX(most, q->attempt - 1)},
	    {"DTRAIN_RUN_ID", q->run},
	    {"DTRAIN_ATTEMPT", q->attempt},
	};

	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
		set(env, numbers[i].name, "%lld", numbers[i].value);
	if (*q->cluster) {
		set(env, "DTRAIN_CLUSTER", "%s", q->cluster);
		set(env, "DTRAIN_EPOCH", "%lld", (long long)q->epoch);
	}
	if (q->native && q->start.checkpoint > 0) {
		set(env, "DTRAIN_CHECKPOINT", "%lld", (long long)q->start.checkpoint);
		if (q->start.checkpoint_node)
			set(env, "DTRAIN_CHECKPOINT_NODE", "%s", q->start.checkpoint_node);
	}
	set(env, "ROLE_NAME", "default");
	set(env, "TORCHELASTIC_USE_AGENT_STORE", "False");
	if (error_file)
		set(env, "TORCHELASTIC_ERROR_FILE", "%s", error_file);
	else
		env->failed = true;
	set(env, "MASTER_ADDR", "%s", q->master_addr);
	if (q->master_port > 0)
		set(env, "MASTER_PORT", "%d", q->master_port);
	set(env, "DTRAIN_SOCKET", "%s", place->config->socket);
	set(env, "DTRAIN_NODE", "%s", place->node);
	if (run_config_stops_on_partition(q->config))
		set(env, "DTRAIN_LEASE", "%s/lease", place->config->runtime_dir);
	if (q->native)
		set(env, "DTRAIN_CONFIG", "%s/config.json", place->dir);
}

/* To be freed by the caller; NULL: out of memory. */
static char **environment(const struct request *q, const struct request_place *place,
                          const struct run_user *user, const struct request_rank *rank)
{
	struct environment env = {0};

	set_base(&env, q, place, user);
	set_devices(&env, q, place, rank);
	set_torchrun(&env, q, place, rank);
	if (!env.failed)
		return env.list;
	str_list_free(env.list);
	return NULL;
}

static int describe_rank(const struct request *q, const struct request_place *place,
                         const struct run_user *user, size_t which, struct rank_description *out,
                         struct error *err)
{
	const struct request_rank *rank = &q->ranks[which];

	*out = (struct rank_description){
	    .rank = rank->rank,
	    .slot = rank->slot,
	    .environment = environment(q, place, user, rank),
	    .log = request_log_path(place->logs, rank->rank),
	    .error_file = error_path(q, place, rank->rank),
	    .cpus = rank_cpus(q, place, which),
	    .numa = rank_numa(q, place, which),
	};
	return out->environment && out->log && out->error_file ? 0 : error_oom(err);
}

int request_describe_launch(const struct request *q, const struct request_place *place,
                            const struct run_user *user, struct launch_description *out, struct error *err)
{
	_cleanup_free_ char *program = NULL;
	const char *path;
	int r;

	*out = (struct launch_description){
	    .switch_user = user->change,
	    .core_files = q->config->resources.core_files,
	    .tmp_dir = tmp_dirs_path(place->config, q->run, q->attempt),
	    .umask = strtol(q->config->umask ? q->config->umask : "022", NULL, 8) & 0777,
	    .uid = user->uid,
	    .gid = user->gid,
	    .grace = LAUNCH_DEFAULT_GRACE,
	};
	r = request_program(q, place, &program, &path, err);
	if (r < 0)
		return r;
	out->argv = str_list_copy(q->native ? (char *[]){program, NULL} : q->config->command);
	out->groups = calloc(user->group_count + 1, sizeof(*out->groups));
	out->ranks = calloc(q->rank_count + 1, sizeof(*out->ranks));
	if (!out->argv || !out->groups || !out->ranks || !out->tmp_dir ||
	    str_replace(&out->user, user->name) < 0 ||
	    str_replace(&out->directory, q->config->directory ? q->config->directory : user->home) < 0)
		return error_oom(err);
	out->lease = str_path_join(place->config->runtime_dir, "lease");
	out->outlives_lease = !run_config_stops_on_partition(q->config);
	if (!out->lease)
		return error_oom(err);
	memcpy(out->groups, user->groups, user->group_count * sizeof(*out->groups));
	out->group_count = user->group_count;
	out->rank_count = q->rank_count;
	for (size_t i = 0; r == 0 && i < q->rank_count; i++)
		r = describe_rank(q, place, user, i, &out->ranks[i], err);
	return r;
}
