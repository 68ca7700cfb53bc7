/* SPDX-License-Identifier: Apache-2.0 */
/* Which service calls: it holds the cluster's key, or its certificate names a node. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "http/certificates.h"
#include "http/internal.h"

static const double LOG_SECONDS = 10.0; /* between two lines about strangers, who may be many */

void http_peer_release(struct http_peer *peer)
{
	free(peer->node);
	*peer = (struct http_peer){0};
}

/* The one node that the certificate names; the caller of find_node knows the hosts. */
static int find_node(const struct http_server *s, const gnutls_datum_t *der, char **out, struct error *err)
{
	_cleanup_(certificate_names_release) struct certificate_names names = {0};
	const char *found = NULL;
	int r = certificate_names_read(der, &names, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < names.count; i++) {
		const char *node =
		    s->options.find_node ? s->options.find_node(s->options.context, names.list[i]) : NULL;

		if (node && found && !str_eq_host(node, found))
			return error_set(err, -EACCES, "the certificate is of two nodes, %s and %s", found,
			                 node);
		found = node ? node : found;
	}
	if (!found)
		return error_set(err, -EACCES,
		                 "none of the certificate's names (the first is %.260s) is in the hosts file",
		                 names.count ? names.list[0] : "missing");
	*out = strdup(found);
	return *out ? 0 : error_oom(err);
}

/* Its certificate is ours, byte for byte, and the handshake itself proves that it has the key to it. */
static int check_shared(const struct identity *id, const gnutls_datum_t *chain, struct error *err)
{
	if (chain[0].size == id->certificate_der_len &&
	    memcmp(chain[0].data, id->certificate_der, chain[0].size) == 0)
		return 0;
	return error_set(err, -EACCES, "its certificate is not that of the cluster's key");
}

static int check(const struct http_server *s, gnutls_session_t session, struct http_peer *peer,
                 struct error *err)
{
	unsigned count = 0;
	const gnutls_datum_t *chain = gnutls_certificate_get_peers(session, &count);
	int r;

	if (!s->identity || !chain || count == 0)
		return error_set(err, -EACCES, "it shows no certificate");
	if (identity_is_shared(s->identity))
		return check_shared(s->identity, chain, err);
	if (peer->node && peer->generation == s->generation && time(NULL) < peer->expires)
		return 0;
	http_peer_release(peer);
	r = certificates_verify(s->identity, chain, count, true, &peer->expires, err);
	if (r < 0 || s->options.any_name)
		return r;
	if ((r = find_node(s, &chain[0], &peer->node, err)) < 0)
		return r;
	peer->generation = s->generation;
	return 0;
}

int http_peer_check(struct http_server *s, gnutls_session_t session, struct http_peer *peer)
{
	struct error err = ERROR_INIT;
	int r = check(s, session, peer, &err);

	if (r == 0)
		return 0;
	http_peer_release(peer);
	if (s->identity && !identity_is_shared(s->identity) && clock_monotonic() >= s->next_refusal_log) {
		s->next_refusal_log = clock_monotonic() + LOG_SECONDS;
		log_warn("a service is refused: %s", err.message);
	}
	return -EACCES;
}
