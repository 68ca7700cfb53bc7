/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A service whose routes can be called without processes, sockets and other machines: the controller, its
 * store and the node are the real ones. dtrain-launch, preflights, the other nodes and the controller's time
 * are stand-ins. Its node is n1, which is the controller; n2 is another node of the cluster. The cluster's id
 * is CLUSTER.
 */
#pragma once

#include "fake_httpd.h"

#define CLUSTER "0123456789abcdef"

struct fake_service;

/* Makes the file of a store without runs, in which the cluster has its id. */
void fake_service_make_store(const char *path);
/* In an empty directory, which it fills. The store is a copy of that file. */
struct fake_service *fake_service_create(const char *dir, const char *store);
void fake_service_destroy(struct fake_service *s);
struct httpd *fake_service_httpd(struct fake_service *s);

/* Runs the event loop until nothing is left to be done at once. */
void fake_service_settle(struct fake_service *s);
/* For at most so many milliseconds, which threads may need; true: something has happened. */
bool fake_service_await(struct fake_service *s, unsigned ms);
/* The controller's time goes on. */
void fake_service_advance(struct fake_service *s, double seconds);
/* What n2 answers to all calls from now on; status 0: it cannot be reached. Copied. */
void fake_service_set_answer(struct fake_service *s, int status, const char *body, size_t len);
/* dtrain-launch of each attempt on n1 ends. */
void fake_service_end_launchers(struct fake_service *s);
