/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes with a certificate each: whom a service answers, and whom a client speaks to. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-event.h>

#include "base/json.h"
#include "base/str.h"
#include "http/authority.h"
#include "http/certificates.h"
#include "http/client.h"
#include "http/server.h"
#include "raw_http.h"
#include "text_files.h"

enum { DAY = 86400 };

static void make_authority(const char *ca)
{
	_cleanup_free_ char *path = in_dir(ca);
	struct error err = ERROR_INIT;

	ck_ok(authority_make(path, (struct validity){time(NULL) - 400 * DAY, time(NULL) + 400 * DAY}, false,
	                     &err),
	      &err);
}

/* Days from now. */
static void make_node(const char *ca, const char *name, int from, int until)
{
	_cleanup_free_ char *path = in_dir(ca);
	struct error err = ERROR_INIT;

	ck_ok(authority_make_node(path, name,
	                          (struct validity){time(NULL) + from * DAY, time(NULL) + until * DAY}, true,
	                          &err),
	      &err);
}

/* The files of a node of the authority, which trusts those in ca_file. */
static int load(const char *ca, const char *node, const char *ca_file, struct identity **out,
                struct error *err)
{
	_cleanup_free_ char *crt = str_printf("%s/%s/nodes/%s.pem", dir, ca, node),
	                    *key = str_printf("%s/%s/nodes/%s.key", dir, ca, node), *trust = in_dir(ca_file);

	return certificates_load(&(struct certificate_files){crt, key, trust}, out, err);
}

static struct identity *identity_of(const char *ca, const char *node, const char *ca_file)
{
	struct identity *id = NULL;
	struct error err = ERROR_INIT;

	ck_ok(load(ca, node, ca_file, &id, &err), &err);
	return id;
}

/* Two authorities, "a" and "b", each with n1 to n3; both.pem has both; "forged" is signed by n2 of a. */
static void setup_files(void)
{
	_cleanup_free_ char *a = NULL, *b = NULL, *both = NULL, *crt = NULL, *key = NULL, *forged = NULL,
	                    *chain = NULL;

	dir = unit_tmpdir();
	for (const char *const *ca = (const char *const[]){"a", "b", NULL}; *ca; ca++) {
		make_authority(*ca);
		make_node(*ca, "n1", -1, 30);
		make_node(*ca, "n2", -1, 30);
		make_node(*ca, "n3", -1, 30);
	}
	a = read_text("a/ca.pem");
	b = read_text("b/ca.pem");
	both = str_printf("%s%s", a, b);
	write_text("both.pem", both, 0644);
	make_node("a", "old", -300, -200);
	make_node("a", "early", 10, 30);
	make_node("a", "n9", -1, 30);
	crt = read_text("a/nodes/n2.pem");
	key = read_text("a/nodes/n2.key");
	make_authority("forged");
	write_text("forged/ca.pem", crt, 0644);
	write_text("forged/ca.key", key, 0600);
	make_node("forged", "n1", -1, 30);
	forged = read_text("forged/nodes/n1.pem");
	chain = str_printf("%s%s", forged, crt);
	write_text("forged/nodes/n1.pem", chain, 0644);
}

static void teardown_files(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
}

static void say_who(void *context, struct http_request *r)
{
	http_reply_json(r, 200, json_pack("{s:s?}", "node", http_request_caller(r)->node));
}

static const struct http_route routes[] = {{"GET", "/who", HTTP_PEER, say_who}};

/* A service on a thread of its own. */
struct service {
	int port, wake;
	struct identity *id, *next; /* wake with `next`: that is its identity then; without: it ends */
	int result;
	sem_t changed;
	sd_event *event;
	struct http_server *server;
	pthread_t thread;
};

static atomic_bool n2_is_gone; /* from the hosts file */

static const char *find_node(void *context, const char *name)
{
	static const char *const hosts[] = {"n1", "n2", "n3", "10.0.0.7", "old", "early"};

	for (size_t i = 0; i < ARRAY_SIZE(hosts); i++)
		if (strcasecmp(hosts[i], name) == 0)
			return n2_is_gone && i == 1 ? NULL : hosts[i];
	return NULL;
}

static int on_wake(sd_event_source *source, int fd, uint32_t revents, void *userdata)
{
	struct service *s = userdata;
	struct error err = ERROR_INIT;
	eventfd_t value;

	eventfd_read(fd, &value);
	if (!s->next)
		return sd_event_exit(s->event, 0);
	s->result = http_server_set_identity(s->server, s->next, &err);
	identity_free(s->id);
	s->id = steal_pointer(s->next);
	sem_post(&s->changed);
	return 0;
}

static void *serve(void *arg)
{
	sd_event_loop(((struct service *)arg)->event);
	return NULL;
}

static void service_start(struct service *s, struct identity *id)
{
	struct http_server_options o = {.routes = routes,
	                                .route_count = ARRAY_SIZE(routes),
	                                .context = s,
	                                .max_body = 4096,
	                                .find_node = find_node};
	struct sockaddr_in sin;
	socklen_t len = sizeof(sin);
	struct error err = ERROR_INIT;
	int fd;

	*s = (struct service){.id = id, .wake = eventfd(0, EFD_CLOEXEC)};
	sem_init(&s->changed, 0, 0);
	ck_assert_int_ge(sd_event_new(&s->event), 0);
	ck_assert_int_ge(sd_event_add_io(s->event, NULL, s->wake, POLLIN, on_wake, s), 0);
	ck_ok(http_server_create(s->event, &o, &s->server, &err), &err);
	ck_ok(http_bind_tcp("127.0.0.1", 0, &fd, &err), &err);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
	s->port = ntohs(sin.sin_port);
	ck_ok(http_server_listen_tls(s->server, fd, s->id, &err), &err);
	ck_assert_int_eq(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void service_change(struct service *s, struct identity *id)
{
	s->next = id;
	ck_assert_int_eq(eventfd_write(s->wake, 1), 0);
	while (sem_wait(&s->changed) < 0)
		;
	ck_assert_int_eq(s->result, 0);
}

static void service_stop(struct service *s)
{
	ck_assert_int_eq(eventfd_write(s->wake, 1), 0);
	pthread_join(s->thread, NULL);
	http_server_destroy(s->server);
	sd_event_unref(s->event);
	identity_free(s->id);
	sem_destroy(&s->changed);
	close(s->wake);
}

/* GET /who with these two files; 0: refused in the handshake. *node: for whom it was taken. */
static int ask(const struct service *s, const char *crt_name, const char *key_name, char node[32])
{
	_cleanup_free_ char *crt = read_text(crt_name), *key = read_text(key_name);
	struct raw_request q = {.method = "GET", .target = "/who"};
	struct raw_answer a = raw_ask_tls(raw_connect_tcp(s->port), crt, key, &q);
	_cleanup_json_ json_t *json = json_loads(a.body, 0, NULL);

	snprintf(node, 32, "%s", json_get_string(json, "node", ""));
	free(a.body);
	return a.status;
}

struct row {
	const char *what, *crt, *key;
	const char *node; /* NULL: refused */
};

static void check(const struct service *s, const struct row *rows, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		char node[32];
		int status = ask(s, rows[i].crt, rows[i].key, node);

		ck_assert_msg(status == (rows[i].node ? 200 : 0), "%s: %d", rows[i].what, status);
		ck_assert_str_eq(node, rows[i].node ? rows[i].node : "");
	}
}

START_TEST(only_nodes_of_the_cluster_are_answered)
{
	static const struct row rows[] = {
	    {"a node", "a/nodes/n2.pem", "a/nodes/n2.key", "n2"},
	    {"another one, in capitals", "a/nodes/N3.pem", "a/nodes/N3.key", "n3"},
	    {"one whose name is an address", "a/nodes/10.0.0.7.pem", "a/nodes/10.0.0.7.key", "10.0.0.7"},
	    {"of another authority", "b/nodes/n2.pem", "b/nodes/n2.key", NULL},
	    {"expired", "a/nodes/old.pem", "a/nodes/old.key", NULL},
	    {"not valid yet", "a/nodes/early.pem", "a/nodes/early.key", NULL},
	    {"not in the hosts file", "a/nodes/n9.pem", "a/nodes/n9.key", NULL},
	    {"signed by a node", "forged/nodes/n1.pem", "forged/nodes/n1.key", NULL},
	    {"with another node's key", "a/nodes/n2.pem", "a/nodes/n3.key", NULL},
	    {"the authority itself", "a/ca.pem", "a/ca.key", NULL},
	    {"a cluster's key", "cluster.pem", "cluster.pem", NULL},
	};
	_cleanup_free_ char *shared = in_dir("cluster.pem");
	struct error err = ERROR_INIT;
	struct raw_request q = {.method = "GET", .target = "/who"};
	struct raw_answer none;
	struct service s;

	make_node("a", "N3", -1, 30);
	make_node("a", "10.0.0.7", -1, 30);
	ck_ok(identity_make(shared, false, &err), &err);
	service_start(&s, identity_of("a", "n1", "a/ca.pem"));
	check(&s, rows, ARRAY_SIZE(rows));
	none = raw_ask_tls(raw_connect_tcp(s.port), NULL, NULL, &q);
	ck_assert_int_eq(none.status, 0);
	free(none.body);
	service_stop(&s);
}
END_TEST

/* First all nodes trust both authorities, then they get their new certificates, then the old one goes. */
START_TEST(an_authority_is_replaced_by_another_one)
{
	static const struct row before[] = {{"old", "a/nodes/n2.pem", "a/nodes/n2.key", "n2"},
	                                    {"new", "b/nodes/n2.pem", "b/nodes/n2.key", NULL}},
	                        both[] = {{"old", "a/nodes/n2.pem", "a/nodes/n2.key", "n2"},
	                                  {"new", "b/nodes/n2.pem", "b/nodes/n2.key", "n2"}},
	                        after[] = {{"old", "a/nodes/n2.pem", "a/nodes/n2.key", NULL},
	                                   {"new", "b/nodes/n2.pem", "b/nodes/n2.key", "n2"}};
	struct service s;

	service_start(&s, identity_of("a", "n1", "a/ca.pem"));
	check(&s, before, 2);
	service_change(&s, identity_of("a", "n1", "both.pem"));
	check(&s, both, 2);
	service_change(&s, identity_of("b", "n1", "both.pem"));
	check(&s, both, 2);
	service_change(&s, identity_of("b", "n1", "b/ca.pem"));
	check(&s, after, 2);
	/* The same files again. */
	service_change(&s, identity_of("b", "n1", "b/ca.pem"));
	check(&s, after, 2);
	service_stop(&s);
}
END_TEST

struct caller {
	sd_event *event;
	struct http_client *client;
	bool done;
	int status;
	char why[2048];
};

static void on_done(void *context, const struct http_answer *a)
{
	struct caller *c = context;

	c->done = true;
	c->status = a->status;
	snprintf(c->why, sizeof(c->why), "%s", a->error.message);
}

static int call(struct caller *c, const struct service *s, const char *node)
{
	struct http_call q = {.method = "GET",
	                      .address = "127.0.0.1",
	                      .port = s->port,
	                      .node = node,
	                      .target = "/who",
	                      .timeout = 60,
	                      .context = c,
	                      .on_done = on_done};
	struct error err = ERROR_INIT;

	c->done = false;
	ck_ok(http_client_call(c->client, &q, NULL, &err), &err);
	while (!c->done)
		sd_event_run(c->event, UINT64_MAX);
	return c->status;
}

static void caller_start(struct caller *c, const struct identity *id)
{
	struct error err = ERROR_INIT;

	*c = (struct caller){0};
	ck_assert_int_ge(sd_event_new(&c->event), 0);
	ck_ok(http_client_create(c->event, id, &c->client, &err), &err);
}

static void caller_stop(struct caller *c)
{
	http_client_destroy(c->client);
	sd_event_unref(c->event);
}

/* Another service at this address, or one of another authority, does not get the request. */
START_TEST(a_client_speaks_to_the_node_that_is_meant)
{
	_cleanup_(identity_freep) struct identity *own = identity_of("a", "n2", "a/ca.pem"),
	                                          *wrong = identity_of("a", "n2", "both.pem");
	_cleanup_free_ char *other = read_text("b/ca.pem");
	struct error err = ERROR_INIT;
	struct service s;
	struct caller c;

	service_start(&s, identity_of("a", "n1", "a/ca.pem"));
	caller_start(&c, own);
	ck_assert_int_eq(call(&c, &s, "n1"), 200);
	ck_assert_int_eq(call(&c, &s, "N1"), 200);
	ck_assert_int_eq(call(&c, &s, "n3"), 0);
	ck_assert_msg(strcasestr(c.why, "certificate"), "%s", c.why);
	ck_assert_msg(strstr(c.why, "; expected a valid certificate with the name of that node, signed by an "
	                            "authority in the ca_file of this node"),
	              "%s", c.why);
	ck_assert_int_eq(call(&c, &s, "n1"), 200);
	/* An address is no name. */
	ck_assert_int_eq(call(&c, &s, "127.0.0.1"), 0);
	ck_fails(
	    http_client_call(c.client,
	                     &(struct http_call){
	                         .method = "GET", .address = "127.0.0.1", .port = s.port, .target = "/who"},
	                     NULL, &err),
	    &err, "which node is meant is not known");
	/* A client that trusts the other authority alone. */
	free(wrong->trust);
	wrong->trust = steal_pointer(other);
	http_client_set_identity(c.client, wrong);
	ck_assert_int_eq(call(&c, &s, "n1"), 0);
	ck_assert_msg(strcasestr(c.why, "certificate"), "%s", c.why);
	caller_stop(&c);
	service_stop(&s);
}
END_TEST

/* The service's certificate expires while it runs. */
START_TEST(a_client_does_not_speak_to_a_service_whose_certificate_has_expired)
{
	_cleanup_(identity_freep) struct identity *own = identity_of("a", "n2", "a/ca.pem");
	struct identity *id = identity_of("a", "n1", "a/ca.pem");
	struct service s;
	struct caller c;

	free(id->certificate);
	free(id->key);
	id->certificate = read_text("a/nodes/old.pem");
	id->key = read_text("a/nodes/old.key");
	service_start(&s, id);
	caller_start(&c, own);
	ck_assert_int_eq(call(&c, &s, "old"), 0);
	ck_assert_msg(strcasestr(c.why, "expired"), "%s", c.why);
	caller_stop(&c);
	service_stop(&s);
}
END_TEST

/* A connection that is kept open does not outlive the trust in its certificate. */
START_TEST(an_open_connection_is_checked_again)
{
	_cleanup_(identity_freep) struct identity *own = identity_of("a", "n2", "both.pem");
	struct service s;
	struct caller c;

	service_start(&s, identity_of("a", "n1", "both.pem"));
	caller_start(&c, own);
	ck_assert_int_eq(call(&c, &s, "n1"), 200);
	service_change(&s, identity_of("b", "n1", "both.pem"));
	ck_assert_int_eq(call(&c, &s, "n1"), 200);
	service_change(&s, identity_of("b", "n1", "b/ca.pem"));
	ck_assert_int_eq(call(&c, &s, "n1"), 403);
	/* It was closed, and the next one ends after its handshake: the caller is told what may be wrong. */
	ck_assert_int_eq(call(&c, &s, "n1"), 0);
	ck_assert_msg(strstr(c.why,
	                     ": it has closed the connection without an answer, as a service does that "
	                     "refuses the certificate of this node; expected a certificate that "),
	              "%s", c.why);
	caller_stop(&c);
	service_stop(&s);
}
END_TEST

/* With the same files, but other hosts: who is none any more is shut out with its next request. */
START_TEST(a_node_that_is_removed_is_shut_out)
{
	_cleanup_(identity_freep) struct identity *own = identity_of("a", "n2", "a/ca.pem");
	struct service s;
	struct caller c;

	service_start(&s, identity_of("a", "n1", "a/ca.pem"));
	caller_start(&c, own);
	ck_assert_int_eq(call(&c, &s, "n1"), 200);
	n2_is_gone = true;
	service_change(&s, identity_of("a", "n1", "a/ca.pem"));
	ck_assert_int_eq(call(&c, &s, "n1"), 403);
	caller_stop(&c);
	service_stop(&s);
}
END_TEST

START_TEST(files_that_do_not_belong_together_are_refused)
{
	static const struct {
		const char *ca, *node, *trust, *words;
	} cases[] = {
	    {"a", "n1", "b/ca.pem", "no authority of ca_file has signed it"},
	    {"a", "old", "a/ca.pem", "it has expired"},
	    {"a", "early", "a/ca.pem", "it is not valid yet"},
	    {"forged", "n1", "a/ca.pem", "not accepted"},
	    {"a", "n8", "a/ca.pem", "cannot read"},
	    {"a", "n1", "none.pem", "none.pem"},
	    {"a", "n1", "a/ca.key", "ca.key"},
	    {"a", "swapped", "a/ca.pem", "is not the key of the certificate"},
	    {"a", "open", "a/ca.pem", "can be read by other users"},
	};
	_cleanup_free_ char *key = read_text("a/nodes/n3.key");

	make_node("a", "swapped", -1, 30);
	write_text("a/nodes/swapped.key", key, 0600);
	make_node("a", "open", -1, 30);
	write_text("a/nodes/open.key", key, 0640);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct identity *id = NULL;
		struct error err = ERROR_INIT;

		ck_fails(load(cases[i].ca, cases[i].node, cases[i].trust, &id, &err), &err, cases[i].words);
		ck_assert_ptr_null(id);
	}
}
END_TEST

/* Names of machines have no case. */
START_TEST(a_certificate_is_that_of_its_node)
{
	_cleanup_(identity_freep) struct identity *id = identity_of("a", "n1", "a/ca.pem");

	ck_assert(certificates_are_of(id, "n1"));
	ck_assert(certificates_are_of(id, "N1"));
	ck_assert(!certificates_are_of(id, "n2"));
	ck_assert(!certificates_are_of(id, "n10"));
	ck_assert(!certificates_are_of(id, "n"));
}
END_TEST

/* What cannot be read has no names, and nothing to release. */
START_TEST(what_is_no_certificate_has_no_names)
{
	gnutls_datum_t der = {(unsigned char *)"no certificate", 14};
	struct certificate_names names;
	struct error err = ERROR_INIT;

	memset(&names, 0xff, sizeof(names));
	ck_assert_int_lt(certificate_names_read(&der, &names, &err), 0);
	ck_assert_ptr_null(names.list);
	ck_assert_uint_eq(names.count, 0);
	certificate_names_release(&names);
}
END_TEST

START_TEST(what_exists_is_not_replaced_unless_asked)
{
	_cleanup_free_ char *a = in_dir("a"), *before = read_text("a/ca.key"), *after = NULL,
	                    *key = in_dir("a/nodes/n1.key");
	struct validity v = {time(NULL), time(NULL) + DAY};
	struct error err = ERROR_INIT;
	char name[241] = "";
	struct stat st;

	ck_assert_int_eq(stat(key, &st), 0);
	ck_assert_int_eq(st.st_mode & 0777, 0600);
	ck_fails(authority_make(a, v, false, &err), &err, "exists");
	ck_fails(authority_make_node(a, "n1", v, false, &err), &err, "exists");
	ck_fails(authority_make_node(a, "../n1", v, false, &err), &err, "not the name of a host");
	ck_fails(authority_make_node(a, "", v, false, &err), &err, "not the name of a host");
	memset(name, 'n', sizeof(name) - 1);
	ck_fails(authority_make_node(a, name, v, false, &err), &err,
	         "240 bytes; the names of its files leave 239");
	ck_ok(authority_make_node(a, name + 1, v, false, &err), &err);
	ck_fails(authority_make_node(dir, "n1", v, false, &err), &err, "ca.pem");
	/* A certificate alone makes none, nor does a key that cannot be read as one. */
	{
		_cleanup_free_ char *half = in_dir("half"), *crt = in_dir("half/ca.pem"),
		                    *ca = read_text("a/ca.pem"), *half_key = in_dir("half/ca.key"),
		                    *made = in_dir("half/nodes/n1.pem");

		ck_ok(file_mkdirs(half, 0700, &err), &err);
		ck_ok(file_write_atomic(crt, ca, strlen(ca), 0644, &err), &err);
		ck_fails(authority_make_node(half, "n1", v, false, &err), &err, "ca.key");
		ck_ok(file_write_atomic(half_key, ca, strlen(ca), 0600, &err), &err);
		ck_fails(authority_make_node(half, "n1", v, false, &err), &err, "ca.key");
		ck_assert_int_ne(access(made, F_OK), 0);
	}
	after = read_text("a/ca.key");
	ck_assert_str_eq(before, after);
	ck_ok(authority_make_node(a, "ca", v, false, &err), &err);
	free(after);
	after = read_text("a/ca.key");
	ck_assert_str_eq(before, after);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("certificates");
	TCase *c = tcase_create("certificates");

	tcase_set_timeout(c, 120);
	tcase_add_checked_fixture(c, setup_files, teardown_files);
	suite_add_tcase(s, c);
	tcase_add_test(c, only_nodes_of_the_cluster_are_answered);
	tcase_add_test(c, an_authority_is_replaced_by_another_one);
	tcase_add_test(c, a_client_speaks_to_the_node_that_is_meant);
	tcase_add_test(c, a_client_does_not_speak_to_a_service_whose_certificate_has_expired);
	tcase_add_test(c, an_open_connection_is_checked_again);
	tcase_add_test(c, a_node_that_is_removed_is_shut_out);
	tcase_add_test(c, files_that_do_not_belong_together_are_refused);
	tcase_add_test(c, a_certificate_is_that_of_its_node);
	tcase_add_test(c, what_is_no_certificate_has_no_names);
	tcase_add_test(c, what_exists_is_not_replaced_unless_asked);
	return unit_run(s);
}
