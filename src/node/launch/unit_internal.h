/* SPDX-License-Identifier: Apache-2.0 */
/* What the ways to make units share: the structs, and the table of functions that each fills. */
#pragma once

#include <systemd/sd-bus.h>

#include "node/launch/unit.h"

/* Process 1 on its bus. */
#define UNIT_BUS_NAME     "org.freedesktop.systemd1"
#define UNIT_MANAGER_PATH "/org/freedesktop/systemd1"
#define UNIT_MANAGER      "org.freedesktop.systemd1.Manager"

struct unit_method {
	const char *name;
	/* For a new attempt: fills the names. */
	int (*prepare)(struct unit *unit, struct error *err);
	/* For one that an earlier service has started; the names are filled. NULL: nothing to do. */
	int (*find)(struct unit *unit, struct error *err);
	int (*start)(struct unit *unit, const struct unit_start *start, struct error *err);
	bool (*is_watched)(const struct unit *unit);
	void (*disconnected)(struct unit *unit, bool reconnected);
	/* KILL to all processes once. False: there are none. */
	bool (*kill)(struct unit *unit);
	uint64_t kill_usec; /* until it is called again */
	bool (*ask_stop)(struct unit *unit);
	/* Nothing is left of it, or it was not started. */
	void (*remove)(struct unit *unit);
	void (*release)(struct unit *unit);
};

extern const struct unit_method unit_process, unit_systemd;

/* unit_systemd.c: connects with process 1 at units->address and fills listed; tries for some seconds. */
int unit_systemd_open(struct units *units, const char *runtime_dir, struct error *err);
/* unit_properties.c: StartTransientUnit for the unit. */
int unit_systemd_describe(const struct unit *unit, const struct unit_start *start, sd_bus_message **out);
void unit_systemd_close(struct units *units);
/* Kills the units that are listed and that no attempt here has. */
void unit_systemd_kill_others(struct units *units);

struct units {
	sd_event *event; /* borrowed */
	const struct unit_method *method;
	struct unit *first; /* all that are there */
	char *cgroups;      /* where attempts get control groups; NULL: nowhere */
	char *oom_file;     /* cgroup_oom_file() of the service */
	/* unit_systemd.c */
	const char *address;
	sd_bus *bus;      /* with process 1; NULL: none */
	bool unreachable; /* process 1 is systemd, but has not answered: services of systemd may run */
	sd_event_source *reconnect;
	char suffix[16]; /* of the names of units, between the attempt's number and ".service" */
	char **listed;   /* names of the units that were there when the service started; ends with NULL */
};

struct unit {
	struct units *units;
	struct unit *next;
	const struct unit_method *method;
	struct unit_identity identity;
	struct unit_owner owner;
	bool seen;               /* dtrain-launch is, or was, there */
	bool exited;             /* its end was reported */
	bool killing, remaining; /* unit_kill was called; `remaining` was */
	bool empty;
	sd_event_source *again; /* the next KILL */
	pid_t launcher;         /* process id of dtrain-launch; 0: not known */
	/* Its names: unit_names. */
	char *cgroup;
	char *service;
	/* unit_process.c */
	int pidfd; /* of dtrain-launch where it is a child of this process, else -1 */
	sd_event_source *child, *silence;
	/* unit_systemd.c */
	char *path;      /* of its object on the bus; NULL: it is no service */
	bool ended;      /* it is inactive, or has failed */
	bool gone;       /* systemd has no such unit: its control group is empty */
	char result[24]; /* as systemd has it; empty: not known */
	int exit_code, exit_status;
	sd_bus_message *start;             /* until systemd has answered it */
	sd_bus_slot *call, *query, *state; /* the start; whether it is there; the state of the system */
};

/* unit_report.c. */
/* The end of dtrain-launch, to the owner, who may call unit_kill; nothing where it was reported already. */
void unit_report_exit(struct unit *unit, const char *why, bool started);
/* Nothing is left; nothing where that was reported already. The unit may be destroyed when this returns. */
void unit_report_empty(struct unit *unit);
