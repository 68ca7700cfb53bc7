/* SPDX-License-Identifier: Apache-2.0 */
/* A server with one route, apart from the one for services: what is asked here takes none of that one's
 * connections, and whoever may ask here may ask for nothing else. */
#include "dtraind/metrics_listener.h"

#include <stdlib.h>

#include "dtraind/daemon.h"
#include "dtraind/routes/table.h"

enum { CONNECTIONS = 64, MAX_BODY = 1024 };

struct metrics_listener {
	struct http_server *server;
	struct identity *identity; /* borrowed by the server */
};

int metrics_listener_create(struct daemon *d, struct metrics_listener **out, struct error *err)
{
	const struct daemon_config *config = d->settings->config;
	struct http_server_options options = {.routes = metrics_route_table,
	                                      .route_count = metrics_route_table_count,
	                                      .context = d,
	                                      .max_body = MAX_BODY,
	                                      .tls_connections = CONNECTIONS,
	                                      .intercept = route_intercept,
	                                      .any_name = true};
	struct metrics_listener *m;
	int fd, r;

	*out = NULL;
	if (!config->metrics_port)
		return 0;
	m = calloc(1, sizeof(*m));
	if (!m)
		return error_oom(err);
	m->identity = steal_pointer(d->settings->metrics_identity);
	if ((r = http_server_create(d->event, &options, &m->server, err)) < 0 ||
	    (r = http_bind_tcp(config->metrics_address, config->metrics_port, &fd, err)) < 0 ||
	    (r = http_server_listen_tls(m->server, fd, m->identity, err)) < 0) {
		metrics_listener_destroy(m);
		return r;
	}
	*out = m;
	return 0;
}

int metrics_listener_renew(struct metrics_listener *m, struct identity *new, struct error *err)
{
	_cleanup_(identity_freep) struct identity *taken = new, *old = NULL;
	int r;

	if (!m || !new)
		return 0;
	r = http_server_set_identity(m->server, new, err);
	if (r < 0)
		return r;
	old = m->identity;
	m->identity = steal_pointer(taken);
	return 0;
}

void metrics_listener_destroy(struct metrics_listener *m)
{
	if (!m)
		return;
	http_server_destroy(m->server);
	identity_free(m->identity);
	free(m);
}
