/* SPDX-License-Identifier: Apache-2.0 */
/* A whole service with two CPU slots, in a process and a directory of its own, and users who ask it. */
#pragma once

#include <jansson.h>
#include <sys/types.h>

#include "raw_http.h"

struct daemon_fixture {
	char *dir, *config, *socket;
	pid_t pid;
	int port; /* for services; 0: it serves none */
};

/* A user of this machine. Users other than oneself can be asked as by root alone. */
struct person {
	uid_t uid;
	gid_t gid;
	const char *name;
};

/* The node n1. Without a peer it is a cluster of its own; with one, n1 and the peer, which does not answer,
 * are one, whose controller is named, and whose key is cluster.pem in the directory. more: further lines of
 * dtraind.conf, or "". The service answers when this returns. */
void daemon_fixture_start(struct daemon_fixture *f, const char *peer, const char *controller,
                          const char *more);
/* TERM; fails the test unless the service ends with exit status 0. */
void daemon_fixture_stop(struct daemon_fixture *f);
/* The same, and the directory is removed. */
void daemon_fixture_teardown(struct daemon_fixture *f);
/* The same files, another process. */
void daemon_fixture_again(struct daemon_fixture *f);

/* One request over the Unix socket; who NULL: oneself. */
struct raw_answer daemon_ask(const struct daemon_fixture *f, const struct person *who,
                             const struct raw_request *q);
/* The JSON of an answer that has to have this status; a new reference. */
json_t *daemon_get(const struct daemon_fixture *f, const struct person *who, const char *target);
/* Submits a shell script that takes so many slots, as `who`. Returns the run's id. */
int64_t daemon_submit(const struct daemon_fixture *f, const struct person *who, const char *script,
                      int slots);
/* Waits until the run is in that state or has ended, and fails the test where that is another one. */
void daemon_await(const struct daemon_fixture *f, int64_t run, const char *state);
