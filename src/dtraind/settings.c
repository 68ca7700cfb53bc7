/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/str.h"
#include "dtraind/daemon.h"

void settings_free(struct settings *s)
{
	if (!s)
		return;
	daemon_config_free(s->config);
	hosts_free(s->hosts);
	free(s->name);
	free(s->controller);
	free(s->controller_address);
	free(s);
}

/* Without a hosts file the cluster is this machine. */
static int single_host(const struct daemon_config *config, struct hosts **out, struct error *err)
{
	_cleanup_free_ char *line = NULL;
	struct utsname uts;

	uname(&uts);
	line = str_printf("%s addr=127.0.0.1\n", config->node ? config->node : uts.nodename);
	return line ? hosts_parse(line, strlen(line), "this machine", out, err) : error_oom(err);
}

static int find_controller(struct settings *s, struct error *err)
{
	const struct host *h = &s->hosts->list[0];

	if (s->config->controller) {
		h = hosts_find(s->hosts, s->config->controller);
		if (!h)
			return error_set(err, -ENOENT, "controller = \"%s\": there is no such host in %s",
			                 s->config->controller, s->config->hosts_file);
	}
	s->controller = strdup(h->name);
	s->controller_address = strdup(h->address ? h->address : h->name);
	s->controller_port = h->port ? h->port : s->config->port;
	return s->controller && s->controller_address ? 0 : error_oom(err);
}

int settings_read(const char *path, struct settings **out, struct error *err)
{
	_cleanup_(settings_freep) struct settings *s = calloc(1, sizeof(*s));
	const struct host *self;
	bool alone;
	int r;

	if (!s)
		return error_oom(err);
	r = daemon_config_read(path, &s->config, err);
	if (r < 0)
		return r;
	r = hosts_read(s->config->hosts_file, &s->hosts, err);
	alone = r == -ENOENT || r == -ENODATA;
	if (alone)
		r = single_host(s->config, &s->hosts, err);
	if (r < 0)
		return r;
	s->cluster = s->hosts->count > 1;
	self = &s->hosts->list[0];
	if (!alone) {
		r = hosts_find_self(s->hosts, s->config->node, &self, err);
		if (r < 0)
			return r;
	}
	s->name = strdup(self->name);
	s->port = self->port ? self->port : s->config->port;
	s->hosts_slots = self->slots;
	if (!s->name)
		return error_oom(err);
	if (s->cluster && access(s->config->cluster_key, F_OK) < 0)
		return error_set(err, -ENOENT,
		                 "%s names %zu hosts, but there is no %s: make one with dtrain keygen "
		                 "and put the same file on each",
		                 s->config->hosts_file, s->hosts->count, s->config->cluster_key);
	r = find_controller(s, err);
	if (r < 0)
		return r;
	*out = steal_pointer(s);
	return 0;
}
