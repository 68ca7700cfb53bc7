/* SPDX-License-Identifier: Apache-2.0 */
/* The node: its slots and attempts, what may be started and what is stopped, and what is reported of them. */
#include "node/node.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "node/adopt.h"
#include "node/attempt.h"
#include "node/attempt_files.h"
#include "node/attempts.h"
#include "node/clusters.h"
#include "node/gpu/device_files.h"
#include "node/launch/unit.h"
#include "node/lease.h"
#include "node/ports.h"
#include "node/request.h"
#include "node/slots.h"
#include "node/started.h"
#include "node/starts.h"
#include "node/stopped.h"
#include "node/tmp_dirs.h"
#include "wire/start_request.h"

/* Ends that no controller asked to forget: so many are kept. */
enum { ENDED_KEPT = 512 };

struct node {
	const struct daemon_config *config;
	char *name, *attempts_dir;
	struct units *units;
	bool shutting_down;
	struct ports ports;
	struct node_callbacks callbacks;
	struct attempt_owner owner;
	struct slots *slots;
	struct clusters *clusters;
	struct attempts *attempts;
	struct tmp_dirs *tmp_dirs;
	struct starts *starts; /* what is being looked into: it has its slots, and no attempt yet */
	struct lease *lease;
	struct stopped stopped;
};

/* The attempt that has this slot, or NULL. */
static const struct request *slot_holder(const struct node *node, int slot)
{
	return attempts_holder(node->attempts, slot) ?: starts_holder(node->starts, slot);
}

/* Who has a device that reports an error hears of it: it may be why they fail. */
static void on_fault(void *context, int slot, const char *text)
{
	struct node *node = context;
	const struct request *q = slot_holder(node, slot);
	struct known_attempt *e = q ? attempts_find(node->attempts, q->run, q->attempt) : NULL;

	if (!e)
		return;
	attempt_add_error(e->attempt, text);
	if (node->callbacks.report)
		node->callbacks.report(node->callbacks.context, attempt_report(e->attempt));
}

static void on_devices_changed(void *context)
{
	struct node *node = context;

	if (node->callbacks.devices_changed)
		node->callbacks.devices_changed(node->callbacks.context);
}

/* Of attempts that an earlier dtraind started. */
static void tell_old_faults(struct node *node)
{
	for (struct known_attempt *e = attempts_first(node->attempts); e; e = attempts_next(e)) {
		const struct request *q = attempt_request(e->attempt);
		char text[512];

		for (size_t i = 0; i < q->slot_count; i++)
			if (q->slots[i] < slots_count(node->slots) &&
			    slots_fault(node->slots, q->slots[i], text, sizeof text))
				attempt_add_error(e->attempt, text);
	}
}

static void forget(struct node *node, struct known_attempt *e)
{
	const struct request *q = attempt_request(e->attempt);
	struct error err = ERROR_INIT;

	/* A start that comes a second time does not start it again. */
	if (stopped_add(&node->stopped, q->cluster, q->epoch, q->run, q->attempt, &err) < 0)
		log_warn("%s", err.message);

	if (file_remove_tree(attempt_dir(e->attempt), &err) < 0)
		log_warn("%s", err.message);
	started_forget(node->config->state_dir, q);
	attempts_forget(node->attempts, e);
}

static void on_settled(void *context, struct attempt *attempt)
{
	struct node *node = context;
	const struct request *q = attempt_request(attempt);

	tmp_dirs_remove(node->tmp_dirs, q->run, q->attempt);
	attempts_sweep(node->attempts);
}

static bool is_known(void *context, int64_t run, int64_t attempt)
{
	const struct node *node = context;

	return attempts_find(node->attempts, run, attempt);
}

static void on_changed(void *context, struct attempt *attempt)
{
	const struct request *q = attempt_request(attempt);
	struct node *node = context;
	struct known_attempt *oldest;

	if (node->callbacks.report)
		node->callbacks.report(node->callbacks.context, attempt_report(attempt));
	if (!attempt_has_ended(attempt))
		return;
	for (size_t i = 0; i < q->slot_count; i++)
		if (q->slots[i] < slots_count(node->slots))
			slots_released(node->slots, q->slots[i], q->run);
	oldest = attempts_oldest_ended(node->attempts, ENDED_KEPT);
	if (oldest)
		forget(node, oldest);
}

static int begin(void *context, struct request **request, const struct request_place *place,
                 const struct run_user *user, struct error *err);

DEFINE_CLEANUP(struct node *, node_destroy)

/* What is not to outlive a partition ends before the lease does; so does what the controller may not know:
 * of an attempt that an earlier service has started its dtrain-launch knows that. */
static bool outlives_lease(const struct known_attempt *e)
{
	const struct run_config *config = attempt_request(e->attempt)->config;

	return !config || (!run_config_stops_on_partition(config) && (e->confirmed || e->started <= 0));
}

static void on_lease_ending(void *context, double seconds)
{
	struct node *node = context;

	for (struct known_attempt *e = attempts_first(node->attempts); e; e = attempts_next(e)) {
		const struct request *q = attempt_request(e->attempt);

		if (!attempt_holds(e) || outlives_lease(e))
			continue;
		attempt_end_lease(e->attempt, seconds);
		log_warn("run %lld, attempt %lld: %s", (long long)q->run, (long long)q->attempt,
		         attempt_report(e->attempt)->shutdown);
		if (node->callbacks.report)
			node->callbacks.report(node->callbacks.context, attempt_report(e->attempt));
	}
}

int node_create(sd_event *event, const struct daemon_config *config, const char *name, int hosts_slots,
                const struct node_callbacks *callbacks, struct node **out, struct error *err)
{
	_cleanup_(node_destroyp) struct node *node = calloc(1, sizeof *node);
	_cleanup_free_ char *unmatched = NULL;
	int r;

	if (!node)
		return error_oom(err);
	node->config = config;
	node->callbacks = *callbacks;
	node->name = strdup(name);
	node->attempts_dir = str_path_join(config->runtime_dir, "attempts");
	if (!node->name || !node->attempts_dir)
		return error_oom(err);
	r = units_create(event, config, &node->units, err);
	if (r < 0)
		return error_prefix(err, "node %s", name);
	r = attempts_create(event, &node->attempts, err);
	if (r < 0)
		return error_prefix(err, "node %s", name);
	node->owner = (struct attempt_owner){event, node->name, node->units, node, on_changed, on_settled};
	r = starts_create(event, config, &(struct starts_callbacks){node, begin, on_devices_changed},
	                  &node->starts, err);
	if (r < 0)
		return r;
	r = slots_create(event, config, name, hosts_slots,
	                 &(struct slots_callbacks){node, on_fault, on_devices_changed}, &node->slots, err);
	if (r < 0)
		return error_prefix(err, "node %s", name);
	if ((r = file_mkdirs(node->attempts_dir, 0711, err)) < 0 ||
	    (r = file_mkdirs(config->log_dir, 0755, err)) < 0 ||
	    (r = started_make_directory(config->state_dir, err)) < 0 ||
	    (r = lease_create(event, config->runtime_dir, on_lease_ending, node, &node->lease, err)) < 0 ||
	    (r = clusters_open(event, config->state_dir, config->log_dir, &node->clusters, err)) < 0 ||
	    (r = tmp_dirs_open(event, config, &node->tmp_dirs, err)) < 0 ||
	    (r = adopt_attempts(&node->owner, node->attempts_dir, config->state_dir, node->attempts, err)) <
	        0)
		return r;
	tmp_dirs_sweep(node->tmp_dirs, is_known, node);
	units_adopted(node->units);
	if (node_running(node) > 0)
		lease_load(node->lease);
	tell_old_faults(node);
	unmatched = device_files_unmatched("", config->allow_devices);
	if (unmatched)
		log_warn("allow_devices: there is no device %s", unmatched);
	*out = steal_pointer(node);
	return 0;
}

void node_destroy(struct node *node)
{
	starts_destroy(node->starts);
	attempts_destroy(node->attempts);
	tmp_dirs_close(node->tmp_dirs);
	units_destroy(node->units);
	if (node->slots)
		slots_destroy(node->slots);
	clusters_close(node->clusters);
	lease_destroy(node->lease);
	stopped_release(&node->stopped);
	free(node->name);
	free(node->attempts_dir);
	free(node);
}

const char *node_launch(const struct node *node)
{
	return units_method(node->units);
}

int node_slots(const struct node *node)
{
	return slots_count(node->slots);
}

int node_free_slots(const struct node *node)
{
	int n = 0;

	for (int i = 0; i < slots_count(node->slots); i++)
		n += !slot_holder(node, i) && !slots_drained(node->slots, i);
	return n;
}

int node_describe_device(const struct node *node, int slot, struct device_info *out, struct error *err)
{
	const struct request *holder = slot_holder(node, slot);

	return slots_describe(node->slots, slot, holder ? holder->run : 0, out, err);
}

int node_devices(const struct node *node, struct device_list *out, struct error *err)
{
	int count = slots_count(node->slots), r = 0;

	*out = (struct device_list){.devices = calloc((size_t)count + 1, sizeof(*out->devices))};
	if (!out->devices)
		return error_oom(err);
	for (int i = 0; i < count && r == 0; i++) {
		r = node_describe_device(node, i, &out->devices[i], err);
		out->count++;
	}
	if (r < 0)
		device_list_release(out);
	return r;
}

int node_drain(struct node *node, int slot, const char *reason, struct error *err)
{
	return slots_drain(node->slots, slot, reason, err);
}

int node_resume(struct node *node, int slot, struct error *err)
{
	return slots_resume(node->slots, slot, err);
}

int node_wait_drains(struct node *node, file_written_fn done, void *context, struct error *err)
{
	return slots_wait_drains(node->slots, done, context, err);
}

const struct report *node_attempt(const struct node *node, size_t i)
{
	for (const struct known_attempt *e = attempts_first(node->attempts); e; e = attempts_next(e))
		if (i-- == 0)
			return attempt_report(e->attempt);
	return NULL;
}

uid_t node_attempt_owner(const struct node *node, size_t i, const int **slots, size_t *slot_count)
{
	const struct known_attempt *e = attempts_first(node->attempts);

	while (i-- > 0)
		e = attempts_next(e);
	*slots = attempt_request(e->attempt)->slots;
	*slot_count = attempt_request(e->attempt)->slot_count;
	return attempt_request(e->attempt)->uid;
}

void node_end_run(struct node *node, int64_t run, const char *reason)
{
	for (struct known_attempt *e = attempts_first(node->attempts); e; e = attempts_next(e)) {
		if (!attempt_holds(e) || attempt_request(e->attempt)->run != run)
			continue;
		log_info("run %lld, attempt %lld: %s", (long long)run,
		         (long long)attempt_request(e->attempt)->attempt, reason);
		attempt_shut_down(e->attempt, attempt_stop_times(e->attempt, RUN_STOP_CANCEL), reason);
		if (node->callbacks.report)
			node->callbacks.report(node->callbacks.context, attempt_report(e->attempt));
	}
}

int node_known(const struct node *node, struct known_clusters *out, struct error *err)
{
	return clusters_describe(node->clusters, out, err);
}

int node_learn(struct node *node, const struct heartbeat_answer *answer, double sent, struct error *err)
{
	int r = clusters_learn(node->clusters, answer->cluster ? answer->cluster : "", answer->epoch,
	                       answer->highest_run, err);

	if (r < 0)
		return r;
	lease_renew(node->lease, sent, answer->lease);
	for (struct known_attempt *e = attempts_first(node->attempts); e; e = attempts_next(e))
		if (!e->confirmed && e->started < sent) {
			e->confirmed = true;
			attempt_confirm(e->attempt);
		}
	if (node_running(node) > 0)
		lease_save(node->lease);
	return 0;
}

static int check_slots(const struct node *node, const struct request *q, struct error *err)
{
	const struct devices *devices = slots_devices(node->slots);

	if (node->shutting_down)
		return error_set(err, -EBUSY, "node %s is shutting down", node->name);
	if (lease_is_ending(node->lease))
		return error_set(err, -EBUSY, "node %s has had no answer of its controller for too long",
		                 node->name);
	for (size_t i = 0; i < q->slot_count; i++) {
		int slot = q->slots[i];
		const struct request *holder = slot_holder(node, slot);
		const char *drained;
		char name[200];

		if (slot >= (int)devices->count)
			return error_set(err, -EINVAL, "no slot %d; there are %zu, counted from 0", slot,
			                 devices->count);
		if (holder)
			return error_set(err, -EBUSY, "slot %d is leased to run %lld, attempt %lld", slot,
			                 (long long)holder->run, (long long)holder->attempt);
		drained = slots_drained(node->slots, slot);
		if (drained)
			return error_set(err, -EBUSY, "slot %d, %s, is drained: %s", slot,
			                 node_device_describe(&devices->list[slot], name, sizeof name),
			                 drained);
	}
	return 0;
}

/* Not later than the request allows, also after its preflight. */
static int check_deadline(const struct node *node, const struct request *q, struct error *err)
{
	if (q->start.until <= 0 || lease_clock() < q->start.until)
		return 0;
	return error_set(err, -EBUSY,
	                 "node %s: the start of attempt %lld of run %lld has come too late: its controller "
	                 "has given it up",
	                 node->name, (long long)q->attempt, (long long)q->run);
}

/* What a controller that grants leases starts would outlive its partition, were there none. One that has not
 * heard of a restart of this machine may send a start before the first heartbeat is answered. */
static int check_lease(const struct node *node, const struct request *q, struct error *err)
{
	if (q->start.until <= 0 || lease_is_known(node->lease))
		return 0;
	return error_set(err, -EBUSY, "node %s: no heartbeat has been answered since its machine was started",
	                 node->name);
}

/* Nothing older than what is known here of the run. */
static int check_age(const struct node *node, const struct request *q, struct error *err)
{
	int64_t newest = starts_newest(node->starts, q->run);

	for (const struct known_attempt *e = attempts_first(node->attempts); e; e = attempts_next(e))
		if (attempt_request(e->attempt)->run == q->run &&
		    str_eq(attempt_request(e->attempt)->cluster, q->cluster))
			newest = MAX(newest, attempt_request(e->attempt)->attempt);
	if (newest <= q->attempt)
		return 0;
	return error_set(err, -ESTALE, "attempt %lld of run %lld is older than attempt %lld, known here",
	                 (long long)q->attempt, (long long)q->run, (long long)newest);
}

/* What fails are files and processes of this service, which are those of any run. */
static int start_attempt(struct node *node, struct request *q, const struct request_place *place,
                         const struct run_user *user, struct attempt **out, struct error *err)
{
	int r = attempt_start(&node->owner, q, place, user, out, err);

	return start_may_succeed_later(r) ? -ENOTRECOVERABLE : r;
}

/* The user could run it: the ranks start. A device may have been drained meanwhile. */
static int begin(void *context, struct request **request, const struct request_place *place,
                 const struct run_user *user, struct error *err)
{
	struct node *node = context;
	struct request *q = *request;
	struct attempt *attempt;
	int r = check_deadline(node, q, err);

	if (r == 0)
		r = check_slots(node, q, err);

	/* The file is there before the first rank is. */
	if (r == 0)
		lease_save(node->lease);
	if (r == 0 && q->master_port == 0 && q->node_count == 1) {
		r = node_free_port(node, err);
		q->master_port = r;
	}
	if (r >= 0)
		r = start_attempt(node, q, place, user, &attempt, err);
	if (r < 0)
		return r;
	*request = NULL; /* the attempt's now */
	for (size_t i = 0; i < q->slot_count; i++)
		slots_leased(node->slots, q->slots[i]);
	return attempts_add(node->attempts, attempt, lease_clock(), err);
}

int node_start(struct node *node, struct start_request *start, node_started_fn started, void *context,
               struct error *err)
{
	_cleanup_(request_freep) struct request *q = NULL;
	_cleanup_free_ char *dir = NULL, *logs = NULL;
	int r = request_new(start, &q, err);
	const struct known_attempt *e;

	if (r < 0)
		return r;
	/* What the worker would not know either. */
	if (q->native && q->start.unknown_key[0])
		return error_set(err, -EINVAL, "start request: config: %s: unknown key",
		                 q->start.unknown_key);
	if (q->uid == 0 && !node->config->allow_root)
		return error_set(err, -EPERM, "runs of root are refused here: allow_root of dtraind.conf");
	r = clusters_learn(node->clusters, q->cluster, q->epoch, q->run, err);
	if (r < 0)
		return r;
	e = attempts_find(node->attempts, q->run, q->attempt);
	if (e && !str_eq(attempt_request(e->attempt)->cluster, q->cluster))
		return error_set(err, -EEXIST, "run %lld, attempt %lld of another cluster is kept here",
		                 (long long)q->run, (long long)q->attempt);
	if (e) {
		started(context, 0, "");
		return 0;
	}
	if (stopped_has(&node->stopped, q->cluster, q->epoch, q->run, q->attempt))
		return error_set(err, -ESTALE, "attempt %lld of run %lld was stopped, or has ended already",
		                 (long long)q->attempt, (long long)q->run);
	if (starts_wait(node->starts, q->run, q->attempt, started, context))
		return 0;
	if ((r = check_age(node, q, err)) < 0 || (r = check_deadline(node, q, err)) < 0 ||
	    (r = check_lease(node, q, err)) < 0 || (r = check_slots(node, q, err)) < 0)
		return r;
	dir = str_printf("%s/%lld.%lld", node->attempts_dir, (long long)q->run, (long long)q->attempt);
	logs = str_printf("%s/%lld/%lld", node->config->log_dir, (long long)q->run, (long long)q->attempt);
	if (!dir || !logs)
		return error_oom(err);

	const struct request_place place = {
	    .config = node->config,
	    .node = node->name,
	    .dir = dir,
	    .logs = logs,
	    .devices = slots_devices(node->slots),
	    .own_mounts = str_eq(units_method(node->units), "systemd"),
	};

	return starts_add(node->starts, &q, &place, started, context, err);
}

int node_stop(struct node *node, int64_t run, int64_t attempt, double grace, struct error *err)
{
	struct known_attempt *e = attempts_find(node->attempts, run, attempt);

	if (e)
		attempt_stop(e->attempt, (struct stop_times){0, grace});
	else
		starts_stop(node->starts, run, attempt);
	return 0;
}

int node_stop_request(struct node *node, const struct stop_request *request, struct error *err)
{
	const char *cluster = request->cluster ? request->cluster : "";
	struct known_attempt *e = attempts_find(node->attempts, request->run, request->attempt);
	const char *own = e ? attempt_request(e->attempt)->cluster : "";
	int r = clusters_check(node->clusters, cluster, request->epoch, err);

	if (r < 0)
		return r;
	if (!e) {
		starts_stop(node->starts, request->run, request->attempt);
		return stopped_add(&node->stopped, cluster, request->epoch, request->run, request->attempt,
		                   err);
	} else if (request->foreign)
		attempt_stop(e->attempt, attempt_stop_times(e->attempt, RUN_STOP_CANCEL));
	else if (*own && *cluster && !str_eq(own, cluster))
		return error_set(err, -EPERM, "run %lld, attempt %lld on node %s is of another cluster",
		                 (long long)attempt_request(e->attempt)->run,
		                 (long long)attempt_request(e->attempt)->attempt, node->name);
	else
		attempt_stop(e->attempt, (struct stop_times){request->save, request->grace});
	return 0;
}

double node_shut_down(struct node *node)
{
	char reason[128];
	double longest = 0;

	node->shutting_down = true;
	snprintf(reason, sizeof reason, "node %s was shut down", node->name);
	for (struct known_attempt *e = attempts_first(node->attempts); e; e = attempts_next(e))
		if (attempt_holds(e)) {
			struct stop_times own = stop_times_within(
			    attempt_stop_times(e->attempt, RUN_STOP_SAVE), node->config->shutdown_grace);

			longest = MAX(longest, own.save + own.grace);
			attempt_shut_down(e->attempt, own, reason);
			if (node->callbacks.report)
				node->callbacks.report(node->callbacks.context, attempt_report(e->attempt));
		}
	return longest;
}

bool node_is_shutting_down(const struct node *node)
{
	return node->shutting_down;
}

int node_running(const struct node *node)
{
	return attempts_running(node->attempts);
}

void node_forget(struct node *node, int64_t run, int64_t attempt)
{
	struct known_attempt *e = attempts_find(node->attempts, run, attempt);

	if (!e || !attempt_has_ended(e->attempt))
		return;
	forget(node, e);
}

int node_free_port(struct node *node, struct error *err)
{
	return ports_free(&node->ports, node->config, node->name, err);
}

int node_log_path(const struct node *node, int64_t run, int64_t attempt, int rank, char **path,
                  struct error *err)
{
	int r = attempt_files_log(node->config->log_dir, run, attempt, rank, path, err);

	return r < 0 ? error_prefix(err, "node %s", node->name) : 0;
}
