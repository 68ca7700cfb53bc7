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
	char *cgroup;  /* path of its control group; optional: none */
	char *service; /* name of its systemd unit; optional: none */
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
	int64_t numa; /* NUMA node that its memory is taken from while there is some; optional: -1, any */
};

/* launch.json. */
struct launch_description {
	bool switch_user; /* running as root: become the user; optional */
	int64_t umask;    /* optional: 022 */
	int64_t uid, gid;
	int64_t *groups;
	size_t group_count;
	char *user;      /* for its session of PAM; optional: there is none */
	char *directory; /* optional: "/" */
	/* for temporary files: it is made, given to the user, and removed at the end; optional: none */
	char *tmp_dir;
	bool core_files;     /* the ranks may leave core files; optional */
	char **argv;         /* at least one */
	int64_t save_signal; /* what asks a rank to save; optional: 0, nothing does */
	/* After TERM to dtrain-launch: seconds between that signal and TERM to the ranks; optional: 0. */
	double save;
	double grace;                 /* seconds between TERM and KILL; optional: LAUNCH_DEFAULT_GRACE */
	char *record;                 /* path of the record of the start; optional: none is made */
	struct start_record *started; /* its content; optional: empty */
	char *cgroup;                 /* path of the control group; optional: none */
	char *service; /* name of the systemd unit that dtrain-launch runs in; optional: none */
	/* Where kills of the OOM killer are counted that may be of the ranks, unless the control group counts
	 * them itself; optional: nowhere. */
	char *oom_file;
	/* Path of the file with the end of the node's lease (base/lease_file.h): dtrain-launch ends the ranks
	 * in time before it; optional: they outlive it. */
	char *lease;
	bool outlives_lease; /* only until the controller is known to know the attempt; optional */
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
	char *reason;     /* optional */
	bool terminated;  /* it got SIGTERM, and therefore stops the ranks; optional */
	bool lease_ended; /* likewise for the end of the lease; optional */
};

MESSAGE_DECLARE(launch_report)

/* To dtrain-launch, a line. */
struct launch_command {
	double stop;      /* TERM to all ranks, and so many seconds later KILL; optional: -1, no stop */
	bool acknowledge; /* the end is on record: dtrain-launch may exit; optional */
	bool confirmed;   /* the controller knows the attempt; optional */
	double save;      /* of a stop: seconds between the save signal and TERM; optional: 0, TERM at once */
};

MESSAGE_DECLARE(launch_command)
