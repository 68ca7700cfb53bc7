/* SPDX-License-Identifier: Apache-2.0 */
/* /etc/dtrain/hosts: `HOST slots=N [addr=A] [port=P] [label…]` per line, # comments; a superset of
 * DeepSpeed's hostfile. File order is node order. A duplicate host, a bad number, an unknown key=value are
 * errors with file and line. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/name_index.h"

struct host {
	char *name;
	char *address; /* addr=, else the name */
	int port;      /* 0: the default of dtraind.conf */
	int slots;     /* 0: not said: what the machine has */
	char **labels; /* NULL-terminated, may be NULL */
	bool submit;   /* "submit" is one of them: users may speak to the controller through this host */
	int line;
};

struct hosts {
	struct host *list;
	size_t count;
	bool restricts_users;    /* any host is marked "submit": no other one forwards what users ask for */
	struct name_index index; /* of the list, by name */
};

enum { HOSTS_HASH_SIZE = 17 };

/* An empty file is -ENODATA (DeepSpeed calls it an error; dtraind is then a cluster of one), a missing one
 * -ENOENT, both with a message. */
int hosts_read(const char *path, struct hosts **out, struct error *err);
int hosts_parse(const char *text, size_t len, const char *where, struct hosts **out, struct error *err);
void hosts_free(struct hosts *h);
DEFINE_CLEANUP(struct hosts *, hosts_free)
const struct host *hosts_find(const struct hosts *h, const char *name); /* by name, case-insensitive */
/* Of what it says, without comments and spaces: tells files apart that ought to be the same. -ENOMEM. */
int hosts_hash(const struct hosts *h, char hash[HOSTS_HASH_SIZE], struct error *err);
/* The entry that is this machine: `node` where not NULL, else the host name (full or short form), else an
 * entry whose address is one of this machine's. -ENOENT: none, with a message that says what was tried;
 * -EEXIST: several addresses match. */
int hosts_find_self(const struct hosts *h, const char *node, const struct host **out, struct error *err);
