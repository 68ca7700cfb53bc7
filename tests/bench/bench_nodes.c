/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All nodes of a hosts file but the first, in one process, for tests/bench/scale: each has its own
 * connections to the controller over mutual TLS, from an address of its own, and sends the heartbeats of a
 * node with as many GPUs as the file gives it slots, short ones where dtraind would. A start is taken,
 * reported as running, and as ended so many milliseconds later, without any process.
 *
 *     bench_nodes CLUSTER.PEM HOSTS PORT MILLISECONDS
 *
 * PORT, on all addresses of this machine, is that of every one of these nodes. The first line of the output
 * says that they are there; SIGTERM ends the program, whose last line has its counts.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "config/hosts.h"
#include "http/client.h"
#include "http/server.h"
#include "wire/heartbeat_state.h"
#include "wire/start_request.h"

enum { INTERVAL_USEC = 1000000, MOST_PATIENCE = 4 };

/* As dtraind/heartbeat.c has them, but for twice the time for a call: this one process, which does the work
 * of all nodes, is late itself. */
#define CALL_SECONDS 5.0
#define LOST_SECONDS 0.2

struct cluster;

struct attempt {
	struct attempt *next;
	struct node *node;
	struct start_request request; /* its configuration is not kept */
	enum attempt_state state;
	double ended;
	sd_event_source *end;
};

struct node {
	struct cluster *cluster;
	const struct host *host;
	struct http_client *client;
	struct http_transfer *heartbeat;
	sd_event_source *timer;
	struct backoff backoff;
	int patience;
	double interval; /* that the controller asks for */
	struct heartbeat_state state;
	bool is_short;               /* the heartbeat under way */
	struct device_info *devices; /* of static text, except for what known_from allocates */
	struct attempt *attempts;
	char instance[40];
	int64_t sequence;
	struct known_clusters known;
	struct known_cluster known_cluster;
};

struct cluster {
	sd_event *event;
	struct hosts *hosts;
	char hosts_hash[HOSTS_HASH_SIZE];
	struct identity *identity;
	struct http_server *server;
	struct node *nodes;
	size_t count;
	int milliseconds;
	long beats, briefs, answers, unknown, failures, starts;
};

/* From which address a connection comes says which node it is of, as far as the bounds on connections go:
 * each connection within 127.0.0.0/8 has the next one of 127.2.0.1 to 127.2.3.231, which 999 nodes of the
 * hosts file have. libcurl's calls come here, too. */
int connect(int fd, const struct sockaddr *address, socklen_t len)
{
	static unsigned next;
	const struct sockaddr_in *to = (const struct sockaddr_in *)address;

	if (address->sa_family == AF_INET && ntohl(to->sin_addr.s_addr) >> 24 == 127) {
		unsigned i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
		struct sockaddr_in from = {.sin_family = AF_INET,
		                           .sin_addr.s_addr = htonl(127u << 24 | 2 << 16 | (i % 999 + 1))};

		setsockopt(fd, SOL_IP, IP_BIND_ADDRESS_NO_PORT, &(int){1}, sizeof(int));
		if (bind(fd, (struct sockaddr *)&from, sizeof(from)) < 0)
			return -1;
	}
	return (int)syscall(SYS_connect, fd, address, len);
}

/* As large as that of a node with NVLink: what takes time with a heartbeat is to read it. */
static struct device_info *make_devices(const char *node, int count)
{
	struct device_info *devices = calloc(count + 1, sizeof(*devices));
	char **links = calloc(count + 1, sizeof(*links));

	for (int i = 0; i < count; i++)
		links[i] = strdup("NV18");
	for (int i = 0; i < count; i++) {
		struct gpu_info *gpu = calloc(1, sizeof(*gpu));

		*gpu = (struct gpu_info){.gpu = i,
		                         .pci = str_printf("00000000:%02X:00.0", 0x18 + 8 * i),
		                         .numa = i / 4,
		                         .links = links,
		                         .driver = "580.95.05",
		                         .cuda = "13.0",
		                         .memory_used = 4 << 20,
		                         .temperature = 31,
		                         .power = 76.25,
		                         .power_limit = 700,
		                         .ecc_errors = 0};
		devices[i] = (struct device_info){.node = (char *)node,
		                                  .index = i,
		                                  .kind = DEVICE_KIND_GPU,
		                                  .name = "NVIDIA H200",
		                                  .memory = INT64_C(150754820096),
		                                  .threads = 24,
		                                  .uuid = str_printf("GPU-%08x-1d2c-4b3a-9f8e-%012llx", i,
		                                                     (unsigned long long)(uintptr_t)gpu),
		                                  .gpu_info = gpu};
	}
	return devices;
}

static struct report describe(const struct attempt *a)
{
	const struct start_request *q = &a->request;
	struct report report = {.run = q->run,
	                        .attempt = q->attempt,
	                        .node = a->node->host->name,
	                        .state = a->state,
	                        .ranks = calloc(q->rank_count, sizeof(*report.ranks)),
	                        .rank_count = q->rank_count,
	                        .cluster = q->cluster,
	                        .epoch = q->epoch,
	                        .user = q->user};

	for (size_t i = 0; i < q->rank_count; i++)
		report.ranks[i] =
		    (struct rank_report){.rank = q->ranks[i].rank,
		                         .slot = q->ranks[i].slot,
		                         .state = a->state == ATTEMPT_ENDED ? RANK_EXITED : RANK_RUNNING,
		                         .pid = 1000 + (int64_t)i,
		                         .exit_status = a->state == ATTEMPT_ENDED ? 0 : -1,
		                         .ended = a->ended};
	return report;
}

static int post(struct node *n, const char *target, json_t *json,
                void (*done)(void *context, const struct http_answer *answer), struct http_transfer **out)
{
	_cleanup_free_ char *text = json_to_string(json);
	const struct host *to = &n->cluster->hosts->list[0];
	struct error err = ERROR_INIT;
	int r = http_client_call(
	    n->client,
	    &(struct http_call){.method = "POST",
	                        .address = to->address,
	                        .port = to->port,
	                        .node = to->name,
	                        .target = target,
	                        .body = text,
	                        .len = strlen(text),
	                        .headers = (const char *const[]){"Content-Type: application/json", NULL},
	                        .timeout = n->patience * CALL_SECONDS,
	                        .connect = n->patience * CALL_SECONDS,
	                        .context = n,
	                        .on_done = done},
	    out, &err);

	json_decref(json);
	if (r < 0)
		log_err("%s", err.message);
	return r;
}

static void attempt_free(struct attempt *a)
{
	sd_event_source_disable_unref(a->end);
	start_request_release(&a->request);
	free(a);
}

static void forget(struct node *n, const struct forget *f)
{
	for (struct attempt **at = &n->attempts, *a; (a = *at); at = &a->next)
		if (a->request.run == f->run && a->request.attempt == f->attempt &&
		    a->state == ATTEMPT_ENDED) {
			*at = a->next;
			attempt_free(a);
			return;
		}
}

static void on_heartbeat(void *context, const struct http_answer *a)
{
	_cleanup_(heartbeat_answer_release) struct heartbeat_answer answer = {0};
	_cleanup_json_ json_t *json = a->len ? json_loadb(a->body, a->len, 0, NULL) : NULL;
	struct error err = ERROR_INIT;
	struct node *n = context;

	n->heartbeat = NULL;
	heartbeat_state_answered(&n->state, NULL);
	if (n->is_short && a->status == 409) {
		n->cluster->unknown++;
		sd_event_source_set_time(n->timer, 0);
		return;
	}
	if (a->status != 200 || heartbeat_answer_decode(json, &answer, &err) < 0) {
		sd_event_source_set_time(
		    n->timer, (uint64_t)((clock_monotonic() +
		                          backoff_next(&n->backoff, LOST_SECONDS, INTERVAL_USEC / 1e6)) *
		                         1e6));
		n->patience = a->queued ? MIN(2 * n->patience, MOST_PATIENCE) : 1;
		n->cluster->failures++;
		log_debug("%s: %d %s", n->host->name, a->status, a->status ? a->body : a->error.message);
		return;
	}
	n->backoff = (struct backoff){0};
	n->patience = 1;
	n->cluster->answers++;
	heartbeat_state_answered(&n->state, &answer);
	n->interval = answer.interval;
	for (size_t i = 0; i < answer.forget_count; i++)
		forget(n, &answer.forget[i]);
	if (answer.cluster && !n->known_cluster.id)
		n->known_cluster.id = strdup(answer.cluster);
	n->known_cluster.epoch = answer.epoch;
	n->known =
	    (struct known_clusters){answer.highest_run, &n->known_cluster, n->known_cluster.id ? 1 : 0};
}

static void send_heartbeat(struct node *n, const struct heartbeat *beat)
{
	struct short_heartbeat brief;

	n->cluster->beats++;
	n->is_short = heartbeat_can_be_short(&n->state, beat, clock_monotonic());
	n->cluster->briefs += n->is_short;
	brief = heartbeat_shorten(&n->state, beat);
	post(n, n->is_short ? "/v1/peer/heartbeat/short" : "/v1/peer/heartbeat",
	     n->is_short ? short_heartbeat_encode(&brief) : heartbeat_encode(beat), on_heartbeat,
	     &n->heartbeat);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata)
{
	struct node *n = userdata;
	struct heartbeat beat = {.node = n->host->name,
	                         .hosts = n->cluster->hosts_hash,
	                         .instance = n->instance,
	                         .sequence = ++n->sequence,
	                         .version = DTRAIN_VERSION,
	                         .launch = "process",
	                         .devices = n->devices,
	                         .device_count = (size_t)n->host->slots,
	                         .ports = (int64_t[]){30001, 30002, 30003, 30004},
	                         .port_count = 4,
	                         .port_range = (int64_t[]){0, 0},
	                         .port_range_count = 2,
	                         .boot = "6c1f3e52-0f2b-4e0c-9d5e-000000000000",
	                         .leases = true,
	                         .sent = clock_monotonic(),
	                         .known = &n->known};
	struct gpu_info *gpu = n->devices[n->sequence % n->host->slots].gpu_info;
	size_t count = 0;

	gpu->read = clock_realtime();
	gpu->power = 70 + (double)(n->sequence % 100) / 8;
	for (const struct attempt *a = n->attempts; a; a = a->next)
		count++;
	beat.attempts = calloc(count + 1, sizeof(*beat.attempts));
	for (const struct attempt *a = n->attempts; a; a = a->next)
		beat.attempts[beat.attempt_count++] = describe(a);
	if (!n->heartbeat)
		send_heartbeat(n, &beat);
	for (size_t i = 0; i < count; i++)
		free(beat.attempts[i].ranks);
	free(beat.attempts);
	/* From the time at which it was due: a late turn of this program is no change of the rate. */
	sd_event_source_set_time(source, (usec ? usec : (uint64_t)(clock_monotonic() * 1e6)) +
	                                     MAX((uint64_t)(n->interval * 1e6), (uint64_t)INTERVAL_USEC));
	return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

/* What does not arrive comes again with the next heartbeat. */
static void on_reported(void *context, const struct http_answer *a)
{
	struct node *n = context;

	n->cluster->failures += a->status != 200;
}

static void send_report(struct attempt *a)
{
	struct report report = describe(a);
	json_t *list = json_array();

	json_array_append_new(list, report_encode(&report));
	post(a->node, "/v1/peer/reports", list, on_reported, NULL);
	free(report.ranks);
}

static void set_slots(struct attempt *a, enum slot_state state)
{
	const struct start_request *q = &a->request;

	for (size_t i = 0; i < q->rank_count; i++)
		for (size_t k = 0; k < MAX(q->ranks[i].slot_count, (size_t)1); k++) {
			int64_t slot = q->ranks[i].slot_count ? q->ranks[i].slots[k] : q->ranks[i].slot;

			a->node->devices[slot].state = state;
			a->node->devices[slot].run = state == SLOT_FREE ? 0 : q->run;
		}
}

static int on_end(sd_event_source *source, uint64_t usec, void *userdata)
{
	struct attempt *a = userdata;

	a->state = ATTEMPT_ENDED;
	a->ended = clock_realtime();
	set_slots(a, SLOT_FREE);
	send_report(a);
	return 0;
}

static struct node *find_node(struct cluster *c, const char *name)
{
	for (size_t i = 0; name && i < c->count; i++)
		if (strcasecmp(c->nodes[i].host->name, name) == 0)
			return &c->nodes[i];
	return NULL;
}

static void reply_position(const struct node *n, struct http_request *r)
{
	http_reply_json(r, 200,
	                node_position_encode(&(struct node_position){(char *)n->instance, n->sequence}));
}

static void route_start(void *context, struct http_request *r)
{
	struct cluster *c = context;
	struct node *n = find_node(c, http_request_header(r, "Dtrain-Node"));
	_cleanup_json_ json_t *body = http_request_json(r);
	struct attempt *a = calloc(1, sizeof(*a));
	struct error err = ERROR_INIT;

	if (!body) {
		free(a);
		return;
	}
	if (!n || start_request_decode(body, &a->request, &err) < 0) {
		http_reply_error(r, 400, "refused", "%s", n ? err.message : "there is no such node here");
		free(a);
		return;
	}
	c->starts++;
	a->node = n;
	a->state = ATTEMPT_RUNNING;
	a->next = n->attempts;
	n->attempts = a;
	run_config_free(a->request.config);
	a->request.config = NULL;
	set_slots(a, SLOT_LEASED);
	reply_position(n, r);
	send_report(a);
	sd_event_add_time_relative(c->event, &a->end, CLOCK_MONOTONIC, (uint64_t)c->milliseconds * 1000, 1000,
	                           on_end, a);
}

static void route_stop(void *context, struct http_request *r)
{
	struct node *n = find_node(context, http_request_header(r, "Dtrain-Node"));
	_cleanup_(stop_request_release) struct stop_request request = {0};
	_cleanup_json_ json_t *body = http_request_json(r);
	struct error err = ERROR_INIT;

	if (!body)
		return;
	if (!n || stop_request_decode(body, &request, &err) < 0) {
		http_reply_error(r, 400, "refused", "there is no such node here");
		return;
	}
	reply_position(n, r);
	for (struct attempt *a = n->attempts; a; a = a->next)
		if (a->request.run == request.run && a->request.attempt == request.attempt &&
		    a->state != ATTEMPT_ENDED) {
			sd_event_source_set_enabled(a->end, SD_EVENT_OFF);
			on_end(a->end, 0, a);
		}
}

static const struct http_route routes[] = {
    {"POST", "/v1/peer/start", HTTP_PEER | HTTP_RESERVED | HTTP_BODY_8M, route_start},
    {"POST", "/v1/peer/stop", HTTP_PEER | HTTP_RESERVED, route_stop},
};

static int begin(struct cluster *c, int port, struct error *err)
{
	static const struct http_server_options options = {.routes = routes,
	                                                   .route_count = ARRAY_SIZE(routes)};
	struct http_server_options own = options;
	uint64_t now;
	int fd, r;

	own.context = c;
	own.max_body = 1 << 20;
	if ((r = http_server_create(c->event, &own, &c->server, err)) < 0 ||
	    (r = http_bind_tcp("0.0.0.0", port, &fd, err)) < 0 ||
	    (r = http_server_listen_tls(c->server, fd, c->identity, err)) < 0 ||
	    (r = http_server_set_peers(c->server, (const char *[]){c->hosts->list[0].address}, 1)) < 0)
		return r;
	sd_event_now(c->event, CLOCK_MONOTONIC, &now);
	for (size_t i = 0; i < c->count; i++) {
		struct node *n = &c->nodes[i];

		*n = (struct node){.cluster = c, .host = &c->hosts->list[i + 1], .patience = 1};
		n->devices = make_devices(n->host->name, n->host->slots);
		snprintf(n->instance, sizeof(n->instance), "%d-%zu", (int)getpid(), i);
		if ((r = http_client_create(c->event, c->identity, &n->client, err)) < 0)
			return r;
		/* Spread over the interval, as services are that were not started in one moment. */
		r = sd_event_add_time(c->event, &n->timer, CLOCK_MONOTONIC,
		                      now + INTERVAL_USEC * i / c->count, 1000, on_timer, n);
		if (r < 0)
			return error_errno(err, r, "cannot set a timer");
	}
	return 0;
}

static int on_signal(sd_event_source *source, const struct signalfd_siginfo *info, void *userdata)
{
	return sd_event_exit(sd_event_source_get_event(source), 0);
}

int main(int argc, char **argv)
{
	struct cluster c = {0};
	struct error err = ERROR_INIT;
	sigset_t mask;

	if (argc != 5) {
		fprintf(stderr, "usage: %s CLUSTER.PEM HOSTS PORT MILLISECONDS\n", argv[0]);
		return 2;
	}
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){65536, 65536});
	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	signal(SIGPIPE, SIG_IGN);
	c.milliseconds = atoi(argv[4]);
	if (identity_load(argv[1], &c.identity, &err) < 0 || hosts_read(argv[2], &c.hosts, &err) < 0 ||
	    sd_event_new(&c.event) < 0 || c.hosts->count < 2) {
		fprintf(stderr, "bench_nodes: %s\n", err.message);
		return 1;
	}
	if (hosts_hash(c.hosts, c.hosts_hash, &err) < 0) {
		fprintf(stderr, "bench_nodes: %s\n", err.message);
		return 1;
	}
	c.count = c.hosts->count - 1;
	c.nodes = calloc(c.count, sizeof(*c.nodes));
	sd_event_add_signal(c.event, NULL, SIGTERM, on_signal, NULL);
	sd_event_add_signal(c.event, NULL, SIGINT, on_signal, NULL);
	if (begin(&c, atoi(argv[3]), &err) < 0) {
		fprintf(stderr, "bench_nodes: %s\n", err.message);
		return 1;
	}
	printf("%zu nodes\n", c.count);
	fflush(stdout);
	sd_event_loop(c.event);
	printf(
	    "{\"heartbeats\": %ld, \"short\": %ld, \"answered\": %ld, \"refused\": %ld, \"failures\": %ld, "
	    "\"starts\": %ld}\n",
	    c.beats, c.briefs, c.answers, c.unknown, c.failures, c.starts);
	return 0;
}
