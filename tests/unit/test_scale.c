/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain estimate --scale: one run on 1 to 1,024 devices. */
#include "dtrain_fixture.h"

#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/train/scale.h"

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
    "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"vocab_size\":128256,\"tie_word_embeddings\":"
    "false}";

static void setup(void)
{
	static const char run[] = "task = \"pretrain\"; model = { init = \"model.json\"; };\n"
	                          "data = { path = \"none.txt\"; max_length = 4096; };\n"
	                          "train = { micro_batch = 1; }; parallel = { strategy = \"zero3\"; };\n"
	                          "output = { dir = \"out\"; };\n";
	struct error err = ERROR_INIT;

	fixture_setup();
	ck_assert_int_eq(chdir(fixture_dir()), 0);
	ck_ok(file_write_atomic("model.json", config, strlen(config), 0644, &err), &err);
	ck_ok(file_write_atomic("run.conf", run, strlen(run), 0644, &err), &err);
}

START_TEST(one_to_1024)
{
	_cleanup_free_ struct scale_point *p = calloc(SCALE_POINTS, sizeof(*p));
	struct hardware_set where = {.nodes = 1, .per_node = 8};
	struct error err = ERROR_INIT;
	struct train_options o;
	struct model_config c;
	struct estimate_input in = {&c, &o, 4096, &where};
	struct estimate_list list;

	ck_assert_ptr_nonnull(p);
	ck_ok(model_config_parse(config, strlen(config), "config.json", &c, &err), &err);
	ck_assert(hardware_find("H200", &where.device));
	train_options_default(&o);
	o.precision = DTYPE_BF16;
	o.strategy = SHARD_ZERO3;
	o.shard_degree = 8;
	ck_ok(scale_run(&in, SHARD_ZERO3, MODEL_KEEP_ALL, p, &err), &err);
	for (int i = 0; i < SCALE_POINTS; i++) {
		int devices = 1 << i;

		ck_assert(p[i].possible);
		ck_assert_int_eq(p[i].per_node, MIN(devices, 8));
		ck_assert_int_eq(p[i].nodes * p[i].per_node, devices);
		ck_assert_int_eq(p[i].e.cost.tokens, devices * o.micro_batch * o.accumulation * 4096);
		ck_assert(i == 0 || p[i].e.cost.communication > 0);
	}
	ck_assert_double_eq(p[0].efficiency, 1);
	/* The links between nodes are slower than those inside of one. */
	ck_assert(p[4].e.cost.communication > p[3].e.cost.communication);
	ck_assert(p[10].efficiency < p[3].efficiency);

	/* Those of a node are what is estimated for a node. */
	ck_ok(estimate_list(&in, &list, &err), &err);
	ck_assert_double_eq(estimate_best(&list, SHARD_ZERO3, MODEL_KEEP_ALL)->cost.step, p[3].e.cost.step);
}
END_TEST

START_TEST(the_command)
{
	_cleanup_(call_release) struct call table =
	    fixture_call(cmd_estimate, "estimate -d H200-141GB --scale run.conf");
	_cleanup_(call_release) struct call call =
	    fixture_call(cmd_estimate, "estimate -d H200-141GB --scale --json run.conf");
	_cleanup_json_ json_t *all = NULL;
	struct error err = ERROR_INIT;
	json_t *scale, *last;

	ck_assert_str_eq(table.errors, "");
	ck_assert_int_eq(table.status, 0);
	ck_assert_ptr_nonnull(strstr(table.output, "\nDEVICES "));
	ck_assert_ptr_nonnull(strstr(table.output, "EFFICIENCY\n1 "));
	ck_assert_ptr_nonnull(strstr(table.output, "\n1024 "));

	ck_assert_str_eq(call.errors, "");
	ck_assert_int_eq(call.status, 0);
	ck_ok(json_parse(call.output, strlen(call.output), "output", &all, &err), &err);
	scale = json_object_get(all, "scale");
	ck_assert_uint_eq(json_array_size(scale), SCALE_POINTS);
	last = json_array_get(scale, SCALE_POINTS - 1);
	ck_assert_int_eq(json_get_int(last, "nodes", 0), 128);
	ck_assert_int_eq(json_get_int(last, "per_node", 0), 8);
	ck_assert_int_eq(json_get_int(last, "tokens", 0), 1024 * 4096);
	ck_assert_str_eq(json_get_string(last, "strategy", ""), "zero3");
	ck_assert(json_number_value(json_object_get(last, "efficiency")) > 0);
	ck_assert(json_number_value(json_object_get(json_object_get(last, "seconds"), "exposed")) > 0);
	ck_assert_ptr_null(json_object_get(all, "plans"));
	ck_assert_str_eq(json_get_string(json_object_get(all, "devices"), "name", ""), "H200-141GB");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("scale");
	TCase *tc = tcase_create("scale");

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, fixture_teardown);
	tcase_add_test(tc, one_to_1024);
	tcase_add_test(tc, the_command);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
