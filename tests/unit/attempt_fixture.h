/* SPDX-License-Identifier: Apache-2.0 */
/* One attempt between its unit and its launcher, both of which the fixture stands in for. A test says what
 * they report, and checks what the attempt did and in which order. */
#pragma once

#include "unit.h"

#include <systemd/sd-event.h>

#include "base/str.h"
#include "node/attempt.h"
#include "node/launcher.h"
#include "node/request.h"

extern struct attempt_fixture {
	char *dir, *path, *logs, *ended; /* path, logs: of the attempt; ended: of the record of its end */
	sd_event *event;
	struct daemon_config *config;
	struct devices devices;
	struct node_device list[2];
	struct request *request; /* until an attempt owns it */
	struct run_user *user;
	struct attempt *attempt;
	struct attempt_owner owner;
	struct strbuf trace; /* what the attempt did, a word for each */
} fixture;

extern struct unit {
	struct unit_owner owner;
	struct unit_identity identity;
	bool empty, watched, asks;                /* asks: the reason of a stop can be known */
	char found_cgroup[64], found_service[64]; /* the names by which it was sought */
	char program[256], cpus[64];              /* these and the next two: of unit_start */
	char devices[256];                        /* each with a space behind it */
	double stop_seconds;
	uint64_t tasks;
	pid_t launcher;
} fake_unit;

extern struct launcher {
	struct launcher_owner owner;
	bool connected;
	struct launch_report *waiting; /* comes with launcher_receive */
	struct stop_times stopped_with;
} fake_launcher;

/* Negative: that call fails with it. unit: unit_new and unit_find. */
extern struct fake_codes {
	int unit, start, listen, connect;
} fake_codes;

void fixture_setup(void);
void fixture_teardown(void);

/* What the attempt has done since the last check: "new listen start ". */
void fixture_check_trace(const char *want);
void fixture_clear_trace(void);

int fixture_try_start(struct error *err);
void fixture_start(void);
const struct report *fixture_report(void);

/* A report of dtrain-launch: both ranks in that state. */
struct launch_report *fixture_make_report(enum attempt_state state, enum rank_state ranks);
void fixture_say(struct launch_report *said); /* is released */
void fixture_say_state(enum attempt_state state);
void fixture_close_connection(void);
void fixture_empty_unit(void);
/* The end as it is on disk. */
struct report fixture_recorded(void);
