/* SPDX-License-Identifier: Apache-2.0 */
/* Tests which host of the hosts file this machine is, with a name and addresses of the test's choice, and the
 * reading of the file where memory runs out. */
#include <arpa/inet.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>

#include "base/str.h"
#include "config/hosts.h"
#include "failing_memory.h"

static const char *hostname;         /* NULL: the system does not tell it */
static const char *own[4];           /* addresses of this machine; NULL: no more */
static bool any_address, any_of_ip6; /* a socket can be bound to all of them */

int __wrap_gethostname(char *name, size_t size);
int __wrap_gethostname(char *name, size_t size)
{
	if (!hostname) {
		errno = EPERM;
		return -1;
	}
	snprintf(name, size, "%s", hostname);
	return 0;
}

int __wrap_bind(int fd, const struct sockaddr *address, socklen_t len);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t len)
{
	char text[64] = "";

	getnameinfo(address, len, text, sizeof(text), NULL, 0, NI_NUMERICHOST);
	if (any_address || (any_of_ip6 && address->sa_family == AF_INET6))
		return 0;
	for (size_t i = 0; i < ARRAY_SIZE(own) && own[i]; i++)
		if (str_eq(text, own[i]))
			return 0;
	errno = EADDRNOTAVAIL;
	return -1;
}

/* "two" has two addresses, "none" has no such name. */
int __real_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **out);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **out);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **out)
{
	bool two = str_eq(node, "two");
	int r = str_eq(node, "none") ? EAI_NONAME
	                             : __real_getaddrinfo(two ? "10.0.0.1" : node, service, hints, out);

	if (r == 0 && two)
		r = __real_getaddrinfo("10.0.0.2", service, hints, &(*out)->ai_next);
	return r;
}

static struct hosts *parse(const char *text)
{
	struct hosts *hosts;
	struct error err = ERROR_INIT;

	ck_ok(hosts_parse(text, strlen(text), "hosts", &hosts, &err), &err);
	return hosts;
}

/* found: the host, or the words of the error, which begin with a blank. */
static const struct {
	const char *hosts, *name, *addresses[3], *found;
} cases[] = {
    {"n1\nn2\n", "n2", {NULL}, "n2"},
    {"n1\nN2\n", "n2", {NULL}, "N2"},
    /* The long form in the file and the short one here, and the reverse; the same one comes first. */
    {"n1.example.org\n", "n1", {NULL}, "n1.example.org"},
    {"n1\n", "n1.example.org", {NULL}, "n1"},
    {"N1.a\nn1.b\n", "n1.b", {NULL}, "n1.b"},
    {"n1.a\nn1.b\n", "n1.c", {NULL}, "n1.a"},
    {"n10 addr=10.0.0.9\nn addr=10.0.0.8\n",
     "n1",
     {NULL},
     " this machine is not among the hosts: no line for"},
    /* By its address, whichever of several. */
    {"a addr=10.0.0.1\nb addr=10.0.0.2\n", "x", {"10.0.0.2"}, "b"},
    {"a addr=two\nb addr=10.0.0.3\n", "x", {"10.0.0.1"}, "a"},
    {"a addr=two\nb addr=10.0.0.3\n", "x", {"10.0.0.2"}, "a"},
    {"a addr=none\nb addr=10.0.0.3\n", "x", {"10.0.0.3"}, "b"},
    {"a addr=10.0.0.1\nb addr=10.0.0.2\n",
     "x",
     {"10.0.0.1", "10.0.0.2"},
     " hosts a and b both have an address of this machine; say which one it is"},
    {"a addr=10.0.0.1\nb addr=10.0.0.2\n",
     "x",
     {NULL},
     " this machine is not among the hosts: no line for host name x, none with an address"},
    {"a\n", NULL, {NULL}, " cannot get this machine's host name: Operation not permitted"},
};

START_TEST(a_machine_is_found_by_name_or_address)
{
	_cleanup_(hosts_freep) struct hosts *hosts = parse(cases[_i].hosts);
	const struct host *self = NULL;
	struct error err = ERROR_INIT;

	hostname = cases[_i].name;
	memcpy(own, cases[_i].addresses, sizeof(cases[_i].addresses));
	if (cases[_i].found[0] != ' ') {
		ck_ok(hosts_find_self(hosts, NULL, &self, &err), &err);
		ck_assert_str_eq(self->name, cases[_i].found);
		return;
	}
	ck_fails(hosts_find_self(hosts, NULL, &self, &err), &err, cases[_i].found + 1);
	ck_assert(str_starts(err.message, cases[_i].found + 1));
	ck_assert_ptr_null(self);
}
END_TEST

/* Where a socket can be bound to any address, no address is known to be this machine's own. */
START_TEST(foreign_addresses_that_can_be_bound_say_nothing)
{
	static const char *const words[][2] = {{"192.0.2.1,", "net.ipv4.ip_nonlocal_bind is set"},
	                                       {"2001:db8::1,", "net.ipv6.ip_nonlocal_bind is set"}};
	_cleanup_(hosts_freep) struct hosts *hosts = parse("a addr=10.0.0.1\nx9 addr=10.0.0.2\n");
	const struct host *self = NULL;
	struct error err = ERROR_INIT;

	hostname = "x";
	own[0] = "10.0.0.1";
	any_address = _i == 0;
	any_of_ip6 = _i == 1;
	ck_assert_int_eq(hosts_find_self(hosts, NULL, &self, &err), -ENOTSUP);
	ck_assert_ptr_nonnull(strstr(err.message, words[_i][0]));
	ck_assert_ptr_nonnull(strstr(err.message, words[_i][1]));
	/* A name is enough. */
	hostname = "x9";
	ck_ok(hosts_find_self(hosts, NULL, &self, &err), &err);
	ck_assert_str_eq(self->name, "x9");
	ck_ok(hosts_find_self(hosts, "A", &self, &err), &err);
	ck_assert_str_eq(self->name, "a");
	ck_fails(hosts_find_self(hosts, "x", &self, &err), &err,
	         "node \"x\" of dtraind.conf is not among the hosts");
}
END_TEST

static int read_hosts(void *context, struct error *err)
{
	_cleanup_(hosts_freep) struct hosts *hosts = NULL;
	char hash[HOSTS_HASH_SIZE];
	int r = hosts_parse(context, strlen(context), "hosts", &hosts, err);

	if (r == 0)
		r = hosts_hash(hosts, hash, err);
	if (r == 0) {
		ck_assert_uint_eq(hosts->count, 3);
		ck_assert_str_eq(hosts->list[0].labels[1], "two");
		ck_assert_ptr_null(hosts->list[0].labels[2]);
		ck_assert_str_eq(hosts->list[2].address, "10.0.0.3");
	}
	return r;
}

START_TEST(a_hosts_file_is_read_whole_or_not)
{
	char text[] = "a one two\n# none\nb slots=2 port=7 submit # last\n\nc addr=10.0.0.3";

	memory_runs_out(read_hosts, text);
}
END_TEST

/* The longest name, and one that is longer. */
START_TEST(names_have_a_length)
{
	char text[300];
	struct hosts *hosts = NULL;
	struct error err = ERROR_INIT;

	memset(text, 'n', sizeof(text));
	ck_ok(hosts_parse(text, 253, "hosts", &hosts, &err), &err);
	hosts_free(hosts);
	ck_fails(hosts_parse(text, 254, "hosts", &hosts, &err), &err, "is not a host name or an address");
	ck_fails(hosts_parse("a\0b", 3, "hosts", &hosts, &err), &err,
	         "hosts: not a text file: a NUL byte in it");
	ck_assert_int_eq(hosts_parse("# none\n", 7, "hosts", &hosts, &err), -ENODATA);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("hosts");
	TCase *t = tcase_create("hosts");

	tcase_add_loop_test(t, a_machine_is_found_by_name_or_address, 0, ARRAY_SIZE(cases));
	tcase_add_loop_test(t, foreign_addresses_that_can_be_bound_say_nothing, 0, 2);
	tcase_add_test(t, a_hosts_file_is_read_whole_or_not);
	tcase_add_test(t, names_have_a_length);
	suite_add_tcase(s, t);
	return unit_run(s);
}
