/* SPDX-License-Identifier: Apache-2.0 */
/* A training that is stopped, made longer or shorter, or goes on with other settings than it began with. */
#include "base/json.h"
#include "base/str.h"
#include "worker_fixture.h"

enum { SECONDS = 60 };

/* Starts the run and sends it the signal once it has printed the words; returns its end. */
static struct worker_call stop_run(const char *name, const char *words, int signal)
{
	_cleanup_free_ char *file = str_printf("%s.0.out", name);
	pid_t pid = worker_start(name, 0, 1);
	struct worker_call call;

	worker_await_words(file, words);
	kill(pid, signal);
	call = worker_wait(pid, name, 0);
	ck_assert_int_eq(call.status, 128 + signal);
	return call;
}

/* A run that is stopped between steps goes on to the same numbers as one that is not. */
START_TEST(a_run_that_is_stopped_goes_on_from_there)
{
	_cleanup_json_ json_t *marks = NULL, *state = NULL;
	_cleanup_free_ char *output = NULL, *on = NULL, *line = NULL, *from = NULL, *steps_key = NULL,
	                    *out = NULL;
	struct worker_call call;
	int stopped;

	worker_config("long", "train.max_steps=1000000", "train.schedule=constant",
	              "output.tensorboard=false");
	call = stop_run("long", "step 2/1000000", SIGTERM);
	ck_assert_str_eq(call.errors, "");
	marks = worker_marks("out");
	stopped = (int)json_get_int(json_array_get(marks, 1), "step", -1);
	ck_assert_int_ge(stopped, 2);
	worker_expect_mark(marks, 0, "start", 0);
	worker_expect_mark(marks, 1, "checkpoint", stopped);
	worker_expect_mark(marks, 2, "stopped", stopped);
	ck_assert_str_eq(json_get_string(json_array_get(marks, 2), "signal", ""), strsignal(SIGTERM));
	ck_assert_ptr_null(json_object_get(json_array_get(marks, 2), "path"));
	line = str_printf("stopped by %s after step %d\n", strsignal(SIGTERM), stopped);
	expect_line(call.output, line);
	expect_no_words(call.output, "done in");
	ck_assert(!file_exists("out/model.safetensors"));
	worker_release(&call);
	/* Two more steps, and as many of a run without a stop. */
	steps_key = str_printf("train.max_steps=%d", stopped + 2);
	on = worker_train("on", steps_key, "train.schedule=constant", "output.tensorboard=false");
	from = str_printf("resuming from out/checkpoint-%d\n", stopped);
	expect_line(on, from);
	expect_no_words(on, "warning");
	output = worker_train("whole", steps_key, "train.schedule=constant", "output.dir=whole");
	{
		_cleanup_json_ json_t *left = worker_steps("out"), *right = worker_steps("whole");

		ck_assert_uint_eq(json_array_size(left), (size_t)stopped + 2);
		ck_assert_uint_eq(json_array_size(right), (size_t)stopped + 2);
		for (size_t i = 0; i < json_array_size(left); i++)
			for (size_t k = 0; k < 4; k++) {
				const char *name =
				    ((const char *const[]){"loss", "grad_norm", "tokens", "epoch"})[k];

				ck_assert_msg(json_equal(json_object_get(json_array_get(left, i), name),
				                         json_object_get(json_array_get(right, i), name)),
				              "%s of line %zu", name, i);
			}
	}
	json_decref(steal_pointer(marks));
	marks = worker_marks("out");
	worker_expect_mark(marks, 3, "resume", stopped);
	out = str_printf("out/checkpoint-%d", stopped);
	ck_assert_str_eq(json_get_string(json_array_get(marks, 3), "from", ""), out);
	worker_expect_mark(marks, 4, "model", stopped + 2);
	ck_assert_uint_eq(json_array_size(marks), 5);
	state = worker_json("out/trainer_state.json");
	ck_assert_uint_eq(json_array_size(json_object_get(state, "log_history")), (size_t)stopped + 2);
}
END_TEST

/* Before the first step a run ends at once: there is nothing to save. */
START_TEST(a_run_may_be_interrupted)
{
	struct worker_call call;

	worker_config("long", "train.max_steps=1000000", "output.save_steps=1000000");
	call = stop_run("long", "step 1/1000000", SIGINT);
	expect_words(call.output, "stopped by Interrupt after step ");
	worker_release(&call);
}
END_TEST

START_TEST(a_run_may_be_made_longer_and_shorter)
{
	_cleanup_free_ char *first = NULL, *shorter = NULL, *longer = NULL, *whole = NULL, *told = NULL;

	first = worker_train("first", "train.max_steps=4", "output.save_steps=2", "train.schedule=constant");
	ck_assert(file_exists("out/checkpoint-2") && file_exists("out/checkpoint-4"));
	worker_serve();
	shorter =
	    worker_train("shorter", "train.max_steps=2", "output.save_steps=2", "train.schedule=constant");
	expect_line(shorter, "resuming from out/checkpoint-4\n");
	expect_line(shorter,
	            "warning: the checkpoint is of step 4, the run has 2: nothing is left to train\n");
	expect_no_words(shorter, "step 3/");
	/* The checkpoint is the one that there is. */
	told = worker_read("requests");
	expect_words(told, "{\"checkpoint\":4}\n");
	expect_no_words(told, "{\"checkpoint\":2}");
	longer =
	    worker_train("longer", "train.max_steps=6", "output.save_steps=2", "train.schedule=constant");
	expect_line(longer, "resuming from out/checkpoint-4\n");
	expect_no_words(longer, "warning");
	expect_line(longer, "step 5/6 loss ");
	expect_no_words(longer, "step 4/6");
	whole = worker_train("whole", "train.max_steps=6", "train.schedule=constant", "output.dir=whole");
	{
		_cleanup_json_ json_t *left = worker_steps("out"), *right = worker_steps("whole");
		size_t n = json_array_size(left);

		ck_assert_double_eq(json_get_number(json_array_get(left, n - 1), "loss", 0),
		                    json_get_number(json_array_get(right, 5), "loss", 1));
		ck_assert_int_eq(json_get_int(json_array_get(left, n - 1), "tokens", 0),
		                 json_get_int(json_array_get(right, 5), "tokens", 1));
	}
}
END_TEST

/* What a checkpoint was made with, and what the run has now. */
START_TEST(a_run_that_goes_on_otherwise_is_told_so)
{
	_cleanup_free_ char *first = NULL, *seed = NULL, *batch = NULL, *ranks = NULL;

	first = worker_train("first", "train.max_steps=2", "output.save_steps=2");
	/* Another batch: the order of the rows stays. */
	batch = worker_train("batch", "train.max_steps=4", "train.micro_batch=1", "output.save_steps=4");
	expect_line(batch, "the checkpoint was made with rows=");
	expect_words(batch, " batch=2 seed=42 shuffle=1, now it is rows=");
	expect_words(batch, " batch=1 seed=42 shuffle=1: epoch 1 goes on after row 4 of ");
	expect_words(batch, "; 4 steps in all\n");
	expect_no_words(batch, "warning");
	seed = worker_train("seed", "train.max_steps=6", "train.micro_batch=1", "train.seed=7");
	expect_line(seed, "warning: the checkpoint was made with rows=");
	expect_words(seed, "seed=42 shuffle=1, now it is rows=");
	expect_words(seed, "seed=7 shuffle=1: the data go on in another order\n");
	/* As many rows in a step, by two ranks. */
	worker_config("ranks", "train.max_steps=6", "train.micro_batch=2", "output.dir=ranks",
	              "output.save_steps=2", "resources.devices_per_node=2");
	free(steal_pointer(seed));
	free(steal_pointer(first));
	first = worker_train("first", "train.max_steps=2", "output.dir=ranks", "train.micro_batch=4",
	                     "output.save_steps=2");
	ranks = worker_output("ranks", 2);
	expect_line(
	    ranks,
	    "warning: the checkpoint was made by 1 ranks, now there are 2: sums differ in the last bits\n");
	expect_no_words(ranks, "was made with");
}
END_TEST

START_TEST(what_a_run_cannot_go_on_with)
{
	_cleanup_free_ char *first = NULL;

	worker_config("none", "output.resume=must");
	worker_fails("none", "has no checkpoint");
	first = worker_train("first", "train.optimizer=lion", "output.save_steps=1");
	worker_config("other", "train.max_steps=4");
	worker_fails("other",
	             "out/checkpoint-2 was saved by the optimizer lion, and train.optimizer is adamw; "
	             "expected lion, or a new run with this directory as model.path");
	worker_config("never", "train.max_steps=1", "output.resume=never");
	worker_fails("never", "out is not empty");
	/* With its precision, where none is given. */
	worker_config("master", "train.precision=auto", "train.master=none", "train.optimizer=lion");
	worker_fails("master",
	             "train.master = \"none\" is for bf16 weights, but train.precision = \"auto\" is fp32 "
	             "(auto: as the checkpoint) here; expected \"bf16\"");
	free(steal_pointer(first));
	first = worker_train("first", "output.dir=adamw", "output.save_steps=1");
	worker_config("gradients", "train.precision=auto", "train.gradient_type=bf16", "output.dir=adamw");
	worker_fails("gradients",
	             "train.gradient_type = \"bf16\" is for bf16 weights, but train.precision = \"auto\" is "
	             "fp32 (auto: as the checkpoint) here; expected \"bf16\"");
}
END_TEST

/* Its weights have the sizes of this model's, and would be taken. */
START_TEST(a_checkpoint_of_another_model)
{
	_cleanup_free_ char *first = NULL, *config = worker_read(SRCDIR "/tests/engine/bytes/config.json");
	char *at = strstr(config, "\"rope_theta\": 10000.0");

	ck_assert_ptr_nonnull(at);
	memcpy(at, "\"rope_theta\": 20000.0", strlen("\"rope_theta\": 20000.0"));
	worker_file("theta.json", config);
	first = worker_train("first", "output.save_steps=2");
	worker_config("other", "train.max_steps=4", "model.init=theta.json",
	              "model.tokenizer=" SRCDIR "/tests/engine/bytes");
	worker_fails("other",
	             "out/checkpoint-2 was saved with rope_theta 10000, and the run has 20000; expected "
	             "10000, another output.dir, or output.resume = \"never\"");
	worker_config_model("adapter", "train.max_steps=4", "lora.rank=4", "model.path=out/checkpoint-2");
	worker_fails("adapter", "out/checkpoint-2 has a whole model, and the run trains an adapter");
}
END_TEST

/* Of a damaged checkpoint the run says so, and goes on from the one before it. */
START_TEST(a_damaged_checkpoint_is_skipped)
{
	_cleanup_free_ char *first = NULL, *on = NULL;

	first = worker_train("first", "train.max_steps=4", "output.save_steps=2", "train.schedule=constant");
	worker_file("out/checkpoint-4/dtrain/state.json", "{");
	on = worker_train("on", "train.max_steps=5", "output.save_steps=2", "train.schedule=constant");
	expect_line(on, "warning: ");
	expect_words(on, "; resuming from the checkpoint before it\n");
	expect_line(on, "resuming from out/checkpoint-2\n");
	expect_line(on, "step 3/5 ");
}
END_TEST

/* All steps are done, but the model that they have made cannot be written where it belongs. */
START_TEST(a_final_model_that_cannot_be_saved_is_an_error)
{
	_cleanup_free_ char *first = worker_train("first", "train.max_steps=2", "output.save_steps=2");
	struct error err = ERROR_INIT;

	ck_assert_int_eq(unlink("out/model.safetensors"), 0);
	ck_ok(file_mkdirs("out/model.safetensors/full", 0755, &err), &err);
	worker_config("on", "train.max_steps=4", "output.save_steps=2");
	worker_fails("on", "model.safetensors");
	ck_assert(file_exists("out/checkpoint-4"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("worker resume");
	TCase *t = tcase_create("resume");

	tcase_add_checked_fixture(t, worker_setup, worker_teardown);
	tcase_set_timeout(t, SECONDS);
	tcase_add_test(t, a_run_that_is_stopped_goes_on_from_there);
	tcase_add_test(t, a_run_may_be_interrupted);
	tcase_add_test(t, a_run_may_be_made_longer_and_shorter);
	tcase_add_test(t, a_run_that_goes_on_otherwise_is_told_so);
	tcase_add_test(t, what_a_run_cannot_go_on_with);
	tcase_add_test(t, a_checkpoint_of_another_model);
	tcase_add_test(t, a_damaged_checkpoint_is_skipped);
	tcase_add_test(t, a_final_model_that_cannot_be_saved_is_an_error);
	suite_add_tcase(suite, t);
	return unit_run(suite);
}
