/* SPDX-License-Identifier: Apache-2.0 */
/* dtraind.conf and the hosts file, read and checked together: which node this is, and which one decides. */
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/background.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "dtraind/daemon.h"
#include "http/certificates.h"
#include "wire/service_files.h"

void settings_free(struct settings *s)
{
	if (!s)
		return;
	daemon_config_free(s->config);
	hosts_free(s->hosts);
	identity_free(s->identity);
	identity_free(s->metrics_identity);
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

/* state_dir/cluster: there as long as this node belongs to a cluster of several. A machine that loses its
 * hosts file would otherwise become a cluster of its own, and end what runs on the others. */
static char *record_path(const struct daemon_config *config)
{
	return str_path_join(config->state_dir, "cluster");
}

static int write_record(const struct settings *s, const char *path, struct error *err)
{
	_cleanup_free_ char *text = NULL, *old = NULL;
	_cleanup_json_ json_t *record =
	    membership_encode(&(struct membership){s->controller, (int64_t)s->hosts->count});

	text = json_to_string(record);
	if (!text)
		return error_oom(err);
	if (!s->cluster)
		return unlink(path) < 0 && errno != ENOENT
		           ? error_errno(err, -errno, "cannot remove %s", path)
		           : 0;
	if (file_read(path, 0, &old, NULL, NULL) == 0 && str_eq(old, text))
		return 0;
	return file_write_atomic(path, text, strlen(text), 0644, err);
}

int settings_remember(const struct settings *s, struct error *err)
{
	_cleanup_free_ char *path = record_path(s->config);

	return path ? write_record(s, path, err) : error_oom(err);
}

/* There are no hosts, as `err` says: may this machine be a cluster of its own? */
static int check_alone(const struct daemon_config *config, struct error *err)
{
	_cleanup_free_ char *path = record_path(config), *why = strdup(err->message);
	_cleanup_(membership_release) struct membership record = {0};
	_cleanup_json_ json_t *json = NULL;
	int code = err->code;

	if (!path || !why)
		return error_oom(err);
	if (config->hosts_file_given)
		return error_set(err, code, "hosts_file of dtraind.conf: %s", why);
	if (!file_exists(path))
		return 0;
	if (json_read_file(path, &json, NULL) == 0)
		membership_decode(json, &record, NULL);
	return error_set(
	    err, code,
	    "%s; but this node is in a cluster, whose controller is %s: put the file back, or, to make it "
	    "a cluster of its own, write a hosts file that names this machine alone",
	    why, record.controller ? record.controller : "not known");
}

static int find_controller(struct settings *s, struct error *err)
{
	const struct host *h = &s->hosts->list[0];

	for (char **name = s->config->controllers; name && *name; name++) {
		h = hosts_find(s->hosts, *name);
		if (!h)
			return error_set(err, -ENOENT, "controllers: there is no host \"%s\" in %s", *name,
			                 s->config->hosts_file);
		s->candidate = s->candidate || str_eq_host(h->name, s->name);
	}
	if (s->config->etcd_urls)
		h = hosts_find(s->hosts, s->config->controllers[0]);
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

/* The cluster's key is read when peers are served for the first time, and not again. */
static int read_identity(struct settings *s, struct error *err)
{
	const struct daemon_config *c = s->config;
	const struct certificate_files files = {c->certificate, c->certificate_key, c->ca_file};
	int r;

	if (!s->cluster)
		return 0;
	if (!c->certificate && s->hosts->restricts_users)
		return error_set(
		    err, -EINVAL,
		    "%s marks hosts with submit, but all nodes have the same %s, with which each "
		    "can act as any other: give each node a certificate (dtraind(8)), or remove "
		    "submit",
		    c->hosts_file, c->cluster_key);
	if (!c->certificate)
		return access(c->cluster_key, F_OK) == 0
		           ? 0
		           : error_set(err, -ENOENT,
		                       "%s names %zu hosts, but there is no %s: make one with dtrain keygen "
		                       "and put the same file on each",
		                       c->hosts_file, s->hosts->count, c->cluster_key);
	r = certificates_load(&files, &s->identity, err);
	if (r == 0 && !certificates_are_of(s->identity, s->name))
		r = error_set(err, -EINVAL,
		              "%s is not the certificate of this node: %s is not among its names",
		              c->certificate, s->name);
	return r;
}

/* Read here, and not when it is used, for a reload does not read files on the event loop. */
static int read_metrics_identity(struct settings *s, struct error *err)
{
	const struct daemon_config *c = s->config;
	const struct certificate_files files = {c->certificate, c->certificate_key, c->ca_file};
	_cleanup_(identity_freep) struct identity *own = NULL;
	int r;

	if (!c->metrics_listen)
		return 0;
	r = c->certificate ? certificates_load(&files, &own, err) : identity_load(c->cluster_key, &own, err);
	return r < 0 ? r : certificates_load_clients(own, c->metrics_ca, &s->metrics_identity, err);
}

int settings_read(const char *path, struct settings **out, struct error *err)
{
	_cleanup_(settings_freep) struct settings *s = calloc(1, sizeof(*s));
	const struct host *self;
	int r;

	if (!s)
		return error_oom(err);
	r = daemon_config_read(path, &s->config, err);
	if (r < 0)
		return r;
	r = hosts_read(s->config->hosts_file, &s->hosts, err);
	s->alone = r == -ENOENT || r == -ENODATA;
	if (s->alone)
		r = check_alone(s->config, err);
	if (s->alone && r == 0)
		r = single_host(s->config, &s->hosts, err);
	if (r < 0)
		return r;
	s->cluster = s->hosts->count > 1;
	self = &s->hosts->list[0];
	if (!s->alone) {
		r = hosts_find_self(s->hosts, s->config->node, &self, err);
		if (r < 0)
			return r;
	}
	s->name = strdup(self->name);
	s->port = self->port ? self->port : s->config->port;
	s->hosts_slots = self->slots;
	if (!s->name)
		return error_oom(err);
	if ((r = read_identity(s, err)) < 0 || (r = read_metrics_identity(s, err)) < 0)
		return r;
	r = find_controller(s, err);
	if (r < 0)
		return r;
	*out = steal_pointer(s);
	return 0;
}

static void reading_free(void *data)
{
	struct settings_reading *r = data;

	if (!r)
		return;
	settings_free(r->settings);
	free(r->path);
	free(r);
}

static void read_in_thread(void *data)
{
	struct settings_reading *r = data;

	settings_read(r->path, &r->settings, &r->err);
}

static void remember_in_thread(void *data)
{
	struct settings_reading *r = data;

	write_record(r->settings, r->path, &r->err);
}

int settings_read_background(sd_event *event, const char *path, double deadline,
                             void (*done)(void *context, void *reading), void *context,
                             struct background **out, struct error *err)
{
	struct settings_reading *r = calloc(1, sizeof(*r));
	struct background_task task = {.deadline = deadline,
	                               .work = read_in_thread,
	                               .done = done,
	                               .context = context,
	                               .release = reading_free,
	                               .data = r};

	if (r && path)
		r->path = strdup(path);
	if (!r || (path && !r->path)) {
		reading_free(r);
		return error_oom(err);
	}
	return background_start(event, &task, out, err);
}

int settings_remember_background(sd_event *event, struct settings *settings,
                                 const struct daemon_config *place, double deadline,
                                 void (*done)(void *context, void *reading), void *context,
                                 struct background **out, struct error *err)
{
	struct settings_reading *r = calloc(1, sizeof(*r));
	struct background_task task = {.deadline = deadline,
	                               .work = remember_in_thread,
	                               .done = done,
	                               .context = context,
	                               .release = reading_free,
	                               .data = r};

	if (r)
		r->path = record_path(place);
	if (!r || !r->path) {
		reading_free(r);
		settings_free(settings);
		return error_oom(err);
	}
	r->settings = settings;
	return background_start(event, &task, out, err);
}
