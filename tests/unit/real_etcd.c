/* SPDX-License-Identifier: Apache-2.0 */
/* Starts and ends an etcd: real_etcd.h. */
#include "real_etcd.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "cluster/store_etcd.h"
#include "wire/etcd.h"

static int free_port(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, len), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	close(fd);
	return ntohs(a.sin_port);
}

static void execute(const struct real_etcd *b, size_t request_bytes)
{
	_cleanup_free_ char *data = str_printf("%s/etcd", b->dir);
	_cleanup_free_ char *peer = str_printf("http://127.0.0.1:%d", b->peer_port);
	_cleanup_free_ char *initial = str_printf("m=%s", peer);
	_cleanup_free_ char *bytes = str_printf("--max-request-bytes=%zu", request_bytes);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	dup2(null, STDOUT_FILENO);
	dup2(null, STDERR_FILENO);
	execlp("etcd", "etcd", "--name", "m", "--data-dir", data, "--listen-client-urls", b->urls[0],
	       "--advertise-client-urls", b->urls[0], "--listen-peer-urls", peer,
	       "--initial-advertise-peer-urls", peer, "--initial-cluster", initial, "--unsafe-no-fsync",
	       request_bytes > 0 ? bytes : NULL, NULL);
	_exit(127);
}

bool real_etcd_is_there(void)
{
	return access("/usr/bin/etcd", X_OK) == 0;
}

static void pause_briefly(void)
{
	nanosleep(&(struct timespec){0, 50000000}, NULL);
}

static void start(struct real_etcd *b, size_t request_bytes)
{
	double until = clock_monotonic() + REAL_ETCD_SECONDS;
	struct error err = ERROR_INIT;
	int r = -1;

	b->pid = fork();
	if (b->pid == 0)
		execute(b, request_bytes);
	while (r < 0 && clock_monotonic() < until) {
		_cleanup_json_ json_t *answer = NULL;

		r = etcd_call(b->etcd, "/v3/kv/range", etcd_range_request("/", NULL, 1), 1, &answer, &err);
		if (r < 0)
			pause_briefly();
	}
	ck_ok(r, &err);
}

static void stop(struct real_etcd *b)
{
	kill(b->pid, SIGKILL);
	waitpid(b->pid, NULL, 0);
}

void real_etcd_open_with(struct real_etcd *b, size_t request_bytes)
{
	struct error err = ERROR_INIT;

	b->dir = unit_tmpdir();
	b->urls[0] = str_printf("http://127.0.0.1:%d", free_port());
	b->urls[1] = NULL;
	b->peer_port = free_port();
	b->place = (struct etcd_place){.urls = b->urls};
	ck_ok(etcd_open(&b->place, &b->etcd, &err), &err);
	start(b, request_bytes);
}

void real_etcd_open(struct real_etcd *b)
{
	real_etcd_open_with(b, 0);
}

void real_etcd_restart_with(struct real_etcd *b, size_t request_bytes)
{
	stop(b);
	start(b, request_bytes);
}

void real_etcd_close(struct real_etcd *b)
{
	etcd_close(b->etcd);
	stop(b);
	file_remove_tree(b->dir, NULL);
	free(b->urls[0]);
	free(b->dir);
}

void real_etcd_await(struct election *e, enum election_state state)
{
	double until = clock_monotonic() + REAL_ETCD_SECONDS;
	struct election_view view = {ELECTION_FOLLOWING};

	while (view.state != state && clock_monotonic() < until) {
		struct pollfd p = {election_fd(e), POLLIN, 0};

		poll(&p, 1, 100);
		election_read(e, &view);
	}
	ck_assert_int_eq(view.state, state);
}

struct election *real_etcd_lead(struct real_etcd *b, const char *name, int lease)
{
	struct error err = ERROR_INIT;
	struct election *e;

	ck_ok(election_open(&b->place, name, lease, &e, &err), &err);
	real_etcd_await(e, ELECTION_LEADING);
	return e;
}

struct store *real_etcd_open_store(struct real_etcd *b, struct election *e, const char *name)
{
	_cleanup_free_ char *dir = str_printf("%s/%s", b->dir, name);
	struct error err = ERROR_INIT;
	struct store *s;

	ck_ok(file_mkdirs(dir, 0755, &err), &err);
	ck_ok(store_etcd_open(&b->place, e, dir, &s, &err), &err);
	ck_ok(store_commit_epoch(s, &err), &err);
	return s;
}
