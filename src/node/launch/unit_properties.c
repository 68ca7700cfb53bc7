/* SPDX-License-Identifier: Apache-2.0 */
/* The call that starts a unit of systemd, with all properties of the unit. */
#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdint.h>
#include <systemd/sd-bus.h>

#include "base/str.h"
#include "node/gpu/affinity.h"
#include "node/launch/cgroup.h"
#include "node/launch/unit_internal.h"

/* A core file is limited even for a program that asks for one; by default there is none (rank.c). */
static const uint64_t CORE_BYTES = (uint64_t)16 << 30;
static const uint64_t DESCRIPTORS = 65536;
enum { LAUNCHER_OOM_SCORE = -900 };
static const char SLICE[] = "dtrain.slice";

/* Capabilities that no program of a user needs; not even a run of root, or sudo within a run, has them. */
static const uint8_t denied_capabilities[] = {
    CAP_SYS_MODULE,     CAP_SYS_RAWIO,       CAP_SYS_TIME,  CAP_SYS_BOOT,           CAP_SYS_PACCT,
    CAP_SYS_TTY_CONFIG, CAP_SYSLOG,          CAP_MAC_ADMIN, CAP_MAC_OVERRIDE,       CAP_AUDIT_CONTROL,
    CAP_AUDIT_READ,     CAP_LINUX_IMMUTABLE, CAP_LEASE,     CAP_WAKE_ALARM,         CAP_BLOCK_SUSPEND,
    CAP_NET_ADMIN,      CAP_NET_BROADCAST,   CAP_BPF,       CAP_CHECKPOINT_RESTORE,
};

static int append_exec(sd_bus_message *m, const char *program, const char *dir)
{
	int r;

	if ((r = sd_bus_message_open_container(m, 'r', "sv")) < 0 ||
	    (r = sd_bus_message_append(m, "s", "ExecStart")) < 0 ||
	    (r = sd_bus_message_append(m, "v", "a(sasb)", 1, program, 2, "dtrain-launch", dir, 0)) < 0)
		return r;
	return sd_bus_message_close_container(m);
}

static int append_devices(sd_bus_message *m, const char *const *devices)
{
	int r;

	if ((r = sd_bus_message_open_container(m, 'r', "sv")) < 0 ||
	    (r = sd_bus_message_append(m, "s", "DeviceAllow")) < 0 ||
	    (r = sd_bus_message_open_container(m, 'v', "a(ss)")) < 0 ||
	    (r = sd_bus_message_open_container(m, 'a', "(ss)")) < 0)
		return r;
	for (; devices && *devices && r >= 0; devices++)
		r = sd_bus_message_append(m, "(ss)", *devices, "rw");
	for (int i = 0; i < 3 && r >= 0; i++)
		r = sd_bus_message_close_container(m);
	return r;
}

/* A bit for each CPU, the first byte has the first eight. */
static int append_cpus(sd_bus_message *m, const char *list)
{
	uint8_t mask[CPU_SETSIZE / 8] = {0};
	size_t size = 0;
	cpu_set_t cpus;
	int r;

	if (!list || affinity_parse(list, &cpus) < 0)
		return 0;
	for (size_t i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &cpus)) {
			mask[i / 8] |= (uint8_t)(1U << (i % 8));
			size = i / 8 + 1;
		}
	if ((r = sd_bus_message_open_container(m, 'r', "sv")) < 0 ||
	    (r = sd_bus_message_append(m, "s", "AllowedCPUs")) < 0 ||
	    (r = sd_bus_message_open_container(m, 'v', "ay")) < 0 ||
	    (r = sd_bus_message_append_array(m, 'y', mask, size)) < 0 ||
	    (r = sd_bus_message_close_container(m)) < 0)
		return r;
	return sd_bus_message_close_container(m);
}

static uint64_t allowed_capabilities(void)
{
	uint64_t set = UINT64_MAX;

	for (size_t i = 0; i < ARRAY_SIZE(denied_capabilities); i++)
		set &= ~((uint64_t)1 << denied_capabilities[i]);
	return set;
}

/* Properties of the service. Restrictions of dtraind's own unit do not hold in it. It has what its user has
 * elsewhere, but for devices, capabilities, the limits below, and the CPUs of its slots. */
static int append_properties(sd_bus_message *m, const struct unit *unit, const struct unit_start *start)
{
	_cleanup_free_ char *description =
	    str_printf("dtrain: run %lld, attempt %lld, of %s", (long long)unit->identity.run,
	               (long long)unit->identity.attempt, start->user ? start->user : "?");
	const uint64_t stop_usec =
	    start->stop_seconds < 1e12 ? (uint64_t)(start->stop_seconds * 1e6) : UINT64_MAX;
	const struct {
		const char *name, *text;
	} strings[] = {
	    {"Description", description},
	    {"Slice", SLICE},
	    {"CollectMode", "inactive-or-failed"},
	    {"Type", "simple"},
	    {"KillMode", "mixed"},
	    {"StandardOutput", "null"},
	    {"StandardError", "journal"},
	    {"SyslogIdentifier", "dtrain-launch"},
	    /* Its ranks that are killed for lack of memory are named one by one. */
	    {"OOMPolicy", "continue"},
	    {"DevicePolicy", "closed"},
	};
	const struct {
		const char *name;
		uint64_t number;
	} numbers[] = {
	    {"TimeoutStopUSec", stop_usec},
	    {"TasksMax", start->limits->tasks},
	    {"MemoryMax", start->limits->memory},
	    {"LimitCORE", CORE_BYTES},
	    {"LimitNOFILE", DESCRIPTORS},
	    {"LimitMEMLOCK", UINT64_MAX},
	    {"CapabilityBoundingSet", allowed_capabilities()},
	};
	int r = description ? 0 : -ENOMEM;

	for (size_t i = 0; r >= 0 && i < ARRAY_SIZE(strings); i++)
		r = sd_bus_message_append(m, "(sv)", strings[i].name, "s", strings[i].text);
	for (size_t i = 0; r >= 0 && i < ARRAY_SIZE(numbers); i++)
		r = sd_bus_message_append(m, "(sv)", numbers[i].name, "t", numbers[i].number);
	/* Where memory runs out, the ranks are to go before the process that can say so. */
	if (r >= 0)
		r = sd_bus_message_append(m, "(sv)", "OOMScoreAdjust", "i", LAUNCHER_OOM_SCORE);
	/* A container that root starts in it makes groups below. */
	if (r < 0 || (r = sd_bus_message_append(m, "(sv)", "Delegate", "b", 1)) < 0 ||
	    (r = sd_bus_message_append(m, "(sv)", "After", "as", 2, "remote-fs.target",
	                               "network-online.target")) < 0 ||
	    (r = sd_bus_message_append(m, "(sv)", "StandardInputFileDescriptor", "h", start->listen_fd)) <
	        0 ||
	    (r = append_exec(m, start->program, unit->identity.dir)) < 0 ||
	    (r = append_devices(m, start->devices)) < 0)
		return r;
	return append_cpus(m, start->limits->cpus);
}

int unit_systemd_describe(const struct unit *unit, const struct unit_start *start, sd_bus_message **out)
{
	sd_bus_message *m = NULL;
	int r = sd_bus_message_new_method_call(unit->units->bus, &m, UNIT_BUS_NAME, UNIT_MANAGER_PATH,
	                                       UNIT_MANAGER, "StartTransientUnit");

	if (r >= 0 && (r = sd_bus_message_append(m, "ss", unit->service, "fail")) >= 0 &&
	    (r = sd_bus_message_open_container(m, 'a', "(sv)")) >= 0 &&
	    (r = append_properties(m, unit, start)) >= 0 && (r = sd_bus_message_close_container(m)) >= 0)
		r = sd_bus_message_append(m, "a(sa(sv))", 0);
	if (r < 0) {
		sd_bus_message_unref(m);
		return r;
	}
	*out = m;
	return 0;
}
