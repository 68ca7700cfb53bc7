/* SPDX-License-Identifier: Apache-2.0 */
/* Makes runs and reports for the tests of the cluster: cluster_fixture.h. */
#include "cluster_fixture.h"

#include <string.h>

#include "base/json.h"
#include "base/str.h"

enum { FIXTURE_NODES = 4, FIXTURE_SLOTS = 16 };

struct run_config *fixture_config(const json_t *json)
{
	struct run_config *config = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_decode(json, "test", false, &config, &err), &err);
	return config;
}

struct run *fixture_run(int nodes, int per_node)
{
	_cleanup_json_ json_t *config =
	    json_pack("{s:s,s:s,s:s,s:{s:i,s:i,s:i}}", "task", "command", "name", "test", "directory", "/tmp",
	              "resources", "nodes", nodes, "devices_per_node", per_node, "grace", 7);
	_cleanup_(run_config_freep) struct run_config *checked = fixture_config(config);
	struct error err = ERROR_INIT;
	struct run *r = NULL;

	ck_ok(run_new(checked, &r, &err), &err);
	r->user = strdup("alice");
	r->uid = r->gid = 1000;
	r->id = 1;
	return r;
}

void fixture_place(struct run *r)
{
	static char *const names[FIXTURE_NODES] = {(char *)"n1", (char *)"n2", (char *)"n3", (char *)"n4"};
	struct error err = ERROR_INIT;
	int slots[FIXTURE_SLOTS];

	ck_assert_int_le(r->nodes, FIXTURE_NODES);
	ck_assert_int_le(r->nodes * r->per_node, FIXTURE_SLOTS);
	for (int i = 0; i < FIXTURE_SLOTS; i++)
		slots[i] = i % (int)r->per_node;
	ck_ok(run_place(r, names, slots, 100, &err), &err);
}

unsigned fixture_report_of(struct run *r, int64_t attempt, const char *node, const char *state,
                           const char *ranks, const char *more)
{
	_cleanup_free_ char *text = str_printf("{\"run\":1,\"attempt\":%lld,\"node\":\"%s\",\"state\":\"%s\","
	                                       "%s\"ranks\":[%s]}",
	                                       (long long)attempt, node, state, more, ranks);
	_cleanup_json_ json_t *json = json_loads(text, 0, NULL);
	_cleanup_(report_release) struct report report;
	struct error err = ERROR_INIT;

	ck_assert_ptr_nonnull(json);
	ck_ok(report_decode(json, &report, &err), &err);
	return run_report(r, &report, 200);
}

unsigned fixture_report_with(struct run *r, const char *node, const char *state, const char *ranks,
                             const char *more)
{
	return fixture_report_of(r, r->attempt, node, state, ranks, more);
}

unsigned fixture_report(struct run *r, const char *node, const char *state, const char *ranks)
{
	return fixture_report_with(r, node, state, ranks, "");
}
