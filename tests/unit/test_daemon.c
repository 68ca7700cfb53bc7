/* SPDX-License-Identifier: Apache-2.0 */
/* Every route of a service, asked over its Unix socket by the owner of a run, by another user, and by root.
 */
#include <pwd.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "daemon_fixture.h"
#include "dtraind/routes/table.h"

static struct person owner, other, root;
static bool many; /* we are root, and can be each of the three; otherwise all of them are ourselves */

static bool find_person(const char *name, struct person *out)
{
	const struct passwd *pw = getpwnam(name);

	if (pw)
		*out = (struct person){pw->pw_uid, pw->pw_gid, name};
	return pw;
}

static void find_people(void)
{
	many = geteuid() == 0 && find_person("nobody", &owner) && find_person("daemon", &other);
	root = (struct person){geteuid(), getegid(), "root"};
	if (many)
		return;
	owner = other = root;
	printf("daemon: no second user to ask as (that takes root, nobody and daemon): what others may not "
	       "is not tested\n");
}

struct want {
	int status; /* 0: not asked */
	const char *code;
};

/* Asked in this order: other, owner, root. */
struct row {
	const char *method, *target, *body;
	struct want owner, other, root;
	bool endless; /* only the head of the answer is waited for */
};

#define REFUSED                                                                                              \
	{                                                                                                    \
		403, "not-allowed"                                                                           \
	}
#define ALL(status, code)   .owner = {status, code}, .other = {status, code}, .root = {status, code}
#define OK                  ALL(200, NULL)
#define OWNER(status, code) .owner = {status, code}, .other = REFUSED, .root = {status, code}
#define ROOT(status, code)  .owner = REFUSED, .other = REFUSED, .root = {status, code}
#define NOBODY              .owner = REFUSED, .other = REFUSED, .root = REFUSED

#define CONFIG(fields) "{\"config\":{\"task\":\"command\",\"command\":[\"true\"]," fields "}}"
#define LONG           "0123456789012345678901234567890123456789012345678901234567890123456789"

/* Run 1 has succeeded, run 2 has both slots, run 3 waits for them. All are the owner's. */
static const struct row rows[] = {
    /* What everybody may see. */
    {"GET", "/v1/version", NULL, OK},
    {"GET", "/v1/devices", NULL, OK},
    {"GET", "/v1/devices?local=1", NULL, OK},
    {"GET", "/v1/devices?local=2", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/nodes", NULL, OK},
    {"GET", "/metrics", NULL, OK},
    {"GET", "/v1/events", NULL, OK, .endless = true},
    {"GET", "/v1/runs", NULL, OK},
    {"GET", "/v1/runs?state=active", NULL, OK},
    {"GET", "/v1/runs?state=succeeded&limit=1&before=3", NULL, OK},
    {"GET", "/v1/runs?state=nix", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs?limit=0", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs?limit=1001", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs?before=-1", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs/2", NULL, OK},
    {"GET", "/v1/runs/1?wait=1", NULL, OK},
    {"GET", "/v1/runs/2?wait=1&state=running", NULL, OK},
    {"GET", "/v1/runs/2?wait=change&version=0", NULL, OK},
    {"GET", "/v1/runs/2?wait=2", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs/2?wait=change&version=x", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs/2?state=nix", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs/99", NULL, ALL(404, "no-such-run")},
    {"GET", "/v1/runs/0", NULL, ALL(404, "no-such-run")},
    {"GET", "/v1/runs/x", NULL, ALL(404, "no-such-run")},
    {"GET", "/v1/runs/1/metrics", NULL, OK},
    {"GET", "/v1/runs/1/metrics?follow=1", NULL, OK},
    {"GET", "/v1/runs/2/metrics?follow=1", NULL, OK, .endless = true},
    {"GET", "/v1/runs/2/metrics?since=x", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs/2/metrics?follow=2", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs/99/metrics", NULL, ALL(404, "no-such-run")},

    /* Everybody may submit. What is wrong is said before anything is written down. */
    {"POST", "/v1/runs", NULL, ALL(400, "bad-json")},
    {"POST", "/v1/runs", "[1]", ALL(400, "bad-json")},
    {"POST", "/v1/runs", "{}", ALL(400, "bad-config")},
    {"POST", "/v1/runs", "{\"config\":{\"task\":\"nix\"}}", ALL(400, "bad-config")},
    {"POST", "/v1/runs", CONFIG("\"directory\":\"here\""), ALL(400, "bad-config")},
    {"POST", "/v1/runs", CONFIG("\"nix\":1,\"directory\":\"/\""), ALL(400, "bad-config")},
    {"POST", "/v1/runs", CONFIG("\"directory\":\"/\",\"resources\":{\"nodes\":2}"), ALL(409, "impossible")},

    /* What a run prints is for its owner. */
    {"GET", "/v1/runs/1/logs", NULL, OWNER(200, NULL)},
    {"GET", "/v1/runs/1/logs?rank=all&tail=1", NULL, OWNER(200, NULL)},
    {"GET", "/v1/runs/1/logs?follow=1", NULL, OWNER(200, NULL)},
    {"GET", "/v1/runs/2/logs?follow=1", NULL, OWNER(200, NULL), .endless = true},
    {"GET", "/v1/runs/3/logs?follow=1", NULL, .other = REFUSED},
    {"GET", "/v1/runs/1/logs?rank=1", NULL, OWNER(404, "no-such-rank")},
    {"GET", "/v1/runs/1/logs?attempt=9", NULL, OWNER(404, "no-such-log")},
    {"GET", "/v1/runs/3/logs", NULL, OWNER(404, "no-such-log")},
    {"GET", "/v1/runs/1/logs?rank=x", NULL, OWNER(400, "bad-query")},
    {"GET", "/v1/runs/1/logs?tail=x", NULL, OWNER(400, "bad-query")},
    {"GET", "/v1/runs/99/logs", NULL, ALL(404, "no-such-run")},

    /* What the workers of a run say and ask: they are its owner's. */
    {"POST", "/v1/runs/2/metrics", "{\"step\":1}\n{\"step\":2}\n", OWNER(200, NULL)},
    {"POST", "/v1/runs/2/metrics?attempt=1", "", OWNER(200, NULL)},
    {"POST", "/v1/runs/2/metrics?attempt=2", "{\"step\":1}\n", OWNER(410, "stale-attempt")},
    {"POST", "/v1/runs/2/metrics", "{\"step\":\n", OWNER(400, "bad-json")},
    {"POST", "/v1/runs/2/metrics", "[1]\n", OWNER(400, "bad-json")},
    {"POST", "/v1/runs/1/metrics", "{\"step\":1}\n", OWNER(409, "ended")},
    {"POST", "/v1/runs/3/metrics", "{\"step\":1}\n", OWNER(410, "stale-attempt")},
    {"POST", "/v1/runs/2/events", "{\"kind\":\"error\",\"rank\":0,\"message\":\"m\"}", OWNER(200, NULL)},
    {"POST", "/v1/runs/2/events", "{\"kind\":\"peer-lost\",\"rank\":0,\"message\":\"m\"}", OWNER(200, NULL)},
    {"POST", "/v1/runs/2/events", "x", OWNER(400, "bad-json")},
    {"POST", "/v1/runs/2/events?attempt=9", "{}", OWNER(410, "stale-attempt")},
    {"POST", "/v1/runs/1/events", "{}", OWNER(409, "ended")},
    {"PUT", "/v1/runs/2/rendezvous/a/b", "value", OWNER(200, NULL)},
    {"PUT", "/v1/runs/2/rendezvous/" LONG LONG LONG, "value", OWNER(400, "rendezvous")},
    {"PUT", "/v1/runs/2/rendezvous/a?attempt=2", "value", OWNER(410, "stale-attempt")},
    {"PUT", "/v1/runs/1/rendezvous/a", "value", OWNER(409, "ended")},
    {"GET", "/v1/runs/2/rendezvous/a/b", NULL, OWNER(200, NULL)},
    {"GET", "/v1/runs/2/rendezvous/a/b?wait=60", NULL, OWNER(200, NULL)},
    {"GET", "/v1/runs/2/rendezvous/nix", NULL, OWNER(404, "no-such-key")},
    {"GET", "/v1/runs/2/rendezvous/nix?wait=0.01", NULL, OWNER(404, "no-such-key")},
    {"GET", "/v1/runs/2/rendezvous/nix?wait=x", NULL, OWNER(400, "bad-query")},
    {"GET", "/v1/runs/2/rendezvous/nix?wait=-1", NULL, OWNER(400, "bad-query")},
    {"GET", "/v1/runs/2/rendezvous/a?attempt=2", NULL, OWNER(410, "stale-attempt")},
    {"GET", "/v1/runs/1/rendezvous/a", NULL, OWNER(409, "ended")},

    /* What only root may. */
    {"POST", "/v1/nodes/n1/drain", "{\"reason\":\"a new fan\"}", ROOT(200, NULL)},
    {"POST", "/v1/nodes/n1/resume", NULL, ROOT(200, NULL)},
    {"POST", "/v1/nodes/n1/drain", "{\"reason\":\"" LONG LONG LONG "\"}", ROOT(400, "bad-json")},
    {"POST", "/v1/nodes/nix/drain", NULL, ROOT(404, "no-such-node")},
    {"POST", "/v1/nodes/nix/resume", NULL, ROOT(404, "no-such-node")},
    {"POST", "/v1/nodes/n1/devices/1/drain", NULL, ROOT(200, NULL)},
    {"POST", "/v1/nodes/n1/devices/1/resume", NULL, ROOT(200, NULL)},
    {"POST", "/v1/nodes/n1/devices/99/drain", NULL, ROOT(404, "no-such-device")},
    {"POST", "/v1/nodes/n1/devices/x/resume", NULL, ROOT(404, "no-such-device")},
    {"POST", "/v1/nodes/nix/devices/0/drain", NULL, ROOT(404, "no-such-node")},
    {"POST", "/v1/nodes/n1/cancel-foreign", NULL, ROOT(404, "no-such-run")},
    {"POST", "/v1/nodes/n1/cancel-foreign?run=5", NULL, ROOT(404, "no-such-run")},
    {"POST", "/v1/nodes/nix/cancel-foreign", NULL, ROOT(404, "no-such-node")},
    {"POST", "/v1/nodes/n1/cancel-foreign?run=x", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/backup", NULL, ROOT(200, NULL)},

    /* What services ask of each other, no user may. */
    {"POST", "/v1/peer/start", "{}", NOBODY},
    {"POST", "/v1/peer/stop", "{\"run\":2,\"attempt\":1}", NOBODY},
    {"POST", "/v1/peer/reports", "[]", NOBODY},
    {"POST", "/v1/peer/heartbeat", "{}", NOBODY},
    {"POST", "/v1/peer/devices/0/drain", NULL, NOBODY},
    {"POST", "/v1/peer/devices/0/resume", NULL, NOBODY},
    {"GET", "/v1/peer/logs?run=1&attempt=1&rank=0", NULL, NOBODY},

    /* What there is not. */
    {"GET", "/", NULL, ALL(404, "no-such-route")},
    {"GET", "/v1/runs/1/nix", NULL, ALL(404, "no-such-route")},
    {"PUT", "/v1/version", NULL, ALL(405, "method-not-allowed")},
    {"DELETE", "/v1/runs", NULL, ALL(405, "method-not-allowed")},

    /* What ends runs comes last. */
    {"DELETE", "/v1/runs/99", NULL, ALL(404, "no-such-run")},
    {"DELETE", "/v1/runs/1", NULL, OWNER(409, "ended")},
    {"DELETE", "/v1/runs/3", NULL, .other = REFUSED, .owner = {202, NULL}, .root = {409, "ended"}},
    {"POST", "/v1/end-runs", NULL, ROOT(200, NULL)},
};

static void ask(const struct daemon_fixture *f, const struct row *row, const struct person *who,
                const char *role, const struct want *want)
{
	struct raw_request q = {
	    .method = row->method, .target = row->target, .body = row->body, .head_only = row->endless};
	struct raw_answer a;

	if (!want->status)
		return;
	a = daemon_ask(f, who, &q);
	ck_assert_msg(a.status == want->status && (!want->code || str_eq(a.code, want->code)),
	              "%s %s %s as the %s: %d %s, expected %d %s: %s", row->method, row->target,
	              row->body ? row->body : "", role, a.status, a.code, want->status,
	              want->code ? want->code : "", a.body);
	free(a.body);
}

START_TEST(each_route_answers_those_who_may)
{
	struct daemon_fixture f;

	find_people();
	daemon_fixture_start(&f, NULL, "n1", "");
	ck_assert_int_eq(daemon_submit(&f, &owner, "echo out", 1), 1);
	daemon_await(&f, 1, "succeeded");
	ck_assert_int_eq(daemon_submit(&f, &owner, "exec sleep 60", 2), 2);
	daemon_await(&f, 2, "running");
	ck_assert_int_eq(daemon_submit(&f, &owner, "exec sleep 60", 1), 3);
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (many)
			ask(&f, &rows[i], &other, "other user", &rows[i].other);
		if (many)
			ask(&f, &rows[i], &owner, "owner", &rows[i].owner);
		/* The user of the service may do all that root may. */
		ask(&f, &rows[i], &root, "root", &rows[i].root);
	}
	daemon_await(&f, 2, "failed");
	daemon_fixture_teardown(&f);
}
END_TEST

START_TEST(each_route_is_asked)
{
	for (size_t k = 0; k < route_table_count; k++) {
		bool asked = false;

		for (size_t i = 0; i < ARRAY_SIZE(rows) && !asked; i++) {
			_cleanup_free_ char *path = strndup(rows[i].target, strcspn(rows[i].target, "?"));
			struct http_match m;

			asked =
			    http_route_match(route_table, route_table_count, rows[i].method, path, &m) == 0 &&
			    m.route == &route_table[k];
		}
		ck_assert_msg(asked, "no row asks %s %s", route_table[k].method, route_table[k].pattern);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("daemon");
	TCase *c = tcase_create("daemon");

	tcase_set_timeout(c, 120);
	suite_add_tcase(s, c);
	tcase_add_test(c, each_route_is_asked);
	tcase_add_test(c, each_route_answers_those_who_may);
	return unit_run(s);
}
