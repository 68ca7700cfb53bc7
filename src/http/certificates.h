/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Certificates of nodes, where each has one of its own: signed by an authority of the CA file, and with the
 * node's name of the hosts file among its subject alternative names (a DNS name, or an address where the name
 * is one). The cluster's own authority (authority.h) and that of a site are the same here.
 */
#pragma once

#include <gnutls/gnutls.h>
#include <stdbool.h>
#include <time.h>

#include "http/identity.h"

struct certificate_files {
	const char *certificate; /* PEM; certificates of intermediate authorities may follow the node's */
	const char *key;         /* PEM; only its owner may read it */
	const char *ca;          /* PEM, one or several certificates of authorities */
};

/* -ENOENT, -EPERM (the key), -EINVAL: they do not fit together, or no authority has signed the certificate,
 * or it is not valid today. */
int certificates_load(const struct certificate_files *files, struct identity **out, struct error *err);

/* The certificate and key of `own`, of a node or of the cluster, for a server of other clients: those that an
 * authority of the file `ca` (PEM) vouches for. */
int certificates_load_clients(const struct identity *own, const char *ca, struct identity **out,
                              struct error *err);

/* Whether the chain of certificates (DER, that of the peer first) is one that identity's authorities vouch
 * for, now, for a client, or else for a server. *expires: until when. */
int certificates_verify(const struct identity *identity, const gnutls_datum_t *chain, unsigned count,
                        bool client, time_t *expires, struct error *err);

/* The subject alternative names of a certificate (DER) that can be names of nodes, addresses as text. */
struct certificate_names {
	char **list;
	size_t count;
};

int certificate_names_read(const gnutls_datum_t *der, struct certificate_names *out, struct error *err);
void certificate_names_release(struct certificate_names *names);

/* Whether the identity's own certificate is that of the node. */
bool certificates_are_of(const struct identity *identity, const char *node);
