/* SPDX-License-Identifier: Apache-2.0 */
/* Training of adapters and from preferences, in a process: what is saved of an adapter, where weights come
 * from, and what is kept of a reference model. */
#include <math.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/str.h"
#include "worker_fixture.h"

enum { SECONDS = 60 };

#define PAIR(prompt, chosen, rejected)                                                                       \
	"{\"instruction\": \"" prompt "\", \"chosen\": \"" chosen "\", \"rejected\": \"" rejected "\"}\n"
#define LABELLED(prompt, answer, label)                                                                      \
	"{\"instruction\": \"" prompt "\", \"output\": \"" answer "\", \"label\": " label "}\n"

#define ALPACA "data.format=alpaca", "data.template=alpaca", "data.packing=false", "data.max_length=256"

/* A setup with a model in model/, and files of preferences. */
static void setup(void)
{
	_cleanup_free_ char *output = NULL;

	worker_setup();
	worker_file("pairs.jsonl", PAIR("a", "yes", "no") PAIR("b", "well", "bad") PAIR("c", "one", "two"));
	worker_file("labels.jsonl",
	            LABELLED("a", "yes", "true") LABELLED("b", "no", "false") LABELLED("c", "one", "true"));
	output = worker_train("model", "output.dir=model", "train.max_steps=1");
}

static double loss_of(const char *directory, size_t step)
{
	_cleanup_json_ json_t *steps = worker_steps(directory);

	ck_assert_uint_gt(json_array_size(steps), step);
	return json_get_number(json_array_get(steps, step), "loss", NAN);
}

static bool same_file(const char *a, const char *b)
{
	struct error err = ERROR_INIT;
	_cleanup_free_ char *left = NULL, *right = NULL;
	size_t m, n;

	ck_ok(file_read(a, 0, &left, &m, &err), &err);
	ck_ok(file_read(b, 0, &right, &n, &err), &err);
	return m == n && !memcmp(left, right, n);
}

static void expect_list(const json_t *list, const char *names)
{
	_cleanup_strbuf_ struct strbuf b = {0};
	const json_t *name;
	size_t i;

	json_array_foreach(list, i, name) strbuf_addf(&b, "%s ", json_string_value(name));
	ck_assert_str_eq(b.data ? b.data : "", names);
}

/* PEFT's configuration of it, in the directory of its weights. */
START_TEST(an_adapter_is_saved_as_peft_has_it)
{
	_cleanup_json_ json_t *config = NULL;
	_cleanup_free_ char *output = NULL;

	output = worker_train_model("run", "lora.rank=4", "lora.alpha=12", "lora.dropout=0.25",
	                            "lora.target=q_proj,v_proj", "lora.modules_to_save=norm");
	expect_line(output, "trained: 1584 parameters, 2.682% of the model's\n");
	config = worker_json("out/adapter_config.json");
	ck_assert_int_eq(json_get_int(config, "r", 0), 4);
	ck_assert_double_eq(json_get_number(config, "lora_alpha", 0), 12);
	ck_assert_double_eq(json_get_number(config, "lora_dropout", 0), 0.25);
	ck_assert_str_eq(json_get_string(config, "base_model_name_or_path", ""), "model");
	ck_assert_str_eq(json_get_string(config, "task_type", ""), "CAUSAL_LM");
	ck_assert(json_is_false(json_object_get(config, "use_rslora")) &&
	          json_is_false(json_object_get(config, "use_dora")));
	ck_assert(json_is_false(json_object_get(config, "fan_in_fan_out")));
	expect_list(json_object_get(config, "target_modules"), "q_proj v_proj ");
	expect_list(json_object_get(config, "modules_to_save"), "model.norm ");
	ck_assert(file_exists("out/adapter_model.safetensors") && !file_exists("out/model.safetensors"));
}
END_TEST

START_TEST(the_factor_of_an_adapter_stays)
{
	static const struct {
		const char *key;
		double alpha;
		int rank;
	} cases[] = {{"lora.rslora=true", 8, 4}, {"lora.dora=true", 8, 4}, {"lora.alpha=6", 6, 4}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_json_ json_t *config = NULL;
		_cleanup_free_ char *output = NULL, *dir = str_printf("output.dir=%zu", i),
		                    *path = str_printf("%zu/adapter_config.json", i);

		output = worker_train_model("run", "lora.rank=4", cases[i].key, dir);
		config = worker_json(path);
		ck_assert_int_eq(json_get_int(config, "r", 0), cases[i].rank);
		ck_assert_double_eq_tol(json_get_number(config, "lora_alpha", 0), cases[i].alpha, 1e-12);
		ck_assert_int_eq(json_is_true(json_object_get(config, "use_rslora")), i == 0);
		ck_assert_int_eq(json_is_true(json_object_get(config, "use_dora")), i == 1);
		expect_list(json_object_get(config, "modules_to_save"), "");
	}
}
END_TEST

/* PiSSA's adapters are saved as the difference from the model, which has twice the rank; their factor is the
 * same. */
START_TEST(pissa_starts_from_the_singular_vectors)
{
	_cleanup_json_ json_t *config = NULL;
	_cleanup_free_ char *plain = NULL, *pissa = NULL, *two = NULL;

	worker_config_model("plain", "lora.rank=4", "output.dir=plain");
	worker_config_model("pissa", "lora.rank=4", "lora.init=pissa", "output.save_steps=1");
	plain = worker_output("plain", 1);
	pissa = worker_output("pissa", 1);
	expect_line(pissa, "singular values (PiSSA): base_model.model.model.layers.0.");
	expect_no_words(plain, "PiSSA");
	/* Both begin as the model is. */
	ck_assert_double_eq_tol(loss_of("plain", 0), loss_of("out", 0), 1e-4);
	ck_assert_double_ne(loss_of("plain", 1), loss_of("out", 1));
	config = worker_json("out/adapter_config.json");
	ck_assert_int_eq(json_get_int(config, "r", 0), 8);
	ck_assert_double_eq_tol(json_get_number(config, "lora_alpha", 0), 16, 1e-12);
	/* A run that goes on has the adapters of the checkpoint. */
	two = worker_train_model("on", "lora.rank=4", "lora.init=pissa", "train.max_steps=3");
	expect_line(two, "resuming from out/checkpoint-2\n");
	expect_no_words(two, "singular values");
}
END_TEST

START_TEST(an_adapter_goes_on_from_another)
{
	_cleanup_free_ char *first = NULL, *second = NULL, *fresh = NULL;

	first = worker_train_model("first", "lora.rank=4", "output.dir=first", "train.learning_rate=0.05",
	                           "train.max_steps=8");
	second = worker_train_model("second", "lora.rank=4", "lora.from=first", "output.dir=second");
	fresh = worker_train_model("fresh", "lora.rank=4", "output.dir=fresh");
	ck_assert_double_lt(loss_of("second", 0), loss_of("fresh", 0) - 0.01);
	worker_config_model("absent", "lora.rank=4", "lora.from=absent", "output.dir=absent-out");
	worker_fails("absent", "absent");
}
END_TEST

/* An adapter's checkpoint does not have the model, which is read again. */
START_TEST(an_adapter_is_resumed)
{
	_cleanup_free_ char *first = NULL, *on = NULL, *whole = NULL;

	first = worker_train_model("first", "lora.rank=4", "train.schedule=constant", "output.save_steps=2");
	on = worker_train_model("on", "lora.rank=4", "train.schedule=constant", "output.save_steps=2",
	                        "train.max_steps=4");
	expect_line(on, "resuming from out/checkpoint-2\n");
	whole = worker_train_model("whole", "lora.rank=4", "train.schedule=constant", "output.dir=whole",
	                           "train.max_steps=4");
	ck_assert_double_eq(loss_of("out", 3), loss_of("whole", 3));
	ck_assert(same_file("out/adapter_model.safetensors", "whole/adapter_model.safetensors"));
}
END_TEST

/* The weights of its checkpoint may have the sizes of another adapter's. */
START_TEST(another_adapter_is_not_resumed)
{
	static const struct {
		const char *set, *words;
	} others[] = {
	    {"lora.rank=8", "out/checkpoint-2 was saved with lora.rank 4, and the run has 8; expected 4"},
	    {"lora.alpha=64",
	     "out/checkpoint-2 was saved with lora.alpha 16, and the run has 64; expected 16"},
	    {"lora.rslora=true", "out/checkpoint-2 was saved with lora.rslora = false; expected the same"},
	    {"lora.dora=true", "out/checkpoint-2 was saved with lora.dora = false; expected the same"},
	    {"lora.target=q_proj",
	     "out/checkpoint-2 was saved with other modules of lora.target; expected those"},
	    {"lora.modules_to_save=norm",
	     "out/checkpoint-2 was saved with other modules of lora.modules_to_save"}};
	_cleanup_free_ char *first =
	    worker_train_model("first", "lora.rank=4", "lora.alpha=16", "output.save_steps=2");

	for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
		worker_config_model("other", "lora.rank=4", "lora.alpha=16", "train.max_steps=4",
		                    others[i].set);
		worker_fails("other", others[i].words);
	}
	worker_config_model("whole", "train.max_steps=4");
	worker_fails("whole", "out/checkpoint-2 has an adapter, and the run trains a whole model");
}
END_TEST

/* Whoever reads the weights, all ranks have them. */
START_TEST(weights_may_be_read_by_one_rank)
{
	_cleanup_free_ char *all = NULL, *broadcast = NULL;
	struct worker_call calls[2];

	worker_config_model("all", "resources.devices_per_node=2", "output.dir=all");
	worker_config_model("broadcast", "model.load=broadcast", "resources.devices_per_node=2",
	                    "output.dir=broadcast");
	all = worker_output("all", 2);
	broadcast = worker_output("broadcast", 2);
	ck_assert_double_eq(loss_of("all", 1), loss_of("broadcast", 1));
	ck_assert(same_file("all/model.safetensors", "broadcast/model.safetensors"));
	/* What rank 0 alone finds wrong is the error of all. */
	ck_assert_int_eq(unlink("model/model.safetensors"), 0);
	worker_config_model("broken", "model.load=broadcast", "resources.devices_per_node=2",
	                    "output.dir=broken");
	worker_run_ranks("broken", calls, 2);
	for (int r = 0; r < 2; r++) {
		ck_assert_int_eq(calls[r].status, 1);
		expect_words(calls[r].errors, "neither model.safetensors nor");
		worker_release(&calls[r]);
	}
}
END_TEST

START_TEST(a_model_begins_at_random_by_its_seed)
{
	_cleanup_free_ char *a = NULL, *b = NULL, *c = NULL, *d = NULL;

	worker_config("a", "output.dir=a");
	worker_config("b", "output.dir=b", "train.seed=43", "train.shuffle=false");
	worker_config("c", "output.dir=c", "model.init_std=0.5");
	worker_config("d", "output.dir=d");
	a = worker_output("a", 1);
	b = worker_output("b", 1);
	c = worker_output("c", 1);
	d = worker_output("d", 1);
	ck_assert_double_eq(loss_of("a", 0), loss_of("d", 0));
	ck_assert_double_ne(loss_of("a", 0), loss_of("b", 0));
	/* Near ln 264 = 5.58 with small weights, and far above with large ones. */
	ck_assert_double_lt(fabs(loss_of("a", 0) - 5.58), 0.2);
	ck_assert_double_gt(loss_of("c", 0), 7);
}
END_TEST

/* The reference is the model that the run begins with, or another; a run that goes on has its numbers. */
START_TEST(the_reference_of_preferences_is_kept)
{
	_cleanup_free_ char *first = NULL, *on = NULL, *again = NULL, *other = NULL, *kept = NULL,
	                    *saved = NULL, *damaged = NULL, *computed = NULL;
	const char *values;

	first = worker_train_model("first", "task=dpo", "data.path=pairs.jsonl", ALPACA,
	                           "output.save_steps=2", "train.micro_batch=1");
	expect_line(first, "reference: log-probabilities of 6 answers in ");
	expect_words(first, " accuracy ");
	expect_words(first, " margin ");
	/* Before the first step the model is its reference. */
	ck_assert_double_eq_tol(loss_of("out", 0), log(2), 1e-6);
	kept = worker_read("out/reference.logps");
	values = strchr(kept, '\n');
	ck_assert(values && values > kept + 6 && !strncmp(values - 6, " model", 6));
	ck_assert_int_eq(system("cp -r out copy && rm copy/reference.logps"), 0);
	on = worker_train_model("on", "task=dpo", "data.path=pairs.jsonl", ALPACA, "output.save_steps=2",
	                        "train.micro_batch=1", "train.max_steps=4");
	expect_line(on, "resuming from out/checkpoint-2\n");
	expect_no_words(on, "reference: ");
	expect_no_words(on, "warning");
	/* The numbers are those that would be computed. */
	computed =
	    worker_train_model("copy", "task=dpo", "data.path=pairs.jsonl", ALPACA, "output.save_steps=2",
	                       "train.micro_batch=1", "train.max_steps=4", "output.dir=copy");
	expect_line(computed, "reference: ");
	ck_assert_double_eq(loss_of("copy", 3), loss_of("out", 3));
	/* Computed again where the file is not there, damaged, or of another model. */
	ck_assert_int_eq(rename("out/reference.logps", "saved"), 0);
	again = worker_train_model("again", "task=dpo", "data.path=pairs.jsonl", ALPACA,
	                           "output.save_steps=2", "train.micro_batch=1", "train.max_steps=5");
	expect_line(again, "warning: out has no log-probabilities of this reference model and data: they are "
	                   "computed again\n");
	expect_line(again, "reference: log-probabilities of 6 answers in ");
	ck_assert(same_file("saved", "out/reference.logps"));
	{
		struct error err = ERROR_INIT;
		size_t len;

		ck_ok(file_read("saved", 0, &saved, &len, &err), &err);
		saved[len - 9] ^= 1;
		ck_ok(file_write_atomic("out/reference.logps", saved, len, 0600, &err), &err);
		damaged =
		    worker_train_model("damaged", "task=dpo", "data.path=pairs.jsonl", ALPACA,
		                       "output.save_steps=2", "train.micro_batch=1", "train.max_steps=6");
		expect_line(damaged, "warning: out has no log-probabilities");
		ck_assert(same_file("saved", "out/reference.logps"));
	}
	/* Where they cannot be kept, nothing is trained. */
	ck_assert_int_eq(rename("out/reference.logps", "saved"), 0);
	ck_assert_int_eq(mkdir("out/reference.logps", 0700), 0);
	ck_assert_int_eq(mkdir("out/reference.logps/full", 0700), 0);
	worker_config_model("full", "task=dpo", "data.path=pairs.jsonl", ALPACA, "output.save_steps=2",
	                    "train.micro_batch=1", "train.max_steps=8");
	worker_fails("full", "reference.logps");
	other = worker_train_model("other", "task=dpo", "preference.reference=out", "data.path=pairs.jsonl",
	                           ALPACA, "train.micro_batch=1", "output.dir=other");
	expect_line(other, "reference: log-probabilities of 6 answers in ");
	ck_assert_double_ne(loss_of("other", 0), loss_of("out", 0));
	free(steal_pointer(kept));
	kept = worker_read("other/reference.logps");
	values = strchr(kept, '\n');
	ck_assert(values && !strncmp(values - 4, " out", 4));
}
END_TEST

START_TEST(ranks_have_one_reference)
{
	_cleanup_free_ char *first = NULL, *on = NULL, *alone = NULL;

	worker_config_model("first", "task=dpo", "data.path=pairs.jsonl", ALPACA, "output.save_steps=2",
	                    "train.micro_batch=1", "resources.devices_per_node=2");
	first = worker_output("first", 2);
	expect_line(first, "reference: log-probabilities of 6 answers in ");
	ck_assert_double_eq_tol(loss_of("out", 0), log(2), 1e-6);
	worker_config_model("on", "task=dpo", "data.path=pairs.jsonl", ALPACA, "output.save_steps=2",
	                    "train.micro_batch=1", "resources.devices_per_node=2", "train.max_steps=4");
	on = worker_output("on", 2);
	expect_no_words(on, "reference: ");
	ck_assert_double_ne(loss_of("out", 3), loss_of("out", 0));
}
END_TEST

START_TEST(labels_of_one_kind_are_reported)
{
	_cleanup_free_ char *both = NULL, *good = NULL, *bad = NULL;

	both = worker_train_model("both", "task=kto", "data.path=labels.jsonl", ALPACA, "output.dir=both");
	expect_no_words(both, "warning");
	worker_file("good.jsonl", LABELLED("a", "yes", "true") LABELLED("b", "no", "true"));
	good = worker_train_model("good", "task=kto", "data.path=good.jsonl", ALPACA, "output.dir=good");
	expect_line(good,
	            "warning: the label of each example is true; kto learns from answers of both kinds\n");
	worker_file("bad.jsonl", LABELLED("a", "yes", "false") LABELLED("b", "no", "false"));
	bad = worker_train_model("bad", "task=kto", "data.path=bad.jsonl", ALPACA, "output.dir=bad");
	expect_line(bad,
	            "warning: the label of each example is false; kto learns from answers of both kinds\n");
}
END_TEST

/* A reward model has a head of its own, and a token that it does not read behind. */
START_TEST(a_reward_model_gets_a_head)
{
	_cleanup_free_ char *whole = NULL, *on = NULL, *adapter = NULL, *from = NULL, *init = NULL,
	                    *text = NULL;
	_cleanup_json_ json_t *config = NULL, *peft = NULL;
	const char *pad;

	whole = worker_train_model("whole", "task=reward", "data.path=pairs.jsonl", ALPACA,
	                           "output.save_steps=2");
	expect_line(whole, "score head: new, from train.seed\n");
	config = worker_json("out/config.json");
	ck_assert_int_eq(json_get_int(config, "pad_token_id", -1), 0);
	ck_assert_str_eq(json_string_value(json_array_get(json_object_get(config, "architectures"), 0)),
	                 "Qwen3ForSequenceClassification");
	on = worker_train_model("on", "task=reward", "data.path=pairs.jsonl", ALPACA, "output.save_steps=2",
	                        "train.max_steps=4");
	expect_line(on, "resuming from out/checkpoint-2\n");
	expect_no_words(on, "score head");
	/* model.init has no weights, so that a new head is no news. */
	init = worker_train("init", "task=reward", "data.path=pairs.jsonl", ALPACA, "output.dir=init");
	expect_no_words(init, "score head");
	worker_config_model("adapter", "task=reward", "data.path=pairs.jsonl", ALPACA, "lora.rank=4",
	                    "output.dir=adapter");
	/* The base names a token for padding. */
	adapter = worker_output("adapter", 1);
	expect_no_words(adapter, "pad_token_id");
	expect_line(adapter, "score head: new");
	peft = worker_json("adapter/adapter_config.json");
	ck_assert_str_eq(json_get_string(peft, "task_type", ""), "SEQ_CLS");
	from = worker_train_model("from", "task=reward", "data.path=pairs.jsonl", ALPACA, "lora.rank=4",
	                          "lora.from=adapter", "output.dir=from");
	expect_no_words(from, "score head");
	/* And where it does not, an adapter cannot either. */
	text = worker_read("model/config.json");
	pad = strstr(text, "  \"pad_token_id\": 0,\n");
	ck_assert_ptr_nonnull(pad);
	{
		_cleanup_free_ char *without =
		    str_printf("%.*s%s", (int)(pad - text), text, pad + strlen("  \"pad_token_id\": 0,\n"));

		worker_file("model/config.json", without);
	}
	free(steal_pointer(adapter));
	adapter = worker_train_model("without", "task=reward", "data.path=pairs.jsonl", ALPACA, "lora.rank=4",
	                             "output.dir=without");
	expect_line(adapter,
	            "warning: model/config.json has no pad_token_id, and an adapter saves none: set "
	            "model.config.pad_token_id = 0 where transformers loads this adapter with its base\n");
	/* Only a reward model needs to know. */
	free(steal_pointer(adapter));
	adapter = worker_train_model("text", "lora.rank=4", "output.dir=text");
	expect_no_words(adapter, "pad_token_id");
	/* A model that is trained whole has it saved, and no warning. */
	worker_config_model("saved", "task=reward", "data.path=pairs.jsonl", ALPACA, "output.dir=saved");
	free(steal_pointer(whole));
	whole = worker_output("saved", 1);
	expect_no_words(whole, "pad_token_id");
	json_decref(steal_pointer(config));
	config = worker_json("saved/config.json");
	ck_assert_int_eq(json_get_int(config, "pad_token_id", -1), 0);
}
END_TEST

START_TEST(a_quantized_model_keeps_its_weights)
{
	_cleanup_free_ char *once = NULL, *twice = NULL, *plain = NULL, *dora = NULL;

	worker_config_model("plain", "lora.rank=4", "output.dir=plain");
	worker_config_model("once", "lora.rank=4", "lora.quantize=nf4", "output.dir=once");
	worker_config_model("twice", "lora.rank=4", "lora.quantize=nf4_double", "output.dir=twice");
	worker_config_model("dora", "lora.rank=4", "lora.quantize=nf4", "lora.dora=true", "output.dir=dora");
	plain = worker_output("plain", 1);
	once = worker_output("once", 1);
	twice = worker_output("twice", 1);
	dora = worker_output("dora", 1);
	ck_assert_double_eq_tol(loss_of("plain", 0), loss_of("once", 0), 0.1);
	ck_assert_double_ne(loss_of("plain", 0), loss_of("once", 0));
	ck_assert_double_ne(loss_of("twice", 0), loss_of("once", 0));
	/* The magnitudes are those of the quantized rows, so that the adapter begins as nothing. */
	ck_assert_double_eq_tol(loss_of("dora", 0), loss_of("once", 0), 1e-4);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("worker tuning");
	TCase *t = tcase_create("tuning");

	tcase_add_checked_fixture(t, setup, worker_teardown);
	tcase_set_timeout(t, SECONDS);
	tcase_add_test(t, an_adapter_is_saved_as_peft_has_it);
	tcase_add_test(t, the_factor_of_an_adapter_stays);
	tcase_add_test(t, pissa_starts_from_the_singular_vectors);
	tcase_add_test(t, an_adapter_goes_on_from_another);
	tcase_add_test(t, an_adapter_is_resumed);
	tcase_add_test(t, another_adapter_is_not_resumed);
	tcase_add_test(t, weights_may_be_read_by_one_rank);
	tcase_add_test(t, a_model_begins_at_random_by_its_seed);
	tcase_add_test(t, the_reference_of_preferences_is_kept);
	tcase_add_test(t, ranks_have_one_reference);
	tcase_add_test(t, labels_of_one_kind_are_reported);
	tcase_add_test(t, a_reward_model_gets_a_head);
	tcase_add_test(t, a_quantized_model_keeps_its_weights);
	suite_add_tcase(suite, t);
	return unit_run(suite);
}
