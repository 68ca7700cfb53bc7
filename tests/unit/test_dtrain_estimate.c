/* SPDX-License-Identifier: Apache-2.0 */
/* What dtrain estimate prints: of which devices, with which rates, and what is not submitted by it. */
#include "dtrain_fixture.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/train/estimate.h"

static void setup(void)
{
	static const char config[] =
	    "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,"
	    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":300}";
	static const char scores[] =
	    "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,"
	    "\"num_attention_heads\":4,\"vocab_size\":300,\"architectures\":["
	    "\"LlamaForSequenceClassification\"],\"num_labels\":1}";
	static const char run[] = "task = \"pretrain\"; model = { init = \"model.json\"; };\n"
	                          "data = { path = \"none.txt\"; max_length = 128; };\n"
	                          "train = { micro_batch = 2; accumulation = 3; };\n"
	                          "resources = { devices_per_node = 4; }; output = { dir = \"out\"; };\n";
	struct error err = ERROR_INIT;

	fixture_setup();
	ck_assert_int_eq(chdir(fixture_dir()), 0);
	ck_ok(file_write_atomic("model.json", config, strlen(config), 0644, &err), &err);
	ck_ok(file_write_atomic("scores.json", scores, strlen(scores), 0644, &err), &err);
	ck_ok(file_write_atomic("run.conf", run, strlen(run), 0644, &err), &err);
}

START_TEST(the_json_says_all)
{
	static const char *const classes[] = {"weights", "gradients", "optimizer", "activations",
	                                      "logits",  "scratch",   "input"};
	_cleanup_(call_release) struct call call =
	    fixture_call(cmd_estimate, "estimate --devices A100-40GB --json run.conf");
	_cleanup_json_ json_t *all = NULL;
	struct error err = ERROR_INIT;
	json_t *plan, *memory, *plans;
	size_t i;

	ck_assert_str_eq(call.errors, "");
	ck_assert_int_eq(call.status, 0);
	ck_ok(json_parse(call.output, strlen(call.output), "output", &all, &err), &err);
	plans = json_object_get(all, "plans");
	ck_assert_int_eq(json_get_int(json_object_get(all, "devices"), "per_node", 0), 4);
	ck_assert_int_eq(json_get_int(json_object_get(all, "step"), "tokens", 0), 4 * 2 * 3 * 128);
	ck_assert_str_eq(json_get_string(json_object_get(all, "step"), "precision", ""), "bfloat16");
	json_array_foreach(plans, i, plan)
	{
		int64_t sum = 0;

		memory = json_object_get(plan, "memory");
		for (size_t k = 0; k < ARRAY_SIZE(classes); k++) {
			ck_assert_int_gt(json_get_int(memory, classes[k], 0), 0);
			sum += json_get_int(memory, classes[k], 0);
		}
		/* The plan is aligned. */
		ck_assert_int_ge(json_get_int(memory, "plan", 0), sum);
		ck_assert_int_le(json_get_int(memory, "plan", 0), sum + (1 << 20));
		ck_assert_int_eq(json_get_int(memory, "peak", 0),
		                 json_get_int(memory, "plan", 0) + json_get_int(memory, "outside", 0));
		ck_assert(json_is_true(json_object_get(plan, "fits")));
		ck_assert_double_gt(json_number_value(json_object_get(plan, "tokens_per_second")), 0);
	}
	ck_assert_int_ge(i, 4);
	plan = json_array_get(plans, (size_t)json_get_int(all, "run", -1));
	ck_assert_str_eq(json_get_string(plan, "strategy", ""), "ddp");
	ck_assert_str_eq(json_get_string(plan, "recompute", ""), "none");
	ck_assert(json_is_integer(json_object_get(all, "choice")));
}
END_TEST

/* A program in the place of the worker, which prints the file `rates`, and then does what `more` says. */
static void put_worker(const char *more)
{
	_cleanup_free_ char *text = str_printf("#!/bin/sh\ncat %s/rates\n%s\n", fixture_dir(), more);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic("dtrain-worker-cpu", text, strlen(text), 0755, &err), &err);
	setenv("DTRAIN_WORKER_DIR", fixture_dir(), 1);
	setenv("XDG_CACHE_HOME", fixture_dir(), 1);
}

/* All operations at that rate, measured by this version of dtrain. */
static void put_rates_of(const char *version, double rate)
{
	_cleanup_free_ struct rates *r = calloc(1, sizeof(*r));
	_cleanup_json_ json_t *json = NULL;
	struct rate_set *s = &r->set[0];
	double *lists[] = {s->product[0][0], s->attention[0][0], s->operation[0][0]};
	const size_t bytes[] = {sizeof(s->product), sizeof(s->attention), sizeof(s->operation)};
	struct error err = ERROR_INIT;

	snprintf(r->device, sizeof(r->device), "a processor");
	snprintf(r->version, sizeof(r->version), "%s", version);
	r->sets = 1;
	s->threads = s->ranks = 1;
	for (size_t t = 0; t < ARRAY_SIZE(s->has); t++)
		s->has[t] = true;
	for (size_t l = 0; l < ARRAY_SIZE(lists); l++)
		for (size_t k = 0; k < bytes[l] / sizeof(double); k++)
			lists[l][k] = rate;
	json = rates_encode(r);
	ck_ok(json_write_file("rates", json, 0, false, &err), &err);
}

static void put_rates(double rate)
{
	put_rates_of(DTRAIN_VERSION, rate);
}

static double tokens_per_second(void)
{
	_cleanup_(call_release) struct call call = fixture_call(
	    cmd_estimate, "estimate --devices 1xcpu --json -s resources.devices_per_node=1 run.conf");
	_cleanup_json_ json_t *all = json_loads(call.output, 0, NULL);
	const json_t *plan = json_array_get(json_object_get(all, "plans"), 0);

	ck_assert_str_eq(call.errors, "");
	return json_number_value(json_object_get(plan, "tokens_per_second"));
}

START_TEST(what_was_measured_is_what_estimates_go_by)
{
	double speed[3];

	for (int i = 0; i < 3; i++) {
		_cleanup_(call_release) struct call call = {0};

		put_worker("");
		put_rates(i == 1 ? 4e9 : 2e9);
		call = fixture_call(cmd_estimate, "estimate --measure");
		ck_assert_str_eq(call.errors, "");
		ck_assert_int_eq(call.status, 0);
		ck_assert_ptr_nonnull(strstr(call.output, "/dtrain/rates-cpu.json: written"));
		speed[i] = tokens_per_second();
	}
	ck_assert_double_gt(speed[1], 1.5 * speed[0]);
	ck_assert_double_eq(speed[2], speed[0]);
}
END_TEST

/* A run does not get them from the shell either. */
START_TEST(settings_of_libraries_are_not_measured)
{
	_cleanup_(call_release) struct call call = {0};
	_cleanup_free_ char *seen = NULL;
	struct error err = ERROR_INIT;

	put_worker("env >seen");
	put_rates(1e9);
	setenv("OPENBLAS_CORETYPE", "Haswell", 1);
	setenv("OMP_NUM_THREADS", "3", 1);
	setenv("OPEN", "remains", 1);
	call = fixture_call(cmd_estimate, "estimate --measure");
	ck_assert_int_eq(call.status, 0);
	ck_ok(file_read("seen", 1 << 20, &seen, NULL, &err), &err);
	ck_assert_ptr_null(strstr(seen, "\nOPENBLAS_CORETYPE="));
	ck_assert_ptr_null(strstr(seen, "\nOMP_NUM_THREADS="));
	ck_assert_ptr_nonnull(strstr(seen, "OPEN=remains\n"));
	ck_assert_ptr_nonnull(strstr(seen, "GLIBC_TUNABLES=glibc.malloc.tcache_count=0\n"));
	ck_assert_str_eq(getenv("OPENBLAS_CORETYPE"), "Haswell");
}
END_TEST

START_TEST(a_measurement_that_fails_writes_nothing)
{
	static const struct {
		const char *more, *words;
	} cases[] = {
	    {"exit 3", "--measure has failed"},
	    {"yes | head -c 3000000", "the worker prints more than 1048576 bytes"},
	    {"echo x", "dtrain-worker-cpu:2: not valid JSON"},
	};
	_cleanup_(call_release) struct call call = {0};

	put_worker(cases[_i].more);
	put_rates(1e9);
	call = fixture_call(cmd_estimate, "estimate --measure");
	ck_assert_int_eq(call.status, 1);
	ck_assert_msg(strstr(call.errors, cases[_i].words) != NULL, "%s", call.errors);
	ck_assert(!file_exists("dtrain/rates-cpu.json"));
}
END_TEST

/* What print_memory lists between the heading and the sum. */
START_TEST(each_class_of_memory_is_listed_once)
{
	static const char *const classes[] = {"weights", "gradients", "optimizer", "activations",
	                                      "logits",  "scratch",   "input"};
	_cleanup_(call_release) struct call call =
	    fixture_call(cmd_estimate, "estimate -d 8xH100-80GB run.conf");
	const char *at = strstr(call.output, "\nmemory of a rank, "),
	           *end = at ? strstr(at, "\n  plan ") : NULL;
	size_t lines = 0;

	ck_assert_ptr_nonnull(end);
	for (const char *p = strchr(at + 1, '\n'); p && p < end; p = strchr(p + 1, '\n'), lines++)
		ck_assert_msg(lines < ARRAY_SIZE(classes) && str_starts(p + 3, classes[lines]), "%.40s", p);
	ck_assert_uint_eq(lines, ARRAY_SIZE(classes));
}
END_TEST

START_TEST(the_table_ends_with_the_choice)
{
	_cleanup_(call_release) struct call call =
	    fixture_call(cmd_estimate, "estimate -d 8xH100-80GB run.conf");
	_cleanup_(call_release) struct call nodes =
	    fixture_call(cmd_estimate, "estimate -d 2x8xH100-80GB run.conf");
	_cleanup_(call_release) struct call large = fixture_call(
	    cmd_estimate, "estimate -d 2xcpu -s train.micro_batch=65536 -s data.max_length=8192 run.conf");

	ck_assert_str_eq(call.errors, "");
	ck_assert_int_eq(call.status, 0);
	ck_assert_ptr_nonnull(strstr(call.output, "devices  1 node of 8, 79.1 GiB each; H100-80GB\n"));
	ck_assert_ptr_nonnull(strstr(
	    call.output, "\nstep     8 ranks, 2 rows of 128 tokens a rank, 3 micro-steps: 6144 tokens in "));
	ck_assert_ptr_nonnull(strstr(nodes.output, "\ndevices  2 nodes of 8, "));
	ck_assert_ptr_nonnull(
	    strstr(nodes.output,
	           "\nstep     16 ranks, 2 rows of 128 tokens a rank, 3 micro-steps: 12288 tokens in "));
	ck_assert_ptr_nonnull(strstr(call.output, "\nzero1     full       "));
	ck_assert_ptr_nonnull(strstr(call.output, "\nfastest that fits: parallel.strategy = \""));
	ck_assert_int_eq(large.status, 0);
	ck_assert_ptr_nonnull(strstr(large.output, "\nnothing fits: a rank would take "));
}
END_TEST

/* Devices of the cluster: as many as the run asks for, with the memory of the smallest. */
START_TEST(the_cluster_is_asked)
{
	static const struct exchange list[] = {{"GET /v1/devices",
	                                        "{\"devices\":[{\"node\":\"n1\",\"index\":0,\"kind\":\"cpu\","
	                                        "\"name\":\"CPU\",\"memory\":8589934592,"
	                                        "\"threads\":2,\"state\":\"free\"},{\"node\":\"n2\","
	                                        "\"index\":0,\"kind\":\"cpu\",\"name\":\"CPU\","
	                                        "\"memory\":4294967296,\"threads\":2,\"state\":\"free\"}]}"}};
	_cleanup_(call_release) struct call call =
	    fixture_exchange(cmd_estimate, "estimate --devices cluster run.conf", list, 1);

	ck_assert_str_eq(call.errors, "");
	ck_assert_int_eq(call.status, 0);
	ck_assert_ptr_nonnull(
	    strstr(call.output, "devices  1 node of 4, 4.0 GiB each; CPU of the cluster\n"));
}
END_TEST

/* A run that no device of the cluster holds is not submitted; one of an unknown device, or without a model
 * here, is. */
START_TEST(what_cannot_fit_is_not_submitted)
{
	static const struct exchange small[] = {{"GET /v1/devices",
	                                         "{\"devices\":[{\"node\":\"n1\",\"index\":0,\"kind\":"
	                                         "\"cpu\",\"name\":\"CPU\",\"memory\":1000000,"
	                                         "\"threads\":2,\"state\":\"free\"}]}"}};
	_cleanup_(call_release) struct call call =
	    fixture_exchange(cmd_submit, "submit -n 1 run.conf", small, 1);

	ck_assert_int_eq(call.status, EXIT_FAILURE);
	ck_assert_ptr_nonnull(strstr(call.errors, "optimizer state alone do not fit: a rank would take "));
	ck_assert_ptr_nonnull(strstr(call.errors, "and its device has 977 KiB"));
	ck_assert_ptr_nonnull(strstr(call.errors, "; even parallel.strategy = \""));
}
END_TEST

/* Of GPUs without fp8, or of none that is known to have it. */
#define GPU_LIST(name)                                                                                       \
	"{\"devices\":[{\"node\":\"n1\",\"index\":0,\"kind\":\"gpu\",\"name\":\"NVIDIA " name                \
	"\",\"memory\":85520809984,\"threads\":2,\"state\":\"free\"}]}"

START_TEST(fp8_is_not_submitted_where_no_gpu_has_it)
{
	static const struct exchange ampere[] = {{"GET /v1/devices", GPU_LIST("A100-SXM4-80GB")}};
	static const struct exchange hopper[] = {{"GET /v1/devices", GPU_LIST("H100 80GB HBM3")}};
	_cleanup_(call_release) struct call submit =
	    fixture_exchange(cmd_submit, "submit -n 1 -s train.precision=fp8 run.conf", ampere, 1);
	_cleanup_(call_release) struct call check =
	    fixture_exchange(cmd_check, "check -s train.precision=fp8 run.conf", ampere, 1);
	_cleanup_(call_release) struct call fine =
	    fixture_exchange(cmd_check, "check -s train.precision=fp8 run.conf", hopper, 1);
	_cleanup_(call_release) struct call planned =
	    fixture_call(cmd_estimate, "estimate -d 1xA100-80GB -s train.precision=fp8 run.conf");

	ck_assert_int_eq(submit.status, EXIT_FAILURE);
	ck_assert_ptr_nonnull(strstr(submit.errors, "no GPU of the cluster has fp8 arithmetic (A100-80GB)"));
	ck_assert_int_eq(check.status, EXIT_FAILURE);
	ck_assert_ptr_nonnull(
	    strstr(check.errors, "compute capability 8.9 (Ada, Hopper) or newer; bf16 works"));
	ck_assert_ptr_null(strstr(fine.errors, "fp8"));
	ck_assert_int_eq(planned.status, EXIT_FAILURE);
	ck_assert_ptr_nonnull(strstr(planned.errors, "A100-80GB has no fp8 arithmetic"));
}
END_TEST

static const struct {
	const char *line, *words;
	int status;
} wrong[] = {
    {"estimate -d 8xH10 run.conf", "did you mean H100-80GB?", STATUS_USAGE},
    {"estimate none.conf", "none.conf", STATUS_USAGE},
    {"estimate -s model.init=none.json run.conf", "none.json", STATUS_USAGE},
    {"estimate -s train.optimiser=x run.conf", "train.optimiser", STATUS_USAGE},
    {"estimate -d cluster run.conf", "", STATUS_UNREACHABLE},
    {"estimate -s model.init=scores.json run.conf", "scores.json is a reward model ", STATUS_USAGE},
    {"estimate -s directory=/nowhere run.conf", "/nowhere: No such file or directory\n", STATUS_USAGE},
    {"estimate command.conf", "command.conf: task = \"command\" is not planned: only training is\n",
     STATUS_USAGE},
    {"estimate --scale -d A100-80GB -s train.precision=fp8 run.conf", "A100-80GB has no fp8 arithmetic",
     EXIT_FAILURE},
    {"estimate --json -d A100-80GB -s train.precision=fp8 run.conf", "A100-80GB has no fp8 arithmetic",
     EXIT_FAILURE},
};

START_TEST(what_is_wrong_is_said)
{
	static const char command[] = "command = [\"true\"];\n";
	_cleanup_(call_release) struct call call = {0};
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic("command.conf", command, strlen(command), 0644, &err), &err);
	call = fixture_call(cmd_estimate, wrong[_i].line);

	ck_assert_int_eq(call.status, wrong[_i].status);
	ck_assert_ptr_nonnull(strstr(call.errors, wrong[_i].words));
	ck_assert_str_eq(call.output, "");
}
END_TEST

/* ---- whose devices, and what of them is printed ---- */

#define DEVICE(node, index, kind, name, memory)                                                              \
	"{\"node\":\"" node "\",\"index\":" index ",\"kind\":\"" kind "\",\"name\":\"" name                  \
	"\",\"memory\":" memory ",\"threads\":2,\"state\":\"free\"}"
#define DEVICES(list) "{\"devices\":[" list "]}"
#define H100          "NVIDIA H100 80GB HBM3"

static const struct {
	const char *line, *devices; /* devices NULL: no service */
	const char *words;          /* of the output, or where it fails of the errors */
	int status;
} places[] = {
    {"estimate -d cpu run.conf", NULL, "devices  1 node of 4, ", 0},
    {"estimate -d cpu run.conf", NULL, " each; CPU slots of this machine\n", 0},
    {"estimate -d 2xcpu run.conf", NULL, "devices  1 node of 2, ", 0},
    {"estimate run.conf", NULL, "devices  1 node of 4, ", 0},
    {"estimate run.conf", NULL, " each; CPU slots of this machine\n", 0},
    {"estimate -d H100-80GB run.conf", NULL, "devices  1 node of 4, 79.1 GiB each; H100-80GB\n", 0},
    {"estimate -d H100-80GB -s resources.devices_per_node=all run.conf", NULL, "devices  1 node of 8, ", 0},
    {"estimate -d cpu -s resources.devices_per_node=all run.conf", NULL, "devices  1 node of 1, ", 0},
    {"estimate -d H100-80GB -s resources.nodes=3 run.conf", NULL, "devices  3 nodes of 4, ", 0},
    {"estimate -d 2x4xH100-80GB -s resources.nodes=3 run.conf", NULL, "devices  2 nodes of 4, ", 0},
    {"estimate -s resources.nodes=2..3 -s train.accumulation=6 -d H100-80GB run.conf", NULL,
     "devices  3 nodes of 4, ", 0},
    /* GPUs, where there are some, and the one of the least memory. */
    {"estimate run.conf",
     DEVICES(DEVICE("n1", "0", "cpu", "CPU", "1073741824") "," DEVICE(
         "n2", "0", "gpu", H100, "85520809984") "," DEVICE("n2", "1", "gpu", H100, "85520809983")),
     "devices  1 node of 4, 79.1 GiB each; NVIDIA H100 80GB HBM3 of the cluster\n", 0},
    {"estimate -s resources.kind=cpu -s resources.devices_per_node=1 run.conf",
     DEVICES(DEVICE("n1", "0", "cpu", "CPU", "4294967296") "," DEVICE("n2", "0", "gpu", H100, "85520809984")),
     "devices  1 node of 1, 4.0 GiB each; CPU of the cluster\n", 0},
    {"estimate -s resources.devices_per_node=all run.conf",
     DEVICES(DEVICE("n1", "0", "gpu", H100, "85520809984") "," DEVICE(
         "n2", "0", "gpu", H100, "85520809983") "," DEVICE("n2", "1", "gpu", H100,
                                                           "85520809984") "," DEVICE("n2", "2", "gpu", H100,
                                                                                     "85520809984")),
     "devices  1 node of 3, 79.1 GiB each; NVIDIA H100 80GB HBM3 of the cluster\n", 0},
    /* The slots of a node share its memory; those that the run leaves leave theirs. */
    {"estimate -d cluster -s resources.devices_per_node=2 run.conf",
     DEVICES(DEVICE("n1", "0", "cpu", "CPU", "4294967296") "," DEVICE(
         "n1", "1", "cpu", "CPU", "4294967296") "," DEVICE("n1", "2", "cpu", "CPU",
                                                           "4294967296") "," DEVICE("n1", "3", "cpu", "CPU",
                                                                                    "4294967296")),
     "devices  1 node of 2, 8.0 GiB each; CPU of the cluster\n", 0},
    {"estimate -d cluster -s resources.devices_per_node=all run.conf",
     DEVICES(DEVICE("n1", "0", "cpu", "CPU", "4294967296") "," DEVICE("n1", "1", "cpu", "CPU", "4294967296")),
     "devices  1 node of 2, 4.0 GiB each; CPU of the cluster\n", 0},
    {"estimate -d cluster -s resources.kind=gpu run.conf",
     DEVICES(DEVICE("n1", "0", "cpu", "CPU", "4294967296")),
     "dtrain: the cluster has no such device (resources.kind = \"gpu\")\n", 1},
    {"estimate -d cluster run.conf", DEVICES(DEVICE("n1", "0", "gpu", "Abacus", "4294967296")),
     "dtrain: Abacus: the rates of this device are not known; name a similar one with --devices\n", 1},
    {"estimate -d cluster run.conf", DEVICES(""),
     "dtrain: the cluster has no such device (resources.kind = \"auto\")\n", 1},
    /* Where none is asked for, this machine's count instead. */
    {"estimate run.conf", DEVICES(DEVICE("n1", "0", "gpu", "Abacus", "4294967296")),
     "CPU slots of this machine\n", 0},
    {"estimate run.conf", DEVICES(""), "CPU slots of this machine\n", 0},
    {"estimate run.conf", "{\"devices\":7}", "CPU slots of this machine\n", 0},
    {"estimate -d cluster run.conf", "{\"devices\":7}", "dtrain: ", 1},
};

START_TEST(devices_of_a_plan)
{
	const struct exchange list[] = {{"GET /v1/devices", places[_i].devices}};
	_cleanup_(call_release) struct call call =
	    places[_i].devices ? fixture_exchange(cmd_estimate, places[_i].line, list, 1)
	                       : fixture_call(cmd_estimate, places[_i].line);

	ck_assert_int_eq(call.status, places[_i].status);
	ck_assert_msg(strstr(call.status ? call.errors : call.output, places[_i].words) != NULL, "%s: %s%s",
	              places[_i].line, call.errors, call.output);
	ck_assert_str_eq(call.status ? call.output : call.errors, "");
}
END_TEST

static const struct {
	const char *line, *words;
} printed[] = {
    {"", "model    llama, 2 layers, 112448 parameters\n"},
    {"", "tokens in bf16\n"},
    {"-s train.precision=fp32", "tokens in fp32\n"},
    {"-s train.precision=fp8", "tokens in fp8\n"},
    {"-s train.accumulation=1 -s train.micro_batch=1",
     "step     8 ranks, 1 row of 128 tokens a rank, 1 micro-step: 1024 tokens in "},
    {"",
     "\nrates    from the table of devices; dtrain estimate --measure measures this machine's\n\nSTRATEGY "},
    {"-s parallel.strategy=zero3 -s train.recompute=full", "\nmemory of a rank, zero3, recompute full:\n"},
    {"-s parallel.strategy=zero2 -s train.recompute=selective",
     "\nmemory of a rank, zero2, recompute selective:\n"},
    {"-s parallel.strategy=ddp", "\nmemory of a rank, ddp, recompute none:\n"},
    {"", " of 79.1 GiB\n\nfastest that fits: "},
    {"-s parallel.strategy=zero1 -s parallel.offload=optimizer", "\n  host         "},
    {"-s parallel.strategy=zero1 -s parallel.offload=optimizer -s parallel.offload_dir=.",
     "\n  disk         "},
};

START_TEST(what_a_plan_says)
{
	_cleanup_free_ char *line = str_printf("estimate -d 8xH100-80GB%s%s run.conf",
	                                       *printed[_i].line ? " " : "", printed[_i].line);
	_cleanup_(call_release) struct call call = fixture_call(cmd_estimate, line),
	                                    plain = fixture_call(cmd_estimate,
	                                                         "estimate -d 8xH100-80GB run.conf");

	ck_assert_str_eq(call.errors, "");
	ck_assert_msg(strstr(call.output, printed[_i].words) != NULL, "%s: %s", line, call.output);
	/* What is not needed is not listed. */
	ck_assert_ptr_null(strstr(plain.output, "\n  host "));
	ck_assert_ptr_null(strstr(plain.output, "\n  disk "));
}
END_TEST

/* "1.23 ms", "45.6 k" and "99.9%" as numbers. */
static double number_of(const char *cell)
{
	char *end;
	double value = strtod(cell, &end);

	return value * (str_starts(end, " ms")  ? 1e-3
	                : str_starts(end, " k") ? 1e3
	                : str_starts(end, " M") ? 1e6
	                : str_starts(end, " G") ? 1e9
	                : *end == '%'           ? 1e-2
	                                        : 1);
}

/* The n-th cell of a row; two spaces are between them. */
static const char *cell_at(const char *row, size_t n)
{
	while (n-- > 0) {
		row = strstr(row, "  ");
		row += strspn(row, " ");
	}
	return row;
}

static void near(const char *cell, double value, double relative)
{
	ck_assert_msg(fabs(number_of(cell) - value) <= relative * value, "%.12s is not %g", cell, value);
}

/* What is kept of a plan, with the spaces in front of the next column; into buf, returned. */
static const char *recompute_cell(const json_t *plan, char *buf, size_t size)
{
	int64_t kept = json_get_int(plan, "kept", -1), outputs = json_get_int(plan, "outputs", -1);
	const char *way = json_get_string(plan, "recompute", "?");

	if (kept > 0)
		snprintf(buf, size, "%s, %d kept  ", way, (int)kept);
	else if (outputs > 0)
		snprintf(buf, size, "%s, outputs of %d kept  ", way, (int)outputs);
	else
		snprintf(buf, size, "%s  ", way);
	return buf;
}

/* The table has what the JSON has, with three digits. */
START_TEST(the_table_has_the_numbers)
{
	static const char *const runs[] = {
	    "-d 8xH100-80GB", "-d 128x8xH100-80GB",
	    "-d 1xA100-40GB -s resources.devices_per_node=1 -s train.accumulation=100",
	    "-d 1xH100-80GB -s resources.devices_per_node=1 -s train.accumulation=5000 -s "
	    "data.max_length=4096",
	    "-d 1xcpu -s resources.devices_per_node=1 -s train.accumulation=300"};
	_cleanup_free_ char *text_line = str_printf("estimate %s run.conf", runs[_i]),
	                    *json_line = str_printf("estimate --json %s run.conf", runs[_i]);
	_cleanup_(call_release) struct call text = fixture_call(cmd_estimate, text_line),
	                                    json = fixture_call(cmd_estimate, json_line);
	_cleanup_json_ json_t *all = json_loads(json.output, 0, NULL);
	const char *row = strstr(text.output, "\nSTRATEGY  ");
	const json_t *plan, *choice;
	_cleanup_free_ char *best = NULL;
	bool automatic;
	char cell[64];
	size_t i;

	ck_assert_str_eq(text.errors, "");
	ck_assert_ptr_nonnull(row);
	row = strchr(row + 1, '\n') + 1;
	json_array_foreach(json_object_get(all, "plans"), i, plan)
	{
		ck_assert(str_starts(row, json_get_string(plan, "strategy", "?")));
		ck_assert_msg(str_starts(cell_at(row, 1), recompute_cell(plan, cell, sizeof(cell))),
		              "%.40s is not %s", cell_at(row, 1), cell);
		ck_assert(
		    str_starts(cell_at(row, 3), json_is_true(json_object_get(plan, "fits")) ? "yes" : "no"));
		near(cell_at(row, 4), json_get_number(json_object_get(plan, "seconds"), "step", 0), 0.006);
		near(cell_at(row, 5), json_get_number(plan, "tokens_per_second", 0), 0.006);
		if (json_get_number(plan, "mfu", 0) > 0)
			ck_assert_double_eq_tol(number_of(cell_at(row, 6)), json_get_number(plan, "mfu", 0),
			                        0.0006);
		else
			ck_assert_int_eq(*cell_at(row, 6), '-');
		row = strchr(row, '\n') + 1;
	}
	ck_assert_uint_ge(i, 3);
	ck_assert_int_eq(*row, '\n');
	choice = json_array_get(json_object_get(all, "plans"), (size_t)json_get_int(all, "choice", -1));
	automatic = json_get_int(choice, "kept", 0) > 0 || json_get_int(choice, "outputs", 0) > 0;
	best = str_printf("\nfastest that fits: parallel.strategy = \"%s\", train.recompute = \"%s\"\n",
	                  json_get_string(choice, "strategy", "?"),
	                  automatic ? "auto" : json_get_string(choice, "recompute", "?"));
	ck_assert_msg(strstr(text.output, best) != NULL, "%s lacks %s", text.output, best);
}
END_TEST

/* Where it is one of many devices, too: what fits, and what does not. */
START_TEST(what_fits_is_said_of_each_number_of_devices)
{
	_cleanup_(call_release) struct call
	    small = fixture_call(cmd_estimate, "estimate --scale -d H100-80GB run.conf"),
	    large = fixture_call(
	        cmd_estimate,
	        "estimate --scale -d H100-80GB -s train.micro_batch=65536 -s data.max_length=8192 run.conf");
	_cleanup_(call_release) struct call slots =
	    fixture_call(cmd_estimate, "estimate --scale -d cpu run.conf");
	const char *row;

	/* A name of GPUs alone stands for full nodes. */
	ck_assert_ptr_nonnull(strstr(small.output, "\ndevices  H100-80GB, 8 to a node\n"));
	ck_assert_ptr_nonnull(strstr(slots.output, "\ndevices  CPU slots of this machine, 4 to a node\n"));
	ck_assert_int_eq(small.status, 0);
	row = strstr(small.output, "\n1 ");
	ck_assert_ptr_nonnull(row);
	ck_assert_msg(str_starts(cell_at(row + 1, 3), "yes "), "%s", small.output);
	ck_assert_ptr_null(strstr(small.output, "  no  "));
	row = strstr(large.output, "\n1 ");
	ck_assert_ptr_nonnull(row);
	ck_assert_msg(str_starts(cell_at(row + 1, 3), "no "), "%s", large.output);
}
END_TEST

/* What of the machine was measured counts, and is named. */
START_TEST(measured_rates_are_named)
{
	_cleanup_(call_release) struct call both = {0}, broken = {0}, unread = {0};
	struct error err = ERROR_INIT;

	put_worker("");
	put_rates(1e9);
	/* A run in its directory is planned at once, and the file is not announced. */
	both = fixture_call(cmd_estimate, "estimate --measure -d cpu run.conf");
	ck_assert_int_eq(both.status, 0);
	ck_assert_ptr_null(strstr(both.output, "written"));
	ck_assert_ptr_nonnull(strstr(both.output, "\nrates    measured on a processor\n\n"));
	/* Nothing is measured for a run that cannot be read. */
	ck_assert_int_eq(unlink("dtrain/rates-cpu.json"), 0);
	unread = fixture_call(cmd_estimate, "estimate --measure -d cpu none.conf");
	ck_assert_int_eq(unread.status, STATUS_USAGE);
	ck_assert(!file_exists("dtrain/rates-cpu.json"));
	ck_ok(file_write_atomic("dtrain/rates-cpu.json", "{", 1, 0644, &err), &err);
	broken = fixture_call(cmd_estimate, "estimate -d cpu run.conf");
	ck_assert_int_eq(broken.status, 1);
	ck_assert_msg(strstr(broken.errors, "rates-cpu.json") != NULL, "%s", broken.errors);
}
END_TEST

/* Rates of another version count, and are said to be its. */
START_TEST(who_measured_is_said)
{
	static const struct {
		const char *version, *words;
	} cases[] = {
	    {"0.1.7", "\nrates    measured on a processor\n         dtrain 0.1.7 measured the rates, this is "
	              "dtrain " DTRAIN_VERSION ": dtrain estimate --measure measures them again\n\n"},
	    {"", "\n         dtrain before 0.2.0 measured the rates, this is"},
	    {DTRAIN_VERSION, "\nrates    measured on a processor\n\n"},
	};

	put_worker("");
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(call_release) struct call call = {0};

		put_rates_of(cases[i].version, 1e9);
		call = fixture_call(cmd_estimate, "estimate --measure -d cpu run.conf");
		ck_assert_int_eq(call.status, 0);
		ck_assert_msg(strstr(call.output, cases[i].words) != NULL, "%s", call.output);
	}
}
END_TEST

/* A run is submitted where it is not known that it cannot run. */
START_TEST(what_is_not_known_is_submitted)
{
	static const char *const lines[] = {
	    "submit -n 1 run.conf",
	    "submit -n 1 -s train.precision=fp8 run.conf",
	};
	static const char *const devices[] = {
	    DEVICES(DEVICE("n1", "0", "gpu", "Abacus", "1")),
	    DEVICES(""),
	    "{\"devices\":7}",
	    DEVICES(DEVICE("n1", "0", "gpu", H100, "85520809984")),
	    DEVICES(DEVICE("n1", "0", "cpu", "CPU", "85520809984")),
	};

	for (size_t i = 0; i < ARRAY_SIZE(devices); i++)
		for (size_t k = 0; k < ARRAY_SIZE(lines); k++) {
			const struct exchange list[] = {
			    {"GET /v1/devices", devices[i]},
			    {"GET /v1/devices", devices[i]},
			    {"POST /v1/runs ", "{\"id\":17,\"state\":\"queued\"}"}};
			/* fp8 asks for the devices once more. */
			_cleanup_(call_release) struct call call =
			    fixture_exchange(cmd_submit, lines[k], list + (k == 0), 3 - (k == 0));

			ck_assert_str_eq(call.errors, "");
			ck_assert_str_eq(call.output, "run 17 is submitted\n");
		}
}
END_TEST

/* One device that holds the run is enough, wherever it is in the list. */
START_TEST(the_largest_device_counts)
{
	static const char *const devices[] = {
	    DEVICES(
	        DEVICE("n1", "0", "cpu", "CPU", "1000000") "," DEVICE("n2", "0", "cpu", "CPU", "4294967296")),
	    DEVICES(
	        DEVICE("n1", "0", "cpu", "CPU", "4294967296") "," DEVICE("n2", "0", "cpu", "CPU", "1000000")),
	};

	for (size_t i = 0; i < ARRAY_SIZE(devices); i++) {
		const struct exchange list[] = {{"GET /v1/devices", devices[i]},
		                                {"POST /v1/runs ", "{\"id\":17,\"state\":\"queued\"}"}};
		_cleanup_(call_release) struct call call =
		    fixture_exchange(cmd_submit, "submit -n 1 run.conf", list, 2);

		ck_assert_str_eq(call.errors, "");
		ck_assert_int_eq(call.status, 0);
	}
}
END_TEST

/* What the model's own files say, and how it can be divided. */
START_TEST(what_could_only_fail_is_not_submitted)
{
	static const struct exchange list[] = {
	    {"GET /v1/devices", DEVICES(DEVICE("n1", "0", "cpu", "CPU", "4294967296"))}};
	_cleanup_(call_release) struct call
	    divided = fixture_exchange(
	        cmd_submit,
	        "submit -n 2 -s parallel.strategy=zero3 -s parallel.persist_below=100000000 run.conf", list,
	        1),
	    broken = {0};
	struct error err = ERROR_INIT;

	ck_assert_int_eq(divided.status, EXIT_FAILURE);
	ck_assert_msg(str_starts(divided.errors, "dtrain: parallel.persist_below is 100000000"), "%s",
	              divided.errors);
	ck_ok(file_write_atomic("model.json", "{", 1, 0644, &err), &err);
	broken = fixture_call(cmd_submit, "submit -n 1 run.conf");
	ck_assert_int_eq(broken.status, EXIT_FAILURE);
	ck_assert_msg(strstr(broken.errors, "model.json:1:") != NULL, "%s", broken.errors);
}
END_TEST

/* No device is asked for: what a model is refused for is for "dtrain check" and the worker to say, and a
 * model that is not here may be on the nodes. */
START_TEST(a_model_that_is_not_planned_is_submitted)
{
	static const struct exchange list[] = {{"POST /v1/runs ", "{\"id\":17,\"state\":\"queued\"}"}};
	static const char *const lines[] = {"submit -n 1 -s model.init=scores.json run.conf",
	                                    "submit -n 1 -s model.init=none.json run.conf"};

	for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
		_cleanup_(call_release) struct call call = fixture_exchange(cmd_submit, lines[i], list, 1);

		ck_assert_str_eq(call.errors, "");
		ck_assert_int_eq(call.status, 0);
	}
}
END_TEST

START_TEST(a_measurement_needs_a_worker)
{
	_cleanup_(call_release) struct call call = {0};

	setenv("DTRAIN_WORKER_DIR", fixture_dir(), 1);
	setenv("XDG_CACHE_HOME", fixture_dir(), 1);
	call = fixture_call(cmd_estimate, "estimate --measure");
	ck_assert_int_eq(call.status, EXIT_FAILURE);
	ck_assert_msg(strstr(call.errors, "/dtrain-worker-cpu: No such file or directory\n") != NULL, "%s",
	              call.errors);
	ck_assert_msg(str_ends(call.errors, "/dtrain-worker-cpu --measure has failed\n"), "%s", call.errors);
}
END_TEST

/* GPUs that the run does not get say nothing of it. */
START_TEST(other_gpus_say_nothing_of_fp8)
{
	static const struct exchange mixed[] = {
	    {"GET /v1/devices",
	     DEVICES(DEVICE("n1", "0", "gpu", "NVIDIA A100-SXM4-80GB",
	                    "85520809984") "," DEVICE("n2", "0", "cpu", "CPU", "85520809984"))}};
	_cleanup_(call_release) struct call cpu = fixture_exchange(
	    cmd_check, "check -s train.precision=fp8 -s resources.kind=cpu run.conf", mixed, 1);
	_cleanup_(call_release) struct call gpu =
	    fixture_exchange(cmd_check, "check -s train.precision=fp8 run.conf", mixed, 1);

	ck_assert_ptr_null(strstr(cpu.errors, "fp8"));
	ck_assert_ptr_nonnull(strstr(gpu.errors, "no GPU of the cluster has fp8 arithmetic (A100-80GB)"));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("dtrain_estimate");
	TCase *tc = tcase_create("command");

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, fixture_teardown);
	tcase_add_test(tc, the_json_says_all);
	tcase_add_test(tc, what_was_measured_is_what_estimates_go_by);
	tcase_add_test(tc, settings_of_libraries_are_not_measured);
	tcase_add_loop_test(tc, a_measurement_that_fails_writes_nothing, 0, 3);
	tcase_add_test(tc, each_class_of_memory_is_listed_once);
	tcase_add_test(tc, the_table_ends_with_the_choice);
	tcase_add_test(tc, the_cluster_is_asked);
	tcase_add_test(tc, what_cannot_fit_is_not_submitted);
	tcase_add_test(tc, fp8_is_not_submitted_where_no_gpu_has_it);
	tcase_add_loop_test(tc, what_is_wrong_is_said, 0, ARRAY_SIZE(wrong));
	tcase_add_loop_test(tc, devices_of_a_plan, 0, ARRAY_SIZE(places));
	tcase_add_loop_test(tc, what_a_plan_says, 0, ARRAY_SIZE(printed));
	tcase_add_loop_test(tc, the_table_has_the_numbers, 0, 5);
	tcase_add_test(tc, what_fits_is_said_of_each_number_of_devices);
	tcase_add_test(tc, measured_rates_are_named);
	tcase_add_test(tc, who_measured_is_said);
	tcase_add_test(tc, what_is_not_known_is_submitted);
	tcase_add_test(tc, other_gpus_say_nothing_of_fp8);
	tcase_add_test(tc, the_largest_device_counts);
	tcase_add_test(tc, what_could_only_fail_is_not_submitted);
	tcase_add_test(tc, a_model_that_is_not_planned_is_submitted);
	tcase_add_test(tc, a_measurement_needs_a_worker);
	suite_add_tcase(s, tc);
	return unit_run(s);
}
