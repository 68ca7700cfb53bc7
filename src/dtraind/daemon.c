/* SPDX-License-Identifier: Apache-2.0 */
/* The service is set up in order, runs on one event loop, takes over changed files, and is taken down in the
 * opposite order. */
#include "dtraind/daemon.h"

#include <errno.h>
#include <grp.h>
#include <libgen.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "base/background.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "cluster/store.h"
#include "config/keys.h"
#include "controller/controller.h"
#include "controller/nodes.h"
#include "dtraind/heartbeat.h"
#include "dtraind/leader.h"
#include "dtraind/lock.h"
#include "dtraind/log_quotas.h"
#include "dtraind/log_streams.h"
#include "dtraind/metrics_listener.h"
#include "dtraind/peer_identity.h"
#include "dtraind/peers.h"
#include "dtraind/proxy.h"
#include "dtraind/retention.h"
#include "dtraind/routes/routes.h"
#include "dtraind/routes/table.h"
#include "dtraind/shutdown.h"
#include "dtraind/status.h"
#include "dtraind/timers.h"
#include "http/users.h"

enum {
	MAX_BODY = 64 << 10,   /* where the table of routes says nothing else */
	MOST_HEARTBEATS = 500, /* a second, from all nodes together: about 3 % of a core */
};

static const double RELOAD_SECONDS = 60.0; /* to read the files, on SIGHUP */

static int log_level(const char *name)
{
	static const struct {
		const char *name;
		int level;
	} levels[] = {{"error", LOG_ERR}, {"warning", LOG_WARNING}, {"info", LOG_INFO}, {"debug", LOG_DEBUG}};

	for (size_t i = 0; i < ARRAY_SIZE(levels); i++)
		if (str_eq(name, levels[i].name))
			return levels[i].level;
	return LOG_INFO;
}

static int on_stop(sd_event_source *source, const struct signalfd_siginfo *info, void *userdata)
{
	struct daemon *d = userdata;

	if (d->shutdown || (node_running(d->node) > 0 && shutdown_of_machine())) {
		sd_notify(0, "STOPPING=1");
		return shutdown_begin(d, true, NULL);
	}
	sd_notify(0, "STOPPING=1\nSTATUS=Stopping; running attempts go on");
	return sd_event_exit(d->event, 0);
}

static int on_sighup(sd_event_source *source, const struct signalfd_siginfo *info, void *userdata);

static int setup_event(struct daemon *d, struct error *err)
{
	sigset_t mask;
	int r;

	sigemptyset(&mask);
	sigaddset(&mask, SIGHUP);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	signal(SIGPIPE, SIG_IGN);
	if ((r = sd_event_new(&d->event)) < 0 || (r = sd_event_set_watchdog(d->event, true)) < 0 ||
	    (r = sd_event_add_signal(d->event, &d->sighup, SIGHUP, on_sighup, d)) < 0 ||
	    (r = sd_event_add_signal(d->event, &d->sigterm, SIGTERM, on_stop, d)) < 0 ||
	    (r = sd_event_add_signal(d->event, &d->sigint, SIGINT, on_stop, d)) < 0)
		return error_errno(err, r, "cannot set up the event loop");
	return 0;
}

static bool same_directory(const char *a, const char *b)
{
	struct stat x, y;

	return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* This comes first: a second service of the same directories must change, start, stop and adopt nothing. */
static int take_locks(struct daemon *d, struct error *err)
{
	const struct daemon_config *c = d->settings->config;
	int r;

	umask(022);
	r = lock_take("runtime_dir", c->runtime_dir, &d->locks[0], err);
	if (r < 0)
		return r;
	/* One directory for both is locked once. */
	return same_directory(c->state_dir, c->runtime_dir)
	           ? 0
	           : lock_take("state_dir", c->state_dir, &d->locks[1], err);
}

static int setup_directories(struct daemon *d, struct error *err)
{
	const struct daemon_config *c = d->settings->config;
	_cleanup_free_ char *socket = strdup(c->socket);
	int r;

	if ((r = file_mkdirs(c->state_dir, 0755, err)) < 0 ||
	    (r = file_mkdirs(c->runtime_dir, 0755, err)) < 0 || (r = file_mkdirs(c->log_dir, 0755, err)) < 0)
		return r;
	return socket ? file_mkdirs(dirname(socket), 0755, err) : error_oom(err);
}

static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int setup_node(struct daemon *d, struct error *err)
{
	struct node_callbacks callbacks = heartbeats_of_node(d);

	return node_create(d->event, d->settings->config, d->settings->name, d->settings->hosts_slots,
	                   &callbacks, &d->node, err);
}

/* The socket's group is a courtesy to users other than root: its lack is worth a warning, not the service. */
static int bind_own_socket(struct daemon *d, int *fd, struct error *err)
{
	const struct daemon_config *c = d->settings->config;
	const char *group = geteuid() == 0 && c->group && *c->group ? c->group : NULL;

	if (group && !getgrnam(group)) {
		log_warn("there is no group %s: only root can use %s", group, c->socket);
		group = NULL;
	}
	return http_bind_unix(c->socket, group ? 0660 : 0600, group, fd, err);
}

static int listen_unix(struct daemon *d, struct error *err)
{
	int n = sd_listen_fds(1), fd = -1, r = 0;

	for (int i = 0; i < n && r == 0; i++) {
		if (sd_is_socket(SD_LISTEN_FDS_START + i, AF_UNIX, SOCK_STREAM, 1) <= 0)
			return error_set(err, -EINVAL,
			                 "dtraind.socket: a listening Unix stream socket is needed");
		r = http_server_listen_unix(d->server, SD_LISTEN_FDS_START + i, err);
	}
	if (r < 0 || (n > 0 && http_unix_answers(d->settings->config->socket)))
		return r;
	if (n > 0)
		log_warn("%s was removed: it is made again, until dtraind.socket is restarted",
		         d->settings->config->socket);
	r = bind_own_socket(d, &fd, err);
	return r < 0 ? r : http_server_listen_unix(d->server, fd, err);
}

/* Makes the socket again after its file was removed. Connections that exist go on; new clients find the new
 * file. */
static void remake_socket(struct daemon *d)
{
	const char *path = d->settings->config->socket;
	struct error err = ERROR_INIT;
	int fd;

	if (http_unix_answers(path))
		return;
	if (bind_own_socket(d, &fd, &err) < 0) {
		log_err("%s", err.message);
		return;
	}
	http_server_leave_unix(d->server);
	if (http_server_listen_unix(d->server, fd, &err) < 0)
		log_err("%s", err.message);
	else
		log_warn("%s was gone: it is made again", path);
}

/* Who calls from an address of the hosts file is not held up by strangers. */
static void set_peers(struct daemon *d)
{
	const struct hosts *h = d->settings->hosts;
	_cleanup_free_ const char **addresses = calloc(h->count + 1, sizeof(*addresses));

	for (size_t i = 0; addresses && i < h->count; i++)
		addresses[i] = h->list[i].address;
	if (!addresses || http_server_set_peers(d->server, addresses, h->count) < 0)
		log_err("out of memory");
}

/* Peers are served as soon as there are any. */
static int listen_peers(struct daemon *d, struct error *err)
{
	const struct settings *s = d->settings;
	int fd, r;

	set_peers(d);
	if (!s->cluster || d->tls_listening)
		return 0;
	r = peer_identity_setup(d, err);
	if (r < 0)
		return r;
	if ((r = http_bind_tcp(s->config->listen, s->port, &fd, err)) < 0 ||
	    (r = http_server_listen_tls(d->server, fd, d->identity, err)) < 0)
		return r;
	d->tls_listening = true;
	return 0;
}

static int setup_http(struct daemon *d, struct error *err)
{
	struct users_options users = {.admin_group = d->settings->config->admin_group};
	struct http_server_options options = {.routes = route_table,
	                                      .route_count = route_table_count,
	                                      .context = d,
	                                      .max_body = MAX_BODY,
	                                      .intercept = route_intercept,
	                                      .node = d->settings->name,
	                                      .find_node = peer_identity_find,
	                                      .users = &users};
	int r;

	if ((r = http_client_create(d->event, NULL, &d->client, err)) < 0 ||
	    (r = http_client_create(d->event, NULL, &d->peer_client, err)) < 0)
		return r;
	return http_server_create(d->event, &options, &d->server, err);
}

static void on_flushed(void *context)
{
	status_notify(context);
}

static struct user_limits user_limits(const struct daemon_config *config)
{
	return (struct user_limits){.runs = config->user_runs, .slots = config->user_slots};
}

/* As a candidate this node has called the controller before. */
static void tell_who_was_silent(struct daemon *d)
{
	char **candidates = d->settings->config->controllers;

	for (size_t i = 0; d->leader && candidates[i]; i++) {
		double since = leader_silent_since(d, candidates[i]);

		if (since > 0)
			controller_set_silent(d->controller, candidates[i], since);
	}
}

static int lead(struct daemon *d, struct store *store, struct error *err)
{
	const struct settings *s = d->settings;
	struct controller_options options = {
	    .name = s->name,
	    .state_dir = s->config->state_dir,
	    .hosts = s->hosts,
	    .default_port = s->config->port,
	    .node_timeout = s->config->node_timeout,
	    .lease = s->config->lease,
	    .most_heartbeats = MOST_HEARTBEATS,
	    .user_limits = user_limits(s->config),
	    .peers = peers_of_daemon(d),
	    .store = store,
	    .begun = store != NULL,
	    .flushed = on_flushed,
	    .context = d,
	};
	int r = timers_create(d, &d->timers, err);

	if (r < 0) {
		store_close(store);
		return r;
	}
	options.clock = timers_clock(d->timers);
	if ((r = controller_create(&options, &d->controller, err)) < 0 ||
	    (r = timers_watch_store(d->timers, err)) < 0)
		return r;
	tell_who_was_silent(d);
	backup_remove_leftovers(s->config->state_dir);
	return 0;
}

static void on_leader_changed(struct daemon *d)
{
	heartbeats_follow(d->heartbeats);
	proxy_follow(d);
	status_notify(d);
}

/* The heartbeats have found it, and go on. A request may still wait for the controller before, which answers
 * nothing any more. */
static void on_leader_found(struct daemon *d)
{
	proxy_follow(d);
	status_notify(d);
}

static const struct leader_callbacks leader_callbacks = {lead, on_leader_changed, on_leader_found};

static int setup(struct daemon *d, struct error *err)
{
	uint64_t instance = 0;
	int r;

	if (getrandom(&instance, sizeof(instance), 0) < 0)
		instance = (uint64_t)(clock_realtime() * 1e6) ^ getpid();
	snprintf(d->instance, sizeof(d->instance), "%016llx", (unsigned long long)instance);
	raise_descriptor_limit();
	r = settings_read(d->config_path, &d->settings, err);
	if (r < 0)
		return r;
	r = take_locks(d, err);
	if (r < 0)
		return r;
	log_set_level(log_level(d->settings->config->log_level));
	if ((r = setup_directories(d, err)) < 0 || (r = settings_remember(d->settings, err)) < 0 ||
	    (r = setup_event(d, err)) < 0 || (r = setup_http(d, err)) < 0 ||
	    (r = log_streams_create(d, &d->logs, err)) < 0 || (r = setup_node(d, err)) < 0)
		return r;
	if (!d->settings->config->etcd_urls && str_eq_host(d->settings->name, d->settings->controller) &&
	    (r = lead(d, NULL, err)) < 0)
		return r;
	if ((r = leader_create(d, &leader_callbacks, &d->leader, err)) < 0 ||
	    (r = heartbeats_create(d, &d->heartbeats, err)) < 0 ||
	    (r = retention_create(d, &d->retention, err)) < 0 ||
	    (r = log_quotas_create(d, &d->log_quotas, err)) < 0 || (r = listen_peers(d, err)) < 0)
		return r;
	r = metrics_listener_create(d, &d->metrics, err);
	return r < 0 ? r : listen_unix(d, err);
}

int daemon_create(const char *config_path, struct daemon **out, struct error *err)
{
	_cleanup_(daemon_destroyp) struct daemon *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return error_oom(err);
	d->config_path = config_path;
	d->locks[0] = d->locks[1] = -1;
	r = setup(d, err);
	if (r < 0)
		return r;
	*out = steal_pointer(d);
	return 0;
}

int daemon_run(struct daemon *d, struct error *err)
{
	const struct settings *s = d->settings;
	int r;

	heartbeats_send(d->heartbeats);
	log_info("dtrain %s: node %s with %d %s, controller %s%s", DTRAIN_VERSION, s->name,
	         node_slots(d->node), node_slots(d->node) == 1 ? "slot" : "slots",
	         d->leader ? "elected" : s->controller, d->controller ? " (this node)" : "");
	status_notify(d);
	sd_notify(0, "READY=1");
	r = sd_event_loop(d->event);
	if (leader_is_lost(d))
		return leader_error(d, err);
	return r < 0 ? error_errno(err, r, "the event loop failed") : 0;
}

#define TAKEN_OVER(field)                                                                                    \
	{                                                                                                    \
#field, offsetof(struct daemon_config, field), sizeof(((struct daemon_config *)0)->field)    \
	}

/* What a running service takes over; no strings. */
static const struct {
	const char *key;
	size_t offset, size;
} taken_over[] = {
    TAKEN_OVER(heartbeat),  TAKEN_OVER(node_timeout), TAKEN_OVER(shutdown_grace),   TAKEN_OVER(slot_memory),
    TAKEN_OVER(slot_tasks), TAKEN_OVER(keep_days),    TAKEN_OVER(gpu_idle_timeout), TAKEN_OVER(keep_runs),
    TAKEN_OVER(user_runs),  TAKEN_OVER(user_slots),   TAKEN_OVER(log_quota),        TAKEN_OVER(allow_root),
};

/* The same by name, and those keys of which the settings know whether they have changed. */
static bool is_taken_over(const char *key)
{
	static const char *const others[] = {"node",      "controller",      "hosts_file", "port",
	                                     "log_level", "certificate_key", "ca_file",    "metrics_ca"};

	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		if (strcmp(key, others[i]) == 0)
			return true;
	for (size_t i = 0; i < ARRAY_SIZE(taken_over); i++)
		if (strcmp(key, taken_over[i].key) == 0)
			return true;
	return false;
}

/* What cannot change under a running service is named, and stays. */
static void warn_unchanged(const struct settings *old, const struct settings *new)
{
	static const char text[] = "%s has changed: restart dtraind for it to take effect";
	_cleanup_json_ json_t *before = NULL, *after = NULL;
	struct error err = ERROR_INIT;

	if (!str_eq(old->name, new->name))
		log_warn(text, "this node's name");
	if (!str_eq_host(old->controller, new->controller))
		log_warn(text, "the controller");
	if (old->port != new->port)
		log_warn(text, "port");
	if (old->hosts_slots != new->hosts_slots)
		log_warn(text, "the number of slots in the hosts file");
	if (keys_to_json(&daemon_keys, old->config, &before, &err) < 0 ||
	    keys_to_json(&daemon_keys, new->config, &after, &err) < 0) {
		log_err("%s", err.message);
		return;
	}
	for (size_t i = 0; i < daemon_keys.count; i++) {
		const char *key = daemon_keys.list[i].name;
		const json_t *a = json_object_get(before, key), *b = json_object_get(after, key);

		if (str_eq(key, "certificate") && json_is_string(a) == json_is_string(b))
			continue; /* another file, but still one of this node alone */
		if (!is_taken_over(key) && a != b && !(a && b && json_equal(a, b)))
			log_warn(text, key);
	}
}

static bool may_take_over(const struct settings *old, const struct settings *new)
{
	/* Its record may be gone with state_dir: we know it still. */
	if (old->cluster && new->alone) {
		log_err("nothing is reloaded: %s names no host, but this node is in a cluster of %zu; to "
		        "make it a "
		        "cluster of its own, write a hosts file that names this machine alone",
		        new->config->hosts_file, old->hosts->count);
		return false;
	}
	warn_unchanged(old, new);
	return str_eq_host(old->name, new->name) && str_eq_host(old->controller, new->controller);
}

static void take_over(struct daemon *d, struct settings *new)
{
	struct settings *old = d->settings;
	struct error err = ERROR_INIT;

	log_set_level(log_level(new->config->log_level));
	/* The node and others hold on to strings of the first settings: these are kept, the rest is taken
	 * over. */
	hosts_free(old->hosts);
	old->hosts = steal_pointer(new->hosts);
	old->cluster = new->cluster;
	free(old->controller_address);
	old->controller_address = steal_pointer(new->controller_address);
	old->controller_port = new->controller_port;
	for (size_t i = 0; i < ARRAY_SIZE(taken_over); i++)
		memcpy((char *)old->config + taken_over[i].offset,
		       (const char *)new->config + taken_over[i].offset, taken_over[i].size);
	if (!d->tls_listening) {
		identity_free(old->identity);
		old->identity = steal_pointer(new->identity);
	}
	if (listen_peers(d, &err) < 0)
		log_err("peers cannot be served: %s", err.message);
	if (d->controller)
		controller_set_user_limits(d->controller, user_limits(old->config));
	if (d->controller && controller_set_hosts(d->controller, old->hosts, old->config->port,
	                                          old->config->node_timeout, &err) < 0)
		log_err("the hosts file cannot be taken over: %s", err.message);
	/* After the hosts: which certificates are those of nodes depends on them. */
	if (peer_identity_renew(d, steal_pointer(new->identity), &err) < 0)
		log_err("the certificate cannot be taken over: %s", err.message);
	if (metrics_listener_renew(d->metrics, steal_pointer(new->metrics_identity), &err) < 0)
		log_err("metrics_ca cannot be taken over: %s", err.message);
	log_info("configuration reloaded: %zu %s", d->settings->hosts->count,
	         d->settings->hosts->count == 1 ? "host" : "hosts");
}

static void reload(struct daemon *d);

static void end_reload(struct daemon *d)
{
	d->reload = NULL;
	if (d->reload_again)
		reload(d);
	else
		sd_notify(0, "READY=1");
}

static void on_settings_remembered(void *context, void *data)
{
	struct settings_reading *reading = data;
	struct daemon *d = context;

	if (!reading) {
		log_err("nothing is reloaded: writing to %s takes longer than %.0f s",
		        d->settings->config->state_dir, RELOAD_SECONDS);
		background_cancel(d->reload);
	} else {
		if (reading->err.code < 0)
			log_err("%s", reading->err.message);
		take_over(d, reading->settings);
	}
	end_reload(d);
}

/* The record of the cluster is on disk before the settings count, and written off the event loop: a disk may
 * take seconds for it. */
static void on_settings_read(void *context, void *data)
{
	struct settings_reading *reading = data;
	struct daemon *d = context;
	struct error err = ERROR_INIT;

	if (!reading) {
		log_err(
		    "nothing is reloaded: reading the files and looking up the addresses of the hosts takes "
		    "longer than %.0f s",
		    RELOAD_SECONDS);
		background_cancel(d->reload);
	} else if (!reading->settings) {
		log_err("nothing is reloaded: %s", reading->err.message);
	} else if (may_take_over(d->settings, reading->settings)) {
		if (settings_remember_background(d->event, steal_pointer(reading->settings),
		                                 d->settings->config, RELOAD_SECONDS, on_settings_remembered,
		                                 d, &d->reload, &err) == 0)
			return;
		log_err("nothing is reloaded: %s", err.message);
	}
	end_reload(d);
}

/* Both files again; with a bad one everything stays as it was. */
static void reload(struct daemon *d)
{
	struct error err = ERROR_INIT;

	d->reload_again = d->reload;
	if (d->reload)
		return;
	if (settings_read_background(d->event, d->config_path, RELOAD_SECONDS, on_settings_read, d,
	                             &d->reload, &err) < 0) {
		log_err("nothing is reloaded: %s", err.message);
		sd_notify(0, "READY=1");
	}
}

static int on_sighup(sd_event_source *source, const struct signalfd_siginfo *info, void *userdata)
{
	struct daemon *d = userdata;

	sd_notify(0, "RELOADING=1");
	remake_socket(d); /* whatever the files say */
	reload(d);
	return 0;
}

void daemon_destroy(struct daemon *d)
{
	if (!d)
		return;
	/* The mirror of setup: requests end first, what they use goes after them. */
	background_cancel(d->reload);
	shutdown_free(d->shutdown);
	log_quotas_destroy(d->log_quotas);
	retention_destroy(d->retention);
	metrics_listener_destroy(d->metrics);
	http_server_destroy(d->server);
	heartbeats_destroy(d->heartbeats);
	http_client_destroy(d->client);
	http_client_destroy(d->peer_client);
	controller_destroy(d->controller);
	timers_destroy(d->timers);
	leader_destroy(d->leader);
	if (d->node)
		node_destroy(d->node);
	log_streams_destroy(d->logs);
	identity_free(d->identity);
	sd_event_source_disable_unref(d->sighup);
	sd_event_source_disable_unref(d->sigterm);
	sd_event_source_disable_unref(d->sigint);
	sd_event_unref(d->event);
	for (size_t i = 0; i < ARRAY_SIZE(d->locks); i++)
		closep(&d->locks[i]);
	settings_free(d->settings);
	free(d);
}
