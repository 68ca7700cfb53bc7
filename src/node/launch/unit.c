/* SPDX-License-Identifier: Apache-2.0 */
/* Units of attempts: chooses how they are made, and hands each call to that method. */
#include "node/launch/unit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/log.h"
#include "base/str.h"
#include "node/launch/cgroup.h"
#include "node/launch/unit_internal.h"

/* Services of systemd are sought also where launch is "process": an earlier service may have made some. A
 * service of root below systemd that cannot reach it, as during a daemon-reexec, does not start: its runs
 * would have the restrictions of its own unit, and slots whose services still run would be given away. */
static int choose(struct units *units, const struct daemon_config *config, struct error *err)
{
	const bool wanted = str_eq(config->launch, "systemd"), refused = str_eq(config->launch, "process");
	const bool booted = sd_booted() > 0;
	struct error why = ERROR_INIT;
	int r;

	units->method = &unit_process;
	if (geteuid() == 0 && booted) {
		r = unit_systemd_open(units, config->runtime_dir, &why);
		units->unreachable = r < 0;
		if (r < 0 && refused)
			log_warn("services of an earlier dtraind are not found: %s", why.message);
		else if (r < 0)
			return error_set(err, r, "runs cannot be started by systemd: %s", why.message);
		else if (!refused)
			units->method = &unit_systemd;
		return 0;
	}
	error_set(&why, -ENOTSUP, "%s", booted ? "dtraind does not run as root" : "process 1 is not systemd");
	if (wanted)
		return error_set(err, -ENOTSUP, "runs cannot be started by systemd: %s", why.message);
	if (!refused && booted)
		log_info("runs are started without systemd: %s", why.message);
	return 0;
}

int units_create(sd_event *event, const struct daemon_config *config, struct units **out, struct error *err)
{
	_cleanup_(units_destroyp) struct units *units = calloc(1, sizeof(*units));
	int r;

	if (!units)
		return error_oom(err);
	units->event = event;
	units->address = "unix:path=/run/systemd/private";
	/* What a killed dtrain-launch of ours leaves becomes our own child. */
	if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
		return error_errno(err, -errno, "cannot become a subreaper");
	units->cgroups = cgroup_find_base(config->runtime_dir);
	units->oom_file = cgroup_oom_file();
	r = choose(units, config, err);
	if (r < 0)
		return r;
	*out = steal_pointer(units);
	return 0;
}

void units_destroy(struct units *units)
{
	if (!units)
		return;
	unit_systemd_close(units);
	/* Where attempts go on, the last of their guards removes it. */
	if (units->cgroups)
		rmdir(units->cgroups);
	free(units->cgroups);
	free(units->oom_file);
	free(units);
}

const char *units_method(const struct units *units)
{
	return units->method->name;
}

void units_adopted(struct units *units)
{
	if (units->bus)
		unit_systemd_kill_others(units);
}

static struct unit *make(struct units *units, const struct unit_identity *identity,
                         const struct unit_owner *owner)
{
	struct unit *unit = calloc(1, sizeof(*unit));

	if (!unit)
		return NULL;
	*unit = (struct unit){.units = units,
	                      .next = units->first,
	                      .identity = *identity,
	                      .owner = *owner,
	                      .method = units->method,
	                      .pidfd = -1};
	units->first = unit;
	return unit;
}

int unit_new(struct units *units, const struct unit_identity *identity, const struct unit_owner *owner,
             struct unit **out, struct error *err)
{
	_cleanup_(unit_destroyp) struct unit *unit = make(units, identity, owner);
	int r;

	if (!unit)
		return error_oom(err);
	unit->empty = true;
	if ((r = unit->method->prepare(unit, err)) < 0)
		return r;
	*out = steal_pointer(unit);
	return 0;
}

int unit_find(struct units *units, const struct unit_identity *identity, const struct unit_names *names,
              const struct unit_owner *owner, struct unit **out, struct error *err)
{
	_cleanup_(unit_destroyp) struct unit *unit = make(units, identity, owner);

	if (!unit || str_replace(&unit->cgroup, names->cgroup) < 0 ||
	    str_replace(&unit->service, names->service) < 0)
		return error_oom(err);
	unit->method = names->service ? &unit_systemd : &unit_process;
	if (unit->method->find) {
		int r = unit->method->find(unit, err);

		if (r < 0)
			return r;
	}
	/* The record of a start may have lost its content. */
	if (!unit->service && !unit->cgroup && units->cgroups && strrchr(identity->dir, '/'))
		unit->cgroup = str_printf("%s%s", units->cgroups, strrchr(identity->dir, '/'));
	*out = steal_pointer(unit);
	return 0;
}

void unit_destroy(struct unit *unit)
{
	struct unit **at;

	if (!unit)
		return;
	for (at = &unit->units->first; *at != unit; at = &(*at)->next)
		;
	*at = unit->next;
	unit->method->release(unit);
	sd_event_source_disable_unref(unit->again);
	sd_event_source_disable_unref(unit->silence);
	free(unit->cgroup);
	free(unit->service);
	free(unit->path);
	free(unit);
}

struct unit_names unit_names(const struct unit *unit)
{
	return (struct unit_names){.cgroup = unit->cgroup,
	                           .service = unit->service,
	                           .oom_file = unit->service ? NULL : unit->units->oom_file};
}

int unit_start(struct unit *unit, const struct unit_start *start, struct error *err)
{
	int r = unit->method->start(unit, start, err);

	unit->empty = r < 0;
	return r;
}

bool unit_is_watched(const struct unit *unit)
{
	return unit->method->is_watched(unit);
}

void unit_disconnected(struct unit *unit, bool reconnected)
{
	if (!unit->exited && !unit->empty)
		unit->method->disconnected(unit, reconnected);
}

bool unit_ask_stop(struct unit *unit)
{
	return unit->method->ask_stop(unit);
}

void unit_set_launcher(struct unit *unit, pid_t pid)
{
	unit->seen = true;
	if (pid > 0)
		unit->launcher = pid;
	unit->silence = sd_event_source_disable_unref(unit->silence);
}

static int on_again(sd_event_source *source, uint64_t usec, void *context)
{
	struct unit *unit = context;

	if (!unit->method->kill(unit)) {
		unit_report_empty(unit);
		return 0;
	}
	if (!unit->remaining) {
		unit->remaining = true;
		unit->owner.remaining(unit->owner.context);
	}
	sd_event_source_set_time_relative(source, unit->method->kill_usec);
	return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

void unit_kill(struct unit *unit)
{
	if (unit->killing || unit->empty)
		return;
	unit->killing = true;
	if (sd_event_add_time_relative(unit->units->event, &unit->again, CLOCK_MONOTONIC, 0, 1000, on_again,
	                               unit) < 0)
		log_err("cannot look for what is left of run %lld", (long long)unit->identity.run);
}

bool unit_is_empty(const struct unit *unit)
{
	return unit->empty;
}

void unit_cancel(struct unit *unit)
{
	if (!unit)
		return;
	unit->method->remove(unit);
}
