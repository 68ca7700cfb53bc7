/* SPDX-License-Identifier: Apache-2.0 */
/* Training from a run file to the model, in a process: what it writes, reports and says. */
#include "base/json.h"
#include "base/str.h"
#include "worker_fixture.h"

enum { SECONDS = 60 };

/* The losses of two runs are the same numbers, step by step. */
static void expect_same_steps(const char *a, const char *b)
{
	static const char *const members[] = {"step",          "steps", "loss",  "grad_norm",
	                                      "learning_rate", "epoch", "tokens"};
	_cleanup_json_ json_t *left = worker_steps(a), *right = worker_steps(b);

	ck_assert_uint_eq(json_array_size(left), json_array_size(right));
	for (size_t i = 0; i < json_array_size(left); i++)
		for (size_t k = 0; k < ARRAY_SIZE(members); k++)
			ck_assert_msg(json_equal(json_object_get(json_array_get(left, i), members[k]),
			                         json_object_get(json_array_get(right, i), members[k])),
			              "%s of line %zu differs", members[k], i);
}

START_TEST(a_run_says_and_writes_what_it_does)
{
	_cleanup_json_ json_t *steps = NULL, *marks = NULL, *state = NULL, *config = NULL;
	_cleanup_free_ char *output = NULL;

	output = worker_train("run", "output.save_steps=2", "data.eval_fraction=2", "data.packing=false");
	expect_line(output, "rank 0 of 1 on cpu: 1 thread");
	expect_line(output, "tokenizing: 0 B of 192 B read\n");
	expect_line(output, "data: 6 examples in 6 rows, ");
	expect_line(output, "held out for evaluation: 2 of 8 examples\n");
	expect_line(output, "precision: fp32\n");
	expect_line(output, "model: qwen3, 59056 parameters; 2 steps, 3 an epoch; ");
	expect_line(output, "ready in ");
	expect_line(output, "step 1/2 loss 5.");
	expect_words(output, " eval 5.");
	expect_line(output, "done in ");
	expect_no_words(output, "warning");
	expect_no_words(output, "ranks over");
	expect_no_words(output, "trained:");
	expect_no_words(output, "score head");
	expect_no_words(output, "optimizer state:");
	steps = worker_steps("out");
	ck_assert_uint_eq(json_array_size(steps), 2);
	ck_assert_int_eq(json_get_int(json_array_get(steps, 1), "step", 0), 2);
	ck_assert_int_eq(json_get_int(json_array_get(steps, 1), "steps", 0), 2);
	ck_assert_double_eq_tol(json_get_number(json_array_get(steps, 1), "epoch", 0), 2.0 / 3, 1e-12);
	marks = worker_marks("out");
	ck_assert_uint_eq(json_array_size(marks), 3);
	worker_expect_mark(marks, 0, "start", 0);
	ck_assert_int_eq(json_get_int(json_array_get(marks, 0), "ranks", 0), 1);
	ck_assert_int_eq(json_get_int(json_array_get(marks, 0), "attempt", 0), 1);
	ck_assert_str_eq(json_get_string(json_array_get(marks, 0), "precision", ""), "fp32");
	worker_expect_mark(marks, 1, "checkpoint", 2);
	ck_assert_str_eq(json_get_string(json_array_get(marks, 1), "path", ""), "out/checkpoint-2");
	worker_expect_mark(marks, 2, "model", 2);
	ck_assert_str_eq(json_get_string(json_array_get(marks, 2), "path", ""), "out");
	/* As transformers has it. */
	state = worker_json("out/trainer_state.json");
	ck_assert_int_eq(json_get_int(state, "global_step", 0), 2);
	ck_assert_int_eq(json_get_int(state, "max_steps", 0), 2);
	ck_assert_int_eq(json_get_int(state, "train_batch_size", 0), 2);
	ck_assert_int_eq(json_get_int(state, "save_steps", 0), 2);
	ck_assert_int_eq(json_get_int(state, "logging_steps", 0), 1);
	ck_assert_int_eq(json_get_int(state, "num_input_tokens_seen", 0),
	                 json_get_int(json_array_get(steps, 1), "tokens", -1));
	ck_assert_uint_eq(json_array_size(json_object_get(state, "log_history")), 2);
	for (size_t i = 0; i < 2; i++) {
		const json_t *log = json_array_get(json_object_get(state, "log_history"), i);
		const json_t *step = json_array_get(steps, i);

		for (size_t k = 0; k < 5; k++) {
			const char *name =
			    ((const char *const[]){"step", "epoch", "loss", "learning_rate", "grad_norm"})[k];

			ck_assert_msg(json_equal(json_object_get(log, name), json_object_get(step, name)),
			              "%s", name);
		}
		ck_assert_double_eq(json_get_number(log, "eval_loss", 0),
		                    json_get_number(step, "eval_loss", 0));
	}
	config = worker_json("out/config.json");
	ck_assert_int_eq(json_get_int(config, "bos_token_id", -1), 1);
	ck_assert_int_eq(json_get_int(config, "eos_token_id", -1), 2);
	ck_assert_int_eq(json_get_int(config, "pad_token_id", -1), 0);
	ck_assert_str_eq(json_get_string(config, "torch_dtype", ""), "float32");
	ck_assert(file_exists("out/model.safetensors") && file_exists("out/tokenizer.json"));
	ck_assert(file_exists("out/checkpoint-2/model.safetensors") && file_exists("out/runs"));
	ck_assert(file_exists("out/cache") && !file_exists("out/checkpoint-1"));
}
END_TEST

START_TEST(without_save_steps_only_the_model_is_saved)
{
	_cleanup_json_ json_t *marks = NULL;
	_cleanup_free_ char *output = NULL;

	output = worker_train("run", "output.tensorboard=false", "data.cache_dir=elsewhere");
	ck_assert(file_exists("out/model.safetensors") && !file_exists("out/checkpoint-2"));
	ck_assert(!file_exists("out/runs"));
	ck_assert(file_exists("elsewhere") && !file_exists("out/cache"));
	marks = worker_marks("out");
	ck_assert_uint_eq(json_array_size(marks), 2);
	worker_expect_mark(marks, 1, "model", 2);
	expect_no_words(output, "held out");
}
END_TEST

/* The requests to the service: rank 0's progress and the events. */
START_TEST(a_service_is_told_of_the_progress)
{
	_cleanup_free_ char *output = NULL, *told = NULL;
	const char *ready, *step;

	worker_serve();
	output = worker_train("run", "output.save_steps=1");
	told = worker_read("requests");
	ready = strstr(
	    told,
	    "POST /v1/runs/7/events?attempt=1 HTTP/1.1\n{\"rank\":0,\"kind\":\"ready\",\"message\":\"\",");
	ck_assert_msg(ready != NULL, "%s", told);
	step = strstr(told, "POST /v1/runs/7/metrics?attempt=1 HTTP/1.1\n{\"step\":1,\"steps\":2,");
	ck_assert_msg(step != NULL, "%s", told);
	expect_words(told, "{\"step\":2,\"steps\":2,");
	expect_words(told, "{\"checkpoint\":1}\n");
	expect_words(told, "{\"checkpoint\":2}\n");
	ck_assert_ptr_null(strstr(strstr(told, "{\"checkpoint\":2}") + 1, "{\"checkpoint\":"));
	expect_no_words(told, "\"kind\":\"error\"");
}
END_TEST

START_TEST(an_error_is_told_once_and_kept_for_the_launcher)
{
	_cleanup_free_ char *told = NULL, *error = NULL;
	const char *first;

	worker_serve();
	setenv("TORCHELASTIC_ERROR_FILE", "error.json", 1);
	worker_config("run", "data.path=absent.txt");
	worker_fails("run", "absent.txt");
	told = worker_read("requests");
	first = strstr(
	    told, "POST /v1/runs/7/events?attempt=1 HTTP/1.1\n{\"rank\":0,\"kind\":\"error\",\"message\":\"");
	ck_assert_msg(first && strstr(first, "absent.txt"), "%s", told);
	ck_assert_ptr_null(strstr(strstr(first, "absent.txt"), "\"kind\""));
	ck_assert_ptr_null(strstr(told, "ready"));
	error = worker_read("error.json");
	expect_words(error, "absent.txt");
	expect_words(error, "\"lost_peer\":false");
}
END_TEST

/* Gradients of all rows of a step are summed, whoever has them. */
START_TEST(ranks_share_a_step)
{
	static const char *const strategies[] = {"ddp", "zero1", "zero2", "zero3"};
	_cleanup_json_ json_t *one = NULL;
	_cleanup_free_ char *alone = NULL;

	alone = worker_train("alone", "train.micro_batch=4", "output.dir=alone", "train.max_steps=3");
	one = worker_steps("alone");
	for (size_t i = 0; i < ARRAY_SIZE(strategies); i++) {
		_cleanup_free_ char *strategy = str_printf("parallel.strategy=%s", strategies[i]);
		_cleanup_free_ char *output_dir = str_printf("output.dir=%s", strategies[i]),
		                    *state_path = NULL;
		_cleanup_json_ json_t *steps = NULL, *marks = NULL, *state = NULL;
		struct worker_call calls[2];

		worker_config("two", "train.micro_batch=2", "train.max_steps=3",
		              "resources.devices_per_node=2", "output.save_steps=3", strategy, output_dir);
		worker_run_ranks("two", calls, 2);
		ck_assert_msg(calls[0].status == 0 && calls[1].status == 0, "%s%s", calls[0].errors,
		              calls[1].errors);
		expect_line(calls[0].output, "rank 0 of 2 on cpu");
		expect_line(calls[0].output, "2 ranks over ");
		/* The other ranks are silent. */
		ck_assert_msg(str_starts(calls[1].output, "rank 1 of 2 on cpu") &&
		                  strchr(calls[1].output, '\n')[1] == '\0',
		              "%s", calls[1].output);
		steps = worker_steps(strategies[i]);
		ck_assert_uint_eq(json_array_size(steps), 3);
		for (size_t k = 0; k < 3; k++) {
			ck_assert_double_eq_tol(json_get_number(json_array_get(steps, k), "loss", 0),
			                        json_get_number(json_array_get(one, k), "loss", 9), 1e-4);
			ck_assert_int_eq(json_get_int(json_array_get(steps, k), "tokens", 0),
			                 json_get_int(json_array_get(one, k), "tokens", 1));
		}
		marks = worker_marks(strategies[i]);
		ck_assert_int_eq(json_get_int(json_array_get(marks, 0), "ranks", 0), 2);
		state_path = str_printf("%s/checkpoint-3/dtrain/state.json", strategies[i]);
		state = worker_json(state_path);
		ck_assert_str_eq(json_get_string(state, "strategy", ""), strategies[i]);
		worker_release(&calls[0]);
		worker_release(&calls[1]);
	}
}
END_TEST

/* Two ranks of the configurations "run" and "differs": both have to end with an error that has the words. */
static void expect_refusal(const char *words)
{
	const char *const names[] = {"run", "differs"};
	struct worker_call calls[2];
	pid_t pids[2];

	for (int r = 0; r < 2; r++)
		pids[r] = worker_start(names[r], r, 2);
	for (int r = 0; r < 2; r++)
		calls[r] = worker_wait(pids[r], names[r], r);
	for (int r = 0; r < 2; r++) {
		ck_assert_msg(calls[r].status == 1, "%s: rank %d: %s%s", words, r, calls[0].output,
		              calls[1].output);
		expect_words(calls[r].errors, words);
		worker_release(&calls[r]);
	}
}

/* What each rank reads where it runs has to be the same. */
START_TEST(ranks_with_other_files_are_refused)
{
	static const struct {
		const char *key, *words;
	} cases[] = {
	    {"model.init=other",
	     "node n2, rank 1: other/config.json: the model's configuration is not what rank 0 on "
	     "node n1 has; the same files on every node are needed"},
	    {"model.tokenizer=token",
	     "node n2, rank 1: token: the tokenizer is not what rank 0 on node n1 has"},
	    {"data.path=text.txt,more.txt", "the tokenized data of text.txt"},
	    {"data.eval_fraction=0.125", "is not what rank 0 on node n1 has"},
	};
	_cleanup_free_ char *config = worker_read(SRCDIR "/tests/engine/bytes/config.json"),
	                    *tokenizer = worker_read(SRCDIR "/tests/engine/bytes/tokenizer.json"),
	                    *names = worker_read(SRCDIR "/tests/engine/bytes/tokenizer_config.json");
	char *theta = strstr(config, "10000.0");

	ck_assert_ptr_nonnull(theta);
	ck_assert_int_eq(mkdir("other", 0700) | mkdir("token", 0700), 0);
	*theta = '2';
	worker_file("other/config.json", config);
	worker_file("other/tokenizer.json", tokenizer);
	worker_file("other/tokenizer_config.json", names);
	worker_file("token/tokenizer.json", tokenizer);
	worker_file("token/tokenizer_config.json", "{\"bos_token\": \"</s>\", \"eos_token\": \"<s>\"}");
	worker_file("more.txt", "a line that is long enough for a row more than the others make\n");
	worker_config("run", "resources.devices_per_node=2");
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		worker_config("differs", "resources.devices_per_node=2", cases[i].key);
		expect_refusal(cases[i].words);
	}
}
END_TEST

START_TEST(the_data_of_the_ranks_are_named)
{
	static const struct {
		const char *key, *words;
	} cases[] = {
	    {"data.path=text.txt,more.txt", "the tokenized data of text.txt and 1 other is not"},
	    {"data.path=text.txt,more.txt,most.txt", "the tokenized data of text.txt and 2 others is not"},
	    {"data.path=text.txt", "the tokenized data of text.txt is not"},
	};

	worker_file("more.txt", "one more line\n");
	worker_file("most.txt", "and one\n");
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		worker_config("run", "resources.devices_per_node=2", cases[i].key);
		worker_config("differs", "resources.devices_per_node=2", cases[i].key, "data.max_length=16");
		expect_refusal(cases[i].words);
	}
}
END_TEST

/* The strategy is chosen by rank 0, and kept by a run that goes on. */
START_TEST(the_strategy_may_be_chosen)
{
	_cleanup_free_ char *first = NULL, *on = NULL;
	_cleanup_json_ json_t *state = NULL;

	worker_config("auto", "parallel.strategy=auto", "resources.devices_per_node=2", "output.save_steps=2",
	              "train.recompute=auto");
	first = worker_output("auto", 2);
	expect_line(first, "strategy: ");
	expect_words(first, " (auto: the fastest that fits, as dtrain estimate has it)\n");
	expect_line(first, "recompute: none, outputs of 2 kept (auto)\n");
	worker_config("zero3", "parallel.strategy=zero3", "resources.devices_per_node=2",
	              "output.save_steps=2", "output.dir=zero3");
	free(steal_pointer(first));
	first = worker_output("zero3", 2);
	expect_no_words(first, "(auto");
	worker_config("on", "parallel.strategy=auto", "resources.devices_per_node=2", "train.max_steps=4",
	              "output.save_steps=4", "output.dir=zero3");
	on = worker_output("on", 2);
	expect_line(on, "strategy: zero3 (auto: as the checkpoint)\n");
	expect_no_words(on, "recompute");
	state = worker_json("zero3/checkpoint-4/dtrain/state.json");
	ck_assert_str_eq(json_get_string(state, "strategy", ""), "zero3");
}
END_TEST

/* The words between "strategy: " and " (auto: the fastest of". */
static char *fastest(const char *output)
{
	const char *end = strstr(output, " (auto: the fastest of "), *at = end;

	ck_assert_msg(end, "%s", output);
	while (at > output && at[-1] != ' ')
		at--;
	return strndup(at, (size_t)(end - at));
}

/* Trials leave nothing behind: the run is the one with that strategy. */
START_TEST(strategies_are_tried)
{
	_cleanup_free_ char *tried = NULL, *given = NULL, *never = NULL, *name = NULL, *key = NULL;

	worker_config("tried", "parallel.trial=always", "resources.devices_per_node=2", "output.dir=tried",
	              "train.recompute=auto");
	tried = worker_output("tried", 2);
	expect_line(tried, "strategy: steps are tried with ");
	name = fastest(tried);
	expect_words(tried, " ms a step)\nrecompute: none, outputs of 2 kept (auto)\n");
	key = str_printf("parallel.strategy=%s", name);
	worker_config("given", key, "resources.devices_per_node=2", "output.dir=given",
	              "train.recompute=auto");
	given = worker_output("given", 2);
	expect_same_steps("tried", "given");
	worker_config("never", "parallel.trial=never", "resources.devices_per_node=2", "output.dir=never",
	              "train.max_steps=1");
	never = worker_output("never", 2);
	expect_words(never, " (auto: the fastest that fits, as dtrain estimate has it)\n");
}
END_TEST

/* By default, where the run is so long that they take a small part of it. */
START_TEST(a_long_run_tries_strategies)
{
	static const struct {
		const char *limit, *words;
	} cases[] = {
	    {"resources.time_limit=0", "(auto: the fastest of "},
	    {"resources.time_limit=20s", "(auto: the fastest that fits, "},
	};
	pid_t ranks[2];

	worker_config("long", "resources.devices_per_node=2", "train.max_steps=1000000000",
	              "train.schedule=constant", "output.tensorboard=false", cases[_i].limit);
	for (int r = 0; r < 2; r++)
		ranks[r] = worker_start("long", r, 2);
	/* Both are in the loop then: a rank that is stopped before it ends at once, which the other would
	 * miss. */
	worker_await_words("long.0.out", "\nstep 1/");
	for (int r = 0; r < 2; r++)
		kill(ranks[r], SIGTERM);
	for (int r = 0; r < 2; r++) {
		struct worker_call call = worker_wait(ranks[r], "long", r);

		ck_assert_int_eq(call.status, 128 + SIGTERM);
		if (r == 0)
			expect_words(call.output, cases[_i].words);
		worker_release(&call);
	}
}
END_TEST

/* As many rows in a step where a run has fewer nodes than it may have. */
START_TEST(fewer_nodes_make_more_micro_steps)
{
	_cleanup_free_ char *four = NULL, *one = NULL;
	_cleanup_json_ json_t *left = NULL, *right = NULL;

	worker_config("many", "resources.nodes=1..2", "train.micro_batch=2", "output.dir=many");
	worker_config("one", "train.micro_batch=4", "output.dir=one");
	four = worker_output("many", 1);
	one = worker_output("one", 1);
	left = worker_steps("many");
	right = worker_steps("one");
	for (size_t i = 0; i < 2; i++) {
		ck_assert_int_eq(json_get_int(json_array_get(left, i), "tokens", 0),
		                 json_get_int(json_array_get(right, i), "tokens", 1));
		ck_assert_double_eq_tol(json_get_number(json_array_get(left, i), "loss", 0),
		                        json_get_number(json_array_get(right, i), "loss", 9), 1e-4);
	}
}
END_TEST

START_TEST(warnings_of_a_run)
{
	_cleanup_free_ char *wide = NULL, *slow = NULL, *warm = NULL, *drops = NULL, *text = NULL;
	_cleanup_json_ json_t *config = worker_json(SRCDIR "/tests/engine/bytes/config.json");

	wide = worker_train("wide", "data.max_length=300");
	expect_line(wide,
	            "warning: data.max_length is 300, but the model's max_position_embeddings is 256\n");
	slow = worker_train("slow", "output.dir=slow", "train.max_steps=2", "train.warmup_steps=3");
	expect_line(slow,
	            "warning: train.warmup_steps is 3, but the run has 2 steps: the learning rate never "
	            "reaches its highest value\n");
	warm = worker_train("warm", "output.dir=warm", "train.max_steps=2", "train.warmup_steps=2");
	ck_assert_ptr_null(strstr(warm, "warmup"));
	expect_no_words(warm, "dropout");
	json_object_set_new(config, "attention_dropout", json_real(0.25));
	text = json_dumps(config, 0);
	worker_file("dropout.json", text);
	drops = worker_train("drops", "output.dir=drops", "train.max_steps=1", "model.init=dropout.json",
	                     "model.tokenizer=" SRCDIR "/tests/engine/bytes");
	expect_line(drops,
	            "warning: the dropout of 0.25 in dropout.json is not applied: only lora.dropout is\n");
}
END_TEST

/* Of a model whose files do not belong together nothing is trained. */
START_TEST(weights_have_the_shapes_of_their_model)
{
	_cleanup_free_ char *model = worker_train("model", "output.dir=model", "train.max_steps=1"),
	                    *text = NULL;
	_cleanup_json_ json_t *config = worker_json("model/config.json");
	json_int_t size = json_integer_value(json_object_get(config, "intermediate_size"));

	json_object_set_new(config, "intermediate_size", json_integer(size / 2));
	text = json_dumps(config, 0);
	worker_file("model/config.json", text);
	worker_config_model("other", "output.dir=other");
	worker_fails("other", "model.layers.0.mlp.");
}
END_TEST

/* A part, and a number, of the examples. */
START_TEST(what_is_held_out_is_counted)
{
	_cleanup_free_ char *part = NULL;

	part = worker_train("part", "data.eval_fraction=0.25", "data.packing=false");
	expect_line(part, "25% held out for evaluation: 2 of 8 examples\n");
}
END_TEST

/* In one line, by one rank, also where the rows are found in the cache. */
START_TEST(what_is_cut_is_counted)
{
	_cleanup_free_ char *cached = NULL, *whole = NULL, *chat = NULL;
	struct worker_call calls[2];

	worker_config("cut", "data.max_length=8", "data.packing=false", "data.eval_fraction=2",
	              "data.cache_dir=cache", "resources.devices_per_node=2");
	worker_run_ranks("cut", calls, 2);
	ck_assert_msg(calls[0].status == 0 && calls[1].status == 0, "%s%s", calls[0].errors, calls[1].errors);
	expect_line(calls[0].output,
	            "cut: 8 of 8 examples are too long for data.max_length (8): the rest of each is "
	            "left out\n");
	expect_no_words(calls[1].output, "cut:");
	worker_release(&calls[0]);
	worker_release(&calls[1]);
	cached = worker_train("cut", "data.max_length=8", "data.packing=false", "data.eval_fraction=2",
	                      "data.cache_dir=cache", "output.overwrite=true");
	expect_no_words(cached, "tokenizing");
	expect_line(cached,
	            "cut: 8 of 8 examples are too long for data.max_length (8): the rest of each is left "
	            "out\n");
	whole = worker_train("whole", "data.max_length=8", "output.overwrite=true");
	expect_no_words(whole, "cut:");
	worker_file(
	    "chat.jsonl",
	    "{\"instruction\":\"1\",\"output\":\"aaaa\"}\n{\"instruction\":\"2\",\"output\":\"b\"}\n");
	chat = worker_train("chat", "task=sft", "data.path=chat.jsonl", "data.format=alpaca",
	                    "data.template=empty", "data.packing=false", "data.max_length=4",
	                    "train.max_steps=1", "output.overwrite=true");
	expect_line(chat,
	            "cut: 1 of 2 examples are too long for data.max_length (4): 1 token of them left out\n");
}
END_TEST

START_TEST(precisions)
{
	_cleanup_free_ char *half = NULL, *eight = NULL, *bf16 = NULL, *small = NULL, *on = NULL;
	_cleanup_json_ json_t *config = NULL, *state = NULL, *steps = NULL;

	half = worker_train("half", "train.precision=fp16", "output.save_steps=2");
	expect_line(half, "precision: fp16\n");
	expect_words(half, " scale 65536 skipped 0 ");
	config = worker_json("out/config.json");
	ck_assert_str_eq(json_get_string(config, "torch_dtype", ""), "float16");
	state = worker_json("out/checkpoint-2/dtrain/state.json");
	ck_assert_str_eq(json_get_string(state, "precision", ""), "fp16");
	steps = worker_steps("out");
	ck_assert_double_eq(json_get_number(json_array_get(steps, 1), "loss_scale", 0), 65536);
	eight = worker_train("eight", "train.precision=fp8", "output.dir=eight", "output.save_steps=2");
	expect_line(eight, "precision: fp8\n");
	expect_line(eight, "warning: fp8 is emulated on this device, slower than bf16\n");
	json_decref(steal_pointer(state));
	state = worker_json("eight/checkpoint-2/dtrain/state.json");
	ck_assert_str_eq(json_get_string(state, "precision", ""), "fp8");
	/* A run that goes on has the precision of its checkpoint, and the factor that it had then. */
	small = worker_train("small", "train.precision=fp16", "train.loss_scale_power=10", "output.dir=small",
	                     "output.save_steps=2");
	expect_words(small, " scale 1024 skipped 0 ");
	on = worker_train("on", "train.precision=auto", "output.dir=small", "output.save_steps=2",
	                  "train.max_steps=4");
	expect_line(on, "precision: fp16 (auto: as the checkpoint)\n");
	expect_words(on, " scale 1024 skipped 0 ");
	expect_no_words(on, " scale 65536 ");
	bf16 = worker_train("bf16", "train.precision=bf16", "train.master=none", "train.gradient_type=bf16",
	                    "output.dir=bf16", "output.save_steps=2");
	expect_no_words(bf16, "fp8");
	json_decref(steal_pointer(config));
	config = worker_json("bf16/config.json");
	ck_assert_str_eq(json_get_string(config, "torch_dtype", ""), "bfloat16");
}
END_TEST

START_TEST(an_optimizer_state_may_be_offloaded)
{
	_cleanup_free_ char *output = NULL, *plain = NULL;

	ck_assert_int_eq(mkdir("disk", 0700), 0);
	output = worker_train("disk", "parallel.offload=optimizer", "parallel.offload_dir=disk",
	                      "output.dir=disk-out");
	expect_line(output, "optimizer state: ");
	expect_words(output, " of each rank in disk, ");
	plain = worker_train("plain");
	expect_same_steps("out", "disk-out");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("worker train");
	TCase *t = tcase_create("train");

	tcase_add_checked_fixture(t, worker_setup, worker_teardown);
	tcase_set_timeout(t, SECONDS);
	tcase_add_test(t, a_run_says_and_writes_what_it_does);
	tcase_add_test(t, without_save_steps_only_the_model_is_saved);
	tcase_add_test(t, a_service_is_told_of_the_progress);
	tcase_add_test(t, an_error_is_told_once_and_kept_for_the_launcher);
	tcase_add_test(t, ranks_share_a_step);
	tcase_add_test(t, ranks_with_other_files_are_refused);
	tcase_add_test(t, the_data_of_the_ranks_are_named);
	tcase_add_test(t, the_strategy_may_be_chosen);
	tcase_add_test(t, strategies_are_tried);
	tcase_add_loop_test(t, a_long_run_tries_strategies, 0, 2);
	tcase_add_test(t, fewer_nodes_make_more_micro_steps);
	tcase_add_test(t, warnings_of_a_run);
	tcase_add_test(t, what_is_held_out_is_counted);
	tcase_add_test(t, what_is_cut_is_counted);
	tcase_add_test(t, weights_have_the_shapes_of_their_model);
	tcase_add_test(t, precisions);
	tcase_add_test(t, an_optimizer_state_may_be_offloaded);
	suite_add_tcase(suite, t);
	return unit_run(suite);
}
