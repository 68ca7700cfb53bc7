/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls to etcd, version 3, through the JSON gateway of any of its members. They block, and are for threads
 * that may: one thread has one client.
 */
#pragma once

#include <jansson.h>

#include "base/cleanup.h"
#include "base/error.h"

/* How etcd is reached; copied by etcd_open. */
struct etcd_place {
	char **urls;                  /* "https://host:port", NULL-terminated */
	char *certificate, *key, *ca; /* files; NULL: http:// */
	const char *first;            /* of the urls, which is asked first; NULL: the first of them */
};

struct etcd;

int etcd_open(const struct etcd_place *place, struct etcd **out, struct error *err);
void etcd_close(struct etcd *e);
DEFINE_CLEANUP(struct etcd *, etcd_close)

/*
 * POST of `request` (taken; NULL: out of memory) to "/v3/…" of one member after the other, until one answers.
 * seconds: for all of it. -EREMOTEIO: etcd has refused it, nothing is done; -EMSGSIZE: the same, since
 * request or answer is longer than this etcd takes. -EHOSTUNREACH: it may have been done, or not.
 */
int etcd_call(struct etcd *e, const char *path, json_t *request, double seconds, json_t **answer,
              struct error *err);
/* The url of the member that has answered last, borrowed: the next call asks it first. */
const char *etcd_member(const struct etcd *e);
