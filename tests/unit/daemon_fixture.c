/* SPDX-License-Identifier: Apache-2.0 */
/* Starts and ends a service for tests, and sends requests to it: see daemon_fixture.h. */
#include "daemon_fixture.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "dtraind/daemon.h"

int daemon_fixture_port(void)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(sin);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	ck_assert_int_eq(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
	/* The socket stays until the test ends, and does not listen: a service that sets the same option can
	 * bind the port, and the kernel gives it to no program that asks for any port. */
	ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)), 0);
	return ntohs(sin.sin_port);
}

void daemon_fixture_write(const struct daemon_fixture *f, const char *name, const char *text)
{
	_cleanup_free_ char *path = str_path_join(f->dir, name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
}

void daemon_fixture_environment(const char *notify, int listening)
{
	static const char *const of_systemd[] = {"NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "WATCHDOG_USEC",
	                                         "WATCHDOG_PID"};
	char self[32];

	for (size_t i = 0; i < ARRAY_SIZE(of_systemd); i++)
		unsetenv(of_systemd[i]);
	if (notify) {
		setenv("NOTIFY_SOCKET", notify, 1);
		setenv("WATCHDOG_USEC", "200000", 1); /* no systemd ends it where it is late */
	}
	if (!listening)
		return;
	snprintf(self, sizeof(self), "%d", (int)getpid());
	setenv("LISTEN_PID", self, 1);
	setenv("LISTEN_FDS", "1", 1);
	dup2(listening, SD_LISTEN_FDS_START);
}

/* The process of the service. It ends when daemon_run returns, or with the test. */
static void __attribute__((noreturn)) serve(const struct daemon_fixture *f, int ready)
{
	char *log = str_path_join(f->dir, "service.log");
	struct error err = ERROR_INIT;
	struct daemon *d = NULL;
	int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), r;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* Not where the socket of the service manager goes. */
	ready = fcntl(ready, F_DUPFD_CLOEXEC, SD_LISTEN_FDS_START + 1);
	dup2(fd, STDERR_FILENO);
	daemon_fixture_environment(f->notify, f->listening);
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	free(log); /* no cleanup runs at exit() */
	log_init("dtraind", LOG_INFO);
	r = daemon_create(f->config, &d, &err);
	if (r == 0 && write(ready, "r", 1) == 1)
		r = daemon_run(d, &err);
	if (r < 0)
		log_err("%s", err.message);
	daemon_destroy(d);
	exit(r < 0);
}

void daemon_fixture_again(struct daemon_fixture *f)
{
	int ready[2];
	char byte;

	ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
	fflush(NULL);
	f->pid = fork();
	ck_assert_int_ge(f->pid, 0);
	if (f->pid == 0) {
		close(ready[0]);
		serve(f, ready[1]);
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1) {
		_cleanup_free_ char *log = str_path_join(f->dir, "service.log"), *text = NULL;

		file_read(log, 0, &text, NULL, NULL);
		ck_abort_msg("the service does not start: %s", text ? text : "");
	}
	close(ready[0]);
	/* For other users, as the group of the package is. */
	ck_assert_int_eq(chmod(f->socket, 0666), 0);
}

/* Makes a key, or copies that of another service. */
static void set_key(struct daemon_fixture *f, const struct daemon_fixture *other)
{
	_cleanup_free_ char *own = str_path_join(f->dir, "cluster.pem"),
	                    *path = str_path_join(other ? other->dir : f->dir, "cluster.pem");
	struct error err = ERROR_INIT;

	if (other)
		ck_assert_int_eq(link(path, own), 0);
	else
		ck_ok(identity_make(own, false, &err), &err);
	ck_ok(identity_load(own, &f->id, &err), &err);
}

void daemon_fixture_start(struct daemon_fixture *f, const struct daemon_setup *setup)
{
	static const struct daemon_setup one = {0};
	const struct daemon_setup *s = setup ? setup : &one;
	_cleanup_free_ char *cwd = getcwd(NULL, 0), *text = NULL;

	*f = (struct daemon_fixture){.dir = unit_tmpdir(), .port = s->port ? s->port : 29600};
	f->notify = s->notify ? strdup(s->notify) : NULL;
	f->config = str_path_join(f->dir, "dtraind.conf");
	f->socket = str_path_join(f->dir, "dtraind.sock");
	ck_assert_int_eq(chmod(f->dir, 0755), 0);
	set_key(f, s->other);
	daemon_fixture_write(f, "hosts", s->hosts ? s->hosts : "n1 slots=2 addr=127.0.0.1\n");
	text = str_printf("node = \"%s\"; controller = \"%s\"; hosts_file = \"%s/hosts\"; cluster_key = "
	                  "\"%s/cluster.pem\"; socket = \"%s\"; runtime_dir = \"%s/run\"; state_dir = "
	                  "\"%s/state\"; log_dir = \"%s/log\"; worker_dir = \"%s\"; group = \"\"; "
	                  "cpu_slots = 2; listen = \"127.0.0.1\"; port = %d;\n%s",
	                  s->name ? s->name : "n1", s->controller ? s->controller : "n1", f->dir, f->dir,
	                  f->socket, f->dir, f->dir, f->dir, cwd, f->port, s->more ? s->more : "");
	daemon_fixture_write(f, "dtraind.conf", text);
	daemon_fixture_again(f);
}

void daemon_fixture_stop(struct daemon_fixture *f)
{
	int status;

	ck_assert_int_eq(kill(f->pid, SIGTERM), 0);
	ck_assert_int_eq(waitpid(f->pid, &status, 0), f->pid);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the service ended with status %#x",
	              status);
}

void daemon_fixture_teardown(struct daemon_fixture *f)
{
	daemon_fixture_stop(f);
	identity_free(f->id);
	file_remove_tree(f->dir, NULL);
	free(f->dir);
	free(f->config);
	free(f->socket);
	free(f->notify);
}

/* The kernel records the user at the moment of the connection. */
static int connect_as(const struct daemon_fixture *f, const struct person *who)
{
	uid_t uid = geteuid();
	gid_t gid = getegid();
	int fd;

	if (!who || who->uid == uid)
		return raw_connect_unix(f->socket);
	ck_assert_int_eq(setegid(who->gid), 0);
	ck_assert_int_eq(seteuid(who->uid), 0);
	fd = raw_connect_unix(f->socket);
	ck_assert_int_eq(seteuid(uid), 0);
	ck_assert_int_eq(setegid(gid), 0);
	return fd;
}

struct raw_answer daemon_ask(const struct daemon_fixture *f, const struct person *who,
                             const struct raw_request *q)
{
	return raw_ask(connect_as(f, who), q);
}

struct raw_answer daemon_ask_tls(const struct daemon_fixture *f, const struct raw_request *q)
{
	return raw_ask_tls(raw_connect_tcp(f->port), f->id->certificate, f->id->key, q);
}

json_t *daemon_get(const struct daemon_fixture *f, const struct person *who, const char *target)
{
	struct raw_request q = {.method = "GET", .target = target};
	struct raw_answer a = daemon_ask(f, who, &q);
	json_t *json = json_loadb(a.body, a.len, 0, NULL);

	ck_assert_msg(a.status == 200 && json, "GET %s: %d: %s", target, a.status, a.body);
	free(a.body);
	return json;
}

int64_t daemon_submit(const struct daemon_fixture *f, const struct person *who, const char *script, int nodes,
                      int slots)
{
	_cleanup_json_ json_t *body =
	    json_pack("{s:{s:s,s:s,s:[s,s,s],s:s,s:{s:i,s:i,s:i}}}", "config", "task", "command", "name",
	              "test", "command", "sh", "-c", script, "directory", "/", "resources", "nodes", nodes,
	              "devices_per_node", slots, "grace", 5);
	_cleanup_free_ char *text = json_to_string(body);
	struct raw_request q = {.method = "POST", .target = "/v1/runs", .body = text};
	struct raw_answer a = daemon_ask(f, who, &q);
	_cleanup_json_ json_t *answer = json_loadb(a.body, a.len, 0, NULL);

	ck_assert_msg(a.status == 201, "POST /v1/runs: %d: %s", a.status, a.body);
	free(a.body);
	return json_get_int(answer, "id", 0);
}

void daemon_await(const struct daemon_fixture *f, int64_t run, const char *state)
{
	_cleanup_free_ char *target = str_printf("/v1/runs/%lld?wait=1&state=%s", (long long)run, state);
	_cleanup_json_ json_t *r = daemon_get(f, NULL, target);

	ck_assert_msg(str_eq(json_get_string(r, "state", ""), state), "run %lld: %s: %s, %s", (long long)run,
	              json_get_string(r, "state", ""), json_get_string(r, "reason", ""),
	              json_get_string(r, "detail", ""));
}
