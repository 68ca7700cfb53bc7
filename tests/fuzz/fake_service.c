/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a service as daemon.c puts them together, and the stand-ins around them: fake_service.h. */
#include "fake_service.h"

#include <errno.h>
#include <poll.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/random.h"
#include "cluster/store.h"
#include "controller/controller.h"
#include "controller/nodes.h"
#include "dtraind/daemon.h"
#include "dtraind/heartbeat.h"
#include "dtraind/leader.h"
#include "dtraind/log_streams.h"
#include "dtraind/peers.h"
#include "dtraind/proxy.h"
#include "dtraind/retention.h"
#include "dtraind/routes/table.h"
#include "dtraind/shutdown.h"
#include "node/launch/preflight.h"
#include "node/launch/unit_internal.h"
#include "node/preflight_process.h"

static const double START = 1e6, STEP = 1; /* of the controller's time: its beginning, and how it goes on */

struct fake_service {
	struct daemon daemon;
	struct httpd *httpd;
	struct store *store; /* the controller's */
	double now, timers[CONTROLLER_TIMERS];
	struct http_client *client;
	int answer_status;
	struct strbuf answer;
};

static void require(int r, const struct error *err)
{
	if (r >= 0)
		return;
	fprintf(stderr, "fake service: %s\n", err->message);
	abort();
}

/* ---- what is random otherwise ---- */

int random_hex(char *text, size_t size)
{
	for (size_t i = 0; i + 1 < size; i++)
		text[i] = CLUSTER[i % strlen(CLUSTER)];
	text[size - 1] = '\0';
	return 0;
}

double random_fraction(void)
{
	return 0.5;
}

/* ---- root's rights are neither needed nor used ---- */

uid_t geteuid(void)
{
	return 0;
}

int chown(const char *path, uid_t uid, gid_t gid)
{
	return 0;
}

int fchown(int fd, uid_t uid, gid_t gid)
{
	return 0;
}

int lchown(const char *path, uid_t uid, gid_t gid)
{
	return 0;
}

int fchownat(int fd, const char *path, uid_t uid, gid_t gid, int flags)
{
	return 0;
}

/* ---- preflights: every user and every file is there ---- */

struct preflight_call {
	sd_event_source *source;
	void (*done)(void *context, const struct run_user *user, const struct error *err);
	void *context;
	char *user;
	int64_t uid;
};

static int on_preflight(sd_event_source *source, void *userdata)
{
	struct preflight_call *c = userdata;
	struct run_user user = {.name = c->user,
	                        .home = (char *)"/",
	                        .shell = (char *)"/bin/sh",
	                        .uid = c->uid,
	                        .gid = c->uid,
	                        .groups = &c->uid,
	                        .group_count = 1};

	c->done(c->context, &user, NULL);
	preflight_cancel(c);
	return 0;
}

int preflight_start(sd_event *event, struct preflight_spare *spare, const char *launcher,
                    const struct preflight_request *what, double seconds,
                    void (*done)(void *context, const struct run_user *user, const struct error *err),
                    void *context, struct preflight_call **out, struct error *err)
{
	struct preflight_call *c = calloc(1, sizeof(*c));

	*c = (struct preflight_call){
	    .done = done, .context = context, .user = strdup(what->user), .uid = what->uid};
	require(sd_event_add_defer(event, &c->source, on_preflight, c), err);
	*out = c;
	return 0;
}

void preflight_cancel(struct preflight_call *c)
{
	if (!c)
		return;
	sd_event_source_disable_unref(c->source);
	free(c->user);
	free(c);
}

int preflight_spare_create(sd_event *event, struct preflight_spare **out, struct error *err)
{
	*out = NULL;
	return 0;
}

void preflight_spare_destroy(struct preflight_spare *spare)
{
}

void preflight_spare_prepare(struct preflight_spare *spare, const char *launcher)
{
}

bool preflight_spare_is_ready(const struct preflight_spare *spare)
{
	return false;
}

/* ---- units: nothing is executed ---- */

static struct units *the_units;

static int unit_prepare(struct unit *unit, struct error *err)
{
	the_units = unit->units;
	return 0;
}

static int unit_begin(struct unit *unit, const struct unit_start *start, struct error *err)
{
	return 0;
}

static bool unit_watched(const struct unit *unit)
{
	return true;
}

static void unit_connection_lost(struct unit *unit, bool reconnected)
{
}

static bool unit_no_process(struct unit *unit)
{
	return false;
}

static void unit_nothing(struct unit *unit)
{
}

#define FAKE_METHOD                                                                                          \
	{                                                                                                    \
		.name = "process", .prepare = unit_prepare, .start = unit_begin, .is_watched = unit_watched, \
		.disconnected = unit_connection_lost, .kill = unit_no_process, .ask_stop = unit_no_process,  \
		.remove = unit_nothing, .release = unit_nothing                                              \
	}
const struct unit_method unit_process = FAKE_METHOD, unit_systemd = FAKE_METHOD;

int unit_systemd_open(struct units *units, const char *runtime_dir, struct error *err)
{
	return 0;
}

void unit_systemd_close(struct units *units)
{
	the_units = NULL;
}

void unit_systemd_kill_others(struct units *units)
{
}

void fake_service_end_launchers(struct fake_service *s)
{
	struct unit *next;

	for (struct unit *unit = the_units ? the_units->first : NULL; unit; unit = next) {
		next = unit->next;
		if (!unit->empty)
			unit_report_exit(unit, "dtrain-launch has ended", true);
	}
}

/* ---- other nodes ---- */

struct http_transfer {
	struct http_client *client;
	struct http_transfer *next;
	struct http_call call; /* of its pointers the context and the functions alone are valid */
};

struct http_client {
	struct fake_service *service;
	struct http_transfer *first;
};

int http_client_create(sd_event *event, const struct identity *identity, struct http_client **out,
                       struct error *err)
{
	*out = calloc(1, sizeof(**out));
	return 0;
}

void http_client_set_identity(struct http_client *client, const struct identity *identity)
{
}

int http_client_call(struct http_client *client, const struct http_call *call, struct http_transfer **out,
                     struct error *err)
{
	struct http_transfer *t = calloc(1, sizeof(*t)), **end = &client->first;

	t->client = client;
	t->call = *call;
	while (*end)
		end = &(*end)->next;
	*end = t;
	if (out)
		*out = t;
	return 0;
}

static void transfer_free(struct http_transfer *t)
{
	struct http_transfer **at = &t->client->first;

	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	free(t);
}

void http_transfer_cancel(struct http_transfer *t)
{
	if (t)
		transfer_free(t);
}

void http_transfer_pause(struct http_transfer *t, bool pause)
{
}

void http_client_destroy(struct http_client *client)
{
	struct http_answer answer = {.error = {.code = -ECANCELED}};

	while (client && client->first) {
		struct http_call call = client->first->call;

		transfer_free(client->first);
		if (call.on_done)
			call.on_done(call.context, &answer);
	}
	free(client);
}

static bool answer_call(struct fake_service *s)
{
	struct http_transfer *t = s->client->first;
	const char *body = s->answer.data ? s->answer.data : "";
	struct http_answer answer = {.status = s->answer_status, .sent = true, .type = "application/json"};
	struct http_call call;

	if (!t)
		return false;
	call = t->call;
	if (answer.status == 0)
		error_set(&answer.error, -EHOSTUNREACH, "n2 does not answer");
	if (answer.status && call.on_headers)
		call.on_headers(call.context, answer.status, answer.type);
	if (answer.status && call.on_data && s->answer.len)
		call.on_data(call.context, body, s->answer.len);
	if (!call.on_data) {
		answer.body = body;
		answer.len = answer.status ? s->answer.len : 0;
	}
	/* One of them may have cancelled it. */
	if (s->client->first != t)
		return true;
	transfer_free(t);
	if (call.on_done)
		call.on_done(call.context, &answer);
	return true;
}

void fake_service_set_answer(struct fake_service *s, int status, const char *body, size_t len)
{
	s->answer_status = status;
	strbuf_reset(&s->answer);
	strbuf_add(&s->answer, body, len);
}

/* ---- the controller's time ---- */

static double fake_time(void *context)
{
	return ((struct fake_service *)context)->now;
}

static void set_timer(void *context, enum controller_timer which, double at)
{
	((struct fake_service *)context)->timers[which] = at;
}

static bool run_timer(struct fake_service *s)
{
	int due = -1;

	for (int i = 0; i < CONTROLLER_TIMERS; i++)
		if (s->timers[i] >= 0 && s->timers[i] <= s->now && (due < 0 || s->timers[i] < s->timers[due]))
			due = i;
	if (due < 0)
		return false;
	s->timers[due] = -1;
	controller_run_timer(s->daemon.controller, (enum controller_timer)due);
	return true;
}

/* ---- the service ---- */

/* A commit is waited for; a backup is not. */
static bool finish_commit(struct fake_service *s)
{
	bool busy = store_is_busy(s->store);

	if (!busy && !s->daemon.backup)
		return false;
	if (poll(&(struct pollfd){.fd = store_fd(s->store), .events = POLLIN}, 1, busy ? 10000 : 0) == 1) {
		controller_dispatch_store(s->daemon.controller);
		return true;
	}
	if (busy)
		abort(); /* a commit that never ends */
	return false;
}

void fake_service_settle(struct fake_service *s)
{
	for (int turns = 0;; turns++) {
		bool progress = sd_event_run(s->daemon.event, 0) > 0;

		progress = answer_call(s) || progress;
		progress = run_timer(s) || progress;
		progress = finish_commit(s) || progress;
		progress = httpd_pump(s->httpd) || progress;
		if (!progress)
			return;
		if (turns > 10000)
			abort(); /* it never comes to rest */
	}
}

bool fake_service_await(struct fake_service *s, unsigned ms)
{
	bool happened = sd_event_run(s->daemon.event, ms * 1000ull) > 0;

	fake_service_settle(s);
	return happened;
}

void fake_service_advance(struct fake_service *s, double seconds)
{
	/* At once, it would be the controller that had stood still, and not the others. */
	for (double left = seconds; left > 0; left -= STEP) {
		s->now += MIN(left, STEP);
		fake_service_settle(s);
	}
}

struct httpd *fake_service_httpd(struct fake_service *s)
{
	return s->httpd;
}

static void read_settings(struct daemon *d, const char *dir)
{
	static const char hosts[] = "n1 slots=2 addr=127.0.0.1\nn2 slots=2 addr=127.0.0.2 submit\n";
	_cleanup_free_ char *text = str_printf(
	    "node = \"n1\"; controller = \"n1\"; socket = \"%s/socket\"; runtime_dir = \"%s/run\"; "
	    "state_dir = \"%s/state\"; log_dir = \"%s/log\"; worker_dir = \"%s\"; cpu_slots = 2; "
	    "allow_root = false;",
	    dir, dir, dir, dir, dir);
	struct settings *settings = calloc(1, sizeof(*settings));
	struct error err = ERROR_INIT;

	require(daemon_config_parse(text, "fuzz", &settings->config, &err), &err);
	require(hosts_parse(hosts, strlen(hosts), "fuzz", &settings->hosts, &err), &err);
	require(file_mkdirs(settings->config->state_dir, 0755, &err), &err);
	require(file_mkdirs(settings->config->runtime_dir, 0755, &err), &err);
	settings->cluster = true;
	settings->name = strdup("n1");
	settings->controller = strdup("n1");
	settings->controller_address = strdup("127.0.0.1");
	settings->port = settings->controller_port = 29600;
	d->settings = settings;
}

void fake_service_make_store(const char *path)
{
	struct error err = ERROR_INIT;
	struct store *store;
	sqlite3 *db;

	require(store_open(path, &store, &err), &err);
	store_close(store);
	if (sqlite3_open(path, &db) != SQLITE_OK ||
	    sqlite3_exec(db, "UPDATE cluster SET id = '" CLUSTER "'", NULL, NULL, NULL) != SQLITE_OK ||
	    sqlite3_close(db) != SQLITE_OK)
		abort();
}

static void copy_store(const char *from, const char *to)
{
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;
	size_t len;

	require(file_read(from, 0, &text, &len, &err), &err);
	require(file_write_atomic(to, text, len, 0600, &err), &err);
}

static void lead(struct fake_service *s, const char *store)
{
	struct daemon *d = &s->daemon;
	const struct settings *settings = d->settings;
	_cleanup_free_ char *path = str_path_join(settings->config->state_dir, "state.db");
	struct controller_options options = {
	    .name = settings->name,
	    .state_dir = settings->config->state_dir,
	    .hosts = settings->hosts,
	    .default_port = 29600,
	    .node_timeout = settings->config->node_timeout,
	    .lease = settings->config->lease,
	    .clock = {s, fake_time, fake_time, set_timer},
	    .peers = peers_of_daemon(d),
	};
	struct error err = ERROR_INIT;

	copy_store(store, path);
	require(store_open(path, &s->store, &err), &err);
	options.store = s->store;
	require(controller_create(&options, &d->controller, &err), &err);
}

struct fake_service *fake_service_create(const char *dir, const char *store)
{
	struct fake_service *s = calloc(1, sizeof(*s));
	struct daemon *d = &s->daemon;
	struct node_callbacks callbacks = heartbeats_of_node(d);
	struct http_server_options options = {.routes = route_table,
	                                      .route_count = route_table_count,
	                                      .context = d,
	                                      .max_body = 64 << 10,
	                                      .intercept = route_intercept,
	                                      .node = "n1"};
	struct error err = ERROR_INIT;

	s->now = START;
	for (int i = 0; i < CONTROLLER_TIMERS; i++)
		s->timers[i] = -1;
	d->locks[0] = d->locks[1] = -1;
	snprintf(d->instance, sizeof(d->instance), "01");
	read_settings(d, dir);
	require(sd_event_new(&d->event), &err);
	require(http_client_create(d->event, NULL, &s->client, &err), &err);
	s->client->service = s;
	d->client = d->peer_client = s->client;
	require(httpd_create(d->event, &options, &s->httpd, &err), &err);
	require(log_streams_create(d, &d->logs, &err), &err);
	require(node_create(d->event, d->settings->config, "n1", 2, &callbacks, &d->node, &err), &err);
	lead(s, store);
	require(heartbeats_create(d, &d->heartbeats, &err), &err);
	require(retention_create(d, &d->retention, &err), &err);
	heartbeats_send(d->heartbeats);
	fake_service_settle(s);
	return s;
}

void fake_service_destroy(struct fake_service *s)
{
	struct daemon *d = &s->daemon;

	shutdown_free(d->shutdown);
	retention_destroy(d->retention);
	httpd_destroy(s->httpd);
	heartbeats_destroy(d->heartbeats);
	http_client_destroy(s->client);
	controller_destroy(d->controller);
	node_destroy(d->node);
	log_streams_destroy(d->logs);
	sd_event_unref(d->event);
	settings_free(d->settings);
	strbuf_free(&s->answer);
	free(s);
}
