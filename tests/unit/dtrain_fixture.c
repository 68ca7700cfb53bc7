/* SPDX-License-Identifier: Apache-2.0 */
/* Calls subcommands of the client with a fake service, and keeps their output: dtrain_fixture.h. */
#include "dtrain_fixture.h"

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"

static char *dir, *path;

void fixture_setup(void)
{
	dir = unit_tmpdir();
	path = str_path_join(dir, "socket");
}

void fixture_teardown(void)
{
	file_remove_tree(dir, NULL);
	free(path);
	free(dir);
}

const char *fixture_dir(void)
{
	return dir;
}

const char *fixture_socket(void)
{
	return path;
}

static int redirect(int to, const char *file)
{
	int saved = dup(to), fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);

	ck_assert(saved >= 0 && fd >= 0);
	dup2(fd, to);
	close(fd);
	return saved;
}

static int split(char *copy, char **argv)
{
	int argc = 0;

	while ((argv[argc] = strsep(&copy, " ")))
		argc++;
	return argc;
}

/* Owned by the caller. */
static char *whole_answer(const char *answer)
{
	return str_starts(answer, "HTTP/") ? strdup(answer) : fixture_answer(answer);
}

/* The output on a terminal whose other end is closed. */
static char *read_terminal(int master)
{
	struct strbuf b = {0};
	char buf[4096];
	ssize_t n;

	while ((n = read(master, buf, sizeof buf)) > 0)
		strbuf_add(&b, buf, (size_t)n);
	close(master);
	return strbuf_steal(&b);
}

struct call fixture_terminal(command_fn command, const char *line, int columns)
{
	struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
	_cleanup_free_ char *copy = strdup(line);
	struct client client = {.socket = path};
	int master, slave, out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO), argc;
	struct call call = {0};
	char *argv[16];

	ck_assert_int_eq(openpty(&master, &slave, NULL, NULL, &size), 0);
	argc = split(copy, argv);
	fflush(stdout);
	dup2(slave, STDOUT_FILENO);
	dup2(slave, STDERR_FILENO);
	call.status = command(&client, argc, argv);
	fflush(stdout);
	dup2(out, STDOUT_FILENO);
	dup2(err, STDERR_FILENO);
	close(out);
	close(err);
	close(slave);
	client_release(&client);
	call.output = read_terminal(master);
	return call;
}

struct call fixture_interrupt(command_fn command, const char *line, const struct exchange *list, size_t count)
{
	struct fake_step steps[16] = {{0}};
	_cleanup_free_ char *copy = strdup(line);
	struct client client = {.socket = path};
	struct fake_service *fake;
	struct call call = {0};
	char *answers[16], *argv[16];
	int master, slave, status, argc = split(copy, argv), begin[2];
	size_t before = count - str_starts(list[count - 1].request, "DELETE ");
	pid_t child;
	char byte;

	for (size_t i = 0; i < count; i++) {
		answers[i] = *list[i].answer ? whole_answer(list[i].answer) : strdup("");
		steps[i] =
		    (struct fake_step){list[i].request, NULL, answers[i], i + 1 == before ? FAKE_HOLD : 0};
	}
	ck_assert_int_eq(openpty(&master, &slave, NULL, NULL, NULL), 0);
	/* The child is forked before the service has its thread, which may hold a lock of the allocator. */
	ck_assert_int_eq(pipe2(begin, O_CLOEXEC), 0);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		close(begin[1]);
		if (read(begin[0], &byte, 1) < 0)
			_exit(EXIT_FAILURE);
		dup2(slave, STDOUT_FILENO);
		dup2(slave, STDERR_FILENO);
		_exit(command(&client, argc, argv));
	}
	fake = fake_service_start(path, steps, count);
	close(begin[0]);
	close(begin[1]);
	while (fake_service_taken(fake) < before)
		nanosleep(&(struct timespec){0, 1000000}, NULL); /* the test case's time-out ends this */
	kill(child, SIGINT);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFEXITED(status));
	call.status = WEXITSTATUS(status);
	close(slave);
	call.output = read_terminal(master);
	fake_service_stop(fake);
	for (size_t i = 0; i < count; i++)
		free(answers[i]);
	return call;
}

/* Writes stdout to the file `output`. */
static struct call call_with_output(command_fn command, const char *line, const char *output)
{
	_cleanup_free_ char *copy = strdup(line), *errors = str_path_join(dir, "errors");
	struct client client = {.socket = path};
	char *argv[16];
	struct call call = {0};
	int argc = split(copy, argv), out, err;

	fflush(stdout);
	fflush(stderr);
	out = redirect(STDOUT_FILENO, output);
	err = redirect(STDERR_FILENO, errors);
	call.status = command(&client, argc, argv);
	fflush(stdout);
	fflush(stderr);
	dup2(out, STDOUT_FILENO);
	dup2(err, STDERR_FILENO);
	close(out);
	close(err);
	client_release(&client);
	ck_assert_int_eq(file_read(errors, 0, &call.errors, NULL, NULL), 0);
	return call;
}

struct call fixture_call(command_fn command, const char *line)
{
	_cleanup_free_ char *output = str_path_join(dir, "output");
	struct call call = call_with_output(command, line, output);

	ck_assert_int_eq(file_read(output, 0, &call.output, NULL, NULL), 0);
	return call;
}

static struct call call_on_full(command_fn command, const char *line)
{
	struct call call = call_with_output(command, line, "/dev/full");

	clearerr(stdout); /* or the next call would fail, too */
	return call;
}

void call_release(struct call *call)
{
	free(call->output);
	free(call->errors);
}

char *fixture_answer(const char *body)
{
	return str_printf("HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
}

char *fixture_refusal(int status, const char *code, const char *message)
{
	_cleanup_free_ char *body =
	    str_printf("{\"error\":{\"code\":\"%s\",\"message\":\"%s\"}}", code, message);

	return str_printf("HTTP/1.1 %d No\r\nContent-Length: %zu\r\n\r\n%s", status, strlen(body), body);
}

/* Serves the answers during a call of one of the functions above. */
static struct call serve_call(struct call (*make_call)(command_fn command, const char *line),
                              command_fn command, const char *line, const struct exchange *list, size_t count)
{
	struct fake_step steps[16] = {{0}};
	char *answers[16];
	struct fake_service *fake;
	struct call call;

	ck_assert_uint_le(count, ARRAY_SIZE(steps));
	for (size_t i = 0; i < count; i++) {
		answers[i] = whole_answer(list[i].answer);
		steps[i] = (struct fake_step){list[i].request, NULL, answers[i], 0};
	}
	fake = fake_service_start(path, steps, count);
	call = make_call(command, line);
	fake_service_stop(fake);
	unlink(path);
	for (size_t i = 0; i < count; i++)
		free(answers[i]);
	return call;
}

struct call fixture_exchange(command_fn command, const char *line, const struct exchange *list, size_t count)
{
	return serve_call(fixture_call, command, line, list, count);
}

struct call fixture_exchange_full(command_fn command, const char *line, const struct exchange *list,
                                  size_t count)
{
	return serve_call(call_on_full, command, line, list, count);
}
