/* SPDX-License-Identifier: Apache-2.0 */
/* The service's side of a preflight: its request, its lines, its deadline, and a spare process that turns out
 * to be dead. The processes are stand-ins. */
#include "unit.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <systemd/sd-event.h>

#include "base/json.h"
#include "base/str.h"
#include "node/launch/preflight.h"
#include "node/preflight_process.h"
#include "open_fds.h"

/* ---- the processes ---- */

static struct {
	int starts, kills, drops, takes; /* calls */
	bool ready;                      /* a spare can be taken */
	int start_code;                  /* negative: no process can be started */
	int read_code;                   /* negative: of the next read */
	int end;                         /* of the newest process: it writes there; -1: it has closed that */
	char launcher[64], request[512];
} fake;

static sd_event *event;

static void read_request(int fd)
{
	ssize_t n = pread(fd, fake.request, sizeof(fake.request) - 1, 0);

	ck_assert_int_gt(n, 0);
	fake.request[n] = '\0';
}

static void connect_process(struct preflight_process *out)
{
	int fds[2];

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
	if (fake.end >= 0)
		close(fake.end);
	fake.end = fds[1];
	*out = (struct preflight_process){fds[0], -1};
}

int preflight_process_start(sd_event *e, const char *launcher, int request_fd, struct preflight_process *out,
                            struct error *err)
{
	ck_assert_ptr_eq(e, event);
	fake.starts++;
	snprintf(fake.launcher, sizeof(fake.launcher), "%s", launcher);
	read_request(request_fd);
	if (fake.start_code < 0)
		return error_set(err, fake.start_code, "no process");
	connect_process(out);
	return 0;
}

ssize_t preflight_process_read(struct preflight_process *process, char *buf, size_t size)
{
	int code = fake.read_code;
	ssize_t n;

	fake.read_code = 0;
	if (code < 0)
		return code;
	n = read(process->answer_fd, buf, size);
	return n < 0 ? -errno : n;
}

void preflight_process_kill(struct preflight_process *process)
{
	fake.kills += process->answer_fd >= 0;
	if (process->answer_fd >= 0)
		close(process->answer_fd);
	*process = (struct preflight_process){-1, -1};
}

void preflight_spare_drop(struct preflight_spare *spare)
{
	fake.drops++;
}

bool preflight_spare_take(struct preflight_spare *spare, const char *launcher, int request_fd,
                          struct preflight_process *out)
{
	fake.takes++;
	if (!fake.ready)
		return false;
	read_request(request_fd);
	connect_process(out);
	return true;
}

static int files_fail; /* memfd_create */

int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags)
{
	if (!files_fail)
		return __real_memfd_create(name, flags);
	errno = EMFILE;
	return -1;
}

/* ---- calls ---- */

static struct preflight_call *call;
static size_t open_before;
static int ends, code;
static char message[768], user[64];

static void on_done(void *context, const struct run_user *found, const struct error *err)
{
	ck_assert_ptr_eq(context, &ends);
	ends++;
	ck_assert_int_eq(found == NULL, err != NULL);
	code = err ? err->code : 0;
	snprintf(message, sizeof(message), "%s", err ? err->message : "");
	snprintf(user, sizeof(user), "%s", found ? found->name : "");
}

static void setup(void)
{
	memset(&fake, 0, sizeof(fake));
	fake.end = -1;
	files_fail = ends = 0;
	ck_assert_int_ge(sd_event_new(&event), 0);
	/* The event loop opens a descriptor with its first timer. */
	ck_assert_int_ge(sd_event_add_time(event, NULL, CLOCK_MONOTONIC, UINT64_MAX - 1, 0, NULL, NULL), 0);
	ck_assert_int_eq(sd_event_run(event, 0), 0);
	open_before = open_fds_count();
}

static void teardown(void)
{
	if (fake.end >= 0)
		close(fake.end);
	ck_assert_uint_eq(open_fds_count(), open_before);
	sd_event_unref(event);
}

static struct preflight_spare *const spare = (struct preflight_spare *)&fake;

static int try_begin(struct preflight_spare *own, double seconds, struct error *err)
{
	const struct preflight_request what = {
	    .user = (char *)"ann", .uid = 1000, .program = (char *)"true", .log_dir = (char *)"/log"};

	return preflight_start(event, own, "/w/dtrain-launch", &what, seconds, on_done, &ends, &call, err);
}

static void begin(struct preflight_spare *own)
{
	struct error err = ERROR_INIT;

	ck_ok(try_begin(own, 3600, &err), &err);
	ck_assert_int_eq(ends, 0);
}

/* The process writes that, and the event loop takes it. */
static void say(const char *text)
{
	ck_assert_int_eq(write(fake.end, text, strlen(text)), strlen(text));
	while (sd_event_run(event, 0) > 0)
		;
}

static void hang_up(void)
{
	int fd = fake.end;

	fake.end = -1;
	close(fd);
	ck_assert_int_gt(sd_event_run(event, UINT64_MAX), 0);
}

static void check_end(int want, const char *words)
{
	ck_assert_int_eq(ends, 1);
	ck_assert_msg(code == want && str_eq(message, words), "%d: %s", code, message);
}

#define USER                                                                                                 \
	"{\"user\":{\"name\":\"ann\",\"home\":\"/h\",\"shell\":\"/bin/"                                      \
	"sh\",\"uid\":1000,\"gid\":7,\"groups\":[7]}}\n"

#define STEP(TEXT) "{\"step\":\"" TEXT "\"}\n"
#define GOOD       "{\"error\":0}\n"

START_TEST(a_request_is_answered)
{
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;

	begin(NULL);
	ck_assert_int_eq(fake.starts, 1);
	ck_assert_str_eq(fake.launcher, "/w/dtrain-launch");
	ck_ok(json_parse(fake.request, strlen(fake.request), "request", &json, &err), &err);
	ck_assert_str_eq(json_get_string(json, "user", ""), "ann");
	ck_assert_str_eq(json_get_string(json, "program", ""), "true");
	ck_assert_str_eq(json_get_string(json, "log_dir", ""), "/log");
	say(STEP("user ann"));
	say(USER);
	/* The first user counts, and the last line is the last one. */
	say("{\"user\":{\"name\":\"bob\",\"home\":\"/\",\"shell\":\"/\",\"uid\":1,\"gid\":1,"
	    "\"groups\":[]}}\n");
	ck_assert_int_eq(ends, 0);
	say(GOOD "{\"error\":-5,\"message\":\"more\"}\n");
	check_end(0, "");
	ck_assert_str_eq(user, "ann");
	ck_assert_int_eq(fake.kills, 1);
	ck_assert_int_eq(fake.drops + fake.takes, 0);
}
END_TEST

/* A line may come in pieces, and several at once; an empty one says nothing. */
START_TEST(lines_come_as_they_like)
{
	static const char text[] = "\n" STEP("directory /") USER "\n" GOOD;

	begin(NULL);
	for (size_t i = 0; i < strlen(text); i++) {
		const char byte[] = {text[i], '\0'};

		ck_assert_int_eq(ends, 0);
		say(byte);
	}
	check_end(0, "");
	ck_assert_str_eq(user, "ann");
	ends = 0;
	begin(NULL);
	say("\n\n" STEP("directory /") USER GOOD);
	check_end(0, "");
	ck_assert_str_eq(user, "ann");
}
END_TEST

START_TEST(what_is_wrong_is_told)
{
	static const struct {
		const char *text;
		int code;
		const char *words;
	} cases[] = {
	    {USER "{\"error\":-2,\"message\":\"no program x\"}\n", -ENOENT, "no program x"},
	    {"{\"error\":-1}\n", -EPERM, ""},
	    {GOOD, -EIO, "the preflight ended without an answer"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		ends = 0;
		begin(NULL);
		say(cases[i].text);
		check_end(cases[i].code, cases[i].words);
	}
	for (int i = 0; i < 2; i++) {
		ends = 0;
		begin(NULL);
		say(i ? "{\"error\":\"x\"}\n" : "segmentation fault\n");
		ck_assert_int_eq(ends, 1);
		ck_assert_int_eq(code, -EINVAL);
		ck_assert_msg(str_starts(message, "preflight"), "%s", message);
	}
	ck_assert_int_eq(fake.kills, 5);
}
END_TEST

/* A process that ends, or does not answer, has not come further than its last step. */
START_TEST(the_step_is_named)
{
	static char line[1000];
	struct error err = ERROR_INIT;

	begin(NULL);
	hang_up();
	check_end(-EIO, "dtrain-launch ended while it looked at user ann");
	ends = 0;
	begin(NULL);
	say(STEP("directory /home/ann") USER);
	hang_up();
	check_end(-EIO, "dtrain-launch ended while it looked at directory /home/ann");
	ends = 0;
	ck_ok(try_begin(NULL, 0.01, &err), &err);
	while (!ends)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	check_end(-ETIMEDOUT, "user ann: no answer within 0.01 s: is a network file system or the directory "
	                      "of users down?");
	ck_assert_int_eq(fake.drops, 0);
	/* One that is too long is cut. */
	ends = 0;
	begin(NULL);
	memset(line, 'x', sizeof(line) - 1);
	memcpy(line, "{\"step\":\"", 9);
	memcpy(line + 900, "\"}\n", 4);
	say(line);
	hang_up();
	ck_assert_int_eq(code, -EIO);
	ck_assert_uint_eq(strlen(message), strlen("dtrain-launch ended while it looked at ") + 255);
}
END_TEST

START_TEST(an_interrupted_read_is_repeated)
{
	static const int codes[] = {-EINTR, -EAGAIN};

	for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
		for (int spared = 0; spared < 2; spared++) {
			ends = 0;
			fake.ready = spared;
			begin(spared ? spare : NULL);
			fake.read_code = codes[i];
			say(USER GOOD);
			check_end(0, "");
		}
	ck_assert_int_eq(fake.starts, 2);
	/* Any other failure is the end. */
	ends = 0;
	begin(NULL);
	fake.read_code = -EPROTO;
	say(USER);
	check_end(-EIO, "dtrain-launch ended while it looked at user ann");
}
END_TEST

/* ---- the spare ---- */

START_TEST(a_spare_that_is_ready_is_taken)
{
	fake.ready = true;
	begin(spare);
	ck_assert_int_eq(fake.takes, 1);
	ck_assert_int_eq(fake.starts, 0);
	ck_assert_ptr_nonnull(strstr(fake.request, "\"ann\""));
	say("\n" USER GOOD);
	check_end(0, "");
	ends = 0;
	fake.ready = false;
	begin(spare);
	ck_assert_int_eq(fake.takes, 2);
	ck_assert_int_eq(fake.starts, 1);
	say(USER GOOD);
	check_end(0, "");
	ck_assert_int_eq(fake.drops, 0);
}
END_TEST

/* It may have been dead already: then a process is started for the same request, once. */
START_TEST(a_spare_that_is_dead_is_replaced)
{
	fake.ready = true;
	begin(spare);
	fake.request[0] = '\0';
	hang_up();
	ck_assert_int_eq(ends, 0);
	ck_assert_int_eq(fake.starts, 1);
	ck_assert_int_eq(fake.kills, 1);
	ck_assert_str_eq(fake.launcher, "/w/dtrain-launch");
	ck_assert_ptr_nonnull(strstr(fake.request, "\"ann\""));
	say(USER GOOD);
	check_end(0, "");
	/* Not twice, */
	ends = 0;
	begin(spare);
	hang_up();
	hang_up();
	check_end(-EIO, "dtrain-launch ended while it looked at user ann");
	ck_assert_int_eq(fake.starts, 2);
	/* nor once it has answered, */
	ends = 0;
	begin(spare);
	say("\n");
	hang_up();
	check_end(-EIO, "dtrain-launch ended while it looked at user ann");
	ck_assert_int_eq(fake.starts, 2);
	/* and there may be no other. */
	ends = 0;
	fake.start_code = -EAGAIN;
	begin(spare);
	hang_up();
	check_end(-EAGAIN, "no process");
}
END_TEST

/* One that says nothing at all is not given to the next request; one that looks at a slow disk is. */
START_TEST(a_spare_that_does_not_answer_is_dropped)
{
	struct error err = ERROR_INIT;

	fake.ready = true;
	for (int answers = 0; answers < 2; answers++) {
		ends = 0;
		fake.drops = 0;
		ck_ok(try_begin(spare, 0.05, &err), &err);
		if (answers)
			ck_assert_int_eq(write(fake.end, "\n", 1), 1);
		while (!ends)
			ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
		ck_assert_int_eq(code, -ETIMEDOUT);
		ck_assert_int_eq(fake.drops, !answers);
	}
}
END_TEST

/* ---- failures ---- */

START_TEST(what_cannot_be_started_is_refused)
{
	struct error err = ERROR_INIT;

	fake.start_code = -EAGAIN;
	ck_assert_int_eq(try_begin(NULL, 1, &err), -EAGAIN);
	ck_assert_str_eq(err.message, "no process");
	files_fail = 1;
	ck_assert_int_eq(try_begin(NULL, 1, &err), -EMFILE);
	ck_assert_ptr_nonnull(strstr(err.message, "cannot make a file in memory"));
	ck_assert_int_eq(fake.starts, 1);
	ck_assert_int_eq(fake.kills, 0);
	ck_assert_int_eq(ends, 0);
}
END_TEST

START_TEST(a_call_that_is_cancelled_says_nothing)
{
	for (int spared = 0; spared < 2; spared++) {
		fake.ready = spared;
		fake.kills = 0;
		begin(spared ? spare : NULL);
		preflight_cancel(call);
		ck_assert_int_eq(fake.kills, 1);
		while (sd_event_run(event, 0) > 0)
			;
		ck_assert_int_eq(ends, 0);
	}
	preflight_cancel(NULL);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("preflight_call");
	TCase *tc = tcase_create("preflight_call");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_request_is_answered);
	tcase_add_test(tc, lines_come_as_they_like);
	tcase_add_test(tc, what_is_wrong_is_told);
	tcase_add_test(tc, the_step_is_named);
	tcase_add_test(tc, an_interrupted_read_is_repeated);
	tcase_add_test(tc, a_spare_that_is_ready_is_taken);
	tcase_add_test(tc, a_spare_that_is_dead_is_replaced);
	tcase_add_test(tc, a_spare_that_does_not_answer_is_dropped);
	tcase_add_test(tc, what_cannot_be_started_is_refused);
	tcase_add_test(tc, a_call_that_is_cancelled_says_nothing);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
