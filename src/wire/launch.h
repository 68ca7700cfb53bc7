/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What passes between the node service and dtrain-launch (node/launch/launch.h): the description of an
 * attempt, a file; the record of its start, another one; and the lines over their socket. dtrain-launch
 * outlives a restart of the service, and the record outlives both, so what once was written stays readable.
 */
#pragma once

#include "wire/report.h"

/* Seconds of grace where launch.json names none, as that of an older service. */
enum { LAUNCH_DEFAULT_GRACE = 30 };

/* The content of a record, state_dir/started/…: where to look for the attempt's processes. */
struct start_record {
	int64_t uid;
	int64_t *slots;
	size_t slot_count;
	char *cgroup; /* path of its control group; optional: none */
};

MESSAGE_DECLARE(start_record)

/* A rank in launch.json. */
struct rank_description {
	int64_t rank;
	int64_t slot;       /* the first of its slots */
	char **environment; /* "K=V" */
	char *log;          /* a file that is there already; optional: /dev/null */
	char *error_file;   /* TORCHELASTIC_ERROR_FILE; optional */
	char *cpus;         /* those that it may run on, "0-7"; optional: all */
};

/* launch.json. */
struct launch_description {
	bool switch_user; /* running as root: become the user; optional */
	int64_t umask;    /* optional: 022 */
	int64_t uid, gid;
	int64_t *groups;
	size_t group_count;
	char *directory; /* optional: "/" */
	char **argv;     /* at least one */
	double grace;    /* seconds, after TERM to dtrain-launch; optional: LAUNCH_DEFAULT_GRACE */
	char *record;    /* path of the record of the start; optional: none is made */
	struct start_record *started; /* its content; optional: empty */
	char *cgroup;                 /* path of the control group; optional: none */
	struct rank_description *ranks;
	size_t rank_count; /* at least one */
};

MESSAGE_DECLARE(launch_description)

/* From dtrain-launch, a line: the whole state. */
struct launch_report {
	enum attempt_state state;
	int64_t launcher; /* the process that the service has started; optional: 0 */
	struct rank_report *ranks;
	size_t rank_count;
	char *reason; /* optional */
};

MESSAGE_DECLARE(launch_report)

/* To dtrain-launch, a line. */
struct launch_command {
	double stop;      /* TERM to all ranks, and so many seconds later KILL; optional: -1, no stop */
	bool acknowledge; /* the end is on record: dtrain-launch may exit; optional */
};

MESSAGE_DECLARE(launch_command)
