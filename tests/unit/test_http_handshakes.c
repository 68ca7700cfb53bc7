/* SPDX-License-Identifier: Apache-2.0 */
/* How many TLS handshakes a service works on at a time, and whose. */
#include <arpa/inet.h>
#include <gnutls/gnutls.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "base/str.h"
#include "http/identity.h"
#include "http/server.h"
#include "unit.h"

static void answer(void *context, struct http_request *r)
{
	http_reply_json(r, 200, json_object());
}

static const struct http_route routes[] = {{"GET", "/", HTTP_PEER | HTTP_RESERVED, answer}};

static const char request[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

/* A service in this thread, which keeps no one out by a deadline. stalled_seconds: of its options; the
 * callers are in this thread, too, and take long where other processes have the processors. */
struct service {
	char *dir;
	sd_event *event;
	struct http_server *server;
	struct identity *id;
	gnutls_certificate_credentials_t credentials;
	struct sockaddr_in address;
};

static void service_start(struct service *s, double stalled_seconds)
{
	const struct http_server_options o = {.routes = routes,
	                                      .route_count = ARRAY_SIZE(routes),
	                                      .max_body = 4096,
	                                      .head_seconds = 300,
	                                      .stalled_seconds = stalled_seconds};
	_cleanup_free_ char *path = NULL;
	socklen_t len = sizeof(s->address);
	struct error err = ERROR_INIT;
	gnutls_datum_t certificate, key;
	int fd;

	*s = (struct service){.dir = unit_tmpdir()};
	path = str_path_join(s->dir, "cluster.pem");
	ck_ok(identity_make(path, false, &err), &err);
	ck_ok(identity_load(path, &s->id, &err), &err);
	ck_assert_int_ge(sd_event_new(&s->event), 0);
	ck_ok(http_server_create(s->event, &o, &s->server, &err), &err);
	ck_ok(http_bind_tcp("0.0.0.0", 0, &fd, &err), &err);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&s->address, &len), 0);
	ck_ok(http_server_listen_tls(s->server, fd, s->id, &err), &err);
	certificate = (gnutls_datum_t){(unsigned char *)s->id->certificate, strlen(s->id->certificate)};
	key = (gnutls_datum_t){(unsigned char *)s->id->key, strlen(s->id->key)};
	ck_assert_int_eq(gnutls_certificate_allocate_credentials(&s->credentials), 0);
	ck_assert_int_ge(
	    gnutls_certificate_set_x509_key_mem(s->credentials, &certificate, &key, GNUTLS_X509_FMT_PEM), 0);
}

static void service_stop(struct service *s)
{
	http_server_destroy(s->server);
	sd_event_unref(s->event);
	gnutls_certificate_free_credentials(s->credentials);
	identity_free(s->id);
	file_remove_tree(s->dir, NULL);
	free(s->dir);
}

/* All that there is to do without waiting. */
static void service_turn(struct service *s, uint64_t usec)
{
	while (sd_event_run(s->event, usec) > 0)
		usec = 0;
}

/* Who calls, from an address of its own within 127.0.0.0/8. */
struct caller {
	gnutls_session_t session;
	int fd;
	bool begun; /* the service has said something */
	bool asked, done;
};

static void call(struct service *s, struct caller *c, const char *from)
{
	struct sockaddr_in own = {.sin_family = AF_INET};

	*c = (struct caller){.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
	ck_assert_int_eq(inet_pton(AF_INET, from, &own.sin_addr), 1);
	ck_assert_int_eq(bind(c->fd, (struct sockaddr *)&own, sizeof(own)), 0);
	connect(c->fd, (struct sockaddr *)&s->address, sizeof(s->address));
	ck_assert_int_eq(gnutls_init(&c->session, GNUTLS_CLIENT | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL), 0);
	ck_assert_int_eq(gnutls_set_default_priority(c->session), 0);
	ck_assert_int_eq(gnutls_credentials_set(c->session, GNUTLS_CRD_CERTIFICATE, s->credentials), 0);
	gnutls_transport_set_int(c->session, c->fd);
	ck_assert_int_eq(gnutls_handshake(c->session), GNUTLS_E_AGAIN);
}

/* As far as it gets. */
static void go_on(struct caller *c)
{
	char byte;
	int r;

	if (c->done)
		return;
	c->begun = c->begun || recv(c->fd, &byte, 1, MSG_PEEK) == 1;
	if (!c->asked) {
		r = gnutls_handshake(c->session);
		ck_assert_msg(r == 0 || r == GNUTLS_E_AGAIN, "%s", gnutls_strerror(r));
		if (r < 0)
			return;
		ck_assert_int_eq(gnutls_record_send(c->session, request, strlen(request)), strlen(request));
		c->asked = true;
	}
	r = (int)gnutls_record_recv(c->session, &byte, 1);
	ck_assert_msg(r == 1 || r == GNUTLS_E_AGAIN, "%s", r < 0 ? gnutls_strerror(r) : "it was closed");
	c->done = r == 1;
}

static void hang_up(struct caller *c)
{
	gnutls_deinit(c->session);
	close(c->fd);
}

enum { CALLERS = 100 };

START_TEST(handshakes_are_worked_on_a_few_at_a_time)
{
	static const struct {
		const char *from; /* the first address */
		bool known;
		size_t most;
	} cases[] = {{"127.3.0.%d", true, 32}, {"127.3.0.%d", false, 24}, {"127.3.0.1", true, 8}};
	size_t done = 0, most = 0, known = 0;
	struct caller callers[CALLERS];
	char *addresses[CALLERS];
	struct service s;

	service_start(&s, 300);
	for (int i = 0; i < CALLERS; i++)
		addresses[i] =
		    strchr(cases[_i].from, '%') ? str_printf("127.3.0.%d", i + 1) : strdup(cases[_i].from);
	known = cases[_i].known ? CALLERS : 0;
	ck_assert_int_eq(http_server_set_peers(s.server, (const char *const *)addresses, known), 0);
	for (int i = 0; i < CALLERS; i++)
		call(&s, &callers[i], addresses[i]);
	while (done < CALLERS) {
		size_t begun = 0;

		service_turn(&s, 10000);
		done = 0;
		for (int i = 0; i < CALLERS; i++) {
			go_on(&callers[i]);
			begun += callers[i].begun;
			done += callers[i].done;
		}
		most = MAX(most, begun - done);
	}
	ck_assert_uint_gt(most, 0);
	ck_assert_uint_le(most, cases[_i].most);
	for (int i = 0; i < CALLERS; i++) {
		hang_up(&callers[i]);
		free(addresses[i]);
	}
	service_stop(&s);
}
END_TEST

/* Services stop in their handshakes, more than are worked on at a time; one that goes on gets its answer. */
START_TEST(who_stops_in_the_middle_loses_its_place)
{
	struct caller silent[CALLERS], last;
	struct service s;

	service_start(&s, 0);
	for (int i = 0; i < CALLERS; i++) {
		char from[32];

		snprintf(from, sizeof(from), "127.3.0.%d", i + 1);
		call(&s, &silent[i], from);
	}
	service_turn(&s, 10000);
	call(&s, &last, "127.4.0.1");
	while (!last.done) {
		service_turn(&s, 10000);
		go_on(&last);
	}
	/* The others may still go on. */
	for (int i = 0; i < CALLERS; i++)
		while (!silent[i].done) {
			service_turn(&s, 10000);
			go_on(&silent[i]);
		}
	for (int i = 0; i < CALLERS; i++)
		hang_up(&silent[i]);
	hang_up(&last);
	service_stop(&s);
}
END_TEST

/* From one address come more calls than are worked on at a time, and then one from another. */
START_TEST(an_address_with_fewer_handshakes_goes_first)
{
	struct caller many[60], other;
	size_t begun = 0;
	struct service s;

	service_start(&s, 300);
	for (size_t i = 0; i < ARRAY_SIZE(many); i++)
		call(&s, &many[i], "127.3.0.1");
	call(&s, &other, "127.4.0.1");
	while (!other.done) {
		service_turn(&s, 10000);
		go_on(&other);
		begun = 0;
		for (size_t i = 0; i < ARRAY_SIZE(many); i++) {
			go_on(&many[i]);
			begun += many[i].begun;
		}
	}
	ck_assert_uint_lt(begun, ARRAY_SIZE(many));
	for (size_t i = 0; i < ARRAY_SIZE(many); i++)
		hang_up(&many[i]);
	hang_up(&other);
	service_stop(&s);
}
END_TEST

/* What they have said is there to be read, as is that they are gone: no handshake begins for them. */
START_TEST(who_has_hung_up_takes_no_place)
{
	struct caller gone[CALLERS], last;
	struct service s;

	service_start(&s, 300);
	for (int i = 0; i < CALLERS; i++) {
		char from[32];

		snprintf(from, sizeof(from), "127.3.0.%d", i + 1);
		call(&s, &gone[i], from);
		go_on(&gone[i]);
	}
	for (int i = 0; i < CALLERS; i++)
		hang_up(&gone[i]);
	call(&s, &last, "127.4.0.1");
	for (int turns = 0; !last.begun; turns++) {
		ck_assert_int_lt(turns, 4);
		service_turn(&s, 10000);
		go_on(&last);
	}
	hang_up(&last);
	service_stop(&s);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("http handshakes");
	TCase *c = tcase_create("http handshakes");

	tcase_set_timeout(c, 120);
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, handshakes_are_worked_on_a_few_at_a_time, 0, 3);
	tcase_add_test(c, who_stops_in_the_middle_loses_its_place);
	tcase_add_test(c, an_address_with_fewer_handshakes_goes_first);
	tcase_add_test(c, who_has_hung_up_takes_no_place);
	return unit_run(s);
}
