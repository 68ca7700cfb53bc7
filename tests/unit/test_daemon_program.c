/* SPDX-License-Identifier: Apache-2.0 */
/* The program dtraind: its command line, and what the service manager and it say to each other. */
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/str.h"
#include "daemon_fixture.h"
#include "http/server.h"
#include "text_files.h"

/* ---- the command line ---- */

static void setup(void)
{
	dir = unit_tmpdir();
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
}

static void write_config_for(const char *group, const char *lines)
{
	_cleanup_free_ char *text = str_printf(
	    "node = \"n1\"; hosts_file = \"%s/hosts\"; cluster_key = \"%s/cluster.pem\"; socket = "
	    "\"%s/dtraind.sock\"; runtime_dir = \"%s/run\"; state_dir = \"%s/state\"; log_dir = \"%s/log\"; "
	    "group = \"%s\"; cpu_slots = 2;\n%s",
	    dir, dir, dir, dir, dir, dir, group, lines);

	write_text("dtraind.conf", text, 0644);
}

static void write_config(const char *lines)
{
	write_config_for("", lines);
}

/* passed: a socket of the service manager's; 0: none. */
static pid_t start(const char *const *arguments, int passed)
{
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		_cleanup_free_ char *out = str_path_join(dir, "stdout"), *err = str_path_join(dir, "stderr");
		const char *argv[8] = {"dtraind"};

		for (size_t i = 0; arguments[i]; i++)
			argv[i + 1] = arguments[i];
		daemon_fixture_environment(NULL, passed);
		dup2(open(out, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), STDOUT_FILENO);
		dup2(open(err, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), STDERR_FILENO);
		execv("./dtraind", (char **)argv);
		_exit(99);
	}
	return pid;
}

static int end(pid_t pid)
{
	int status;

	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status), "%#x", status);
	return WEXITSTATUS(status);
}

static bool said(const char *stream, const char *words)
{
	_cleanup_free_ char *path = str_path_join(dir, stream), *text = NULL;

	ck_assert_int_eq(file_read(path, 0, &text, NULL, NULL), 0);
	return *words ? strstr(text, words) != NULL : !*text;
}

static void ck_run(const char *const *arguments, int status, const char *out, const char *err)
{
	int r = end(start(arguments, 0));

	ck_assert_msg(r == status, "%s: exit status %d", arguments[0], r);
	ck_assert_msg(said("stdout", out), "%s: no \"%s\"", arguments[0], out);
	ck_assert_msg(said("stderr", err), "%s: no \"%s\"", arguments[0], err);
}

#define RUN(...)                                                                                             \
	(const char *const[])                                                                                \
	{                                                                                                    \
		__VA_ARGS__, NULL                                                                            \
	}

START_TEST(options_are_understood)
{
	_cleanup_free_ char *config = str_path_join(dir, "dtraind.conf"), *none = str_path_join(dir, "none");

	ck_run(RUN("--version"), 0, "dtraind " DTRAIN_VERSION "\n", "");
	ck_run(RUN("--help"), 0, "Usage: dtraind [OPTION]", "");
	ck_run(RUN("--nix"), 2, "", "Usage: dtraind [OPTION]");
	ck_run(RUN("--config"), 2, "", "Usage: dtraind [OPTION]");
	ck_run(RUN("-c", config, "now"), 2, "", "dtraind: now: no argument is expected\n");
	ck_run(RUN("-c", none), 1, "", "dtraind: ");
	ck_run(RUN("--check", "--config", none), 1, "", none);
	ck_run(RUN("--end-runs", "--config", none), 1, "", none);
}
END_TEST

/* Both files, and the key where there is a cluster; nothing is served. */
START_TEST(a_configuration_is_checked)
{
	_cleanup_free_ char *config = str_path_join(dir, "dtraind.conf"),
	                    *key = str_path_join(dir, "cluster.pem");
	const char *const *check = RUN("--check", "-c", config);
	struct error err = ERROR_INIT;

	write_config("");
	write_text("hosts", "n1 slots=2\n", 0644);
	ck_run(check, 0, "node n1 of 1, controller n1\n", "");
	write_text("hosts", "n2 slots=2\nn1 slots=2\n", 0644);
	ck_run(check, 1, "", "make one with dtrain keygen");
	ck_ok(identity_make(key, false, &err), &err);
	ck_run(check, 0, "node n1 of 2, controller n2\n", "");
	ck_assert_int_eq(chmod(key, 0640), 0);
	ck_run(check, 1, "", "can be read by other users");
	ck_assert_int_eq(chmod(key, 0600), 0);
	write_config("store = \"etcd:http://127.0.0.1:1\"; controllers = [\"n1\", \"n2\"];");
	ck_run(check, 0, "node n1 of 2, controller elected\n", "");
	write_config("nix = 1;");
	ck_run(check, 1, "", "nix");
}
END_TEST

/* Until it is told to end. */
START_TEST(it_serves)
{
	_cleanup_free_ char *config = str_path_join(dir, "dtraind.conf"),
	                    *socket = str_path_join(dir, "dtraind.sock");
	struct raw_request version = {.method = "GET", .target = "/v1/version"};
	struct rlimit limit = {64, 512};
	struct raw_answer a;
	pid_t pid;

	write_config("");
	write_text("hosts", "n1 slots=2 addr=127.0.0.1\n", 0644);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0); /* the test's own, and the service's */
	pid = start(RUN("-c", config), 0);
	while (!http_unix_answers(socket)) {
		ck_assert_int_eq(waitpid(pid, NULL, WNOHANG), 0);
		usleep(1000);
	}
	a = raw_ask(raw_connect_unix(socket), &version);
	ck_assert_int_eq(a.status, 200);
	free(a.body);
	/* Callers need many descriptors: it has as many as it may have. */
	ck_assert_int_eq(prlimit(pid, RLIMIT_NOFILE, NULL, &limit), 0);
	ck_assert_uint_eq(limit.rlim_cur, 512);
	ck_assert_uint_eq(limit.rlim_max, 512);
	ck_assert_int_eq(kill(pid, _i ? SIGINT : SIGTERM), 0);
	ck_assert_int_eq(end(pid), 0);
	/* Nothing runs that could be ended. */
	ck_run(RUN("--end-runs", "-c", config), 0, "", "");
}
END_TEST

/* Who may use the socket; where there is no such group, root alone. */
START_TEST(the_socket_is_for_a_group)
{
	static const struct {
		const char *group;
		mode_t mode;
		bool has;
	} cases[] = {{"nogroup", 0660, true}, {"no-such-group", 0600, false}, {"", 0600, false}};
	_cleanup_free_ char *config = str_path_join(dir, "dtraind.conf"),
	                    *socket = str_path_join(dir, "dtraind.sock");
	const struct group *group = getgrnam("nogroup");

	if (geteuid() != 0 || !group) {
		printf("daemon_program: only root can give a socket to a group: not tested\n");
		return;
	}
	write_text("hosts", "n1 slots=2 addr=127.0.0.1\n", 0644);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct stat st;
		pid_t pid;

		write_config_for(cases[i].group, "");
		pid = start(RUN("-c", config), 0);
		while (!http_unix_answers(socket)) {
			ck_assert_int_eq(waitpid(pid, NULL, WNOHANG), 0);
			usleep(1000);
		}
		ck_assert_int_eq(stat(socket, &st), 0);
		ck_assert_uint_eq(st.st_mode & 0777, cases[i].mode);
		ck_assert_uint_eq(st.st_gid, cases[i].has ? group->gr_gid : getegid());
		ck_assert_int_eq(kill(pid, SIGTERM), 0);
		ck_assert_int_eq(end(pid), 0);
	}
}
END_TEST

/* One directory for both, which is locked once. */
START_TEST(two_directories_may_be_one)
{
	_cleanup_free_ char *config = str_path_join(dir, "dtraind.conf"),
	                    *socket = str_path_join(dir, "dtraind.sock"), *text = NULL, *both = NULL;
	char *at;
	pid_t pid;

	write_text("hosts", "n1 slots=2 addr=127.0.0.1\n", 0644);
	write_config("");
	ck_assert_int_eq(file_read(config, 0, &text, NULL, NULL), 0);
	at = strstr(text, "/state\"");
	ck_assert_ptr_nonnull(at);
	both = str_printf("%.*s/run\"%s", (int)(at - text), text, at + strlen("/state\""));
	write_text("dtraind.conf", both, 0644);
	pid = start(RUN("-c", config), 0);
	while (!http_unix_answers(socket)) {
		ck_assert_int_eq(waitpid(pid, NULL, WNOHANG), 0);
		usleep(1000);
	}
	/* Another one is refused before it has touched anything. */
	ck_run(RUN("-c", config), 1, "", "runs with runtime_dir = ");
	ck_assert_int_eq(kill(pid, SIGTERM), 0);
	ck_assert_int_eq(end(pid), 0);
}
END_TEST

/* ---- the service manager ---- */

/* Its socket takes a few messages at a time, and who sends one more waits: a thread takes them. */
struct manager {
	int fd;
	char *path;
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t came;
	struct strbuf messages; /* each with a NUL byte at its end */
	size_t seen;
};

static void *receive(void *context)
{
	struct manager *m = context;
	char text[512];
	ssize_t n;

	while ((n = recv(m->fd, text, sizeof(text), 0)) > 0) {
		pthread_mutex_lock(&m->mutex);
		strbuf_add(&m->messages, text, (size_t)n);
		strbuf_addc(&m->messages, '\0');
		pthread_cond_signal(&m->came);
		pthread_mutex_unlock(&m->mutex);
	}
	return NULL;
}

/* Starts the service with that manager. The thread comes after it: a lock that a beginning thread has while
 * the service is forked would stay taken there. */
static void manager_start(struct manager *m, struct daemon_fixture *f, struct daemon_setup setup)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};

	*m = (struct manager){.path = str_path_join(dir, "notify")};
	strcpy(sun.sun_path, m->path);
	m->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(m->fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	ck_assert_int_eq(pthread_mutex_init(&m->mutex, NULL), 0);
	ck_assert_int_eq(pthread_cond_init(&m->came, NULL), 0);
	setup.notify = m->path;
	daemon_fixture_start(f, &setup);
	ck_assert_int_eq(pthread_create(&m->thread, NULL, receive, m), 0);
}

/* Passes over the messages before it. */
static void await_message(struct manager *m, const char *want)
{
	bool found = false;

	pthread_mutex_lock(&m->mutex);
	while (!found) {
		const char *next = m->messages.data + m->seen;

		if (m->seen == m->messages.len) {
			pthread_cond_wait(&m->came, &m->mutex);
			continue;
		}
		found = strcmp(next, want) == 0;
		m->seen += strlen(next) + 1;
	}
	pthread_mutex_unlock(&m->mutex);
}

static void manager_end(struct manager *m)
{
	shutdown(m->fd, SHUT_RD);
	pthread_join(m->thread, NULL);
	pthread_mutex_destroy(&m->mutex);
	pthread_cond_destroy(&m->came);
	strbuf_free(&m->messages);
	close(m->fd);
	free(m->path);
}

START_TEST(the_state_of_the_controller_is_told)
{
	struct manager m;
	struct daemon_fixture f;

	manager_start(&m, &f, (struct daemon_setup){0});
	await_message(&m, "STATUS=Controller n1: 1 of 1 nodes up; 0 runs queued, 0 under way");
	await_message(&m, "READY=1");
	daemon_submit(&f, NULL, "exec sleep 60", 1, 2);
	await_message(&m, "STATUS=Controller n1: 1 of 1 nodes up; 0 runs queued, 1 under way");
	daemon_submit(&f, NULL, "exec sleep 60", 1, 2);
	await_message(&m, "STATUS=Controller n1: 1 of 1 nodes up; 1 runs queued, 1 under way");
	/* Also where nothing is taken over. */
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(kill(f.pid, SIGHUP), 0);
		await_message(&m, "RELOADING=1");
		await_message(&m, "READY=1");
		daemon_fixture_write(&f, "dtraind.conf", "nix = 1;");
	}
	daemon_fixture_teardown(&f);
	await_message(&m, "STOPPING=1\nSTATUS=Stopping; running attempts go on");
	manager_end(&m);
}
END_TEST

/* With the time that it may take: the grace of the run, and twice that of a kill. */
START_TEST(the_end_of_runs_is_told)
{
	struct raw_request end_runs = {.method = "POST", .target = "/v1/end-runs"};
	struct manager m;
	struct daemon_fixture f;
	struct raw_answer a;

	manager_start(&m, &f, (struct daemon_setup){0});
	daemon_submit(&f, NULL, "exec sleep 60", 1, 2);
	daemon_await(&f, 1, "running");
	a = daemon_ask(&f, NULL, &end_runs);
	ck_assert_msg(a.status == 200 && strstr(a.body, "\"ended\":1"), "%d: %s", a.status, a.body);
	free(a.body);
	await_message(&m, "STATUS=Ending 1 runs\nEXTEND_TIMEOUT_USEC=35000000");
	/* Now it waits for the reports, which are there. */
	daemon_fixture_teardown(&f);
	await_message(&m, "STOPPING=1");
	manager_end(&m);
}
END_TEST

START_TEST(the_state_of_a_node_is_told)
{
	const int port = daemon_fixture_port();
	_cleanup_free_ char *hosts =
	    str_printf("n1 slots=2 addr=127.0.0.1 port=%d\nn2 addr=127.0.0.1 port=1\n", port);
	struct manager m;
	struct daemon_fixture f;

	manager_start(&m, &f, (struct daemon_setup){.hosts = hosts, .controller = "n2", .port = port});
	await_message(&m, "STATUS=Node n1: 2 of 2 slots free; controller n2");
	await_message(&m, "READY=1");
	/* As long as its event loop turns. */
	for (int i = 0; i < 2; i++)
		await_message(&m, "WATCHDOG=1");
	daemon_fixture_teardown(&f);
	manager_end(&m);
}
END_TEST

static ino_t inode_of(const char *path)
{
	struct stat st;

	ck_assert_int_eq(stat(path, &st), 0);
	return st.st_ino;
}

/* dtraind.socket has made it, and keeps it. Where its file is gone, another one takes its place. */
START_TEST(a_socket_is_handed_over)
{
	struct daemon_fixture f;
	struct error err = ERROR_INIT;
	ino_t inode;

	daemon_fixture_start(&f, NULL);
	daemon_fixture_stop(&f);
	ck_ok(http_bind_unix(f.socket, 0600, NULL, &f.listening, &err), &err);
	inode = inode_of(f.socket);
	daemon_fixture_again(&f);
	ck_assert_uint_eq(inode_of(f.socket), inode);
	daemon_submit(&f, NULL, "true", 1, 1);
	daemon_await(&f, 1, "succeeded");
	daemon_fixture_stop(&f);
	ck_assert_int_eq(unlink(f.socket), 0);
	daemon_fixture_again(&f);
	daemon_submit(&f, NULL, "true", 1, 1);
	daemon_await(&f, 2, "succeeded");
	close(f.listening);
	f.listening = 0;
	daemon_fixture_teardown(&f);
}
END_TEST

/* Another kind of socket is not what is asked for. */
START_TEST(a_wrong_socket_is_refused)
{
	_cleanup_free_ char *config = str_path_join(dir, "dtraind.conf");
	struct error err = ERROR_INIT;
	int fd;

	write_config("");
	write_text("hosts", "n1 slots=2 addr=127.0.0.1\n", 0644);
	ck_ok(http_bind_tcp("127.0.0.1", 0, &fd, &err), &err);
	ck_assert_int_eq(end(start(RUN("-c", config), fd)), 1);
	ck_assert(said("stderr", "dtraind.socket: a listening Unix stream socket is needed"));
	close(fd);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("daemon program");
	TCase *c = tcase_create("daemon program");

	tcase_set_timeout(c, 60);
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, options_are_understood);
	tcase_add_test(c, a_configuration_is_checked);
	tcase_add_loop_test(c, it_serves, 0, 2);
	tcase_add_test(c, the_socket_is_for_a_group);
	tcase_add_test(c, two_directories_may_be_one);
	tcase_add_test(c, the_state_of_the_controller_is_told);
	tcase_add_test(c, the_end_of_runs_is_told);
	tcase_add_test(c, the_state_of_a_node_is_told);
	tcase_add_test(c, a_socket_is_handed_over);
	tcase_add_test(c, a_wrong_socket_is_refused);
	return unit_run(s);
}
