/* SPDX-License-Identifier: Apache-2.0 */
/* The identity of this service: from the settings to server and clients, and again after a reload. */
#include "dtraind/peer_identity.h"

#include <time.h>

#include "base/log.h"

enum { EXPIRY_DAYS = 30 }; /* before a certificate expires this is logged */

static void warn_expiry(const struct identity *id)
{
	double days = difftime(id->expires, time(NULL)) / 86400;

	if (!identity_is_shared(id) && days < EXPIRY_DAYS)
		log_warn("this node's certificate expires in %.1f days: make another one, and reload", days);
}

static void set_clients(struct daemon *d)
{
	http_client_set_identity(d->client, d->identity);
	http_client_set_identity(d->peer_client, d->identity);
	warn_expiry(d->identity);
}

int peer_identity_setup(struct daemon *d, struct error *err)
{
	struct settings *s = d->settings;
	int r;

	if (d->identity)
		return 0;
	d->identity = steal_pointer(s->identity);
	if (!d->identity) {
		r = identity_load(s->config->cluster_key, &d->identity, err);
		if (r < 0)
			return r;
	}
	set_clients(d);
	return 0;
}

int peer_identity_renew(struct daemon *d, struct identity *taken, struct error *err)
{
	_cleanup_(identity_freep) struct identity *new = taken, *old = NULL;
	int r;

	if (!d->tls_listening || !new || identity_is_shared(d->identity))
		return 0;
	r = http_server_set_identity(d->server, new, err);
	if (r < 0)
		return r;
	old = d->identity;
	d->identity = steal_pointer(new);
	set_clients(d);
	if (!identity_equal(old, d->identity))
		log_info("another certificate, or other authorities, are used from now on");
	return 0;
}

/* A node that is removed from the hosts file is shut out at once: its runs end with their lease. */
const char *peer_identity_find(void *context, const char *name)
{
	struct daemon *d = context;
	const struct host *h = hosts_find(d->settings->hosts, name);

	return h ? h->name : NULL;
}
