/* SPDX-License-Identifier: Apache-2.0 */
/* The hosts file: its lines, the host that this machine is, and the hash by which nodes compare their
 * files. */
#include "config/hosts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/str.h"

enum { SLOTS_MAX = 1024 }; /* of a line */

static void host_free(struct host *h)
{
	free(h->name);
	free(h->address);
	for (char **l = h->labels; l && *l; l++)
		free(*l);
	free(h->labels);
}

void hosts_free(struct hosts *h)
{
	if (!h)
		return;
	for (size_t i = 0; i < h->count; i++)
		host_free(&h->list[i]);
	name_index_free(&h->index);
	free(h->list);
	free(h);
}

const struct host *hosts_find(const struct hosts *h, const char *name)
{
	size_t i;

	return name_index_find(&h->index, name, &i) ? &h->list[i] : NULL;
}

int hosts_hash(const struct hosts *h, char hash[HOSTS_HASH_SIZE], struct error *err)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < h->count; i++) {
		const struct host *x = &h->list[i];
		_cleanup_strbuf_ struct strbuf line = {0};

		strbuf_addf(&line, "%s %s %d %d", x->name, x->address, x->port, x->slots);
		for (char **l = x->labels; l && *l; l++)
			strbuf_addf(&line, " %s", *l);
		strbuf_addc(&line, '\n');
		if (line.failed)
			return error_oom(err);
		sum = hash_bytes(line.data, line.len, sum);
	}
	snprintf(hash, HOSTS_HASH_SIZE, "%016llx", (unsigned long long)sum);
	return 0;
}

static bool valid_name(const char *s, const char *more)
{
	if (!*s || strlen(s) > 253)
		return false;
	for (; *s; s++)
		if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') ||
		      strchr(more, *s)))
			return false;
	return true;
}

/* IPv6, possibly with a zone. */
static bool is_ipv6(const char *s)
{
	size_t length = strcspn(s, "%");
	char address[INET6_ADDRSTRLEN];
	struct in6_addr binary;

	if (length >= sizeof(address))
		return false;
	memcpy(address, s, length);
	address[length] = '\0';
	return inet_pton(AF_INET6, address, &binary) == 1;
}

/* HOST:N, the form of other programs: N is the number of slots for those that start programs with MPI, and a
 * port for most others. The number where `host` has that form, or else -1. */
static int64_t appended_number(const char *host)
{
	const char *colon = strchr(host, ':');
	int64_t n;

	return colon && !is_ipv6(host) && str_to_int64(colon + 1, 0, UINT16_MAX, &n) == 0 ? n : -1;
}

static bool valid_host(const char *s, const char *more)
{
	return valid_name(s, more) && (!strchr(s, ':') || is_ipv6(s));
}

static int refuse_host(const char *word, const char *where, int line, struct error *err)
{
	int64_t n = appended_number(word);
	int name = (int)strcspn(word, ":");

	if (n > SLOTS_MAX)
		return error_set(err, -EINVAL,
		                 "%s:%d: '%s' is not a host name or an address; expected '%.*s port=%lld'",
		                 where, line, word, name, word, (long long)n);
	if (n >= 0)
		return error_set(err, -EINVAL,
		                 "%s:%d: '%s' is not a host name or an address; expected '%.*s slots=%lld', "
		                 "or '%.*s port=%lld' if the number is a port",
		                 where, line, word, name, word, (long long)n, name, word, (long long)n);
	return error_set(err, -EINVAL, "%s:%d: '%s' is not a host name or an address", where, line, word);
}

static int parse_address(struct host *h, const char *word, const char *value, const char *where,
                         struct error *err)
{
	int64_t port = appended_number(value);

	if (port >= 0)
		return error_set(err, -EINVAL, "%s:%d: %s: expected addr=%.*s port=%lld", where, h->line,
		                 word, (int)strcspn(value, ":"), value, (long long)port);
	if (!valid_host(value, ".-:_%"))
		return error_set(err, -EINVAL, "%s:%d: %s: not a host name or an address", where, h->line,
		                 word);
	free(h->address);
	h->address = strdup(value);
	return h->address ? 0 : error_oom(err);
}

static int add_label(struct host *h, const char *word)
{
	size_t n = 0;
	char **list;

	while (h->labels && h->labels[n])
		n++;
	list = realloc(h->labels, (n + 2) * sizeof(*list));
	if (!list)
		return -ENOMEM;
	h->labels = list;
	list[n] = strdup(word);
	list[n + 1] = NULL;
	return list[n] ? 0 : -ENOMEM;
}

static int parse_number(const char *word, const char *value, int64_t min, int64_t max, const char *where,
                        int line, int *out, struct error *err)
{
	int64_t v;

	if (str_to_int64(value, min, max, &v) < 0)
		return error_set(err, -EINVAL, "%s:%d: %s: not a whole number from %lld to %lld", where, line,
		                 word, (long long)min, (long long)max);
	*out = (int)v;
	return 0;
}

/* given: which of the words with a value the line has had, a bit each. */
enum { SLOTS, PORT, ADDRESS };
static int parse_word(struct host *h, const char *word, unsigned *given, const char *where, struct error *err)
{
	static const char *const valued[] = {[SLOTS] = "slots=", [PORT] = "port=", [ADDRESS] = "addr="};
	const char *eq = strchr(word, '=');

	for (unsigned i = 0; eq && i < ARRAY_SIZE(valued); i++) {
		if (!str_starts(word, valued[i]))
			continue;
		if (*given & 1u << i)
			return error_set(err, -EINVAL, "%s:%d: %s: %.*s is there twice", where, h->line, word,
			                 (int)(eq - word), word);
		*given |= 1u << i;
	}
	if (!eq) {
		if (!valid_name(word, ".-_:/"))
			return error_set(err, -EINVAL,
			                 "%s:%d: label '%s': letters, digits and .-_:/ are allowed", where,
			                 h->line, word);
		h->submit = h->submit || str_eq(word, "submit");
		return add_label(h, word) < 0 ? error_oom(err) : 0;
	}
	if (str_starts(word, "slots="))
		return parse_number(word, eq + 1, 0, SLOTS_MAX, where, h->line, &h->slots, err);
	if (str_starts(word, "port="))
		return parse_number(word, eq + 1, 1, 65535, where, h->line, &h->port, err);
	if (str_starts(word, "addr="))
		return parse_address(h, word, eq + 1, where, err);
	return error_set(
	    err, -EINVAL,
	    "%s:%d: '%s' is not known; a line is: HOST slots=N [addr=ADDRESS] [port=PORT] [submit] [label…]",
	    where, h->line, word);
}

/* A number of slots that stands alone, as in other programs' files, would be a label. */
static int check_labels(const struct host *h, const char *where, struct error *err)
{
	int64_t number;

	for (char **l = h->labels; l && *l; l++)
		if (str_to_int64(*l, 0, SLOTS_MAX, &number) == 0)
			return error_set(
			    err, -EINVAL,
			    "%s:%d: '%s' is a number alone, and the line has no slots=N; expected slots=%s",
			    where, h->line, *l, *l);
	return 0;
}

static int parse_line(struct hosts *hosts, char *text, int line, const char *where, struct error *err)
{
	char *save = NULL, *word = strtok_r(text, " \t\r", &save);
	const struct host *twin;
	struct host *list, *h;
	unsigned given = 0;
	int r = 0;

	if (!word)
		return 0;
	if (!valid_host(word, ".-_:"))
		return refuse_host(word, where, line, err);
	twin = hosts_find(hosts, word);
	if (twin)
		return error_set(err, -EINVAL, "%s:%d: host %s is already on line %d; one line a host", where,
		                 line, word, twin->line);
	/* Room for as many again at each power of two. */
	list = hosts->list;
	if ((hosts->count & (hosts->count - 1)) == 0)
		list = realloc(list, MAX(2 * hosts->count, 1) * sizeof(*list));
	if (!list)
		return error_oom(err);
	hosts->list = list;
	h = &list[hosts->count++];
	*h = (struct host){.name = strdup(word), .line = line};
	if (!h->name || name_index_add(&hosts->index, h->name, hosts->count - 1) < 0)
		return error_oom(err);
	while (r == 0 && (word = strtok_r(NULL, " \t\r", &save)))
		r = parse_word(h, word, &given, where, err);
	if (r == 0 && !(given & 1u << SLOTS))
		r = check_labels(h, where, err);
	hosts->restricts_users = hosts->restricts_users || h->submit;
	if (r == 0 && !h->address) {
		h->address = strdup(h->name);
		r = h->address ? 0 : error_oom(err);
	}
	return r;
}

int hosts_parse(const char *text, size_t len, const char *where, struct hosts **out, struct error *err)
{
	_cleanup_(hosts_freep) struct hosts *hosts = calloc(1, sizeof(*hosts));
	_cleanup_free_ char *copy = strndup(text, len);
	char *next = copy;

	if (!hosts || !copy)
		return error_oom(err);
	if (memchr(text, '\0', len))
		return error_set(err, -EINVAL, "%s: not a text file: a NUL byte in it", where);
	for (int line = 1; next; line++) {
		char *start = next, *end = strchr(start, '\n'), *hash;
		int r;

		next = end ? end + 1 : NULL;
		if (end)
			*end = '\0';
		hash = strchr(start, '#');
		if (hash)
			*hash = '\0';
		r = parse_line(hosts, start, line, where, err);
		if (r < 0)
			return r;
	}
	if (hosts->count == 0)
		return error_set(err, -ENODATA, "%s: no host in it; a line is: HOST slots=N", where);
	*out = steal_pointer(hosts);
	return 0;
}

int hosts_read(const char *path, struct hosts **out, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	size_t len;
	int r;

	r = file_read(path, 16 << 20, &text, &len, err);
	return r < 0 ? r : hosts_parse(text, len, path, out, err);
}

/* A socket can be bound to addresses of this machine only. The list of interfaces would need a netlink
 * socket, which the unit of the service denies. */
static bool is_local(const char *address)
{
	struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *found = NULL;
	bool local = false;

	if (getaddrinfo(address, NULL, &hints, &found) != 0)
		return false;
	for (struct addrinfo *a = found; a && !local; a = a->ai_next) {
		_cleanup_close_ int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

		local = fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0;
	}
	freeaddrinfo(found);
	return local;
}

static int find_by_address(const struct hosts *h, const char *hostname, const struct host **out,
                           struct error *err)
{
	/* Machines do not have these addresses. */
	static const struct {
		const char *address, *sysctl;
	} foreign[] = {{"192.0.2.1", "net.ipv4.ip_nonlocal_bind"},
	               {"2001:db8::1", "net.ipv6.ip_nonlocal_bind"}};
	const struct host *found = NULL;
	int r = 0;

	for (size_t i = 0; i < ARRAY_SIZE(foreign); i++)
		if (is_local(foreign[i].address))
			return error_set(
			    err, -ENOTSUP,
			    "no line for host name %s, and a socket can be bound to %s, an address for "
			    "documentation, possibly because %s is set: a service cannot tell which "
			    "addresses "
			    "are its own; set node = \"…\" in dtraind.conf",
			    hostname, foreign[i].address, foreign[i].sysctl);
	for (size_t i = 0; i < h->count && r == 0; i++) {
		if (!is_local(h->list[i].address))
			continue;
		if (found)
			r = error_set(err, -EEXIST,
			              "hosts %s and %s both have an address of this machine; say which one "
			              "it is with node = "
			              "\"…\" in dtraind.conf",
			              found->name, h->list[i].name);
		found = &h->list[i];
	}
	if (r < 0)
		return r;
	if (!found)
		return error_set(
		    err, -ENOENT,
		    "this machine is not among the hosts: no line for host name %s, none with an address of "
		    "its own; add it, or set node = \"…\" in dtraind.conf",
		    hostname);
	*out = found;
	return 0;
}

int hosts_find_self(const struct hosts *h, const char *node, const struct host **out, struct error *err)
{
	char name[HOST_NAME_MAX + 1] = "";
	size_t n;

	if (node) {
		*out = hosts_find(h, node);
		return *out ? 0
		            : error_set(err, -ENOENT, "node \"%s\" of dtraind.conf is not among the hosts",
		                        node);
	}
	if (gethostname(name, sizeof(name) - 1) < 0)
		return error_errno(err, -errno, "cannot get this machine's host name");
	*out = hosts_find(h, name);
	/* The file may have the long form and the kernel the short one, or the reverse. */
	n = strcspn(name, ".");
	for (size_t i = 0; !*out && i < h->count; i++)
		if (strcspn(h->list[i].name, ".") == n && strncasecmp(h->list[i].name, name, n) == 0)
			*out = &h->list[i];
	return *out ? 0 : find_by_address(h, name, out, err);
}
