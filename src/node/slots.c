/* SPDX-License-Identifier: Apache-2.0 */
/* The slots: leases on devices, their readings, and the draining of a device that reports errors. */
#include "node/slots.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "node/gpu/drains.h"
#include "node/gpu/idle.h"
#include "node/gpu/watch.h"
#include "node/gpu/xid.h"

/* NVML may take so many times node_timeout for one GPU. */
enum { CALL_TIMEOUTS = 6 };

struct slot {
	char key[96];
	struct gpu_reading reading;
	unsigned long long xid; /* the last one; 0: none since the service started */
	double xid_time;
	bool hung;
	struct gpu_idle idle;
	char trouble[192]; /* why it cannot be given back; empty: it can */
};

struct slots {
	char *node;
	const struct daemon_config *config;
	struct slots_callbacks callbacks;
	struct devices devices;
	struct slot *list;
	struct drains *drains;
	struct gpu_watch *watch; /* NULL without GPUs */
};

const struct devices *slots_devices(const struct slots *s)
{
	return &s->devices;
}

int slots_count(const struct slots *s)
{
	return (int)s->devices.count;
}

const char *slots_drained(const struct slots *s, int i)
{
	const struct drain *drain = drains_find(s->drains, s->list[i].key);

	if (s->devices.list[i].fault[0])
		return s->devices.list[i].fault;
	return drain && drain->reason[0] ? drain->reason : NULL;
}

const char *slots_fault(const struct slots *s, int i, char *buf, size_t size)
{
	const struct drain *drain = drains_find(s->drains, s->list[i].key);
	const char *reason = slots_drained(s, i);
	char name[200];

	if (!reason || (!s->devices.list[i].fault[0] && drain->by_hand))
		return NULL;
	snprintf(buf, size, "%s of %s: %s", node_device_describe(&s->devices.list[i], name, sizeof name),
	         s->node, reason);
	return buf;
}

static void set_drain(struct slots *s, int i, const struct drain *drain)
{
	struct error err = ERROR_INIT;

	if (drains_set(s->drains, drain, &err) < 0)
		log_err("it is not on disk which devices are drained: %s", err.message);
}

/* The device reports an error. What it was drained for first, stays the reason. */
static void fail(struct slots *s, int i, bool until_boot, const char *reason)
{
	const struct drain *old = drains_find(s->drains, s->list[i].key);
	struct drain drain = {.time = clock_realtime(), .until_boot = until_boot};
	char text[512] = "", fields[160];

	snprintf(fields, sizeof fields, "GPU_UUID=%s", s->devices.list[i].uuid);
	if (old && old->reason[0] && !old->by_hand) {
		log_write(LOG_WARNING, fields, "%s, which is drained already: %s",
		          node_device_describe(&s->devices.list[i], text, sizeof text), reason);
		/* A second error that a reboot does not heal keeps it drained beyond that. */
		if (old->until_boot && !until_boot) {
			drain = *old;
			drain.until_boot = false;
			set_drain(s, i, &drain);
		}
		return;
	}
	if (old) {
		drain.pending_accepted = old->pending_accepted;
		drain.failed_accepted = old->failed_accepted;
	}
	snprintf(drain.key, sizeof drain.key, "%s", s->list[i].key);
	snprintf(drain.reason, sizeof drain.reason, "%s", reason);
	set_drain(s, i, &drain);
	slots_fault(s, i, text, sizeof text);
	log_write(LOG_ERR, fields, "%s: drained until \"dtrain resume %s:%d\"%s", text, s->node, i,
	          until_boot ? " or a reboot" : "");
	s->callbacks.fault(s->callbacks.context, i, text);
	s->callbacks.changed(s->callbacks.context);
}

static void on_xid(void *context, size_t i, unsigned long long code, double time)
{
	struct slots *s = context;
	const struct xid *xid = xid_find(code);
	char name[200], fields[160], reason[128];

	s->list[i].xid = code;
	s->list[i].xid_time = time;
	snprintf(reason, sizeof reason, "Xid %llu: %s", code, xid->text);
	if (xid->class == XID_DEVICE) {
		fail(s, (int)i, xid->memory, reason);
		return;
	}
	snprintf(fields, sizeof fields, "GPU_UUID=%s\nXID=%llu", s->devices.list[i].uuid, code);
	log_write(LOG_WARNING, fields, "%s: %s%s",
	          node_device_describe(&s->devices.list[i], name, sizeof name), reason,
	          xid->class == XID_APPLICATION ? " (by the program that ran on it)" : "");
}

static void on_memory_error(void *context, size_t i)
{
	fail(context, (int)i, true, "uncorrectable memory error (double-bit ECC)");
}

static void check_retirement(struct slots *s, int i, const struct gpu_reading *old,
                             const struct gpu_reading *new)
{
	const struct drain *drain = drains_find(s->drains, s->list[i].key);

	if (new->retirement_failed == 1 && old->retirement_failed != 1 && !(drain && drain->failed_accepted))
		fail(s, i, false, "a memory row could not be remapped");
	if (new->retirement_pending == 1 && old->retirement_pending != 1 &&
	    !(drain && drain->pending_accepted))
		fail(s, i, true,
		     "a memory row or page waits to be retired: a reset of the GPU or a reboot does it");
}

static void on_reading(void *context, size_t i, const struct gpu_reading *new)
{
	struct slots *s = context;
	struct slot *slot = &s->list[i];
	struct gpu_reading old = slot->reading;
	char reason[192];

	slot->reading = *new;
	slot->trouble[0] = '\0';
	if (new->fault) {
		/* What was known stays known: the counters begin where they were. */
		slot->reading.ecc_errors = old.ecc_errors;
		slot->reading.retirement_pending = old.retirement_pending;
		slot->reading.retirement_failed = old.retirement_failed;
		if (new->fault == NVML_NOT_FOUND)
			snprintf(reason, sizeof reason, "it is not there any more: restart dtraind");
		else
			snprintf(reason, sizeof reason, "NVML error %d: %s", new->fault,
			         s->devices.nvml->error(new->fault));
		strcpy(slot->trouble, reason);
		if (!old.fault)
			fail(s, (int)i, false, reason);
		return;
	}
	if (old.time > 0 && old.ecc_errors >= 0 && new->ecc_errors > old.ecc_errors) {
		snprintf(reason, sizeof reason, "%lld uncorrected memory %s (ECC)",
		         (long long)(new->ecc_errors - old.ecc_errors),
		         new->ecc_errors - old.ecc_errors == 1 ? "error" : "errors");
		fail(s, (int)i, true, reason);
	}
	check_retirement(s, (int)i, &old, new);
	if (gpu_idle_read(&slot->idle, new->memory_used, clock_monotonic(), s->config->gpu_idle_timeout,
	                  reason, sizeof(reason)))
		fail(s, (int)i, true, reason);
}

void slots_leased(struct slots *s, int i)
{
	gpu_idle_leased(&s->list[i].idle, s->list[i].reading.time > 0 ? s->list[i].reading.memory_used : -1);
}

void slots_released(struct slots *s, int i, int64_t run)
{
	gpu_idle_released(&s->list[i].idle, run, clock_monotonic(), s->config->gpu_idle_timeout);
}

static void on_hung(void *context, size_t i, bool hung)
{
	struct slots *s = context;

	s->list[i].hung = hung;
	if (hung)
		fail(s, (int)i, false, "hung: the driver does not answer");
	else
		log_info("the driver answers again about GPU %d", s->devices.list[i].index);
}

static int find_slot(const struct slots *s, int i, struct error *err)
{
	if (i >= 0 && i < slots_count(s))
		return 0;
	return error_set(err, -ENOENT, "node %s has no slot %d; there are %d, counted from 0", s->node, i,
	                 slots_count(s));
}

int slots_drain(struct slots *s, int i, const char *reason, struct error *err)
{
	const struct drain *old;
	struct drain drain = {.by_hand = true, .time = clock_realtime()};
	int r = find_slot(s, i, err);

	if (r < 0)
		return r;
	old = drains_find(s->drains, s->list[i].key);
	if (slots_drained(s, i) && !(old && old->by_hand))
		return 0; /* by an error of its own: that stays the reason */
	if (old) {
		drain.pending_accepted = old->pending_accepted;
		drain.failed_accepted = old->failed_accepted;
	}
	snprintf(drain.key, sizeof drain.key, "%s", s->list[i].key);
	snprintf(drain.reason, sizeof drain.reason, "%s", reason && *reason ? reason : "by hand");
	str_make_plain(drain.reason);
	str_make_utf8(drain.reason); /* it may have been cut in the middle of a character */
	r = drains_set(s->drains, &drain, err);
	log_info("slot %d is drained: %s", i, drain.reason);
	s->callbacks.changed(s->callbacks.context);
	return r;
}

int slots_resume(struct slots *s, int i, struct error *err)
{
	struct drain drain = {0};
	char name[200];
	int r = find_slot(s, i, err);

	if (r < 0)
		return r;
	node_device_describe(&s->devices.list[i], name, sizeof name);
	if (s->devices.list[i].fault[0])
		return error_set(
		    err, -EIO,
		    "%s of %s: %s: it cannot be given back before dtraind is restarted and finds it "
		    "well",
		    name, s->node, s->devices.list[i].fault);
	if (s->list[i].hung || s->list[i].trouble[0])
		return error_set(err, -EIO, "%s of %s cannot be given back: %s", name, s->node,
		                 s->list[i].hung ? "the driver does not answer" : s->list[i].trouble);
	if (!slots_drained(s, i))
		return 0;
	snprintf(drain.key, sizeof drain.key, "%s", s->list[i].key);
	drain.pending_accepted = s->list[i].reading.retirement_pending == 1;
	drain.failed_accepted = s->list[i].reading.retirement_failed == 1;
	r = drains_set(s->drains, &drain, err);
	log_info("%s gets runs again", name);
	s->callbacks.changed(s->callbacks.context);
	return r;
}

int slots_wait_drains(struct slots *s, file_written_fn done, void *context, struct error *err)
{
	return drains_wait(s->drains, done, context, err);
}

static double watts(int64_t milliwatts)
{
	return milliwatts < 0 ? -1 : (double)((milliwatts + 50) / 100) / 10;
}

/* NULL for no text; false: out of memory. */
static bool set_text(char **to, const char *text)
{
	*to = text && *text ? strdup(text) : NULL;
	return *to || !text || !*text;
}

static bool describe_links(const struct slots *s, int i, struct gpu_info *out)
{
	out->links = calloc(s->devices.count + 1, sizeof(*out->links));
	for (size_t k = 0; out->links && k < s->devices.count; k++) {
		out->links[k] = strdup(s->devices.links[(size_t)i * s->devices.count + k]);
		if (!out->links[k])
			return false;
	}
	return out->links;
}

static bool describe_gpu(const struct slots *s, int i, struct gpu_info *out)
{
	const struct node_device *d = &s->devices.list[i];
	const struct slot *slot = &s->list[i];
	const struct gpu_reading *r = &slot->reading;
	bool was_read = r->time > 0; /* otherwise it is not known, which is not the same as 0 */

	*out = (struct gpu_info){.gpu = d->index,
	                         .numa = d->numa < 0 ? -1 : d->numa,
	                         .read = was_read ? r->time : 0,
	                         .memory_used = was_read ? r->memory_used : -1,
	                         .utilization = was_read ? r->utilization : -1,
	                         .temperature = was_read ? r->temperature : -1,
	                         .power = watts(was_read ? r->power : -1),
	                         .power_limit = watts(was_read ? r->power_limit : -1),
	                         .ecc_errors = was_read ? r->ecc_errors : -1};
	if (slot->xid) {
		out->xid = calloc(1, sizeof(*out->xid));
		if (!out->xid || !set_text(&out->xid->message, xid_find(slot->xid)->text))
			return false;
		out->xid->code = (int64_t)slot->xid;
		out->xid->time = slot->xid_time;
	}
	if (d->mig) {
		out->mig = calloc(1, sizeof(*out->mig));
		if (!out->mig)
			return false;
		*out->mig = (struct mig_info){(int64_t)d->gpu_instance, (int64_t)d->compute_instance};
	}
	return set_text(&out->pci, d->pci) && set_text(&out->driver, s->devices.driver) &&
	       set_text(&out->cuda, s->devices.cuda) && describe_links(s, i, out);
}

int slots_describe(const struct slots *s, int i, int64_t run, struct device_info *out, struct error *err)
{
	const struct node_device *d = &s->devices.list[i];
	const char *drained = slots_drained(s, i);
	bool fits;

	*out = (struct device_info){.node = strdup(s->node),
	                            .index = i,
	                            .kind = d->gpu ? DEVICE_KIND_GPU : DEVICE_KIND_CPU,
	                            .name = strdup(d->name),
	                            .memory = (int64_t)d->memory,
	                            .threads = d->threads,
	                            .state = drained ? (run ? SLOT_DRAINING : SLOT_DRAINED)
	                                     : run   ? SLOT_LEASED
	                                             : SLOT_FREE,
	                            .run = run};
	fits = out->node && out->name && set_text(&out->uuid, d->uuid) && set_text(&out->reason, drained);
	if (fits && d->gpu) {
		out->gpu_info = calloc(1, sizeof(*out->gpu_info));
		fits = out->gpu_info && describe_gpu(s, i, out->gpu_info);
	}
	if (fits)
		return 0;
	device_info_release(out);
	return error_oom(err);
}

static void name_keys(struct slots *s)
{
	char name[200];

	for (size_t i = 0; i < s->devices.count; i++) {
		const struct node_device *d = &s->devices.list[i];
		struct slot *slot = &s->list[i];

		slot->idle.before = -1;
		slot->reading.retirement_pending = slot->reading.retirement_failed =
		    slot->reading.ecc_errors = -1;
		if (d->uuid[0])
			snprintf(slot->key, sizeof slot->key, "%s", d->uuid);
		else
			snprintf(slot->key, sizeof slot->key, d->gpu ? "gpu-%d" : "cpu-%d", d->index);
		if (slots_drained(s, (int)i))
			log_warn("%s is drained: %s", node_device_describe(d, name, sizeof name),
			         slots_drained(s, (int)i));
	}
}

int slots_create(sd_event *event, const struct daemon_config *config, const char *node, int hosts_slots,
                 const struct slots_callbacks *callbacks, struct slots **out, struct error *err)
{
	_cleanup_(slots_destroyp) struct slots *s = calloc(1, sizeof *s);
	struct gpu_watch_options watch = {config->heartbeat,
	                                  config->node_timeout * CALL_TIMEOUTS,
	                                  s,
	                                  on_reading,
	                                  on_xid,
	                                  on_memory_error,
	                                  on_hung};
	int r;

	if (!s)
		return error_oom(err);
	s->callbacks = *callbacks;
	s->config = config;
	s->node = strdup(node);
	if (!s->node)
		return error_oom(err);
	if ((r = drains_open(event, config->state_dir, &s->drains, err)) < 0 ||
	    (r = devices_find(config, hosts_slots, &s->devices, err)) < 0)
		return r;
	s->list = calloc(s->devices.count + 1, sizeof *s->list);
	if (!s->list)
		return error_oom(err);
	name_keys(s);
	/* Once before anybody can be given one; from here on the threads do it. */
	for (size_t i = 0; i < s->devices.count; i++) {
		struct gpu_reading reading;

		if (!s->devices.list[i].handle)
			continue;
		gpu_read(s->devices.nvml, &s->devices.list[i], &reading);
		on_reading(s, i, &reading);
	}
	if (s->devices.nvml)
		r = gpu_watch_start(event, &s->devices, &watch, &s->watch, err);
	if (r < 0)
		return r;
	*out = steal_pointer(s);
	return 0;
}

void slots_destroy(struct slots *s)
{
	if (s->watch && !gpu_watch_stop(s->watch)) {
		log_warn("NVML does not come back: it is left as it is");
		s->devices.nvml = NULL;
	}
	devices_release(&s->devices);
	if (s->drains)
		drains_close(s->drains);
	free(s->list);
	free(s->node);
	free(s);
}
