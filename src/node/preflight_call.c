/* SPDX-License-Identifier: Apache-2.0 */
/* dtraind's side of a preflight: the process that looks, its answer as an event, and a deadline. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "node/launch/preflight.h"
#include "node/preflight_process.h"

struct preflight_call {
	void (*done)(void *context, const struct run_user *user, const struct error *err);
	void *context;
	sd_event *event;
	sd_event_source *answer, *deadline;
	struct preflight_process process;
	/* Until the fork of the spare has answered: the spare may have been dead. */
	struct preflight_spare *spare; /* NULL: there is an answer, or none was asked */
	char *launcher;
	int request_fd;
	struct strbuf in;
	struct run_user *user; /* as soon as they are known */
	char step[256];        /* what is being looked at */
	double seconds;
};

static void forget_spare(struct preflight_call *c)
{
	c->spare = NULL;
	free(steal_pointer(c->launcher));
	if (c->request_fd >= 0)
		close(c->request_fd);
	c->request_fd = -1;
}

/* Whatever its process would still say is of no interest. */
void preflight_cancel(struct preflight_call *c)
{
	if (!c)
		return;
	sd_event_source_disable_unref(c->answer);
	sd_event_source_disable_unref(c->deadline);
	preflight_process_kill(&c->process);
	forget_spare(c);
	strbuf_free(&c->in);
	run_user_free(c->user);
	free(c);
}

/* Once, and the call is gone. */
static void finish(struct preflight_call *c, const struct error *err)
{
	struct error none = ERROR_INIT;

	if (!err && !c->user) {
		error_set(&none, -EIO, "the preflight ended without an answer");
		err = &none;
	}
	c->answer = sd_event_source_disable_unref(c->answer);
	preflight_process_kill(&c->process); /* it may never end */
	c->done(c->context, err ? NULL : c->user, err);
	preflight_cancel(c);
}

/* True: that was the last line, and the call is gone. */
static bool take_line(struct preflight_call *c, const char *line, size_t len)
{
	_cleanup_(preflight_line_release) struct preflight_line said = {0};
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;

	if (json_parse(line, len, "preflight", &json, &err) < 0 ||
	    preflight_line_decode(json, &said, &err) < 0) {
		finish(c, &err);
		return true;
	}
	if (said.user && !c->user)
		c->user = steal_pointer(said.user);
	if (said.step)
		snprintf(c->step, sizeof c->step, "%s", said.step);
	if (said.error == PREFLIGHT_UNDER_WAY)
		return false;
	if (said.error != 0)
		error_set(&err, (int)said.error, "%s", said.message ? said.message : "");
	finish(c, said.error != 0 ? &err : NULL);
	return true;
}

static int on_answer(sd_event_source *source, int fd, uint32_t events, void *context);

static int watch_answer(struct preflight_call *c, struct error *err)
{
	int r = sd_event_add_io(c->event, &c->answer, c->process.answer_fd, EPOLLIN, on_answer, c);

	return r < 0 ? error_errno(err, r, "cannot watch the preflight") : 0;
}

/* The spare was dead, or killed before it did anything: as if there had been none. */
static void start_again(struct preflight_call *c)
{
	struct error err = ERROR_INIT;
	int r;

	c->answer = sd_event_source_disable_unref(c->answer);
	preflight_process_kill(&c->process);
	r = preflight_process_start(c->event, c->launcher, c->request_fd, &c->process, &err);
	forget_spare(c);
	if (r == 0)
		r = watch_answer(c, &err);
	if (r < 0)
		finish(c, &err);
}

static int on_answer(sd_event_source *source, int fd, uint32_t events, void *context)
{
	struct preflight_call *c = context;
	struct error err = ERROR_INIT;
	char buf[4096], *newline;
	ssize_t n = preflight_process_read(&c->process, buf, sizeof buf);

	if (n == -EINTR || n == -EAGAIN)
		return 0;
	if (n <= 0 && c->spare) {
		start_again(c);
		return 0;
	}
	if (n <= 0) {
		error_set(&err, -EIO, "dtrain-launch ended while it looked at %s", c->step);
		finish(c, &err);
		return 0;
	}
	forget_spare(c);
	strbuf_add(&c->in, buf, n);
	while (c->in.len && (newline = memchr(c->in.data, '\n', c->in.len))) {
		size_t used = newline - c->in.data + 1;

		/* An empty one comes with the pidfd. */
		if (used > 1 && take_line(c, c->in.data, used - 1))
			return 0;
		memmove(c->in.data, c->in.data + used, c->in.len - used);
		c->in.len -= used;
	}
	return 0;
}

static int on_deadline(sd_event_source *source, uint64_t usec, void *context)
{
	struct preflight_call *c = context;
	struct error err = ERROR_INIT;

	if (c->spare)
		preflight_spare_drop(c->spare);
	error_set(&err, -ETIMEDOUT,
	          "%s: no answer within %g s: is a network file system or the directory of users down?",
	          c->step, c->seconds);
	finish(c, &err);
	return 0;
}

/* A file of its own for the request: a pipe holds less than a PATH may be long. */
static int write_request(const struct preflight_request *what, int *out, struct error *err)
{
	_cleanup_json_ json_t *json = preflight_request_encode(what);
	_cleanup_free_ char *text = json ? json_to_string(json) : NULL;
	_cleanup_close_ int fd = memfd_create("preflight", MFD_CLOEXEC);
	int r;

	if (!text)
		return error_oom(err);
	if (fd < 0)
		return error_errno(err, -errno, "cannot make a file in memory");
	if ((r = file_write_all(fd, text, strlen(text), err)) < 0)
		return r;
	*out = steal_fd(&fd);
	return 0;
}

DEFINE_CLEANUP(struct preflight_call *, preflight_cancel)

int preflight_start(sd_event *event, struct preflight_spare *spare, const char *launcher,
                    const struct preflight_request *what, double seconds,
                    void (*done)(void *context, const struct run_user *user, const struct error *err),
                    void *context, struct preflight_call **out, struct error *err)
{
	_cleanup_(preflight_cancelp) struct preflight_call *c = calloc(1, sizeof *c);
	int r;

	if (!c)
		return error_oom(err);
	*c = (struct preflight_call){.done = done,
	                             .context = context,
	                             .event = event,
	                             .process = {-1, -1},
	                             .request_fd = -1,
	                             .seconds = seconds};
	snprintf(c->step, sizeof c->step, "user %s", what->user);
	r = write_request(what, &c->request_fd, err);
	if (r < 0)
		return r;
	if (spare && preflight_spare_take(spare, launcher, c->request_fd, &c->process)) {
		c->spare = spare;
		c->launcher = strdup(launcher);
		if (!c->launcher)
			return error_oom(err);
	} else {
		r = preflight_process_start(event, launcher, c->request_fd, &c->process, err);
		if (r < 0)
			return r;
		forget_spare(c);
	}
	r = watch_answer(c, err);
	if (r < 0)
		return r;
	r = sd_event_add_time_relative(event, &c->deadline, CLOCK_MONOTONIC, (uint64_t)(seconds * 1e6), 0,
	                               on_deadline, c);
	if (r < 0)
		return error_errno(err, r, "cannot watch %s", launcher);
	*out = steal_pointer(c);
	return 0;
}
