/* SPDX-License-Identifier: Apache-2.0 */
/* A whole service with two CPU slots, in a process and a directory of its own, and users who send
 * requests. */
#pragma once

#include <jansson.h>
#include <sys/types.h>

#include "http/identity.h"
#include "raw_http.h"

struct daemon_fixture {
	char *dir, *config, *socket;
	pid_t pid;
	int port;      /* where other services reach it, if it has any */
	char *notify;  /* what daemon_setup says */
	int listening; /* a socket that the service is handed over as dtraind.socket's; 0: none */
	struct identity *id;
};

/* The defaults for NULL and 0 are in brackets. */
struct daemon_setup {
	const char *name;       /* of the node [n1] */
	const char *hosts;      /* the hosts file [n1 alone] */
	const char *controller; /* [n1] */
	const char *more;       /* lines of dtraind.conf [none] */
	int port;               /* [29600] */
	const char *notify;     /* the socket of its service manager, which has a watchdog of 0.2 s [none] */
	/* Whose cluster.pem it has [one of its own] */
	const struct daemon_fixture *other;
};

/* A user of this machine. Only root can send requests as other users. */
struct person {
	uid_t uid;
	gid_t gid;
	const char *name;
};

/* The service answers when this returns. setup NULL: a cluster of one node. */
void daemon_fixture_start(struct daemon_fixture *f, const struct daemon_setup *setup);
int daemon_fixture_port(void); /* a free one, which no other program gets while the test runs */
void daemon_fixture_write(const struct daemon_fixture *f, const char *name, const char *text);
/* TERM; fails the test unless the service ends with exit status 0. */
void daemon_fixture_stop(struct daemon_fixture *f);
/* The same, and the directory is removed. */
void daemon_fixture_teardown(struct daemon_fixture *f);
/* In a process that becomes a service: nothing of the environment of the test is left that concerns the
 * service manager. notify, listening: as above; NULL and 0: none. */
void daemon_fixture_environment(const char *notify, int listening);
/* The same files, another process. */
void daemon_fixture_again(struct daemon_fixture *f);

/* One request over the Unix socket; who NULL: the user of the test. */
struct raw_answer daemon_ask(const struct daemon_fixture *f, const struct person *who,
                             const struct raw_request *q);
/* The same over TLS with the cluster's key, as a service does. */
struct raw_answer daemon_ask_tls(const struct daemon_fixture *f, const struct raw_request *q);
/* The JSON of an answer, whose status has to be this one; a new reference. */
json_t *daemon_get(const struct daemon_fixture *f, const struct person *who, const char *target);
/* Submits a shell script for so many nodes with so many slots each, as `who`. Returns the run's id. */
int64_t daemon_submit(const struct daemon_fixture *f, const struct person *who, const char *script, int nodes,
                      int slots);
/* Waits until the run is in that state or has ended, and fails the test where that is another one. */
void daemon_await(const struct daemon_fixture *f, int64_t run, const char *state);
