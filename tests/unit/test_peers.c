/* SPDX-License-Identifier: Apache-2.0 */
/* How the controller reaches nodes: what is sent to another one, and how its answers are understood; what
 * this node is called with. The node, its heartbeats and the client are stand-ins. */
#include <string.h>
#include <systemd/sd-event.h>

#include "base/json.h"
#include "config/run.h"
#include "dtraind/heartbeat.h"
#include "dtraind/peers.h"
#include "fake_client.h"

/* ---- this node ---- */

static struct {
	struct strbuf called; /* "start 7.1, drain 3 (fan), " */
	int code;             /* of the next call, where it fails */
	node_started_fn started;
	file_written_fn written;
	void *context;
} node;

static int result_of_node(struct error *err)
{
	return node.code < 0 ? error_set(err, node.code, "node says no") : 0;
}

int node_start(struct node *n, struct start_request *request, node_started_fn started, void *context,
               struct error *err)
{
	strbuf_addf(&node.called, "start %d.%d, ", (int)request->run, (int)request->attempt);
	start_request_release(request);
	node.started = started;
	node.context = context;
	return result_of_node(err);
}

int node_stop_request(struct node *n, const struct stop_request *request, struct error *err)
{
	strbuf_addf(&node.called, "stop %d.%d, ", (int)request->run, (int)request->attempt);
	return result_of_node(err);
}

int node_drain(struct node *n, int slot, const char *reason, struct error *err)
{
	strbuf_addf(&node.called, "drain %d (%s), ", slot, reason ? reason : "");
	return result_of_node(err);
}

int node_resume(struct node *n, int slot, struct error *err)
{
	strbuf_addf(&node.called, "resume %d, ", slot);
	return result_of_node(err);
}

int node_describe_device(const struct node *n, int slot, struct device_info *out, struct error *err)
{
	*out = (struct device_info){
	    .node = strdup("n1"), .index = slot, .state = SLOT_DRAINED, .reason = strdup("fan")};
	return 0;
}

int node_wait_drains(struct node *n, file_written_fn done, void *context, struct error *err)
{
	node.written = done;
	node.context = context;
	return 0;
}

int node_free_port(struct node *n, struct error *err)
{
	return 4711;
}

void heartbeats_refresh_local(struct daemon *d)
{
	strbuf_adds(&node.called, "refresh, ");
}

int64_t heartbeats_sequence(const struct heartbeats *l)
{
	return 42;
}

/* ---- the controller ---- */

/* "CODE MESSAGE, INSTANCE SEQUENCE, backoff SECONDS, device NODE SLOT STATE REASON"; NULL: none yet. */
static char *result;

static void done(void *context, const struct peer_result *r)
{
	const struct device_drained *device = r->device;
	struct strbuf b = {0};

	ck_assert_ptr_eq(context, &result);
	ck_assert_ptr_null(result);
	strbuf_addf(&b, "%d", r->code);
	if (r->message && *r->message)
		strbuf_addf(&b, " %s", r->message);
	if (r->instance)
		strbuf_addf(&b, ", %s %d", r->instance, (int)r->sequence);
	if (r->backoff > 0)
		strbuf_addf(&b, ", backoff %g", r->backoff);
	if (device && device->node)
		strbuf_addf(&b, ", device %s %d %s %s", device->node, (int)device->index,
		            slot_states[device->state], device->reason ? device->reason : "-");
	result = strbuf_steal(&b);
}

/* What the controller has heard, once. */
static void expect(const char *want)
{
	ck_assert_msg(str_eq(result, want), "%s, expected %s", result, want);
	free(result);
	result = NULL;
}

static struct daemon_config config = {.node_timeout = 30, .heartbeat = 5};
static struct settings settings = {.config = &config, .name = (char *)"n1"};
static struct daemon d = {.settings = &settings, .instance = "mine"};
static const struct peer here = {"N1", "a1", 1}, there = {"n2", "a2", 2}; /* names of hosts have no case */
static struct peers peers;

static void setup(void)
{
	peers = peers_of_daemon(&d);
}

static void teardown(void)
{
	ck_assert_ptr_null(result);
	strbuf_free(&node.called);
	fake_client_release();
}

static void begin_start(const struct peer *peer)
{
	struct start_request request = {.run = 7,
	                                .attempt = 1,
	                                .user = strdup("eve"),
	                                .world_size = 1,
	                                .nodes = 1,
	                                .local_world_size = 1,
	                                .ranks = calloc(1, sizeof(*request.ranks)),
	                                .rank_count = 1};
	struct error err = ERROR_INIT;
	_cleanup_json_ json_t *run = json_pack("{s:[s]}", "command", "true");

	ck_ok(run_config_from_json(run, &request.config, &err), &err);
	peers.start(peers.context, peer, &request, done, &result);
	ck_assert_ptr_null(request.user); /* it was taken */
}

#define REFUSED  "{\"error\":{\"code\":\"refused\",\"message\":\"no room\"}}"
#define STOPPING "{\"error\":{\"code\":\"stopping\",\"message\":\"it stops\"}}"

/* What a node answers to a start: is it certain that it does not begin, and when is the node tried again? */
static const struct {
	int status;
	const char *body;
	int code;
	const char *result;
} starts[] = {
    {200, "{\"instance\":\"i\",\"sequence\":3}", 0, "0, i 3"},
    {200, "{}", 0, "0"},
    {200, "nonsense", 0, "0"},
    {409, REFUSED, 0, "-16 no room, backoff 5"},
    {404, REFUSED, 0, "-2 no room"},
    {421, REFUSED, 0, "-111 no room, backoff 30"},
    {500, REFUSED, 0, "-11 no room"},
    {503, "", 0, "-11 the node refused the start"},
    {503, REFUSED, 0, "-11 no room"},
    {503, STOPPING, 0, "-111 it stops, backoff 30"}, /* it has nothing of the run, and begins nothing */
    {499, REFUSED, 0, "-121 no room"},
    {400, REFUSED, 0, "-121 no room"},
    {410, "{}", 0, "-121 the node refused the start"},
    {0, NULL, -ECONNREFUSED, "-111 it broke, backoff 30"},
    {0, NULL, -ETIMEDOUT, "-113 it broke, backoff 30"},
    {0, NULL, -ECANCELED, "-125"},
};

START_TEST(a_start_of_another_node_is_understood)
{
	begin_start(&there);
	ck_assert_msg(str_starts(fake_client_last()->text, "POST n2 at a2:2 /v1/peer/start \"{"), "%s",
	              fake_client_last()->text);
	ck_assert_ptr_nonnull(strstr(fake_client_last()->text, "\"run\":7"));
	/* Sent a second time it could begin a second time. */
	ck_assert_ptr_nonnull(strstr(fake_client_last()->text, "| Content-Type: application/json once"));
	ck_assert(fake_client_last()->call.timeout == 30);
	fake_client_answer(fake_client_last(), starts[_i].status, "application/json", starts[_i].body,
	                   starts[_i].code, true);
	expect(starts[_i].result);
	ck_assert_uint_eq(node.called.len, 0);
}
END_TEST

START_TEST(a_start_here_is_a_call)
{
	static const struct {
		int code; /* of the answer */
		const char *result;
	} cases[] = {
	    {0, "0, mine 42"},
	    {-EBUSY, "-16 why, mine 42"},
	    {-EINVAL, "-22 why, mine 42"},
	    {-ETIMEDOUT, "-11 why, mine 42"},
	    {-ECONNREFUSED, "-11 why, mine 42"}, /* on the node, not to it */
	    {-ECANCELED, "-121 why, mine 42"},
	    {-ESHUTDOWN, "-125 why"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		begin_start(&here);
		ck_assert_str_eq(node.called.data, "start 7.1, refresh, ");
		ck_assert_ptr_null(result);
		strbuf_reset(&node.called);
		node.started(node.context, cases[i].code, cases[i].code ? "why" : NULL);
		expect(cases[i].result);
		/* The controller sees its slots as they are now; unless it is gone already. */
		ck_assert_str_eq(node.called.data ? node.called.data : "",
		                 cases[i].code == -ESHUTDOWN ? "" : "refresh, ");
		strbuf_reset(&node.called);
	}
	node.code = -EPERM;
	begin_start(&here);
	expect("-1 node says no, mine 42");
	ck_assert_uint_eq(fake_client.count, 0);
}
END_TEST

static const struct {
	int status;
	const char *body;
	int code;
	const char *result;
} stops[] = {
    {200, "{\"instance\":\"i\",\"sequence\":3}", 0, "0, i 3"},
    {200, "nonsense", 0, "0"},
    {410, REFUSED, 0, "-121 no room"},
    {500, "{}", 0, "-121 it answered with an error"},
    {201, "{\"instance\":\"i\",\"sequence\":3}", 0, "-121 it answered with an error"},
    {0, NULL, -ECONNREFUSED, "-113 it broke"},
    {0, NULL, -ECANCELED, "-125"},
};

START_TEST(a_stop_of_another_node_is_understood)
{
	const struct stop_request request = {.run = 7, .attempt = 1, .grace = 3};

	peers.stop(peers.context, &there, &request, done, &result);
	ck_assert_msg(str_starts(fake_client_last()->text, "POST n2 at a2:2 /v1/peer/stop \"{") &&
	                  strstr(fake_client_last()->text, "\"run\":7") &&
	                  !strstr(fake_client_last()->text, " once"),
	              "%s", fake_client_last()->text);
	fake_client_answer(fake_client_last(), stops[_i].status, "application/json", stops[_i].body,
	                   stops[_i].code, true);
	expect(stops[_i].result);
}
END_TEST

START_TEST(a_stop_here_is_a_call)
{
	const struct stop_request request = {.run = 7, .attempt = 1};

	peers.stop(peers.context, &here, &request, done, &result);
	expect("0, mine 42");
	node.code = -ESTALE;
	peers.stop(peers.context, &here, &request, done, &result);
	expect("-116 node says no, mine 42");
	ck_assert_str_eq(node.called.data, "stop 7.1, stop 7.1, ");
}
END_TEST

#define DEVICE "{\"node\":\"n2\",\"index\":3,\"state\":\"drained\",\"reason\":\"fan\"}"

static const struct {
	int status;
	const char *body;
	int code;
	const char *result;
} changes[] = {
    {200, DEVICE, 0, "0, device n2 3 drained fan"},
    {200, "{}", 0, "-74 the answer of node n2 cannot be read: "},
    {200, "nonsense", 0, "-74 the answer of node n2 cannot be read: "},
    {404, REFUSED, 0, "-2 no room"},
    {409, REFUSED, 0, "-5 no room"},
    {421, REFUSED, 0, "-113 no room"},
    {500, REFUSED, 0, "-121 no room"},
    {500, "", 0, "-121 the node refused the change"},
    {0, NULL, -ECONNREFUSED, "-113 it broke"},
    {0, NULL, -ECANCELED, "-125 it broke"},
};

START_TEST(a_change_of_another_nodes_device_is_understood)
{
	bool drain = _i % 2;

	peers.set_device(peers.context, &there, 3, drain, drain ? "fan" : NULL, done, &result);
	ck_assert_msg(str_starts(fake_client_last()->text,
	                         drain ? "POST n2 at a2:2 /v1/peer/devices/3/drain \"{\"reason\":\"fan\""
	                               : "POST n2 at a2:2 /v1/peer/devices/3/resume \"{"),
	              "%s", fake_client_last()->text);
	fake_client_answer(fake_client_last(), changes[_i].status, "application/json", changes[_i].body,
	                   changes[_i].code, true);
	ck_assert_msg(str_starts(result, changes[_i].result), "%s", result);
	free(result);
	result = NULL;
}
END_TEST

/* It is answered when it is on disk. */
START_TEST(a_change_here_is_a_call)
{
	peers.set_device(peers.context, &here, 3, true, "fan", done, &result);
	ck_assert_ptr_null(result);
	node.written(node.context, 0, NULL);
	expect("0, device n1 3 drained fan");
	peers.set_device(peers.context, &here, 3, false, NULL, done, &result);
	ck_assert_str_eq(node.called.data, "drain 3 (fan), resume 3, ");
	node.written(node.context, -ENOSPC, "disk is full");
	expect("-121 disk is full, device n1 3 drained fan");
	node.code = -ENOENT;
	for (int drain = 0; drain < 2; drain++) {
		peers.set_device(peers.context, &here, 9, drain, NULL, done, &result);
		expect("-2 node says no");
	}
	ck_assert_uint_eq(fake_client.count, 0);
}
END_TEST

START_TEST(a_call_that_cannot_be_made_is_a_failure)
{
	const struct stop_request request = {.run = 7, .attempt = 1};

	fake_client.refusal = "no cluster key";
	begin_start(&there);
	expect("-5 no cluster key");
	peers.stop(peers.context, &there, &request, done, &result);
	expect("-5 no cluster key");
	peers.set_device(peers.context, &there, 3, true, NULL, done, &result);
	expect("-5 no cluster key");
}
END_TEST

START_TEST(only_this_node_knows_a_free_port)
{
	ck_assert_int_eq(peers.free_port(peers.context, &here, NULL), 4711);
	ck_assert_int_eq(peers.free_port(peers.context, &there, NULL), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("peers");
	TCase *c = tcase_create("peers");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_loop_test(c, a_start_of_another_node_is_understood, 0, ARRAY_SIZE(starts));
	tcase_add_test(c, a_start_here_is_a_call);
	tcase_add_loop_test(c, a_stop_of_another_node_is_understood, 0, ARRAY_SIZE(stops));
	tcase_add_test(c, a_stop_here_is_a_call);
	tcase_add_loop_test(c, a_change_of_another_nodes_device_is_understood, 0, ARRAY_SIZE(changes));
	tcase_add_test(c, a_change_here_is_a_call);
	tcase_add_test(c, a_call_that_cannot_be_made_is_a_failure);
	tcase_add_test(c, only_this_node_knows_a_free_port);
	suite_add_tcase(s, c);
	return unit_run(s);
}
