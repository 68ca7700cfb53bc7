/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The identity of a service among its peers. Either one EC P-256 key and its self-signed certificate in one
 * PEM file, the same on every node (as munge.key is): a peer is one who proves that it holds this very key.
 * Or a key and a certificate of the node's own, and the authorities that sign those of all nodes
 * (certificates.h): a peer is one whose certificate names a node.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/error.h"

struct identity {
	char *certificate, *key;        /* PEM; of the cluster's key one block each */
	unsigned char *certificate_der; /* of the cluster's key: what a peer's certificate has to equal */
	size_t certificate_der_len;
	char *pin;   /* "sha256//BASE64" of the public key, as curl's pinning takes it; NULL: see trust */
	char *trust; /* PEM of the authorities, where the node has a certificate of its own; otherwise NULL */
	void *authorities; /* the same as a gnutls_x509_trust_list_t */
	time_t expires;    /* of the node's certificate */
};

/* Makes a new key at `path`, mode 0600. -EEXIST where the file is there already, unless `force`. */
int identity_make(const char *path, bool force, struct error *err);
/* -ENOENT: no file; -EPERM: other users can read it (the message says what to do). */
int identity_load(const char *path, struct identity **out, struct error *err);
/* Whether other nodes have the same key: no name of a node is known then from a certificate. */
bool identity_is_shared(const struct identity *identity);
bool identity_equal(const struct identity *a, const struct identity *b); /* the same files */
/* Says what gnutls says, and returns a negative errno. */
int identity_tls_error(struct error *err, int code, const char *what);
void identity_free(struct identity *identity);
DEFINE_CLEANUP(struct identity *, identity_free)
