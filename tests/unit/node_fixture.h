/* SPDX-License-Identifier: Apache-2.0 */
/* A node with two CPU slots in a directory of its own, with the launcher of this build. */
#pragma once

#include "unit.h"

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "base/json.h"
#include "config/daemon.h"
#include "node/node.h"

struct fixture {
	char *dir;
	sd_event *event;
	struct daemon_config *config;
	struct node *node;
	json_t *reports; /* RUN -> the newest report */
	int ends;        /* reports of an end so far */
	int changes;     /* of devices, likewise */
	int events;      /* keeps the FIFO of GPU events open; -1: none */
};

/* Sets the GPUs of the fake NVML: the lines of its file, in the directory of the fixture, which has to
 * exist. */
void fixture_machine(struct fixture *f, const char *gpus);
void fixture_gpu_event(const struct fixture *f, const char *line);
void fixture_setup(struct fixture *f);
void fixture_setup_on(struct fixture *f, const char *gpus); /* CUDA_VISIBLE_DEVICES of the service */
/* The same in two steps, for files that have to exist before the node. gpus NULL: all are visible. */
void fixture_prepare(struct fixture *f, const char *gpus);
void fixture_create(struct fixture *f);
void fixture_teardown(struct fixture *f);
void fixture_restart(struct fixture *f, bool stop_only); /* as a restart of dtraind does */

/* A request for `count` ranks on slots 0… as the user who runs the tests; argv ends with NULL. */
json_t *fixture_request(int run, int attempt, int count, const char *const *argv);
json_t *fixture_shell(int run, int count, const char *script);

/* A directory of workers that contains only dtrain-launch, whose preflight is the shell script `script`
 * unless that is NULL. */
void fixture_launcher(struct fixture *f, const char *script);
/* node_start of a request as it is sent. */
int fixture_begin(struct fixture *f, const json_t *request, node_started_fn started, void *context,
                  struct error *err);
/* The same and its result: the event loop is turned until the preflight has ended. */
int fixture_start(struct fixture *f, const json_t *request, struct error *err);
/* Turns the event loop until a device is in that state; its JSON is the caller's. */
json_t *fixture_await_device(struct fixture *f, int slot, const char *state);
json_t *fixture_device(const struct fixture *f, int slot);
json_t *fixture_devices(const struct fixture *f);  /* of all slots */
json_t *fixture_attempts(const struct fixture *f); /* the reports of all attempts */
/* Runs one turn of the event loop. */
void fixture_turn(struct fixture *f);
/* Turns the event loop until the run's report is in that state; fails the test after 20 s. */
const json_t *fixture_await(struct fixture *f, int run, const char *state);
/* … until the file is there and has content. Owned by the caller. */
char *fixture_await_file(struct fixture *f, const char *name);
char *fixture_path(const struct fixture *f, const char *name);
const json_t *fixture_rank(const json_t *report, int index);
bool fixture_gone(pid_t pid); /* no such process, or a zombie */
/* … until no such process is left. */
void fixture_await_gone(struct fixture *f, pid_t pid);
char *fixture_log(struct fixture *f, int run, int rank);
