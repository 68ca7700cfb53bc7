/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain watch: a run's progress as it comes; a bar on a terminal, plain lines elsewhere. */
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "config/run.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"
#include "dtrain/stream.h"
#include "dtrain/terminal.h"

/* The bar is as wide from the first report to the last; on a narrow terminal it is shorter, or there is
 * none. */
enum { BAR = 20, WIDE = 100, SHORT_BAR = 10, NARROW = 60 };

struct watch {
	struct client *client;
	long long id;
	bool terminal, json;
	double started; /* Unix time of the attempt's start, 0: not yet */
	double last;    /* mean reward, or loss, of the last report that had one */
	const char *last_name;
	bool drawn;   /* the bar is on the current line */
	int64_t step; /* of the last report; -1: none had one */
	struct strbuf partial;
};

static void clear_bar(struct watch *w)
{
	if (w->drawn)
		fputs("\r\033[K", stdout);
	w->drawn = false;
}

/* A message is about to go to stderr, which is the same terminal. */
static void on_message(void *context)
{
	clear_bar(context);
	fflush(stdout);
}

static double elapsed(const struct watch *w, double end)
{
	return w->started > 0 ? MAX((end > 0 ? end : clock_realtime()) - w->started, 0.0) : 0;
}

static size_t characters(const char *text)
{
	size_t n = 0;

	for (; *text; text++)
		n += (*text & 0xc0) != 0x80;
	return n;
}

/* Appends a part of the line where all of it fits: half a number would be read as another one. */
__attribute__((format(printf, 3, 4))) static bool add_part(struct strbuf *line, size_t room,
                                                           const char *format, ...)
{
	_cleanup_free_ char *part = NULL;
	va_list args;
	int r;

	va_start(args, format);
	r = vasprintf(&part, format, args);
	va_end(args);
	if (r < 0) {
		part = NULL; /* what vasprintf leaves there is undefined */
		return false;
	}
	if (characters(line->data ? line->data : "") + characters(part) > room)
		return false;
	strbuf_adds(line, part);
	return true;
}

static void add_times(const struct watch *w, double left, struct strbuf *line, size_t room)
{
	char before[32], after[32];

	str_duration(before, sizeof before, elapsed(w, 0));
	str_duration(after, sizeof after, left);
	if (left > 0 && w->started > 0 && add_part(line, room, "  %s, %s left", before, after))
		return;
	if (left > 0)
		add_part(line, room, "  %s left", after);
	else if (w->started > 0)
		add_part(line, room, "  %s", before);
}

/* Appends "loss 1.2345  12.3k tokens/s  1m05s, 3m10s left" without the parts for which `room`, the width of
 * the whole line in characters, is too small. */
static void describe(const struct watch *w, const struct progress *m, struct strbuf *line, size_t room)
{
	double rate = m->tokens_per_second;
	char text[32];

	if (m->has_reward)
		add_part(line, room, "  reward %s", str_measure(text, sizeof text, m->reward, 4));
	else if (m->has_loss)
		add_part(line, room, "  loss %s", str_measure(text, sizeof text, m->loss, 4));
	if (m->has_eval_reward)
		add_part(line, room, "  eval reward %s", str_measure(text, sizeof text, m->eval_reward, 4));
	if (m->has_eval_loss)
		add_part(line, room, "  eval loss %s", str_measure(text, sizeof text, m->eval_loss, 4));
	if (rate >= 100000)
		add_part(line, room, "  %sk tokens/s", str_measure(text, sizeof text, rate / 1000, 0));
	else if (rate >= 10000)
		add_part(line, room, "  %.1fk tokens/s", rate / 1000);
	else if (rate > 0)
		add_part(line, room, "  %.0f tokens/s", rate);
	add_times(w, m->eta_seconds, line, room);
}

static void draw_bar(struct watch *w, const struct progress *m)
{
	long long step = m->step, steps = m->steps;
	double share = steps > 0 ? MIN((double)step / steps, 1.0) : 0;
	_cleanup_strbuf_ struct strbuf line = {0};
	int width = terminal_width(), bar = width >= WIDE ? BAR : width >= NARROW ? SHORT_BAR : 0;
	size_t room = (size_t)MAX(width - 1, 0); /* a full line would wrap, and could not be taken away */
	char all[32];

	snprintf(all, sizeof all, "%lld", steps);
	strbuf_addf(&line, "run %lld  ", w->id);
	for (int i = 0; i < bar; i++)
		strbuf_adds(&line, i < (int)(share * bar + 0.5) ? "█" : "░");
	strbuf_addf(&line, "  %*lld/%s %3.0f%%", (int)strlen(all), step, all, share * 100);
	describe(w, m, &line, room);
	clear_bar(w);
	if (line.data && characters(line.data) <= room)
		fputs(line.data, stdout);
	w->drawn = true;
}

/* What the last line says of the run: its mean reward, where there is one, or its loss. */
static void take_last(struct watch *w, const struct progress *m)
{
	if (!m->has_reward && !m->has_loss)
		return;
	w->last_name = m->has_reward ? "reward" : "loss";
	w->last = m->has_reward ? m->reward : m->loss;
}

static void print_metrics(struct watch *w, const struct progress *m)
{
	_cleanup_free_ char *plain = m->message && *m->message ? strdup(m->message) : NULL;
	_cleanup_strbuf_ struct strbuf text = {0};

	if (plain) {
		clear_bar(w);
		printf("%s\n", str_make_plain(plain));
	}
	take_last(w, m);
	if (m->has_step) {
		if (w->terminal) {
			draw_bar(w, m);
		} else {
			describe(w, m, &text, SIZE_MAX);
			printf("step %lld/%lld%s\n", (long long)m->step, (long long)m->steps,
			       text.data ? text.data : "");
		}
	}
	fflush(stdout);
}

static int on_data(void *context, const char *data, size_t len, struct error *err)
{
	struct watch *w = context;
	size_t start = 0;

	if (w->json && (fwrite(data, 1, len, stdout) != len || fflush(stdout) != 0))
		return error_errno(err, -EIO, "cannot write the output");
	strbuf_add(&w->partial, data, len);
	for (size_t i = 0; i < w->partial.len; i++)
		if (w->partial.data[i] == '\n') {
			_cleanup_json_ json_t *m = json_loadb(w->partial.data + start, i - start, 0, NULL);
			struct progress progress;

			progress_read(m, &progress);
			if (progress.has_step)
				w->step = progress.step;
			if (m && !w->json)
				print_metrics(w, &progress);
			start = i + 1;
		}
	if (start > 0) {
		memmove(w->partial.data, w->partial.data + start, w->partial.len - start);
		w->partial.len -= start;
	}
	if (ferror(stdout))
		return error_errno(err, -EIO, "cannot write the output");
	return 0;
}

static void print_state(struct watch *w, const struct run_view *run)
{
	const char *state = run_states[run->state], *reason = run->reason ? run->reason : "";
	_cleanup_free_ char *text = NULL;

	if (w->json)
		return;
	clear_bar(w);
	text = str_printf("run %lld (%s): %s%s%s", w->id, run->name ? run->name : "?", state,
	                  *reason ? ", " : "", reason);
	puts(text ? str_make_plain(text) : state);
	fflush(stdout);
}

/* "run 17 (alpaca): succeeded after 3m10s, loss 1.2345, the model is in /home/alice/saves/alpaca". Where it
 * did not succeed, the cause follows on stderr. */
static void print_end(struct watch *w, const struct run_view *run)
{
	enum run_task task;
	bool trains = run_task_by_name(run->task, &task) && run_task_trains(task);
	_cleanup_free_ char *where = run->output ? str_path_join(run->directory, run->output) : NULL;
	_cleanup_strbuf_ struct strbuf text = {0};
	struct progress progress;
	char time[32];

	if (w->json)
		return;
	clear_bar(w);
	w->started = run->started;
	progress_read(run->progress, &progress);
	if (!w->last_name)
		take_last(w, &progress);
	strbuf_addf(&text, "run %lld (%s): %s", w->id, run->name ? run->name : "?", run_states[run->state]);
	if (w->started > 0)
		strbuf_addf(&text, " after %s", str_duration(time, sizeof time, elapsed(w, run->ended)));
	if (w->last_name)
		strbuf_addf(&text, ", %s %s", w->last_name, str_measure(time, sizeof time, w->last, 4));
	if (trains && where)
		strbuf_addf(&text, ", %s in %s",
		            run->state == RUN_SUCCEEDED ? "the model is" : "checkpoints, if any, are", where);
	if (text.data)
		puts(str_make_plain(text.data));
	fflush(stdout);
}

static int get_run(struct watch *w, struct run_view *run)
{
	_cleanup_free_ char *target = str_printf("/v1/runs/%lld", w->id);
	_cleanup_json_ json_t *answer = NULL;
	struct error err = ERROR_INIT;
	int status = client_json(w->client, "GET", target, NULL, &answer);

	if (status == 0 && run_view_decode(answer, run, &err) < 0)
		status = client_fail(EXIT_FAILURE, "%s", err.message);
	return status;
}

static int watch(struct watch *w, struct run_view *run)
{
	const struct stream_request metrics = {
	    .run = w->id, .metrics = true, .step = &w->step, .piece = on_data, .context = w};
	_cleanup_free_ char *last = NULL;
	int status = get_run(w, run);

	while (status == 0 && !run_view_final(run)) {
		char *now = str_printf("%s: %s", run_states[run->state], run->reason ? run->reason : "");

		if (!str_eq(now, last))
			print_state(w, run);
		free(last);
		last = now;
		w->started = run->started;
		if (run->state == RUN_RUNNING) {
			/* To the end of the run; it may start again after a failure, and then go on here. */
			struct error err = ERROR_INIT;

			status = stream_read(w->client, &metrics, NULL, &err);
			if (status != 0)
				client_fail(status, "%s", err.message);
			clear_bar(w);
		}
		if (status == 0) {
			int64_t version = run->version;

			run_view_release(run);
			status = client_wait_run(w->client, w->id, true, version, run, NULL);
		}
	}
	return status;
}

int cmd_watch(struct client *client, int argc, char **argv)
{
	struct watch w = {.client = client, .step = -1, .terminal = isatty(STDOUT_FILENO)};
	int64_t id = 0;
	const struct option_spec options[] = {
	    {0, "json", OPTION_FLAG, &w.json, NULL, "print the reports as they come, one JSON object a line"},
	};
	const struct usage usage = {"watch",
	                            "[RUN]",
	                            "Follows the progress of a run, the newest of yours where none is named, "
	                            "and ends as the run ended",
	                            NULL,
	                            options,
	                            ARRAY_SIZE(options),
	                            0,
	                            1};
	_cleanup_(run_view_release) struct run_view run = {0};
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	status = client_run_argument(client, argv[first], &id);
	if (status == 0)
		status = client_on_interrupt(client, id, false);
	if (status != 0)
		return status;
	w.id = id;
	client->before_message = on_message;
	client->message_context = &w;
	status = watch(&w, &run);
	client->before_message = NULL;
	clear_bar(&w);
	strbuf_free(&w.partial);
	if (status != 0)
		return status;
	print_end(&w, &run);
	return client_run_status(&run, -1);
}
