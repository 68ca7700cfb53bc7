/* SPDX-License-Identifier: Apache-2.0 */
/* Runs training processes in children of the test: worker_fixture.h. */
#include "worker_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/json.h"
#include "base/str.h"
#include "config/run.h"
#include "worker/tasks.h"

static char *dir;
static pid_t service;
static int meetings; /* directories in which the ranks of a run have found each other */

static const char text[] = "the cat sat on the mat\nthe dog ran to the door\na bird sang in the tree\n"
                           "one two three four five\nsix seven eight nine ten\nred green blue and white\n"
                           "the sun is in the sky\nthe moon is out at night\n";

static const char base[] =
    "task = \"pretrain\";\n"
    "data = { path = \"text.txt\"; format = \"text\"; max_length = 32; packing = true; };\n"
    "train = { max_steps = 2; learning_rate = 3e-3; micro_batch = 2; precision = \"fp32\"; };\n"
    "output = { dir = \"out\"; log_steps = 1; }; parallel = { timeout = 60; };\n";

/* ---- the service ---- */

/* A whole request of a connection; false: it is closed. */
static bool take_request(int fd, int log)
{
	static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
	_cleanup_strbuf_ struct strbuf b = {0};
	const char *end, *length;
	char part[4096];
	ssize_t n;

	while ((n = recv(fd, part, sizeof(part), 0)) > 0) {
		strbuf_add(&b, part, (size_t)n);
		end = strstr(b.data, "\r\n\r\n");
		if (!end)
			continue;
		length = strcasestr(b.data, "content-length:");
		if (length && length < end && strlen(end + 4) < strtoul(length + 15, NULL, 10))
			continue;
		dprintf(log, "%.*s\n%s\n", (int)strcspn(b.data, "\r"), b.data, end + 4);
		return send(fd, answer, strlen(answer), MSG_NOSIGNAL) > 0;
	}
	return false;
}

static void serve(int listen_fd, int log)
{
	struct pollfd fds[16] = {{.fd = listen_fd, .events = POLLIN}};
	nfds_t n = 1;

	while (poll(fds, n, -1) > 0) {
		for (nfds_t i = n - 1; i > 0; i--)
			if (fds[i].revents && !take_request(fds[i].fd, log)) {
				close(fds[i].fd);
				fds[i] = fds[--n];
			}
		if (fds[0].revents)
			fds[n++] = (struct pollfd){.fd = accept(listen_fd, NULL, NULL), .events = POLLIN};
	}
}

/* In a process of its own: threads would hold locks while others are forked. */
void worker_serve(void)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), log;
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", dir);
	setenv("DTRAIN_SOCKET", address.sun_path, 1);
	setenv("DTRAIN_RUN_ID", "7", 1);
	log = open("requests", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	ck_assert_int_ge(log, 0);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	ck_assert_int_eq(listen(fd, 8), 0);
	service = fork();
	ck_assert_int_ge(service, 0);
	if (service == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		serve(fd, log);
		_exit(1);
	}
	close(fd);
	close(log);
}

/* ---- files ---- */

void worker_setup(void)
{
	clearenv();
	setenv("OMP_NUM_THREADS", "1", 1);
	setenv("DTRAIN_NODE", "n1", 1);
	dir = unit_tmpdir();
	/* Rates that this user has measured would change what "auto" chooses. */
	setenv("XDG_CACHE_HOME", dir, 1);
	ck_assert_int_eq(chdir(dir), 0);
	worker_file("text.txt", text);
}

void worker_teardown(void)
{
	if (service > 0) {
		kill(service, SIGKILL);
		waitpid(service, NULL, 0);
	}
	ck_assert_int_eq(chdir("/"), 0);
	file_remove_tree(dir, NULL);
	free(dir);
}

void worker_file(const char *name, const char *content)
{
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(name, content, strlen(content), 0644, &err), &err);
}

char *worker_read(const char *name)
{
	struct error err = ERROR_INIT;
	char *content = NULL;

	ck_ok(file_read(name, 0, &content, NULL, &err), &err);
	return content;
}

json_t *worker_json(const char *name)
{
	struct error err = ERROR_INIT;
	json_t *json = NULL;

	ck_ok(json_read_file(name, &json, &err), &err);
	return json;
}

void worker_write_task(const char *name, const char *content, const char *const *overrides)
{
	_cleanup_free_ char *path = str_printf("%s.json", name);
	_cleanup_(run_config_freep) struct run_config *config = NULL;
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_parse(content, "a run", overrides, &config, &err), &err);
	config->directory = strdup(dir);
	ck_ok(run_config_to_json(config, &json, &err), &err);
	ck_assert_int_eq(json_dump_file(json, path, 0), 0);
}

void worker_write_config(const char *name, const char *const *overrides)
{
	worker_write_task(name, base, overrides);
}

/* ---- processes ---- */

static void redirect(int to, const char *name, int rank, const char *suffix)
{
	_cleanup_free_ char *path = str_printf("%s.%d.%s", name, rank, suffix);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	if (fd < 0 || dup2(fd, to) < 0)
		abort();
	close(fd);
}

static void set_number(const char *name, int value)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", value);
	setenv(name, number, 1);
}

/* In the child. */
static int work(const char *name, int rank, int ranks)
{
	_cleanup_free_ char *config = str_printf("%s.json", name);
	_cleanup_free_ char *meeting = str_printf("meeting-%d", meetings);
	_cleanup_free_ char *node = str_printf("n%d", rank + 1);
	int status;

	setenv("DTRAIN_CONFIG", config, 1);
	if (ranks > 1) {
		set_number("RANK", rank);
		set_number("WORLD_SIZE", ranks);
		setenv("DTRAIN_RENDEZVOUS_DIR", meeting, 1);
		setenv("DTRAIN_NODE", node, 1);
	}
	redirect(STDOUT_FILENO, name, rank, "out");
	redirect(STDERR_FILENO, name, rank, "err");
	status = worker_main();
	fflush(stdout);
	return status;
}

pid_t worker_start(const char *name, int rank, int ranks)
{
	pid_t pid;

	if (rank == 0) {
		_cleanup_free_ char *meeting = str_printf("meeting-%d", ++meetings);

		ck_assert_int_eq(mkdir(meeting, 0700), 0);
	}
	fflush(NULL);
	pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		_exit(work(name, rank, ranks));
	return pid;
}

struct worker_call worker_wait(pid_t pid, const char *name, int rank)
{
	_cleanup_free_ char *output = str_printf("%s.%d.out", name, rank),
	                    *errors = str_printf("%s.%d.err", name, rank);
	struct worker_call call;
	int status;

	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	call.output = worker_read(output);
	call.errors = worker_read(errors);
	ck_assert_msg(WIFEXITED(status), "signal %d: %s%s", WTERMSIG(status), call.output, call.errors);
	call.status = WEXITSTATUS(status);
	return call;
}

struct worker_call worker_run(const char *name)
{
	return worker_wait(worker_start(name, 0, 1), name, 0);
}

void worker_run_ranks(const char *name, struct worker_call *calls, int ranks)
{
	pid_t pids[8];

	ck_assert_int_le(ranks, (int)ARRAY_SIZE(pids));
	for (int r = 0; r < ranks; r++)
		pids[r] = worker_start(name, r, ranks);
	for (int r = 0; r < ranks; r++)
		calls[r] = worker_wait(pids[r], name, r);
}

void worker_release(struct worker_call *call)
{
	free(call->output);
	free(call->errors);
}

void worker_await_words(const char *file, const char *words)
{
	_cleanup_free_ char *content = NULL;

	/* The time-out of the test case ends this. */
	while (!content || !strstr(content, words)) {
		free(steal_pointer(content));
		usleep(2000);
		if (file_exists(file))
			content = worker_read(file);
	}
}

char *worker_output(const char *name, int ranks)
{
	struct worker_call calls[8];

	worker_run_ranks(name, calls, ranks);
	for (int r = 0; r < ranks; r++) {
		ck_assert_msg(calls[r].status == 0, "%s, rank %d: status %d: %s%s", name, r, calls[r].status,
		              calls[r].output, calls[r].errors);
		free(calls[r].errors);
		if (r > 0)
			free(calls[r].output);
	}
	return calls[0].output;
}

void worker_fails(const char *name, const char *words)
{
	struct worker_call call = worker_run(name);

	ck_assert_msg(call.status == 1 && str_starts(call.errors, "error: ") && strstr(call.errors, words),
	              "%s: status %d, \"%s\" lacks \"%s\"", name, call.status, call.errors, words);
	worker_release(&call);
}

/* ---- what is expected ---- */

void expect_words(const char *content, const char *words)
{
	ck_assert_msg(strstr(content, words) != NULL, "\"%s\" lacks \"%s\"", content, words);
}

void expect_no_words(const char *content, const char *words)
{
	ck_assert_msg(strstr(content, words) == NULL, "\"%s\" has \"%s\"", content, words);
}

void expect_line(const char *content, const char *line)
{
	const char *at = content;

	while ((at = strstr(at, line)) && at > content && at[-1] != '\n')
		at++;
	ck_assert_msg(at != NULL, "\"%s\" has no line \"%s\"", content, line);
}

static json_t *lines_of(const char *directory, bool events)
{
	_cleanup_free_ char *path = str_path_join(directory, "metrics.jsonl"), *content = worker_read(path);
	json_t *list = json_array();
	char *rest = content, *line;

	while ((line = strsep(&rest, "\n")) && *line) {
		json_t *one = json_loads(line, 0, NULL);

		ck_assert_ptr_nonnull(one);
		if ((json_object_get(one, "event") != NULL) == events)
			json_array_append(list, one);
		json_decref(one);
	}
	return list;
}

json_t *worker_steps(const char *directory)
{
	return lines_of(directory, false);
}

json_t *worker_marks(const char *directory)
{
	return lines_of(directory, true);
}

void worker_expect_mark(const json_t *marks, size_t at, const char *event, int step)
{
	const json_t *mark = json_array_get(marks, at);

	ck_assert_str_eq(json_get_string(mark, "event", ""), event);
	ck_assert_int_eq(json_get_int(mark, "step", -1), step);
	ck_assert_double_gt(json_get_number(mark, "time", 0), 1e9);
}
