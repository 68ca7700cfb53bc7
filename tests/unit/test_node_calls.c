/* SPDX-License-Identifier: Apache-2.0 */
/* What a node answers and does, with stand-ins for its attempts and for preflights. */
#include "unit.h"

#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-event.h>

#include "base/json.h"
#include "base/str.h"
#include "config/daemon.h"
#include "node/attempt.h"
#include "node/launch/preflight.h"
#include "node/launch/run_user.h"
#include "node/lease.h"
#include "node/node.h"
#include "node/preflight_process.h"

static struct strbuf trace; /* a word for each thing that happened */

static void check_trace(const char *want)
{
	ck_assert_str_eq(trace.data, want);
	strbuf_reset(&trace);
	strbuf_adds(&trace, "");
}

/* ---- attempts ---- */

struct attempt {
	struct attempt_owner owner;
	struct request *request;
	struct report report;
	char *dir;
	bool ended, settled;
};

enum { ATTEMPTS_MAX = 600 };
static struct attempt *attempts[ATTEMPTS_MAX];
static int attempt_count, start_code, lost_code;
static struct {
	const char *name;
	int code;
} adoption;                /* of a directory of this name */
static bool adopted_ended; /* what is found again has ended */

static struct attempt *make_attempt(const struct attempt_owner *owner, struct request *q, const char *dir)
{
	struct attempt *a = calloc(1, sizeof(*a));

	a->owner = *owner;
	a->request = q;
	a->dir = strdup(dir);
	a->report = (struct report){.run = q->run, .attempt = q->attempt};
	a->report.state = ATTEMPT_RUNNING;
	attempts[attempt_count++] = a;
	return a;
}

int attempt_start(const struct attempt_owner *owner, struct request *q, const struct request_place *place,
                  const struct run_user *user, struct attempt **out, struct error *err)
{
	struct stat st;
	_cleanup_free_ char *lease = str_path_join(place->config->runtime_dir, "lease");

	strbuf_addf(&trace, "start(%d.%d%s%s) ", (int)q->run, (int)q->attempt, q->master_port ? " port" : "",
	            stat(lease, &st) == 0 ? " lease" : "");
	if (start_code < 0)
		return error_set(err, start_code, "no start");
	*out = make_attempt(owner, q, place->dir);
	return 0;
}

int attempt_adopt(const struct attempt_owner *owner, const char *dir, struct attempt **out, struct error *err)
{
	const char *name = strrchr(dir, '/') + 1;
	struct request *q;

	strbuf_addf(&trace, "adopt(%s) ", name);
	if (adoption.name && str_eq(name, adoption.name))
		return error_set(err, adoption.code, "broken");
	q = calloc(1, sizeof(*q));
	q->cluster = "";
	q->slots = calloc(1, sizeof(*q->slots));
	q->slot_count = 1;
	q->run = atoi(name);
	q->attempt = atoi(strchr(name, '.') + 1);
	*out = make_attempt(owner, q, dir);
	(*out)->ended = adopted_ended;
	return 0;
}

int attempt_lost(const struct attempt_owner *owner, const char *dir, struct request *q, struct attempt **out,
                 struct error *err)
{
	strbuf_addf(&trace, "lost(%s) ", strrchr(dir, '/') + 1);
	if (lost_code < 0)
		return error_set(err, lost_code, "it cannot be sought");
	*out = make_attempt(owner, q, dir);
	return 0;
}

void attempt_free(struct attempt *a)
{
	strbuf_addf(&trace, "free(%d.%d) ", (int)a->report.run, (int)a->report.attempt);
	request_free(a->request);
	report_release(&a->report);
	free(a->dir);
	free(a);
}

void attempt_add_error(struct attempt *a, const char *text)
{
}

void attempt_stop(struct attempt *a, struct stop_times times)
{
	strbuf_addf(&trace, "stop(%d.%d %g %g) ", (int)a->report.run, (int)a->report.attempt, times.save,
	            times.grace);
}

void attempt_shut_down(struct attempt *a, struct stop_times times, const char *reason)
{
	strbuf_addf(&trace, "shut_down(%d.%d %g %g %s) ", (int)a->report.run, (int)a->report.attempt,
	            times.save, times.grace, reason);
}

void attempt_end_lease(struct attempt *a, double seconds)
{
	strbuf_addf(&trace, "end_lease(%d.%d) ", (int)a->report.run, (int)a->report.attempt);
}

void attempt_confirm(struct attempt *a)
{
	strbuf_addf(&trace, "confirm(%d.%d) ", (int)a->report.run, (int)a->report.attempt);
}

const struct request *attempt_request(const struct attempt *a)
{
	return a->request;
}

const struct report *attempt_report(const struct attempt *a)
{
	return &a->report;
}

bool attempt_has_ended(const struct attempt *a)
{
	return a->ended;
}

bool attempt_is_settled(const struct attempt *a)
{
	return a->ended && a->settled;
}

struct stop_times attempt_stop_times(const struct attempt *a, enum run_stop how)
{
	return how == RUN_STOP_SAVE ? (struct stop_times){10.0 * (double)a->report.run, 5}
	                            : (struct stop_times){3, 4};
}

const char *attempt_dir(const struct attempt *a)
{
	return a->dir;
}

/* ---- preflights ---- */

static struct daemon_config *config;

struct preflight_call {
	void (*done)(void *context, const struct run_user *user, const struct error *err);
	void *context;
};

static struct preflight_call *calls[8]; /* under way */
static int call_count, preflight_code;
static char looked_at[400]; /* by the newest, without the user and the program */

int preflight_start(sd_event *event, struct preflight_spare *spare, const char *launcher,
                    const struct preflight_request *what, double seconds,
                    void (*done)(void *context, const struct run_user *user, const struct error *err),
                    void *context, struct preflight_call **out, struct error *err)
{
	struct preflight_call *c = calloc(1, sizeof(*c));

	*c = (struct preflight_call){done, context};
	ck_assert_str_eq(launcher, "/w/dtrain-launch");
	snprintf(looked_at, sizeof(looked_at),
	         "%s uid %d in %s, PATH %s, engine %s, model %s, output %s, offload %s%s%s", what->program,
	         (int)what->uid, what->directory ? what->directory : "-", what->path,
	         what->engine ? what->engine : "-", what->model ? what->model : "-",
	         what->output_dir ? what->output_dir : "-", what->offload_dir ? what->offload_dir : "-",
	         what->socket ? ", socket" : "", what->own_mounts ? ", own mounts" : "");
	ck_assert_str_eq(what->user, "u");
	ck_assert_str_eq(what->log_dir, config->log_dir);
	ck_assert_double_eq(seconds, 20);
	if (preflight_code < 0) {
		free(c);
		return error_set(err, preflight_code, "no preflight");
	}
	calls[call_count++] = *out = c;
	return 0;
}

void preflight_cancel(struct preflight_call *c)
{
	if (!c)
		return;
	strbuf_adds(&trace, "cancel ");
	for (int i = 0; i < call_count; i++)
		if (calls[i] == c)
			calls[i] = calls[--call_count];
	free(c);
}

int preflight_spare_create(sd_event *event, struct preflight_spare **out, struct error *err)
{
	*out = NULL;
	return 0;
}

void preflight_spare_destroy(struct preflight_spare *s)
{
}

static int prepared; /* spares */

void preflight_spare_prepare(struct preflight_spare *s, const char *launcher)
{
	prepared++;
	ck_assert_str_eq(launcher, "/w/dtrain-launch");
}

/* The newest ends. */
static void end_preflight(int code)
{
	struct preflight_call *c = calls[--call_count];
	static const struct run_user user;
	struct error err = ERROR_INIT;

	if (code < 0)
		error_set(&err, code, "no such directory");
	c->done(c->context, code < 0 ? NULL : &user, code < 0 ? &err : NULL);
	free(c);
}

/* ---- the node ---- */

static char *dir;
static sd_event *event;
static struct node *node;
static bool silent; /* the node has no callbacks */

static void on_report(void *context, const struct report *report)
{
	strbuf_addf(&trace, "report(%d.%d) ", (int)report->run, (int)report->attempt);
}

static void on_devices_changed(void *context)
{
	strbuf_adds(&trace, "changed ");
}

static void on_started(void *context, int code, const char *message)
{
	if (code < 0)
		strbuf_addf(&trace, "told(%s %s: %s) ", (const char *)context, strerrorname_np(-code),
		            message);
	else
		strbuf_addf(&trace, "told(%s) ", (const char *)context);
}

static int create(struct error *err)
{
	const struct node_callbacks callbacks = {NULL, on_report, on_devices_changed}, none = {0};

	return node_create(event, config, "n1", 0, silent ? &none : &callbacks, &node, err);
}

static void destroy(void)
{
	if (node)
		node_destroy(node);
	node = NULL;
	attempt_count = 0;
}

static void restart(void)
{
	struct error err = ERROR_INIT;

	destroy();
	strbuf_reset(&trace);
	strbuf_adds(&trace, "");
	ck_ok(create(&err), &err);
}

static void setup(void)
{
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;

	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	dir = unit_tmpdir();
	ck_assert_int_ge(sd_event_new(&event), 0);
	text = str_printf(
	    "runtime_dir = \"%s/run\"; log_dir = \"%s/log\"; state_dir = \"%s/state\"; worker_dir = \"/w\"; "
	    "cpu_slots = 4; shutdown_grace = 30.0; launch = \"process\";",
	    dir, dir, dir);
	ck_ok(daemon_config_parse(text, "test", &config, &err), &err);
	config->allow_root = true;
	trace = (struct strbuf){0};
	prepared = 0;
	restart();
}

static void teardown(void)
{
	destroy();
	daemon_config_free(config);
	sd_event_unref(event);
	strbuf_free(&trace);
	file_remove_tree(dir, NULL);
	free(dir);
}

static char *path_of(const char *name)
{
	return str_path_join(dir, name);
}

static void make_dir(const char *name)
{
	_cleanup_free_ char *path = path_of(name);
	struct error err = ERROR_INIT;

	ck_ok(file_mkdirs(path, 0755, &err), &err);
}

static bool is_there(const char *name)
{
	_cleanup_free_ char *path = path_of(name);

	return file_exists(path);
}

/* more: further keys of the request, or "". */
static int begin(int run, int attempt, int slot, const char *more, const char *who, struct error *err)
{
	_cleanup_free_ char *text = str_printf(
	    "{\"run\":%d,\"attempt\":%d,\"user\":\"u\",\"uid\":5,\"gid\":5,%s\"config\":{\"task\":"
	    "\"command\","
	    "\"command\":[\"true\"],\"resources\":{\"on_partition\":\"%s\"}},\"world_size\":1,\"nodes\":["
	    "\"n1\"],"
	    "\"node_rank\":0,\"local_world_size\":1,\"ranks\":[{\"rank\":0,\"local_rank\":0,\"slot\":%d}]}",
	    run, attempt, more, strstr(more, "\"until\"") ? "stop" : "keep", slot);
	_cleanup_json_ json_t *json = NULL;
	struct start_request request;

	ck_ok(json_parse(text, strlen(text), "request", &json, err), err);
	ck_ok(start_request_decode(json, &request, err), err);
	return node_start(node, &request, on_started, (void *)who, err);
}

/* A start that succeeds. */
static struct attempt *run(int number, int attempt, int slot, const char *more)
{
	_cleanup_free_ char *want = NULL;
	struct error err = ERROR_INIT;

	ck_ok(begin(number, attempt, slot, more, "a", &err), &err);
	check_trace("");
	end_preflight(0);
	ck_assert_ptr_nonnull(strstr(trace.data, "start("));
	ck_assert_ptr_nonnull(strstr(trace.data, ") told(a) "));
	strbuf_reset(&trace);
	strbuf_adds(&trace, "");
	return attempts[attempt_count - 1];
}

static void check_refused(int number, int attempt, int slot, const char *more, int code, const char *words)
{
	struct error err = ERROR_INIT;

	ck_assert_int_eq(begin(number, attempt, slot, more, "x", &err), code);
	ck_assert_msg(strstr(err.message, words), "%s, not %s", err.message, words);
	check_trace("");
}

static void end_attempt(struct attempt *a)
{
	a->ended = true;
	a->report.state = ATTEMPT_ENDED;
	a->owner.changed(a->owner.context, a);
}

static void settle(struct attempt *a)
{
	a->settled = true;
	a->owner.settled(a->owner.context, a);
}

START_TEST(a_start_leases_its_slot)
{
	struct error err = ERROR_INIT;
	const int *slots;
	size_t count;
	struct device_info info;

	ck_assert_int_eq(node_slots(node), 4);
	ck_assert_int_eq(node_free_slots(node), 4);
	ck_assert_str_eq(node_launch(node), "process");
	ck_ok(begin(7, 2, 1, "", "a", &err), &err);
	ck_assert_int_eq(node_free_slots(node), 3);
	ck_assert_int_eq(node_running(node), 0);
	ck_assert_ptr_null(node_attempt(node, 0));
	/* The same start waits with it; another one on the slot is refused. */
	ck_ok(begin(7, 2, 1, "", "b", &err), &err);
	ck_assert_int_eq(call_count, 1);
	check_refused(8, 1, 1, "", -EBUSY, "slot 1 is leased to run 7, attempt 2");
	check_refused(7, 1, 2, "", -ESTALE, "attempt 1 of run 7 is older than attempt 2, known here");
	end_preflight(0);
	check_trace("start(7.2 port) told(b) told(a) ");
	ck_assert_int_eq(node_running(node), 1);
	ck_assert_int_eq(node_free_slots(node), 3);
	ck_assert_int_eq(node_attempt(node, 0)->run, 7);
	ck_assert_ptr_null(node_attempt(node, 1));
	ck_assert_uint_eq(node_attempt_owner(node, 0, &slots, &count), 5);
	ck_assert_uint_eq(count, 1);
	ck_assert_int_eq(slots[0], 1);
	ck_ok(node_describe_device(node, 1, &info, &err), &err);
	ck_assert_int_eq(info.run, 7);
	device_info_release(&info);
	/* It is running already. */
	ck_ok(begin(7, 2, 1, "", "c", &err), &err);
	check_trace("told(c) ");
	check_refused(8, 1, 1, "", -EBUSY, "slot 1 is leased to run 7, attempt 2");
	check_refused(7, 1, 2, "", -ESTALE, "attempt 1 of run 7 is older than attempt 2, known here");
	check_refused(7, 2, 1, "\"cluster\":\"c\",\"epoch\":1,", -EEXIST,
	              "run 7, attempt 2 of another cluster is kept here");
	/* Attempts of another cluster's run of this number have no age. */
	run(7, 1, 2, "\"cluster\":\"c\",\"epoch\":1,");
	run(8, 1, 3, "");
	ck_assert_uint_eq(node_attempt_owner(node, 2, &slots, &count), 5);
	ck_assert_int_eq(slots[0], 3);
	ck_assert_int_eq(node_free_slots(node), 1);
}
END_TEST

/* One for the first start, and after each preflight one for the next. */
START_TEST(a_spare_is_prepared_ahead)
{
	struct error err = ERROR_INIT;

	ck_assert_int_eq(prepared, 1);
	ck_ok(begin(7, 1, 1, "", "a", &err), &err);
	ck_assert_int_eq(prepared, 1);
	end_preflight(0);
	ck_assert_int_eq(prepared, 2);
	ck_ok(begin(8, 1, 2, "", "a", &err), &err);
	end_preflight(-ENOENT);
	ck_assert_int_eq(prepared, 3);
}
END_TEST

/* Of a command its program; of a task of ours all that it needs, and the output where rank 0 writes it. */
START_TEST(a_preflight_looks_at_what_a_run_needs)
{
	static const char native[] = "{\"task\":\"sft\",\"directory\":\"/home/"
	                             "u\",\"model\":{\"path\":\"m\"},\"data\":{\"path\":[\"d\"]},"
	                             "\"environment\":[\"PATH=/opt/"
	                             "bin\"],\"parallel\":{\"strategy\":\"zero3\",\"offload\":\"optimizer\","
	                             "\"offload_dir\":\"/fast\"},\"output\":{\"dir\":\"out\"}}";
	static const char *const wants[] = {"/w/dtrain-worker-cpu uid 5 in /home/u, PATH /opt/bin, engine "
	                                    "cpu, model m, output out, offload /fast, socket",
	                                    "/w/dtrain-worker-cpu uid 5 in /home/u, PATH /opt/bin, engine "
	                                    "cpu, model m, output -, offload /fast, socket"};
	struct error err = ERROR_INIT;

	ck_ok(begin(7, 1, 1, "", "a", &err), &err);
	ck_assert_str_eq(looked_at, "true uid 5 in -, PATH /usr/local/bin:/usr/bin:/bin, engine -, model -, "
	                            "output -, offload -");
	end_preflight(-ENOENT);
	for (int rank = 0; rank < 2; rank++) {
		_cleanup_free_ char *text =
		    str_printf("{\"run\":8,\"attempt\":1,\"user\":\"u\",\"uid\":5,\"config\":%s,\"world_"
		               "size\":2,\"nodes\":[\"n0\",\"n1\"],"
		               "\"node_rank\":%d,\"local_world_size\":1,\"ranks\":[{\"rank\":%d,\"local_"
		               "rank\":0,\"slot\":2}]}",
		               native, rank, rank);
		_cleanup_json_ json_t *json = NULL;
		struct start_request start;

		ck_ok(json_parse(text, strlen(text), "request", &json, &err), &err);
		ck_ok(start_request_decode(json, &start, &err), &err);
		ck_ok(node_start(node, &start, on_started, (void *)"b", &err), &err);
		ck_assert_str_eq(looked_at, wants[rank]);
		end_preflight(-ENOENT);
	}
}
END_TEST

START_TEST(a_start_may_be_refused)
{
	struct error err = ERROR_INIT;

	check_refused(7, 1, 4, "", -EINVAL, "no slot 4; there are 4, counted from 0");
	ck_ok(node_drain(node, 3, "its fan", &err), &err);
	check_trace("changed ");
	ck_assert_int_eq(node_free_slots(node), 3);
	check_refused(7, 1, 3, "", -EBUSY, "slot 3, CPU slot 3, is drained: its fan");
	check_refused(7, 1, 0, "\"until\":1.0,", -EBUSY, "the start of attempt 1 of run 7 has come too late");
	check_refused(7, 1, 0, "\"until\":1e12,", -EBUSY, "no heartbeat has been answered since");
	preflight_code = -EMFILE;
	ck_assert_int_eq(begin(7, 1, 0, "", "x", &err), -EMFILE);
	ck_assert_str_eq(err.message, "no preflight");
	check_trace("");
	preflight_code = 0;
	ck_assert_int_eq(node_free_slots(node), 3);
	config->allow_root = false;
	run(7, 1, 0, ""); /* it is not root's */
}
END_TEST

START_TEST(a_preflight_may_fail)
{
	struct error err = ERROR_INIT;

	ck_ok(begin(7, 1, 0, "", "a", &err), &err);
	ck_ok(begin(7, 1, 0, "", "b", &err), &err);
	end_preflight(-ENOENT);
	check_trace("told(b ENOENT: no such directory) told(a ENOENT: no such directory) changed ");
	ck_assert_int_eq(node_free_slots(node), 4);
	start_code = -EBUSY;
	ck_ok(begin(7, 1, 0, "", "a", &err), &err);
	end_preflight(0);
	check_trace("start(7.1 port) told(a EBUSY: no start) changed ");
	ck_assert_int_eq(node_running(node), 0);
	start_code = 0;
	/* What has changed meanwhile counts. */
	ck_ok(begin(7, 1, 0, "", "a", &err), &err);
	ck_ok(node_drain(node, 0, "x", &err), &err);
	end_preflight(0);
	check_trace("changed told(a EBUSY: slot 0, CPU slot 0, is drained: x) changed ");
}
END_TEST

START_TEST(a_start_under_way_may_be_stopped)
{
	struct error err = ERROR_INIT;
	const struct stop_request stop = {.run = 8, .attempt = 1};

	ck_ok(begin(7, 1, 0, "", "a", &err), &err);
	ck_ok(begin(8, 1, 1, "", "b", &err), &err);
	ck_ok(begin(9, 1, 2, "", "c", &err), &err);
	ck_ok(node_stop(node, 7, 2, 1, &err), &err); /* there is none */
	check_trace("");
	ck_ok(node_stop(node, 7, 1, 1, &err), &err);
	check_trace("cancel told(a ECANCELED: stopped before it had begun) changed ");
	ck_ok(node_stop_request(node, &stop, &err), &err);
	check_trace("cancel told(b ECANCELED: stopped before it had begun) changed ");
	ck_assert_int_eq(node_free_slots(node), 3);
	check_refused(8, 1, 1, "", -ESTALE, "attempt 1 of run 8 was stopped, or has ended already");
	ck_ok(begin(7, 1, 0, "", "a", &err), &err);
	destroy();
	check_trace("cancel told(a ESHUTDOWN: the service is being stopped) "
	            "cancel told(c ESHUTDOWN: the service is being stopped) ");
}
END_TEST

START_TEST(a_port_is_found_for_one_node)
{
	struct error err = ERROR_INIT;

	ck_ok(begin(7, 1, 0, "\"master_port\":77,", "a", &err), &err);
	end_preflight(0);
	check_trace("start(7.1 port) told(a) ");
	ck_assert_int_eq(attempts[0]->request->master_port, 77);
	run(8, 1, 1, "");
	ck_assert_int_gt(attempts[1]->request->master_port, 1023);
	ck_assert_int_gt(node_free_port(node, &err), 0);
}
END_TEST

START_TEST(stops_have_their_times)
{
	struct stop_request stop = {.run = 7, .attempt = 1, .save = 1, .grace = 2};
	struct error err = ERROR_INIT;

	run(7, 1, 0, "\"cluster\":\"c\",\"epoch\":2,");
	ck_ok(node_stop(node, 7, 1, 9, &err), &err);
	check_trace("stop(7.1 0 9) ");
	ck_ok(node_stop_request(node, &stop, &err), &err);
	check_trace("stop(7.1 1 2) ");
	stop.cluster = (char *)"c";
	stop.epoch = 2;
	ck_ok(node_stop_request(node, &stop, &err), &err);
	check_trace("stop(7.1 1 2) ");
	stop.epoch = 1;
	ck_assert_int_eq(node_stop_request(node, &stop, &err), -ESTALE);
	stop.cluster = (char *)"d";
	ck_assert_int_eq(node_stop_request(node, &stop, &err), -EPERM);
	ck_assert_str_eq(err.message, "run 7, attempt 1 on node n1 is of another cluster");
	check_trace("");
	stop.foreign = true;
	ck_ok(node_stop_request(node, &stop, &err), &err);
	check_trace("stop(7.1 3 4) ");
	/* One that names no cluster is everybody's. */
	run(8, 1, 1, "");
	stop.run = 8;
	stop.foreign = false;
	ck_ok(node_stop_request(node, &stop, &err), &err);
	check_trace("stop(8.1 1 2) ");
}
END_TEST

START_TEST(an_end_frees_the_slot)
{
	struct attempt *a = run(7, 1, 0, ""), *b = run(8, 1, 1, "");

	a->owner.changed(a->owner.context, a);
	check_trace("report(7.1) ");
	ck_assert_int_eq(node_running(node), 2);
	node_forget(node, 7, 1); /* not before its end */
	ck_assert_int_eq(node_attempt(node, 0)->run, 7);
	make_dir("run/attempts/7.1/x");
	make_dir("state/tmp/7.1/x");
	make_dir("state/tmp/8.1");
	end_attempt(a);
	check_trace("report(7.1) ");
	ck_assert_int_eq(node_running(node), 1);
	ck_assert_int_eq(node_free_slots(node), 3);
	ck_assert_int_eq(node_attempt(node, 0)->run, 7);
	node_forget(node, 7, 2);
	node_forget(node, 7, 1);
	ck_assert_int_eq(node_attempt(node, 0)->run, 8);
	ck_assert(!is_there("run/attempts/7.1"));
	check_refused(7, 1, 0, "", -ESTALE, "attempt 1 of run 7 was stopped, or has ended already");
	/* It is freed when nothing of it is left, and from the event loop. */
	ck_assert_int_ge(sd_event_run(event, 0), 0);
	check_trace("");
	settle(a);
	check_trace("");
	while (is_there("state/tmp/7.1") || trace.len == 0)
		ck_assert_int_ge(sd_event_run(event, 10000), 0);
	check_trace("free(7.1) ");
	ck_assert(is_there("state/tmp/8.1"));
	/* One that is not forgotten stays. */
	end_attempt(b);
	settle(b);
	check_trace("report(8.1) ");
	ck_assert_int_ge(sd_event_run(event, 0), 0);
	check_trace("");
	ck_assert_int_eq(node_attempt(node, 0)->run, 8);
}
END_TEST

START_TEST(so_many_ends_are_kept)
{
	destroy();
	adopted_ended = true;
	for (int i = 1; i <= 513; i++) {
		_cleanup_free_ char *name = str_printf("run/attempts/%d.1", i);

		make_dir(name);
	}
	restart();
	ck_assert_int_eq(attempt_count, 513);
	ck_assert_int_eq(node_attempt(node, 512)->run, 513);
	ck_assert_int_eq(node_running(node), 0);
	attempts[512]->owner.changed(attempts[512]->owner.context, attempts[512]);
	ck_assert_int_eq(node_attempt(node, 0)->run, 2);
	ck_assert(!is_there("run/attempts/1.1"));
	attempts[512]->owner.changed(attempts[512]->owner.context, attempts[512]);
	ck_assert_int_eq(node_attempt(node, 0)->run, 2);
	ck_assert(is_there("run/attempts/2.1"));
}
END_TEST

START_TEST(attempts_are_found_again)
{
	destroy();
	make_dir("run/attempts/10.1");
	make_dir("run/attempts/9.2");
	make_dir("run/attempts/9.1");
	make_dir("run/attempts/.hidden");
	make_dir("run/attempts/8.1/x");
	make_dir("state/tmp/9.2");
	make_dir("state/tmp/6.1");
	make_dir("state/tmp/x.1");
	make_dir("state/tmp/6.1.1");
	make_dir("state/tmp/0.1");
	adoption.name = "8.1";
	adoption.code = -EINVAL;
	restart();
	check_trace("adopt(8.1) adopt(9.1) adopt(9.2) adopt(10.1) ");
	ck_assert_int_eq(node_running(node), 3);
	ck_assert_int_eq(node_attempt(node, 2)->run, 10);
	ck_assert_int_eq(node_free_slots(node), 3);
	ck_assert(!is_there("run/attempts/8.1")); /* half made */
	ck_assert(is_there("run/attempts/.hidden"));
	/* Temporary files of attempts that are not known go. */
	while (is_there("state/tmp/6.1"))
		ck_assert_int_ge(sd_event_run(event, 10000), 0);
	ck_assert(is_there("state/tmp/9.2"));
	ck_assert(is_there("state/tmp/x.1"));
	ck_assert(is_there("state/tmp/6.1.1"));
	ck_assert(is_there("state/tmp/0.1"));
}
END_TEST

/* What says nothing about the attempt must not have it taken for one that has ended. */
START_TEST(an_attempt_that_cannot_be_looked_at_stops_the_node)
{
	static const int codes[] = {-EHOSTUNREACH, -ENOMEM, -EMFILE, -ENFILE, -EIO};
	struct error err = ERROR_INIT;

	destroy();
	make_dir("run/attempts/8.1");
	make_dir("run/attempts/9.1");
	adoption.name = "8.1";
	adoption.code = codes[_i];
	ck_assert_int_eq(create(&err), codes[_i]);
	ck_assert_ptr_nonnull(strstr(err.message, "/run/attempts/8.1: broken"));
	ck_assert(is_there("run/attempts/8.1"));
	check_trace("adopt(8.1) ");
	node = NULL;
}
END_TEST

static void put_record(const char *name)
{
	_cleanup_free_ char *path = path_of(name);
	static const char text[] = "{\"uid\":5,\"slots\":[2]}";
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), 0600, &err), &err);
}

START_TEST(records_without_an_attempt_are_lost_ones)
{
	struct error err = ERROR_INIT;

	destroy();
	make_dir("run/attempts/9.1");
	put_record("state/started/9.1.0.");
	put_record("state/started/9.2.3.c");
	restart();
	check_trace("adopt(9.1) lost(9.2) ");
	ck_assert_int_eq(node_running(node), 2);
	ck_assert_str_eq(attempts[1]->request->cluster, "c");
	ck_assert_int_eq(attempts[1]->request->epoch, 3);
	check_refused(10, 1, 2, "", -EBUSY, "slot 2 is leased to run 9, attempt 2");
	/* The record goes with the attempt. */
	end_attempt(attempts[1]);
	node_forget(node, 9, 2);
	ck_assert(!is_there("state/started/9.2.3.c"));
	ck_assert(is_there("state/started/9.1.0."));
	destroy();
	put_record("state/started/9.2.3.c");
	lost_code = -EHOSTUNREACH;
	ck_assert_int_eq(create(&err), -EHOSTUNREACH);
	ck_assert_str_eq(err.message, "it cannot be sought");
	node = NULL;
}
END_TEST

START_TEST(a_run_may_be_ended)
{
	struct attempt *a;

	a = run(7, 1, 0, "");
	end_attempt(a);
	check_trace("report(7.1) ");
	run(7, 2, 0, "");
	run(8, 1, 1, "");
	node_end_run(node, 7, "too many files");
	check_trace("shut_down(7.2 3 4 too many files) report(7.2) ");
	node_end_run(node, 9, "x");
	check_trace("");
}
END_TEST

/* Each is given what it asks for, as far as shutdown_grace goes. */
START_TEST(a_node_shuts_down)
{
	run(1, 1, 0, "");
	run(2, 1, 1, "");
	run(9, 1, 2, "");
	end_attempt(attempts[2]);
	check_trace("report(9.1) ");
	ck_assert(!node_is_shutting_down(node));
	ck_assert_double_eq(node_shut_down(node), 25);
	check_trace("shut_down(1.1 10 5 node n1 was shut down) report(1.1) "
	            "shut_down(2.1 20 5 node n1 was shut down) report(2.1) ");
	ck_assert(node_is_shutting_down(node));
	check_refused(10, 1, 3, "", -EBUSY, "node n1 is shutting down");
}
END_TEST

START_TEST(a_long_shutdown_is_cut)
{
	run(3, 1, 3, "");
	ck_assert_double_eq(node_shut_down(node), 30);
	check_trace("shut_down(3.1 15 15 node n1 was shut down) report(3.1) ");
}
END_TEST

static void learn(double sent, double lease)
{
	const struct heartbeat_answer answer = {
	    .cluster = (char *)"c", .epoch = 1, .highest_run = 50, .lease = lease};
	struct error err = ERROR_INIT;

	ck_ok(node_learn(node, &answer, sent, &err), &err);
}

START_TEST(a_heartbeat_confirms_what_it_names)
{
	double before = lease_clock(), after;
	struct known_clusters known;
	struct error err = ERROR_INIT;

	learn(before, 1000);
	ck_assert(!is_there("run/lease")); /* nothing runs */
	ck_ok(begin(7, 1, 0, "\"until\":1e12,", "a", &err), &err);
	end_preflight(0);
	check_trace("start(7.1 port lease) told(a) ");
	learn(before, 1000);
	check_trace(""); /* it was sent before the start */
	after = lease_clock();
	learn(after + 1, 1000);
	check_trace("confirm(7.1) ");
	learn(after + 2, 1000);
	check_trace("");
	ck_ok(node_known(node, &known, &err), &err);
	ck_assert_int_eq(known.highest_run, 50);
	ck_assert_uint_eq(known.cluster_count, 1);
	ck_assert_int_eq(known.clusters[0].epoch, 1);
	known_clusters_release(&known);
	{
		const struct heartbeat_answer stale = {.cluster = (char *)"c", .epoch = 0, .lease = 1};

		ck_assert_int_eq(node_learn(node, &stale, after + 3, &err), -ESTALE);
	}
}
END_TEST

/* What is confirmed and may outlive a partition goes on, as does what an earlier service has started: that
 * one's dtrain-launch knows. */
START_TEST(a_lease_that_ends_ends_attempts)
{
	double now;

	destroy();
	make_dir("run/attempts/5.1");
	restart();
	check_trace("adopt(5.1) ");
	learn(lease_clock(), 1000);
	check_trace("confirm(5.1) ");
	run(6, 1, 1, "\"until\":1e12,");
	run(7, 1, 2, "");
	end_attempt(run(8, 1, 3, "\"until\":1e12,"));
	check_trace("report(8.1) ");
	learn(lease_clock(), 1000);
	check_trace("confirm(6.1) confirm(7.1) confirm(8.1) ");
	now = lease_clock();
	run(9, 1, 3, "");
	learn(now, 0.001);
	while (trace.len == 0)
		ck_assert_int_ge(sd_event_run(event, UINT64_MAX), 0);
	ck_assert_msg(strstr(trace.data, "end_lease(6.1) report(6.1) end_lease(9.1) report(9.1) "), "%s",
	              trace.data);
	ck_assert_ptr_null(strstr(trace.data, "end_lease(5.1)"));
	ck_assert_ptr_null(strstr(trace.data, "end_lease(7.1)"));
	ck_assert_ptr_null(strstr(trace.data, "end_lease(8.1)"));
	strbuf_reset(&trace);
	strbuf_adds(&trace, "");
	check_refused(10, 1, 0, "", -EBUSY, "node n1 has had no answer of its controller for too long");
}
END_TEST

START_TEST(a_node_cut_off_starts_nothing)
{
	learn(lease_clock() - 10, 0.001);
	check_refused(10, 1, 0, "", -EBUSY, "node n1 has had no answer of its controller for too long");
}
END_TEST

START_TEST(callbacks_are_optional)
{
	struct attempt *a;
	struct error err = ERROR_INIT;

	silent = true;
	restart();
	ck_ok(node_drain(node, 3, "x", &err), &err);
	ck_ok(node_resume(node, 3, &err), &err);
	a = run(7, 1, 0, "\"cluster\":\"c\",\"epoch\":1,");
	a->owner.changed(a->owner.context, a);
	node_end_run(node, 7, "x");
	check_trace("shut_down(7.1 3 4 x) ");
	node_shut_down(node);
	end_attempt(a);
	ck_assert_int_eq(node_running(node), 0);
}
END_TEST

START_TEST(a_log_is_found)
{
	_cleanup_free_ char *path = NULL;
	struct error err = ERROR_INIT;

	ck_assert_int_eq(node_log_path(node, 7, 0, 1, &path, &err), -ENOENT);
	ck_assert_str_eq(err.message, "node n1: no log of run 7, rank 1");
	ck_assert_ptr_null(path);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("node_calls");
	TCase *tc = tcase_create("calls");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 20);
	tcase_add_test(tc, a_start_leases_its_slot);
	tcase_add_test(tc, a_spare_is_prepared_ahead);
	tcase_add_test(tc, a_preflight_looks_at_what_a_run_needs);
	tcase_add_test(tc, a_start_may_be_refused);
	tcase_add_test(tc, a_preflight_may_fail);
	tcase_add_test(tc, a_start_under_way_may_be_stopped);
	tcase_add_test(tc, a_port_is_found_for_one_node);
	tcase_add_test(tc, stops_have_their_times);
	tcase_add_test(tc, an_end_frees_the_slot);
	tcase_add_test(tc, so_many_ends_are_kept);
	tcase_add_test(tc, attempts_are_found_again);
	tcase_add_loop_test(tc, an_attempt_that_cannot_be_looked_at_stops_the_node, 0, 5);
	tcase_add_test(tc, records_without_an_attempt_are_lost_ones);
	tcase_add_test(tc, a_run_may_be_ended);
	tcase_add_test(tc, a_node_shuts_down);
	tcase_add_test(tc, a_long_shutdown_is_cut);
	tcase_add_test(tc, a_heartbeat_confirms_what_it_names);
	tcase_add_test(tc, a_lease_that_ends_ends_attempts);
	tcase_add_test(tc, a_node_cut_off_starts_nothing);
	tcase_add_test(tc, callbacks_are_optional);
	tcase_add_test(tc, a_log_is_found);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
