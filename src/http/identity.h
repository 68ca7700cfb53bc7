/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The identity of a service among its peers: one EC P-256 key and its self-signed certificate in one PEM
 * file, the same on every node (as munge.key is). A peer is one who proves that it holds this very key.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"

struct identity {
	char *certificate, *key;        /* PEM, one block each */
	unsigned char *certificate_der; /* what a peer's certificate has to equal */
	size_t certificate_der_len;
	char *pin; /* "sha256//BASE64" of the public key, as curl's pinning takes it */
};

/* Makes a new key at `path`, mode 0600. -EEXIST where the file is there already, unless `force`. */
int identity_make(const char *path, bool force, struct error *err);
/* -ENOENT: no file; -EPERM: other users can read it (the message says what to do). */
int identity_load(const char *path, struct identity **out, struct error *err);
void identity_free(struct identity *identity);
DEFINE_CLEANUP(struct identity *, identity_free)
