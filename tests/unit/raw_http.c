/* SPDX-License-Identifier: Apache-2.0 */
/* A plain blocking HTTP client for tests: raw_http.h. */
#include "raw_http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/gnutls.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"

/* A service that neither answers nor closes the connection for this long hangs. */
static const struct timeval ANSWER_TIMEOUT = {30, 0};

static int connect_to(int family, const void *address, socklen_t len)
{
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	ck_assert_int_ge(fd, 0);
	ck_assert_msg(connect(fd, address, len) == 0, "connect: %s", strerror(errno));
	ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &ANSWER_TIMEOUT, sizeof(ANSWER_TIMEOUT)), 0);
	return fd;
}

int raw_connect_unix(const char *path)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};

	ck_assert_uint_lt(strlen(path), sizeof(sun.sun_path));
	strcpy(sun.sun_path, path);
	return connect_to(AF_UNIX, &sun, sizeof(sun));
}

int raw_connect_tcp(int port)
{
	struct sockaddr_in sin = {.sin_family = AF_INET,
	                          .sin_port = htons((uint16_t)port),
	                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	return connect_to(AF_INET, &sin, sizeof(sin));
}

static char *request_text(const struct raw_request *q)
{
	const char *body = q->body ? q->body : "";
	bool any = q->body || !str_eq(q->method, "GET");
	char length[64] = "";

	if (any)
		snprintf(length, sizeof(length), "Content-Length: %zu\r\n", strlen(body));
	return str_printf("%s %s HTTP/1.1\r\nHost: x\r\n%s%s%s%s\r\n%s", q->method, q->target,
	                  q->stays ? "" : "Connection: close\r\n", length, q->header ? q->header : "",
	                  q->header ? "\r\n" : "", body);
}

/* Takes the next piece of the answer. Returns whether there may be more. */
static bool take(struct strbuf *text, const struct raw_request *q, const char *piece, ssize_t n)
{
	if (n <= 0)
		return false;
	strbuf_add(text, piece, n);
	return !q->head_only || !memmem(text->data, text->len, "\r\n\r\n", 4);
}

static struct raw_answer parse(const struct raw_request *q, struct strbuf *text)
{
	struct raw_answer a = {0};
	size_t head;
	char *end;

	if (text->len == 0) {
		a.body = strdup("");
		return a;
	}
	end = memmem(text->data, text->len, "\r\n\r\n", 4);
	ck_assert_msg(end && sscanf(text->data, "HTTP/1.1 %d", &a.status) == 1, "%s %s: no answer of HTTP",
	              q->method, q->target);
	head = end + 4 - text->data;
	a.len = text->len - head;
	a.body = calloc(1, a.len + 1);
	memcpy(a.body, text->data + head, a.len);
	if (a.status >= 400) {
		_cleanup_json_ json_t *json = json_loadb(a.body, a.len, JSON_DISABLE_EOF_CHECK, NULL);

		snprintf(a.code, sizeof(a.code), "%s",
		         json_get_string(json_object_get(json, "error"), "code", ""));
	}
	return a;
}

struct raw_answer raw_ask(int fd, const struct raw_request *q)
{
	_cleanup_free_ char *request = request_text(q);
	_cleanup_strbuf_ struct strbuf text = {0};
	size_t left = strlen(request);
	char piece[4096];
	ssize_t n;

	for (const char *p = request; left > 0; p += n, left -= n) {
		n = send(fd, p, left, MSG_NOSIGNAL);
		if (n <= 0) /* the service has closed the connection: its answer says why */
			break;
	}
	do {
		/* Another thread that changes its user interrupts this one. */
		do
			n = recv(fd, piece, sizeof(piece), 0);
		while (n < 0 && errno == EINTR);
		ck_assert_msg(n >= 0 || errno != EAGAIN, "%s %s: neither an answer nor an end", q->method,
		              q->target);
	} while (take(&text, q, piece, n));
	close(fd);
	return parse(q, &text);
}

struct raw_answer raw_ask_tls(int fd, const char *certificate, const char *key, const struct raw_request *q)
{
	_cleanup_free_ char *request = request_text(q);
	_cleanup_strbuf_ struct strbuf text = {0};
	gnutls_certificate_credentials_t credentials;
	gnutls_session_t session;
	char piece[4096];
	ssize_t n;
	int r;

	ck_assert_int_eq(gnutls_certificate_allocate_credentials(&credentials), 0);
	gnutls_certificate_set_flags(credentials, GNUTLS_CERTIFICATE_SKIP_KEY_CERT_MATCH);
	if (certificate)
		ck_assert_int_ge(
		    gnutls_certificate_set_x509_key_mem(
		        credentials, &(gnutls_datum_t){(unsigned char *)certificate, strlen(certificate)},
		        &(gnutls_datum_t){(unsigned char *)key, strlen(key)}, GNUTLS_X509_FMT_PEM),
		    0);
	ck_assert_int_eq(gnutls_init(&session, GNUTLS_CLIENT | GNUTLS_FORCE_CLIENT_CERT | GNUTLS_NO_SIGNAL),
	                 0);
	ck_assert_int_eq(gnutls_set_default_priority(session), 0);
	ck_assert_int_eq(gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, credentials), 0);
	gnutls_transport_set_int(session, fd);
	do
		r = gnutls_handshake(session);
	while (r < 0 && !gnutls_error_is_fatal(r));
	/* With TLS 1.3 the client's side is complete before the service has judged the certificate. */
	if (r == 0 && gnutls_record_send(session, request, strlen(request)) > 0)
		do {
			n = gnutls_record_recv(session, piece, sizeof(piece));
			ck_assert_msg(n != GNUTLS_E_AGAIN, "%s %s: neither an answer nor an end", q->method,
			              q->target);
		} while ((n < 0 && !gnutls_error_is_fatal((int)n)) || take(&text, q, piece, n));
	gnutls_deinit(session);
	gnutls_certificate_free_credentials(credentials);
	close(fd);
	return parse(q, &text);
}
