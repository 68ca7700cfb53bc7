/* SPDX-License-Identifier: Apache-2.0 */
/* The client of the Unix socket: answers as they come over the wire, whole, in chunks, broken off, and none.
 */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "failing_memory.h"
#include "fake_service.h"
#include "http/local.h"
#include "unit.h"

/* ---- the socket of the client, which is that of the test's thread ---- */

static _Thread_local struct {
	size_t most;       /* bytes that one call sends or receives; 0: any number */
	bool whole;        /* as many are received as there is room for */
	int interruptions; /* of the next calls */
	int error;         /* of the next calls that send; 0: none */
	int read_error;    /* of those that receive */
	struct timeval limit;
} io;

static ssize_t io_fails(int error)
{
	if (io.interruptions > 0) {
		io.interruptions--;
		errno = EINTR;
		return -1;
	}
	errno = error;
	return error ? -1 : 0;
}

ssize_t __real_send(int fd, const void *data, size_t len, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t len, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t len, int flags)
{
	ssize_t r = io_fails(io.error);

	return r < 0 ? r : __real_send(fd, data, io.most ? MIN(len, io.most) : len, flags);
}

ssize_t __real_recv(int fd, void *data, size_t len, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t len, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t len, int flags)
{
	ssize_t r = io_fails(io.read_error);

	return r < 0 ? r
	             : __real_recv(fd, data, io.most ? MIN(len, io.most) : len,
	                           flags | (io.whole ? MSG_WAITALL : 0));
}

int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	if (name == SO_RCVTIMEO)
		memcpy(&io.limit, value, sizeof(io.limit));
	return __real_setsockopt(fd, level, name, value, len);
}

static char *dir, *path;

static void setup(void)
{
	dir = unit_tmpdir();
	path = str_path_join(dir, "socket");
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(path);
	free(dir);
}

#define LONG                                                                                                 \
	"01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567" \
	"89"
#define LENGTH(n) "HTTP/1.1 200 OK\r\nContent-Length: " n "\r\n\r\n"
#define CHUNKED   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

static const struct {
	const char *answer;
	int status; /* 0: none */
	const char *body;
	int code; /* of the call */
	const char *words;
	bool again; /* whether the connection serves another call */
} answers[] = {
    {LENGTH("3") "abc", 200, "abc", 0, NULL, true},
    {LENGTH("0"), 200, "", 0, NULL, true},
    {LENGTH("3") "ab", 0, NULL, -ECONNRESET, "has closed the connection before its answer was complete",
     false},
    {"HTTP/1.0 404 No\ncontent-length:2\n\nno", 404, "no", 0, NULL, true},
    {"HTTP/1.1 500 No\r\nX: y\r\nodd\r\nCONTENT-LENGTH:   2  \r\n\r\nno", 500, "no", 0, NULL, true},
    {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", 200, "ok", 0, NULL, false},
    {"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", 200, "ok", 0, NULL, true},
    /* Without a length the body goes to the end of the connection. */
    {"HTTP/1.1 200 OK\r\nConnection: Close\r\n\r\nall of it", 200, "all of it", 0, NULL, false},
    {"HTTP/1.1 204 No Content\r\n\r\n", 204, "", 0, NULL, true},
    {"HTTP/1.1 304 Not Modified\r\n\r\n", 304, "", 0, NULL, true},
    {CHUNKED "3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n", 200, "abc0123456789", 0, NULL, true},
    {CHUNKED "1\r\nx\r\n0\r\nTrailer: y\r\nAnother: z\r\n\r\n", 200, "x", 0, NULL, true},
    {CHUNKED "0\r\n\r\n", 200, "", 0, NULL, true},
    {CHUNKED "3\r\nab", 0, NULL, -ECONNRESET, "before its answer was complete", false},
    {CHUNKED "3\r\nabc\r\n", 0, NULL, -ECONNRESET, "before its answer was complete", false},
    {CHUNKED "0\r\nTrailer", 0, NULL, -ECONNRESET, "before its answer was complete", false},
    {CHUNKED "x\r\nabc\r\n", 0, NULL, -EPROTO, "this is no answer of dtraind", false},
    {CHUNKED "-1\r\nabc\r\n", 0, NULL, -EPROTO, "this is no answer of dtraind", false},
    {"SSH-2.0-OpenSSH\r\n", 0, NULL, -EPROTO, "this is no answer of dtraind", false},
    {"HTTP/1.1 OK\r\n\r\n", 0, NULL, -EPROTO, "this is no answer of dtraind", false},
    {"HTTP/1.1 200", 0, NULL, -ECONNRESET, "before its answer was complete", false},
    {"HTTP/1.1 200 OK\r\nContent-Len", 0, NULL, -ECONNRESET, "before its answer was complete", false},
    {"", 0, NULL, -ECONNRESET, "before its answer was complete", false},
};

START_TEST(an_answer_is_read)
{
	/* Where the connection is to end with the answer, or has to serve another call. */
	const bool more = answers[_i].again;
	const struct fake_step steps[] = {
	    {"GET /x HTTP/1.1\r\nHost: dtraind\r\n\r\n", NULL, answers[_i].answer, !more},
	    {"PUT /y ", "value", LENGTH("1") "y", 0}};
	struct fake_service *fake = fake_service_start(path, steps, more ? 2 : 1);
	_cleanup_(http_local_closep) struct http_local *l = NULL;
	_cleanup_free_ char *body = NULL, *second = NULL;
	struct error err = ERROR_INIT, next = ERROR_INIT;
	int status = 7, r;
	size_t len = 0;

	ck_ok(http_local_open(path, &l, &err), &err);
	r = http_local_bytes(l, "GET", "/x", NULL, NULL, 0, 0, &status, &body, &len, &err);
	ck_assert_msg(r == answers[_i].code, "%d: %s", r, err.message);
	ck_assert_int_eq(status, answers[_i].status);
	if (r == 0) {
		ck_assert_str_eq(body, answers[_i].body);
		ck_assert_uint_eq(len, strlen(answers[_i].body));
	} else {
		ck_assert_msg(strstr(err.message, answers[_i].words) && strstr(err.message, path), "%s",
		              err.message);
	}
	r = http_local_bytes(l, "PUT", "/y", "text/plain", "value", 5, 0, &status, &second, &len, &next);
	if (more)
		ck_assert_msg(r == 0 && status == 200 && str_eq(second, "y"), "%d: %s", r, next.message);
	else
		ck_assert_msg(r == -EPIPE && status == 0 && strstr(next.message, "is of no more use"),
		              "%d: %s", r, next.message);
	fake_service_stop(fake);
}
END_TEST

/* A body larger than all buffers, whose lines lie on every boundary; and a head that does not end. */
START_TEST(long_answers_are_read)
{
	_cleanup_strbuf_ struct strbuf chunks = {0}, want = {0}, head = {0};
	struct fake_step steps[] = {{"GET /x ", NULL, NULL, 1}, {"GET /x ", NULL, NULL, 1}};
	_cleanup_(http_local_closep) struct http_local *l = NULL, *k = NULL;
	_cleanup_free_ char *body = NULL;
	struct fake_service *fake;
	struct error err = ERROR_INIT;
	size_t len;
	int status;

	strbuf_adds(&chunks, CHUNKED);
	for (int i = 1; i < 600; i++) {
		_cleanup_free_ char *data = malloc((size_t)i);

		memset(data, 'a' + i % 26, (size_t)i);
		strbuf_addf(&chunks, "%x\r\n%.*s\r\n", (unsigned)i, i, data);
		strbuf_add(&want, data, (size_t)i);
	}
	strbuf_adds(&chunks, "0\r\n\r\n");
	strbuf_adds(&head, "HTTP/1.1 200 OK\r\nX: ");
	for (int i = 0; i < 2000; i++)
		strbuf_adds(&head, LONG);
	steps[0].answer = chunks.data;
	steps[1].answer = head.data;
	fake = fake_service_start(path, steps, ARRAY_SIZE(steps));
	ck_ok(http_local_open(path, &l, &err), &err);
	ck_ok(http_local_bytes(l, "GET", "/x", NULL, NULL, 0, 0, &status, &body, &len, &err), &err);
	ck_assert_uint_eq(len, want.len);
	ck_assert_int_eq(memcmp(body, want.data, len), 0);
	ck_ok(http_local_open(path, &k, &err), &err);
	free(steal_pointer(body));
	ck_fails(http_local_bytes(k, "GET", "/x", NULL, NULL, 0, 0, &status, &body, &len, &err), &err,
	         "this is no answer of dtraind");
	http_local_close(steal_pointer(k));
	fake_service_stop(fake);
}
END_TEST

/* A line that begins with the last byte of the buffer. */
START_TEST(a_line_may_begin_at_the_end_of_the_buffer)
{
	enum { BUFFER = 65536, PIECE = BUFFER - 1 - (int)sizeof(CHUNKED "ffff\r\n") + 1 - 2 };
	_cleanup_strbuf_ struct strbuf answer = {0};
	_cleanup_free_ char *piece = malloc(PIECE), *body = NULL;
	struct fake_step step = {"GET /x ", NULL, NULL, 1};
	_cleanup_(http_local_closep) struct http_local *l = NULL;
	struct fake_service *fake;
	struct error err = ERROR_INIT;
	size_t len;
	int status;

	memset(piece, 'p', PIECE);
	strbuf_addf(&answer, CHUNKED "%x\r\n%.*s\r\n", PIECE, PIECE, piece);
	ck_assert_uint_eq(answer.len, BUFFER - 1);
	strbuf_adds(&answer, "5\r\nhello\r\n0\r\n\r\n");
	step.answer = answer.data;
	fake = fake_service_start(path, &step, 1);
	ck_ok(http_local_open(path, &l, &err), &err);
	io.whole = true;
	ck_ok(http_local_bytes(l, "GET", "/x", NULL, NULL, 0, 0, &status, &body, &len, &err), &err);
	io.whole = false;
	ck_assert_uint_eq(len, PIECE + 5);
	ck_assert_int_eq(memcmp(body, piece, PIECE), 0);
	ck_assert_str_eq(body + PIECE, "hello");
	fake_service_stop(fake);
}
END_TEST

/* A line of a head may have 8192 bytes. */
START_TEST(a_line_has_a_length)
{
	enum { LONGEST = 8192 };
	static const char first[] = "HTTP/1.1 204 OK\r\n";

	for (int len = LONGEST; len <= LONGEST + 1; len++) {
		_cleanup_free_ char *line = calloc(1, (size_t)len + 1), *answer = NULL, *body = NULL;
		struct fake_step step = {"GET /x ", NULL, NULL, 1};
		_cleanup_(http_local_closep) struct http_local *l = NULL;
		struct fake_service *fake;
		struct error err = ERROR_INIT;
		size_t body_len;
		int status, r;

		memset(line, 'x', (size_t)len);
		answer = str_printf("%s%s\r\n\r\n", first, line);
		step.answer = answer;
		fake = fake_service_start(path, &step, 1);
		ck_ok(http_local_open(path, &l, &err), &err);
		/* The first line and all of the second without its end come at once. */
		io.whole = true;
		io.most = sizeof(first) - 1 + (size_t)len;
		r = http_local_bytes(l, "GET", "/x", NULL, NULL, 0, 0, &status, &body, &body_len, &err);
		io.whole = false;
		io.most = 0;
		ck_assert_msg(r == (len == LONGEST ? 0 : -EPROTO), "%d: %d: %s", len, r, err.message);
		http_local_close(steal_pointer(l));
		fake_service_stop(fake);
		unlink(path);
	}
}
END_TEST

/* However little of it the socket takes or gives at a time. */
START_TEST(a_call_is_made_in_small_steps)
{
	static const struct fake_step steps[] = {
	    {"PUT /a HTTP/1.1\r\nHost: dtraind\r\nContent-Type: text/plain\r\nContent-Length: "
	     "10\r\n\r\n0123456789",
	     NULL, CHUNKED "4\r\nanda\r\n3\r\nll!\r\n0\r\n\r\n", 0},
	    {"PUT /b HTTP/1.1\r\nHost: dtraind\r\nContent-Length: 0\r\n\r\n", NULL, LENGTH("0"), 0},
	};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));
	_cleanup_(http_local_closep) struct http_local *l = NULL;
	_cleanup_free_ char *body = NULL, *none = NULL;
	struct error err = ERROR_INIT;
	size_t len;
	int status;

	ck_ok(http_local_open(path, &l, &err), &err);
	io.most = 3;
	io.interruptions = 2;
	ck_ok(http_local_bytes(l, "PUT", "/a", "text/plain", "0123456789", 10, 0, &status, &body, &len, &err),
	      &err);
	ck_assert_str_eq(body, "andall!");
	ck_ok(http_local_bytes(l, "PUT", "/b", NULL, NULL, 0, 0, &status, &none, &len, &err), &err);
	io.most = 0;
	ck_assert_int_eq(status, 200);
	ck_assert_uint_eq(len, 0);
	fake_service_stop(fake);
}
END_TEST

/* Each kind of call has the time that it says, whatever the one before it had. */
START_TEST(a_call_sets_its_own_time)
{
	static const struct fake_step steps[] = {{"GET /a ", NULL, LENGTH("0"), 0},
	                                         {"GET /b ", NULL, LENGTH("2") "{}", 0},
	                                         {"GET /a ", NULL, LENGTH("0"), 0},
	                                         {"GET /c ", NULL, LENGTH("0"), 0}};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));
	_cleanup_(http_local_closep) struct http_local *l = NULL;
	struct error err = ERROR_INIT;
	size_t len;
	int status;

	ck_ok(http_local_open(path, &l, &err), &err);
	for (int i = 0; i < 2; i++) {
		_cleanup_free_ char *body = NULL;

		ck_ok(http_local_bytes(l, "GET", "/a", NULL, NULL, 0, 90.25, &status, &body, &len, &err),
		      &err);
		ck_assert_int_eq(io.limit.tv_sec, 90);
		ck_assert_int_eq(io.limit.tv_usec, 250000);
		if (i == 0)
			ck_ok(http_local_json(l, "GET", "/b", NULL, NULL, NULL, NULL, &err), &err);
		else
			ck_ok(http_local_stream(l, "GET", "/c", NULL, NULL, &err), &err);
		ck_assert_int_eq(io.limit.tv_sec, 0);
		ck_assert_int_eq(io.limit.tv_usec, 0);
	}
	fake_service_stop(fake);
}
END_TEST

/* systemd has taken the connection, and the service could not be started. */
START_TEST(a_service_that_cannot_start_is_looked_for_in_the_journal)
{
	static const struct fake_step step = {"GET /y ", NULL, LENGTH("2") "{}", FAKE_HOLD};
	struct fake_service *fake = fake_service_start(path, &step, 1);
	_cleanup_(http_local_closep) struct http_local *l = NULL;
	struct error err = ERROR_INIT;
	int status;

	ck_ok(http_local_open(path, &l, &err), &err);
	io.read_error = ECONNRESET;
	ck_assert_int_eq(http_local_json(l, "GET", "/y", NULL, NULL, &status, NULL, &err), -ECONNRESET);
	io.read_error = 0;
	ck_assert_ptr_nonnull(strstr(err.message, "journalctl -u dtraind"));
	while (fake_service_taken(fake) < 1)
		usleep(1000);
	http_local_close(steal_pointer(l));
	fake_service_stop(fake);
}
END_TEST

/* The group of the socket, and what makes a user a member of it. */
START_TEST(who_may_not_use_the_socket_is_told_the_group)
{
	const struct passwd *nobody = getpwnam("nobody");
	const struct group *group = getgrnam("daemon");
	_cleanup_free_ char *want =
	    str_printf("no permission to use %s: nobody is not in group daemon on this machine: as root, "
	               "adduser nobody daemon; then a new login",
	               path);
	struct fake_service *fake;
	struct http_local *l;
	struct error err = ERROR_INIT;
	bool sees;

	if (geteuid() != 0 || !nobody || !group)
		return;
	fake = fake_service_start(path, NULL, 0);
	ck_assert_int_eq(chmod(dir, 0755) | chown(path, 0, group->gr_gid) | chmod(path, 0660), 0);
	ck_assert_int_eq(setgroups(0, NULL) | setegid(nobody->pw_gid) | seteuid(nobody->pw_uid), 0);
	/* The directories above may be closed to this user. */
	sees = access(path, F_OK) == 0;
	ck_assert_int_eq(http_local_open(path, &l, &err), -EACCES);
	ck_assert_int_eq(seteuid(0), 0);
	if (sees)
		ck_assert_str_eq(err.message, want);
	/* Where no group may use it, none is to be joined. */
	ck_assert_int_eq(chmod(path, 0600) | seteuid(nobody->pw_uid), 0);
	ck_assert_int_eq(http_local_open(path, &l, &err), -EACCES);
	ck_assert_int_eq(seteuid(0), 0);
	if (sees)
		ck_assert_ptr_nonnull(strstr(err.message, "it is for root alone"));
	fake_service_stop(fake);
}
END_TEST

/* An error of the socket ends the call, and every one after it. */
START_TEST(a_connection_that_breaks_is_of_no_more_use)
{
	static const struct fake_step steps[] = {{"GET /x ", NULL, LENGTH("2") "{}", FAKE_HOLD},
	                                         {"GET /y ", NULL, LENGTH("2") "{}", FAKE_HOLD}};
	struct fake_service *fake = fake_service_start(path, steps, 2);
	_cleanup_(http_local_closep) struct http_local *l = NULL, *k = NULL;
	struct error err = ERROR_INIT;
	int status = 7;

	ck_ok(http_local_open(path, &l, &err), &err);
	io.error = EPIPE;
	ck_assert_int_eq(http_local_json(l, "GET", "/x", NULL, NULL, &status, NULL, &err), -EPIPE);
	io.error = 0;
	ck_assert_ptr_nonnull(strstr(err.message, "has closed the connection"));
	ck_assert_int_eq(status, 0);
	status = 7;
	ck_assert_int_eq(http_local_json(l, "GET", "/x", NULL, NULL, &status, NULL, &err), -EPIPE);
	ck_assert_ptr_nonnull(strstr(err.message, "is of no more use"));
	ck_assert_int_eq(status, 0);
	http_local_close(steal_pointer(l));
	ck_ok(http_local_open(path, &k, &err), &err);
	ck_ok(http_local_json(k, "GET", "/x", NULL, NULL, &status, NULL, &err), &err);
	http_local_close(steal_pointer(k));
	ck_ok(http_local_open(path, &k, &err), &err);
	io.read_error = EIO;
	ck_assert_int_eq(http_local_json(k, "GET", "/y", NULL, NULL, &status, NULL, &err), -EIO);
	io.read_error = 0;
	ck_assert_ptr_nonnull(strstr(err.message, "cannot read from dtraind at "));
	ck_assert_int_eq(http_local_json(k, "GET", "/y", NULL, NULL, &status, NULL, &err), -EPIPE);
	while (fake_service_taken(fake) < 2)
		usleep(1000);
	http_local_close(steal_pointer(k));
	fake_service_stop(fake);
}
END_TEST

START_TEST(json_comes_and_goes)
{
	static const struct fake_step steps[] = {
	    {"POST /a HTTP/1.1\r\nHost: dtraind\r\nDtrain-Key: k\r\nContent-Type: application/json\r\n"
	     "Content-Length: 7\r\n\r\n{\"a\":1}",
	     NULL, "HTTP/1.1 201 Created\r\nContent-Length: 7\r\n\r\n{\"b\":2}", 0},
	    {"POST /b HTTP/1.1\r\nHost: dtraind\r\nContent-Length: 0\r\n\r\n", NULL, LENGTH("2") "{}", 0},
	    {"DELETE /c HTTP/1.1\r\nHost: dtraind\r\n\r\n", NULL,
	     "HTTP/1.1 409 No\r\nContent-Length: 51\r\n\r\n{\"error\":{\"code\":\"ended\",\"message\":\"it "
	     "has ended\"}}"
	     "",
	     0},
	    {"GET /d ", NULL, "HTTP/1.1 300 No\r\nContent-Length: 2\r\n\r\n{}", 0},
	    {"GET /e ", NULL, "HTTP/1.1 199 No\r\nContent-Length: 2\r\n\r\nno", 0},
	    {"GET /f ", NULL, LENGTH("2") "no", 0},
	    {"GET /g ", NULL, "HTTP/1.1 299 OK\r\nContent-Length: 2\r\n\r\n{}", 0},
	    {"GET /h ", NULL,
	     "HTTP/1.1 409 No\r\nContent-Length: 51\r\n\r\n{\"error\":{\"code\":\"ended\",\"message\":\"it "
	     "has ended\"}}"
	     "",
	     0},
	    {"GET /g ", NULL, LENGTH("2") "{}", 0},
	};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));
	_cleanup_(http_local_closep) struct http_local *l = NULL;
	_cleanup_json_ json_t *body = json_pack("{s:i}", "a", 1), *answer = NULL, *none = NULL;
	struct error err = ERROR_INIT;
	int status;

	ck_ok(http_local_open(path, &l, &err), &err);
	ck_ok(http_local_json(l, "POST", "/a", "Dtrain-Key: k", body, &status, &answer, &err), &err);
	ck_assert_int_eq(status, 201);
	ck_assert_int_eq(json_get_int(answer, "b", 0), 2);
	ck_ok(http_local_json(l, "POST", "/b", NULL, NULL, NULL, NULL, &err), &err);
	ck_assert_str_eq(http_local_error_code(l), "");
	ck_assert_int_eq(http_local_json(l, "DELETE", "/c", NULL, NULL, &status, &none, &err), -EREMOTEIO);
	ck_assert_int_eq(status, 409);
	ck_assert_str_eq(err.message, "it has ended");
	ck_assert_str_eq(http_local_error_code(l), "ended");
	ck_assert_int_eq(http_local_json(l, "GET", "/d", NULL, NULL, &status, &none, &err), -EREMOTEIO);
	ck_assert_str_eq(err.message, "dtraind has answered with an error");
	ck_assert_str_eq(http_local_error_code(l), "");
	ck_assert_int_eq(http_local_json(l, "GET", "/e", NULL, NULL, &status, &none, &err), -EREMOTEIO);
	ck_fails(http_local_json(l, "GET", "/f", NULL, NULL, &status, &none, &err), &err, "dtraind's answer");
	ck_assert_int_eq(status, 200);
	ck_ok(http_local_json(l, "GET", "/g", NULL, NULL, &status, NULL, &err), &err);
	ck_assert_ptr_null(none);
	/* The code of an error is that of the last call. */
	ck_assert_int_eq(http_local_json(l, "GET", "/h", NULL, NULL, NULL, NULL, &err), -EREMOTEIO);
	ck_assert_str_eq(http_local_error_code(l), "ended");
	ck_ok(http_local_json(l, "GET", "/g", NULL, NULL, NULL, NULL, &err), &err);
	ck_assert_str_eq(http_local_error_code(l), "");
	fake_service_stop(fake);
}
END_TEST

static int take_piece(void *context, const char *data, size_t len, struct error *err)
{
	struct strbuf *b = context;

	strbuf_add(b, data, len);
	return memchr(data, '!', len) ? error_set(err, -EINTR, "enough") : 0;
}

START_TEST(a_body_comes_piece_by_piece)
{
	static const struct fake_step steps[] = {
	    {"GET /a ", NULL,
	     "HTTP/1.1 200 OK\r\nContent-type: text/x; a=b\r\nTransfer-Encoding: chunked\r\n\r\n"
	     "2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n",
	     0},
	    {"GET /b ", NULL,
	     "HTTP/1.1 404 No\r\nContent-Length: "
	     "45\r\n\r\n{\"error\":{\"code\":\"no-such\",\"message\":\"none\"}}"
	     "",
	     0},
	    {"GET /c ", NULL, CHUNKED "2\r\na!\r\n2\r\ncd\r\n0\r\n\r\n", 1},
	};
	struct fake_service *fake = fake_service_start(path, steps, ARRAY_SIZE(steps));
	_cleanup_(http_local_closep) struct http_local *l = NULL;
	_cleanup_strbuf_ struct strbuf got = {0};
	struct error err = ERROR_INIT;

	ck_ok(http_local_open(path, &l, &err), &err);
	ck_ok(http_local_stream(l, "GET", "/a", take_piece, &got, &err), &err);
	ck_assert_str_eq(got.data, "abcd");
	ck_assert_str_eq(http_local_type(l), "text/x; a=b");
	ck_assert_int_eq(http_local_stream(l, "GET", "/b", take_piece, &got, &err), -EREMOTEIO);
	ck_assert_str_eq(http_local_type(l), "");
	ck_assert_str_eq(err.message, "none");
	ck_assert_str_eq(http_local_error_code(l), "no-such");
	ck_assert_str_eq(got.data, "abcd");
	ck_assert_int_eq(http_local_stream(l, "GET", "/c", take_piece, &got, &err), -EINTR);
	ck_assert_str_eq(got.data, "abcda!");
	ck_assert_int_eq(http_local_stream(l, "GET", "/d", take_piece, &got, &err), -EPIPE);
	fake_service_stop(fake);
}
END_TEST

START_TEST(a_service_that_is_not_there)
{
	static const struct fake_step silent = {"GET /x ", NULL, "", FAKE_HOLD};
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	struct fake_service *fake;
	struct http_local *l = NULL;
	struct error err = ERROR_INIT;
	_cleanup_free_ char *body = NULL;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), status;
	size_t len;

	ck_assert_int_eq(http_local_open(path, &l, &err), -ENOENT);
	ck_assert_ptr_nonnull(strstr(err.message, "systemctl start dtraind; another machine"));
	ck_assert_int_eq(http_local_open("/" LONG LONG, &l, &err), -ENAMETOOLONG);
	ck_assert_ptr_nonnull(strstr(err.message, "at most 107 characters"));
	/* Nobody listens any more. */
	strcpy(sun.sun_path, path);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	close(fd);
	ck_assert_int_eq(http_local_open(path, &l, &err), -ECONNREFUSED);
	ck_assert_msg(str_ends(err.message, ": systemctl start dtraind"), "%s", err.message);
	unlink(path);
	ck_ok(file_write_atomic(path, "", 0, 0600, &err), &err);
	ck_assert_int_lt(http_local_open(path, &l, &err), 0);
	unlink(path);
	ck_assert_ptr_null(l);
	/* It takes the request, and says nothing. */
	fake = fake_service_start(path, &silent, 1);
	ck_ok(http_local_open(path, &l, &err), &err);
	ck_assert_int_eq(http_local_bytes(l, "GET", "/x", NULL, NULL, 0, 0.05, &status, &body, &len, &err),
	                 -ETIMEDOUT);
	ck_assert_ptr_nonnull(strstr(err.message, "does not answer in time"));
	http_local_close(l);
	fake_service_stop(fake);
}
END_TEST

static int open_and_close(void *context, struct error *err)
{
	struct http_local *l = NULL;
	int r = http_local_open(path, &l, err);

	ck_assert((r == 0) == (l != NULL));
	http_local_close(l);
	return r;
}

START_TEST(memory_may_run_out)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strcpy(sun.sun_path, path);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	ck_assert_int_eq(listen(fd, 8), 0);
	memory_runs_out(open_and_close, NULL);
	close(fd);
}
END_TEST

START_TEST(what_may_not_stand_in_a_path_is_escaped)
{
	static const char *const cases[][2] = {{"aZ09-._~", "aZ09-._~"},
	                                       {"a b/c?d", "a%20b%2Fc%3Fd"},
	                                       {"fe80::1", "fe80%3A%3A1"},
	                                       {"\xc3\xa9%", "%C3%A9%25"},
	                                       {"", NULL}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *s = http_escape(cases[i][0]);

		ck_assert_str_eq(s ? s : "", cases[i][1] ? cases[i][1] : "");
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("http local");
	TCase *c = tcase_create("http local");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_set_timeout(c, 20);
	tcase_add_loop_test(c, an_answer_is_read, 0, ARRAY_SIZE(answers));
	tcase_add_test(c, long_answers_are_read);
	tcase_add_test(c, a_line_may_begin_at_the_end_of_the_buffer);
	tcase_add_test(c, a_line_has_a_length);
	tcase_add_test(c, a_call_is_made_in_small_steps);
	tcase_add_test(c, a_call_sets_its_own_time);
	tcase_add_test(c, a_connection_that_breaks_is_of_no_more_use);
	tcase_add_test(c, a_service_that_cannot_start_is_looked_for_in_the_journal);
	tcase_add_test(c, who_may_not_use_the_socket_is_told_the_group);
	tcase_add_test(c, json_comes_and_goes);
	tcase_add_test(c, a_body_comes_piece_by_piece);
	tcase_add_test(c, a_service_that_is_not_there);
	tcase_add_test(c, memory_may_run_out);
	tcase_add_test(c, what_may_not_stand_in_a_path_is_escaped);
	suite_add_tcase(s, c);
	return unit_run(s);
}
