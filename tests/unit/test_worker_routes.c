/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a run say and ask: reports, first causes, and the rendezvous. Server and controller are
 * stand-ins; the files and the rendezvous are real. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "cluster/rendezvous.h"
#include "controller/controller.h"
#include "controller/runs.h"
#include "dtraind/routes/access.h"
#include "dtraind/routes/routes.h"
#include "fake_request.h"

/* ---- what the handlers call ---- */

static struct run live = {.id = 7, .attempt = 2, .state = RUN_RUNNING, .nodes = 1, .per_node = 1};
static bool stored; /* the run has ended */
static const char *key;
static struct rendezvous *rendezvous;
static struct strbuf trace;

const struct run *route_find_run(struct controller *c, struct http_request *r, bool own, struct run **owned)
{
	ck_assert(own);
	*owned = stored ? &live : NULL;
	return &live;
}

void run_free(struct run *run)
{
	strbuf_adds(&trace, run ? "free " : "");
}

void reply_not_taken(struct http_request *r, const char *code, const struct error *err)
{
	http_reply_error(r, 400, code, "%s", err->message);
}

const char *http_request_capture(const struct http_request *r, size_t i)
{
	return i == 1 ? key : "7";
}

struct rendezvous *controller_rendezvous(struct controller *c)
{
	return rendezvous;
}

void controller_set_progress(struct controller *c, int64_t id, json_t *last, const char *lines, size_t len)
{
	_cleanup_free_ char *text = json_dumps(last, JSON_COMPACT);

	strbuf_addf(&trace, "progress(%lld %s %.*s) ", (long long)id, text, (int)MIN(len, (size_t)200),
	            lines);
}

void controller_set_checkpoint(struct controller *c, int64_t id, int64_t step)
{
	strbuf_addf(&trace, "checkpoint(%lld %lld) ", (long long)id, (long long)step);
}

void controller_worker_error(struct controller *c, int64_t id, int64_t rank, const char *message,
                             bool lost_peer)
{
	strbuf_addf(&trace, "%s(%lld rank %lld: %s) ", lost_peer ? "lost" : "error", (long long)id,
	            (long long)rank, message);
}

/* ---- the service ---- */

static char *dir;
static struct daemon_config config;
static struct settings settings = {.config = &config};
static struct daemon d = {.settings = &settings};
static struct http_request request;

static void setup(void)
{
	struct error err = ERROR_INIT;

	dir = unit_tmpdir();
	config.state_dir = dir;
	trace = (struct strbuf){0};
	strbuf_adds(&trace, "");
	ck_assert_int_ge(sd_event_new(&d.event), 0);
	ck_ok(rendezvous_create(&rendezvous, &err), &err);
}

static void teardown(void)
{
	fake_request_close(&request);
	rendezvous_destroy(rendezvous);
	sd_event_unref(d.event);
	strbuf_free(&trace);
	file_remove_tree(dir, NULL);
	free(dir);
}

static void ask(void (*route)(void *, struct http_request *), const char *body)
{
	fake_request_ask(&request, &trace, body);
	route(&d, &request);
}

static void check(const char *calls, const char *answer)
{
	fake_request_check(&request, &trace, calls, answer);
}

/* ---- reports ---- */

static void check_file(const char *want)
{
	_cleanup_free_ char *path = metrics_path(&d, 7), *text = NULL;

	ck_assert_msg(str_starts(path, dir) && str_ends(path, "/runs/7/metrics.jsonl"), "%s", path);
	if (!want) {
		ck_assert(!file_exists(path));
		return;
	}
	ck_assert_int_eq(file_read(path, 0, &text, NULL, NULL), 0);
	ck_assert_str_eq(text, want);
}

START_TEST(reports_are_kept)
{
	ask(route_metrics_post, "{\"step\":1}\n");
	check("progress(7 {\"step\":1} {\"step\":1}\n) ", "200 {}");
	check_file("{\"step\":1}\n");
	/* The last one is the progress; the end of a line may be missing, and lines may be empty. */
	ask(route_metrics_post, "\n{\"step\":2}\n\n\n{ \"step\" : 3 }");
	check("progress(7 {\"step\":3} {\"step\":2}\n{ \"step\" : 3 }\n) ", "200 {}");
	check_file("{\"step\":1}\n{\"step\":2}\n{ \"step\" : 3 }\n");
	ask(route_metrics_post, "");
	check("", "200 {}");
	ask(route_metrics_post, "\n\n");
	check("", "200 {}");
	check_file("{\"step\":1}\n{\"step\":2}\n{ \"step\" : 3 }\n");
}
END_TEST

/* One that says nothing but that there is a checkpoint is no progress. */
START_TEST(checkpoints_are_told)
{
	ask(route_metrics_post, "{\"checkpoint\":20}\n");
	check("checkpoint(7 20) ", "200 {}");
	check_file(NULL);
	ask(route_metrics_post,
	    "{\"checkpoint\":40}\n{\"step\":31,\"checkpoint\":30}\n{\"checkpoint\":10}\n");
	check("progress(7 {\"step\":31,\"checkpoint\":30} {\"step\":31,\"checkpoint\":30}\n) "
	      "checkpoint(7 40) ",
	      "200 {}");
	ask(route_metrics_post, "{\"checkpoint\":0}\n");
	check("progress(7 {\"checkpoint\":0} {\"checkpoint\":0}\n) ", "200 {}");
}
END_TEST

START_TEST(what_is_no_report_is_refused)
{
	static char line[METRICS_REPORT_MAX + 2];

	ask(route_metrics_post, "{\"step\":1}\n{\"step\"\n");
	check("", "400 bad-json: metrics");
	ask(route_metrics_post, "{\"step\":1}\n[1]\n");
	check("", "400 bad-json: metrics: a JSON object per line is needed");
	check_file(NULL);
	/* The longest one, and one byte more. */
	memset(line, ' ', sizeof(line));
	line[0] = '{';
	line[METRICS_REPORT_MAX - 1] = '}';
	line[METRICS_REPORT_MAX] = '\0';
	ask(route_metrics_post, line);
	ck_assert_str_eq(request.answer, "200 {}");
	line[METRICS_REPORT_MAX - 1] = ' ';
	line[METRICS_REPORT_MAX] = '}';
	line[METRICS_REPORT_MAX + 1] = '\0';
	ask(route_metrics_post, line);
	check("", "400 bad-json: metrics: a line of 65537 bytes: at most 65536 are possible");
}
END_TEST

/* What is known of the run does not depend on its file. */
START_TEST(a_file_has_an_end)
{
	_cleanup_free_ char *path = metrics_path(&d, 7), *runs = str_path_join(dir, "runs");
	struct error err = ERROR_INIT;
	struct stat st;

	ask(route_metrics_post, "{\"step\":1}");
	for (int more = 0; more < 2; more++) {
		ck_assert_int_eq(truncate(path, ((off_t)256 << 20) + more), 0);
		ask(route_metrics_post, "{\"step\":2}");
		check("progress(7 {\"step\":2} {\"step\":2}\n) ", "200 {}");
		ck_assert_int_eq(stat(path, &st), 0);
		ck_assert_int_eq(st.st_size, ((off_t)256 << 20) + (more ? 1 : 11));
	}
	ck_assert_int_eq(file_remove_tree(runs, NULL), 0);
	ck_ok(file_write_atomic(runs, "", 0, 0644, &err), &err);
	ask(route_metrics_post, "{\"step\":3}");
	check("progress(7 {\"step\":3} {\"step\":3}\n) ", "200 {}");
}
END_TEST

/* ---- who is heard ---- */

static const struct {
	void (*route)(void *, struct http_request *);
	const char *body;
} routes[] = {{route_metrics_post, "{\"step\":1}"},
              {route_worker_event, "{\"rank\":1,\"kind\":\"error\"}"},
              {route_rendezvous_put, "value"},
              {route_rendezvous_get, NULL}};

START_TEST(only_the_attempt_under_way_is_heard)
{
	key = "k";
	for (size_t i = 0; i < ARRAY_SIZE(routes); i++) {
		request.queries[0].name = "attempt";
		request.queries[0].value = "1";
		ask(routes[i].route, routes[i].body);
		check("", "410 stale-attempt: run 7: attempt 1 is not under way");
		request.queries[0].value = "3";
		ask(routes[i].route, routes[i].body);
		check("", "410 stale-attempt: run 7: attempt 3 is not under way");
		request.queries[0].value = "x";
		ask(routes[i].route, routes[i].body);
		check("", "400 bad-query: attempt=x");
		request.queries[0].value = "2";
		live.state = RUN_QUEUED;
		ask(routes[i].route, routes[i].body);
		check("", "410 stale-attempt: run 7: attempt 2 is not under way");
		request.queries[0].name = NULL;
		ask(routes[i].route, routes[i].body);
		check("", "410 stale-attempt: run 7: attempt 2 is not under way");
		live.state = RUN_RUNNING;
		stored = true;
		ask(routes[i].route, routes[i].body);
		check("free ", "409 ended: run 7 has ended");
		stored = false;
		/* One that names no attempt is of the newest. */
		ask(routes[i].route, routes[i].body);
		ck_assert_str_ne(request.answer, "");
		ck_assert(str_starts(request.answer, "200 "));
		request.queries[0].name = "attempt";
		ask(routes[i].route, routes[i].body);
		ck_assert(str_starts(request.answer, "200 "));
	}
}
END_TEST

START_TEST(events_are_passed_on)
{
	ask(route_worker_event, "{\"rank\":3,\"kind\":\"error\",\"message\":\"no space\"}");
	check("error(7 rank 3: no space) ", "200 {}");
	ask(route_worker_event, "{\"rank\":3,\"kind\":\"peer-lost\"}");
	check("lost(7 rank 3: ) ", "200 {}");
	ask(route_worker_event, "{\"rank\":3,\"kind\":\"news\",\"message\":\"x\"}");
	check("", "200 {}");
	ask(route_worker_event, "{\"rank\":-1,\"kind\":\"error\"}");
	check("", "400 bad-json: ");
	ask(route_worker_event, "{");
	check("", "400 bad-json: no JSON");
}
END_TEST

/* ---- the rendezvous ---- */

START_TEST(keys_are_kept)
{
	static char large[RENDEZVOUS_VALUE_MAX + 2];
	int kept = 0;

	key = "k";
	ask(route_rendezvous_get, NULL);
	check("", "404 no-such-key: ");
	ask(route_rendezvous_put, "value");
	check("", "200 {}");
	ask(route_rendezvous_get, NULL);
	check("", "200 application/octet-stream value");
	key = "";
	ask(route_rendezvous_put, "value");
	check("", "400 rendezvous: ");
	/* One node with one slot has 2 MiB and 64 KiB. */
	memset(large, 'x', RENDEZVOUS_VALUE_MAX - 200);
	for (const char *name = "abcd"; *name; name++) {
		const char one[] = {*name, '\0'};

		key = one;
		ask(route_rendezvous_put, large);
		if (!str_starts(request.answer, "200 "))
			break;
		kept++;
	}
	check("", "413 rendezvous: ");
	ck_assert_int_eq(kept, 2);
}
END_TEST

START_TEST(a_wait_has_its_limits)
{
	static const char *const wrong[] = {"x", "-1", "86401", "nan", ""};

	key = "k";
	request.queries[0].name = "wait";
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		request.queries[0].value = wrong[i];
		ask(route_rendezvous_get, NULL);
		check("", "400 bad-query: wait=");
	}
	request.queries[0].value = "0";
	ask(route_rendezvous_get, NULL);
	check("", "404 no-such-key: ");
	request.queries[0].value = "0.01";
	ask(route_rendezvous_get, NULL);
	ck_assert_ptr_null(request.answer);
	while (!request.answer)
		ck_assert_int_ge(sd_event_run(d.event, UINT64_MAX), 0);
	check("", "404 no-such-key: no rank has put this key within the time");
	ck_assert_ptr_null(request.closed);
	request.queries[0].name = NULL;
}
END_TEST

START_TEST(who_waits_is_told)
{
	struct error err = ERROR_INIT;

	key = "k";
	request.queries[0].name = "wait";
	request.queries[0].value = "86400";
	for (int ends = 0; ends < 2; ends++) {
		key = ends ? "other" : "k";
		ask(route_rendezvous_get, NULL);
		ck_assert_ptr_null(request.answer);
		ck_assert_ptr_nonnull(request.closed);
		if (ends)
			rendezvous_drop(rendezvous, 7);
		else
			ck_ok(rendezvous_put(rendezvous, 7, 2, 1 << 20, "k", "value", 5, &err), &err);
		check("", ends ? "410 stale-attempt: the attempt has ended"
		               : "200 application/octet-stream value");
		ck_assert_ptr_null(request.closed);
	}
	/* Who has gone is not answered any more. */
	key = "late";
	ask(route_rendezvous_get, NULL);
	fake_request_close(&request);
	ck_ok(rendezvous_put(rendezvous, 7, 2, 1 << 20, "late", "value", 5, &err), &err);
	ck_assert_int_eq(sd_event_run(d.event, 0), 0);
	ck_assert_ptr_null(request.answer);
	request.queries[0].name = NULL;
}
END_TEST

int main(void)
{
	Suite *s = suite_create("worker_routes");
	TCase *c = tcase_create("worker_routes");

	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, reports_are_kept);
	tcase_add_test(c, checkpoints_are_told);
	tcase_add_test(c, what_is_no_report_is_refused);
	tcase_add_test(c, a_file_has_an_end);
	tcase_add_test(c, only_the_attempt_under_way_is_heard);
	tcase_add_test(c, events_are_passed_on);
	tcase_add_test(c, keys_are_kept);
	tcase_add_test(c, a_wait_has_its_limits);
	tcase_add_test(c, who_waits_is_told);
	return unit_run(s);
}
