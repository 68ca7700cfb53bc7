/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of HTTP that dtrain implements itself: answers on the Unix socket (several answers on one
 * connection), routes, escapes, the file with the cluster's key, and the names in a certificate. The first
 * byte of the input chooses.
 */
#include <stdint.h>
#include <unistd.h>

#include "http/certificates.h"
#include "http/identity.c"
#include "http/local.c"
#include "http/route.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CALLS = 4 };

static int count(void *context, const char *data, size_t len, struct error *err)
{
	size_t *n = context;
	unsigned sum = 0;

	for (size_t i = 0; i < len; i++)
		sum += (unsigned char)data[i];
	*n += len;
	return sum % 251 == 250 ? error_set(err, -EIO, "enough") : 0;
}

/* The request stays unread at the other end. */
static struct http_local *connected(const uint8_t *data, size_t size, int *other)
{
	struct http_local *l = calloc(1, sizeof(*l));
	int fds[2];

	l->socket = strdup("fuzz");
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0 ||
	    write(fds[1], data, size) != (ssize_t)size || shutdown(fds[1], SHUT_WR) < 0)
		abort();
	l->fd = fds[0];
	*other = fds[1];
	return l;
}

static void answers(char how, const uint8_t *data, size_t size)
{
	_cleanup_close_ int other = -1;
	_cleanup_(http_local_closep) struct http_local *l = connected(data, size, &other);

	for (int i = 0; i < CALLS; i++) {
		_cleanup_json_ json_t *json = NULL;
		_cleanup_free_ char *bytes = NULL;
		struct error err = ERROR_INIT;
		size_t len = 0;
		int status, r;

		if (how == 'j')
			r = http_local_json(l, "GET", "/v1/runs", NULL, NULL, &status, &json, &err);
		else if (how == 'b')
			r = http_local_bytes(l, "PUT", "/v1/runs", NULL, "x", 1, 0, &status, &bytes, &len,
			                     &err);
		else
			r = http_local_stream(l, "GET", "/v1/runs", count, &len, &err);
		if (r == 0 && how == 'b' && bytes[len] != '\0')
			abort();
		if (r < 0 && !err.message[0])
			abort(); /* each failure has words */
		if (l->start > l->end || l->end > sizeof(l->buf))
			abort();
	}
}

static void routes(const char *path)
{
	static const struct http_route table[] = {
	    {"GET", "/v1/runs", HTTP_ANY, NULL},
	    {"GET", "/v1/runs/{}", HTTP_ANY, NULL},
	    {"POST", "/v1/nodes/{}/drain", HTTP_ANY, NULL},
	    {"GET", "/v1/runs/{}/rendezvous/{...}", HTTP_ANY, NULL},
	    {"GET", "/v1/peer/logs", HTTP_PEER, NULL},
	};
	static const char *const methods[] = {"GET", "POST", "DELETE"};

	for (size_t i = 0; i < ARRAY_SIZE(methods); i++) {
		struct http_match m;

		if (http_route_match(table, ARRAY_SIZE(table), methods[i], path, &m) < 0)
			continue;
		for (size_t k = 0; k < m.count; k++) {
			const char *p = path + m.captures[k].start;
			bool rest = m.route == &table[3] && k == 1;

			if (m.captures[k].len == 0 ||
			    m.captures[k].start + m.captures[k].len > strlen(path) ||
			    (!rest && memchr(p, '/', m.captures[k].len)))
				abort();
		}
	}
}

static void escapes(const char *text)
{
	_cleanup_free_ char *escaped = http_escape(text);

	if (!escaped || strpbrk(escaped, "/?#&= \r\n@:"))
		abort();
}

static void key_file(const char *pem)
{
	_cleanup_(identity_freep) struct identity *id = calloc(1, sizeof(*id));
	struct error err = ERROR_INIT;

	if (pem_block(pem, "PRIVATE KEY", &id->key) == 0 &&
	    pem_block(pem, "CERTIFICATE", &id->certificate) == 0 && id->key && id->certificate)
		identity_parse(id, "fuzz", &err);
}

/* A certificate is the first thing that a stranger sends. */
static void names(const uint8_t *data, size_t size)
{
	struct certificate_names list;
	gnutls_datum_t der = {(unsigned char *)data, (unsigned)size};

	if (certificate_names_read(&der, &list, NULL) < 0)
		return;
	for (size_t i = 0; i < list.count; i++)
		if (!list.list[i][0])
			abort();
	certificate_names_release(&list);
}

/* A valid file with changed bytes: three bytes of input for each, two for the position and one for the
 * value. */
static void changed_key_file(const uint8_t *data, size_t size)
{
	static char *good;
	_cleanup_free_ char *pem = NULL;
	struct error err = ERROR_INIT;
	size_t len;

	if (!good) {
		struct strbuf b = {0};

		if (make_pem(&b, &err) < 0 || !(good = strbuf_steal(&b)))
			abort();
	}
	pem = strdup(good);
	len = strlen(pem);
	for (; size >= 3; data += 3, size -= 3)
		pem[(data[0] << 8 | data[1]) % len] = data[2];
	key_file(pem);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char kinds[] = "jbsrepkn";
	_cleanup_free_ char *text = NULL;
	char kind;

	if (size == 0)
		return 0;
	kind = strchr(kinds, data[0]) && data[0] ? data[0] : kinds[data[0] % (sizeof(kinds) - 1)];
	text = strndup((const char *)data + 1, size - 1);
	switch (kind) {
	case 'r':
		routes(text);
		break;
	case 'e':
		escapes(text);
		break;
	case 'p':
		key_file(text);
		break;
	case 'n':
		names(data + 1, size - 1);
		break;
	case 'k':
		changed_key_file(data + 1, size - 1);
		break;
	default:
		answers(kind, data + 1, size - 1);
	}
	return 0;
}
