/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain watch: a run's progress as it comes; a bar on a terminal, plain lines elsewhere. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"

enum { BAR_MAX = 30 };

struct watch {
	struct client *client;
	long long id;
	const char *name;
	bool terminal, json;
	bool drawn; /* the bar is on the current line */
	struct strbuf partial;
};

static void clear_bar(struct watch *w)
{
	if (w->drawn)
		fputs("\r\033[K", stdout);
	w->drawn = false;
}

static int terminal_width(void)
{
	struct winsize size;

	return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* "loss 1.2345  12.3k tokens/s  3m10s left" */
static void describe(const json_t *m, struct strbuf *out)
{
	double rate = json_get_number(m, "tokens_per_second", 0), left = json_get_number(m, "eta_seconds", 0);
	char text[32];

	if (json_is_number(json_object_get(m, "loss")))
		strbuf_addf(out, "  loss %.4f", json_get_number(m, "loss", 0));
	if (json_is_number(json_object_get(m, "eval_loss")))
		strbuf_addf(out, "  eval loss %.4f", json_get_number(m, "eval_loss", 0));
	if (rate >= 100000)
		strbuf_addf(out, "  %.0fk tokens/s", rate / 1000);
	else if (rate >= 10000)
		strbuf_addf(out, "  %.1fk tokens/s", rate / 1000);
	else if (rate > 0)
		strbuf_addf(out, "  %.0f tokens/s", rate);
	if (left > 0)
		strbuf_addf(out, "  %s left", str_duration(text, sizeof text, left));
}

static void draw_bar(struct watch *w, const json_t *m)
{
	long long step = json_get_int(m, "step", 0), steps = json_get_int(m, "steps", 0);
	double share = steps > 0 ? MIN((double)step / steps, 1.0) : 0;
	_cleanup_strbuf_ struct strbuf text = {0}, line = {0};
	int room, filled;

	describe(m, &text);
	strbuf_addf(&line, "run %lld  ", w->id);
	room = terminal_width() - 1 - (int)line.len - (int)text.len - 26;
	room = MAX(MIN(room, BAR_MAX), 0);
	filled = (int)(share * room + 0.5);
	for (int i = 0; i < room; i++)
		strbuf_adds(&line, i < filled ? "█" : "░");
	strbuf_addf(&line, "  %lld/%lld  %.0f%%%s", step, steps, share * 100, text.data ? text.data : "");
	clear_bar(w);
	if (line.data)
		fputs(line.data, stdout);
	w->drawn = true;
}

static void print_metrics(struct watch *w, const json_t *m)
{
	const char *message = json_get_string(m, "message", NULL);
	_cleanup_free_ char *plain = message && *message ? strdup(message) : NULL;
	_cleanup_strbuf_ struct strbuf text = {0};

	if (plain) {
		clear_bar(w);
		printf("%s\n", str_make_plain(plain));
	}
	if (json_is_integer(json_object_get(m, "step"))) {
		if (w->terminal) {
			draw_bar(w, m);
		} else {
			describe(m, &text);
			printf("step %lld/%lld%s\n", (long long)json_get_int(m, "step", 0),
			       (long long)json_get_int(m, "steps", 0), text.data ? text.data : "");
		}
	}
	fflush(stdout);
}

static int on_data(void *context, const char *data, size_t len, struct error *err)
{
	struct watch *w = context;
	size_t start = 0;

	if (w->json) {
		if (fwrite(data, 1, len, stdout) != len || fflush(stdout) != 0)
			return error_errno(err, -EIO, "cannot write the output");
		return 0;
	}
	strbuf_add(&w->partial, data, len);
	for (size_t i = 0; i < w->partial.len; i++)
		if (w->partial.data[i] == '\n') {
			_cleanup_json_ json_t *m = json_loadb(w->partial.data + start, i - start, 0, NULL);

			if (m)
				print_metrics(w, m);
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

static void print_state(struct watch *w, const json_t *run)
{
	const char *state = json_get_string(run, "state", ""), *reason = json_get_string(run, "reason", "");
	_cleanup_free_ char *text = NULL;

	if (w->json)
		return;
	clear_bar(w);
	text = str_printf("run %lld (%s): %s%s%s", w->id, json_get_string(run, "name", "?"), state,
	                  *reason ? ", " : "", reason);
	puts(text ? str_make_plain(text) : state);
	fflush(stdout);
}

static int watch(struct watch *w, json_t **run)
{
	_cleanup_free_ char *metrics = str_printf("/v1/runs/%lld/metrics?follow=1", w->id);
	_cleanup_free_ char *target = str_printf("/v1/runs/%lld", w->id);
	_cleanup_free_ char *last = NULL;
	int status = client_json(w->client, "GET", target, NULL, run);

	while (status == 0 && !client_run_ended(*run)) {
		const char *state = json_get_string(*run, "state", "");
		const char *reason = json_get_string(*run, "reason", "");
		char *now = str_printf("%s: %s", state, reason);

		if (!str_eq(now, last))
			print_state(w, *run);
		free(last);
		last = now;
		if (str_eq(state, "running")) {
			/* To the end of the run; it may start again after a failure, and then go on here. */
			status = client_stream(w->client, metrics, on_data, w);
			clear_bar(w);
		}
		if (status == 0) {
			int64_t version = json_get_int(*run, "version", 0);

			json_decref(*run);
			*run = NULL;
			status = client_wait_run(w->client, w->id, true, version, run);
		}
	}
	return status;
}

int cmd_watch(struct client *client, int argc, char **argv)
{
	struct watch w = {.client = client, .terminal = isatty(STDOUT_FILENO)};
	const struct option_spec options[] = {
	    {0, "json", OPTION_FLAG, &w.json, NULL, "print the reports as they come, one JSON object a line"},
	};
	const struct usage usage = {
	    "watch", "RUN",   "Follows the progress of a run, and ends as the run ended",
	    NULL,    options, ARRAY_SIZE(options),
	    1,       1};
	_cleanup_json_ json_t *run = NULL;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		return status;
	w.id = client_run_id(argv[first]);
	if (w.id < 0)
		return STATUS_USAGE;
	status = watch(&w, &run);
	strbuf_free(&w.partial);
	if (status != 0)
		return status;
	if (str_eq(json_get_string(run, "state", ""), "succeeded"))
		print_state(&w, run);
	return client_run_status(run);
}
