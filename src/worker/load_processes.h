/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that keep the other processors busy while this one measures. They are forked before this process
 * has threads, which a child would not have, and wait until they are started.
 */
#pragma once

#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"

struct load_process {
	pid_t pid;
	int status; /* a pipe: a byte 0 once the process is ready; the words of an error; its end */
};

struct load_processes {
	struct load_process *processes;
	int n;
	int start[2]; /* a pipe: each process begins once it has read a byte from it */
};

/* What a process does once it is started. It calls load_ready when the load begins, and returns only where it
 * fails; load_processes_end kills it. */
typedef int load_fn(int ready, struct error *err);
void load_ready(int ready);

int load_processes_create(struct load_processes *l, int n, load_fn *run, struct error *err);
/* Returns when all of them are ready: -EIO, which says why, where one has failed or has ended. */
int load_processes_start(struct load_processes *l, struct error *err);
/* -EIO where one has ended since: what was measured meanwhile is not what it should be. */
int load_processes_check(struct load_processes *l, struct error *err);
/* Kills them. Also after a failure of load_processes_create, and a second time. */
void load_processes_end(struct load_processes *l);
