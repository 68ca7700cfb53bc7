/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the parts of a data set one by one: records, templates, packing, and the sampler. */
#include "base/json.h"
#include "engine/chat/encode.h"
#include "engine/chat/exact_json.h"
#include "engine/chat/jinja.h"
#include "engine/chat/template.h"
#include "engine/dataset/dataset.h"
#include "engine/dataset/pack.h"
#include "engine/dataset/reader.h"
#include "engine/dataset/sampler.h"
#include "unit.h"

#include "stub_tokenizer.h"

/* --- records
 * --------------------------------------------------------------------------------------------- */

static void check_records(const char *text, enum record_kind kind, const char *want)
{
	_cleanup_(records_closep) struct records *r = NULL;
	_cleanup_strbuf_ struct strbuf got = {0};
	struct error err = ERROR_INIT;
	struct record record;
	int n;

	ck_ok(records_open_memory(text, strlen(text), "f", kind, &r, &err), &err);
	while ((n = records_next(r, &record, &err)) > 0)
		strbuf_addf(&got, "%lld:%.*s;", (long long)record.line, (int)record.len, record.data);
	if (n < 0)
		strbuf_adds(&got, err.message);
	ck_assert_str_eq(got.data ? got.data : "", want);
}

START_TEST(test_records)
{
	check_records("[\n {\"a\": 1},\n\n {\"b\": \"}]\\\"\"} ]\n", RECORDS_JSON,
	              "2:{\"a\": 1};4:{\"b\": \"}]\\\"\"};");
	check_records("\xef\xbb\xbf[]", RECORDS_JSON, "");
	check_records("", RECORDS_JSON, "");
	check_records("{\"a\":1}\r\n\n{bad\n{\"a\":2}", RECORDS_JSON, "1:{\"a\":1};3:{bad;4:{\"a\":2};");
	check_records("{\n\"a\":1\n}\n{\"a\":\n2}", RECORDS_JSON, "1:{\n\"a\":1\n};4:{\"a\":\n2};");
	check_records("[1, 2", RECORDS_JSON,
	              "1:1;1:2;f:1: the JSON array breaks off here: is the file whole?");
	check_records("[{}\n{}]", RECORDS_JSON,
	              "1:{};f:2: a comma is missing between two elements of the JSON array");
	check_records("[{},\n{\"a\":[1]", RECORDS_JSON,
	              "1:{};f:2: the JSON value that begins here does not end: is the file whole?");
	check_records("[1] 2", RECORDS_JSON, "1:1;f:1: something stands behind the JSON array");
	check_records("a b\r\n\n  \nc", RECORDS_LINES, "1:a b;4:c;");
	check_records("\na\nb\n\n \nc\n", RECORDS_PARAGRAPHS, "2:a\nb;6:c;");
	check_records("a\n\nb\n", RECORDS_FILE, "1:a\n\nb;");
}
END_TEST

START_TEST(test_record_pieces)
{
	_cleanup_(records_closep) struct records *r = NULL;
	_cleanup_strbuf_ struct strbuf text = {0}, got = {0};
	struct error err = ERROR_INIT;
	struct record record;
	int pieces = 0;

	for (int i = 0; i < 40000; i++)
		strbuf_addf(&text, "line %d\n%s", i, i % 3 ? "" : "\n");
	ck_ok(records_open_memory(text.data, text.len, "f", RECORDS_FILE, &r, &err), &err);
	while (records_next(r, &record, &err) > 0) {
		ck_assert_int_eq(record.data[0], 'l');
		strbuf_add(&got, record.data, record.len);
		pieces++;
		ck_assert_int_eq(record.more, got.len < text.len - 2);
	}
	ck_assert_int_gt(pieces, 3);
	ck_assert_int_eq(memcmp(got.data, text.data, got.len), 0);
	ck_assert_uint_ge(got.len + 2, text.len);
}
END_TEST

/* --- templates and encoding
 * ------------------------------------------------------------------------------ */

/* Chat templates of published models, shortened where nothing else is recognized by the rest. */
static const struct {
	const char *jinja, *name, *system;
} known_templates[] = {
    {"{{'<|im_start|>' + x}}", "chatml", NULL},
    {"<|im_start|> <tool_call> <think>", "qwen3", NULL},
    {"<|start_header_id|>", "llama3", NULL},
    {"[INST] {{x}} [/INST]", "mistral", NULL},
    {"[INST] <<SYS>>", "llama2", NULL},
    {"<start_of_turn>user", "gemma", NULL},
    /* OLMo-2-1124-7B-Instruct, and the same without bos_token: Tulu 3 */
    {"{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + "
     "message['content'] + '\\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + "
     "message['content'] + '\\n' }}{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ "
     "'<|assistant|>\\n'  + message['content'] + eos_token + '\\n' }}{% else %}{{ '<|assistant|>\\n'  + "
     "message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ "
     "'<|assistant|>\\n' }}{% endif %}{% endfor %}",
     "olmo2", NULL},
    {"{{ '<|user|>\n' + message['content'] + '\n' }}{{ '<|assistant|>\n'  + message['content'] + eos_token "
     "}}",
     "tulu", NULL},
    /* zephyr-7b-beta */
    {"{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + "
     "message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + "
     "message['content'] + eos_token }}",
     "zephyr", NULL},
    /* Phi-4-mini-instruct, Phi-3-mini */
    {"{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message %}{% else %}{{ "
     "'<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if "
     "add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}",
     "phi4_mini", NULL},
    {"{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}", "phi", NULL},
    /* SmolLM2-Instruct, Qwen2-Instruct, Qwen2.5-Instruct */
    {"{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
     "'<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' "
     "}}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}",
     "smollm2", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    {"{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}", "chatml",
     "You are a helpful assistant."},
    {"{{- '<|im_start|>system\\n' }}{{- 'You are Qwen, created by Alibaba Cloud. You are a helpful "
     "assistant.' }}<tool_call>{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a "
     "helpful assistant.<|im_end|>\\n' }}",
     "qwen", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {"{{ '<|im_start|>system\\nIt\\'s so.\\nDo<|im_end|>' }}", "chatml", "It's so.\nDo"},
    {"{{ '<|im_start|>system\\nIt\\", "chatml", NULL},
    {"{%- set model_identity = \"You are ChatGPT, a large language model trained by OpenAI.\" "
     "%}<|start|>system<|message|> <|channel|>",
     "gpt_oss", "You are ChatGPT, a large language model trained by OpenAI."},
    {"{{ 'USER: ' + message['content'] + ' ASSISTANT:' }}", "vicuna", NULL},
};

START_TEST(test_templates)
{
	struct error err = ERROR_INIT;
	struct template_choice choice = {.source = TEMPLATE_NAMED};
	const struct template *t;
	struct tokenizer tok = {0};
	int plain = 0;
	static const char *const unknown[] = {"nothing known", "{{ '<|user|>\\n' + message['content'] }}",
	                                      /* SmolLM3 */
	                                      "<|im_start|>system\n## Metadata You are a helpful AI "
	                                      "assistant named SmolLM <think> <tool_call>"};

	for (size_t i = 0; i < ARRAY_SIZE(known_templates); i++) {
		tok.chat_template = known_templates[i].jinja;
		ck_ok(template_choose(NULL, &tok, &choice, &err), &err);
		ck_assert_str_eq(choice.template.name, known_templates[i].name);
		ck_assert_pstr_eq(choice.template.default_system, known_templates[i].system);
		ck_assert_int_eq(choice.source, TEMPLATE_RECOGNIZED);
		ck_assert(str_starts(choice.reason, "the tokenizer's chat template contains "));
		ck_assert_ptr_null(strchr(choice.reason, '\n'));
		template_choice_clear(&choice);
	}
	for (size_t i = 0; i < ARRAY_SIZE(unknown); i++) {
		tok.chat_template = unknown[i];
		ck_fails(template_choose(NULL, &tok, &choice, &err), &err,
		         "the tokenizer's chat template is none that is known here: set data.template");
		template_choice_clear(&choice);
	}
	ck_ok(template_choose("default", &tok, &choice, &err), &err);
	ck_assert_int_eq(choice.source, TEMPLATE_NAMED);
	template_choice_clear(&choice);
	tok.chat_template = NULL;
	ck_ok(template_choose(NULL, &tok, &choice, &err), &err);
	ck_assert_str_eq(choice.template.name, "default");
	ck_assert_int_eq(choice.source, TEMPLATE_FALLBACK);
	template_choice_clear(&choice);
	ck_fails(template_choose("lama3", &tok, &choice, &err), &err,
	         "unknown template 'lama3'; did you mean llama3? known are: alpaca, ");
	ck_assert_ptr_nonnull(strstr(err.message, "zephyr"));
	/* Each has slots with exactly one place for the content, and system_in_user a system of one text.
	 * Where a template has no text for the end of an answer, the end token is there, or once after the
	 * last answer. */
	for (size_t i = 0; (t = template_at(i)); i++) {
		for (int role = ROLE_USER; role <= ROLE_SYSTEM; role++) {
			int places = 0;

			for (const struct template_slot *s = template_slots(t, role); s->kind; s++)
				places += s->kind == SLOT_TEXT && strstr(s->text, "{{content}}");
			ck_assert_msg(places == 1, "%s", t->name);
		}
		if (!t->assistant[0].kind) {
			const struct template_slot *last = template_slots(t, ROLE_ASSISTANT);

			while (last[1].kind)
				last++;
			ck_assert_msg((last->kind == SLOT_EOS) == !t->efficient_eos, "%s", t->name);
			plain++;
		}
		ck_assert(!t->system_in_user || template_slots(t, ROLE_SYSTEM)[0].kind == SLOT_TEXT);
		ck_assert(!t->replace_eos || t->stop_words[0]);
	}
	ck_assert_int_gt(plain, 0);
}
END_TEST

START_TEST(test_template_prompt)
{
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};
	static const char *const cases[][4] = {
	    {"chatml", NULL, "hi", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
	    {"chatml", "S", "hi",
	     "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
	    {"mistral", "S", "hi", "<s>[INST] S\n\nhi[/INST]"},
	    {"default", NULL, "hi", "Human: hi</s>\nAssistant:"},
	    {"alpaca", "", "hi", "### Instruction:\nhi\n\n### Response:\n"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct token_list ids = {0};
		const struct template *t;
		char *text;

		ck_ok(template_find(cases[i][0], &t, &err), &err);
		ck_ok(template_prompt(&tok, t, cases[i][1], cases[i][2], &ids, &err), &err);
		text = stub_text(ids.ids, ids.len);
		ck_assert_str_eq(text, cases[i][3]);
		free(text);
		token_list_free(&ids);
	}
}
END_TEST

/* The tokens that end the answer of a model that was trained with a template. */
START_TEST(test_template_stops)
{
	static const char *const cases[][2] = {
	    {"mistral", "</s>"}, {"chatml", "<|im_end|><|im_start|>"}, {"default", "</s>"}};
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct token_list ids = {0};
		const struct template *t;
		char *text;

		ck_ok(template_find(cases[i][0], &t, &err), &err);
		ck_ok(template_stops(&tok, t, &ids, &err), &err);
		text = stub_text(ids.ids, ids.len);
		ck_assert_str_eq(text, cases[i][1]);
		free(text);
		token_list_free(&ids);
	}
}
END_TEST

/* What is saved with a model names its template, and the system prompt that it was trained with. */
START_TEST(test_saved_template)
{
	static const struct {
		const char *name, *jinja, *system; /* of the run, and of its tokenizer */
		bool saved;
		const char *chosen, *chosen_system;
	} cases[] = {
	    {"llama3", NULL, NULL, true, "llama3", NULL},
	    {NULL, NULL, NULL, true, "default", NULL},
	    {"zephyr", NULL, NULL, true, "zephyr", "You are Zephyr, a helpful assistant."},
	    {"zephyr", NULL, "Say #} \"it\"\n", true, "zephyr", "Say #} \"it\"\n"},
	    {"zephyr", NULL, "", true, "zephyr", ""},
	    {"mistral", "<|start_header_id|>", NULL, true, "mistral", NULL},
	    {"llama3", "<|start_header_id|>", NULL, false, NULL, NULL},
	    {"alpaca", "what is not known", "S", true, "alpaca", "S"},
	    {NULL, "<|start_header_id|>", NULL, false, NULL, NULL},
	};
	static const struct jinja_options plain = {.efficient_eos = false}, eos = {.efficient_eos = true};
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct template_choice choice = {.source = TEMPLATE_NAMED}, again = choice;
		_cleanup_strbuf_ struct strbuf saved = {0}, next = {0};
		struct tokenizer tok = {.chat_template = cases[i].jinja};

		ck_ok(template_choose(cases[i].name, &tok, &choice, &err), &err);
		ck_ok(jinja_for_training(&choice, &tok, cases[i].system, &plain, &saved, &err), &err);
		ck_assert_int_eq(saved.len > 0, cases[i].saved);
		if (!saved.len) {
			template_choice_clear(&choice);
			continue;
		}
		tok.chat_template = saved.data;
		ck_ok(template_choose(NULL, &tok, &again, &err), &err);
		ck_assert_int_eq(again.source, TEMPLATE_SAVED);
		ck_assert_str_eq(again.template.name, cases[i].chosen);
		ck_assert_pstr_eq(again.template.default_system, cases[i].chosen_system);
		/* Training that goes on from it saves the same, but for what it does otherwise. */
		ck_ok(jinja_for_training(&again, &tok, NULL, &plain, &next, &err), &err);
		ck_assert_str_eq(next.data, saved.data);
		next.len = 0;
		ck_ok(jinja_for_training(&again, &tok, NULL, &eos, &next, &err), &err);
		ck_assert_str_ne(next.data, saved.data);
		template_choice_clear(&choice);
		template_choice_clear(&again);
	}
	ck_fails(template_choose(
	             NULL, &(struct tokenizer){.chat_template = "{#- dtrain: {\"template\":\"later\"} -#}"},
	             &(struct template_choice){.source = TEMPLATE_NAMED}, &err),
	         &err, "the tokenizer's chat template: unknown template 'later'");
}
END_TEST

START_TEST(test_budget)
{
	/* Values of LLaMA-Factory's infer_seqlen. */
	static const int cases[][5] = {{3000, 2000, 1000, 600, 400}, {2000, 3000, 1000, 400, 600},
	                               {1000, 100, 1000, 900, 100},  {100, 1000, 1000, 100, 900},
	                               {100, 500, 1000, 100, 500},   {500, 100, 1000, 500, 100},
	                               {10, 10, 1000, 10, 10},       {5, 7, 1, 1, 0}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		int source, target;

		encoder_budget(cases[i][0], cases[i][1], cases[i][2], &source, &target);
		ck_assert_int_eq(source, cases[i][3]);
		ck_assert_int_eq(target, cases[i][4]);
	}
}
END_TEST

START_TEST(test_knapsack)
{
	const int32_t lengths[] = {5, 3, 5, 9, 2, 11};
	size_t order[6], ends[6];
	/* 9; then 5 (the later) and 5; then 3 and 2; 11 fits nowhere. */
	const size_t want[] = {3, 2, 0, 1, 4};

	ck_assert_int_eq(pack_knapsack(lengths, 6, 10, order, ends), 3);
	ck_assert_uint_eq(ends[0], 1);
	ck_assert_uint_eq(ends[1], 3);
	ck_assert_uint_eq(ends[2], 5);
	for (int i = 0; i < 5; i++)
		ck_assert_uint_eq(order[i], want[i]);
}
END_TEST

START_TEST(test_python_json)
{
	static const char *const cases[][2] = {
	    {"{\"b\":[1,2.50,1e22,1e-5,-0.0,123456.789],\"a\":\"\\u00e9\\n\\u0001/"
	     "\",\"c\":{},\"d\":[],\"e\":null}",
	     "{\"b\": [1, 2.5, 1e+22, 1e-05, -0.0, 123456.789], \"a\": \"\xc3\xa9\\n\\u0001/\", \"c\": {}, "
	     "\"d\": "
	     "[], \"e\": null}"},
	    /* Integers above int64, with strings that look like their internal form. */
	    {"[9223372036854775807,-9223372036854775808,9223372036854775808,-9223372036854775809]",
	     "[9223372036854775807, -9223372036854775808, 9223372036854775808, -9223372036854775809]"},
	    {"{\"a\":[\"\\u00001\",\"\\u0000\\u0000\",\"\\u0000\",\"\",\"1\\\\\"],\"100000000000000000000\":"
	     "100000000000000000000000000000000000000000,\"b\":\"99999999999999999999 \\\" 1\"}",
	     "{\"a\": [\"\\u00001\", \"\\u0000\\u0000\", \"\\u0000\", \"\", \"1\\\\\"], "
	     "\"100000000000000000000\": "
	     "100000000000000000000000000000000000000000, \"b\": \"99999999999999999999 \\\" 1\"}"},
	    {"99999999999999999999", "99999999999999999999"},
	    /* A quotation mark behind a backslash ends no string. */
	    {"[\"\\\" 99999999999999999999\",\"\\\\\",99999999999999999999]",
	     "[\"\\\" 99999999999999999999\", \"\\\\\", 99999999999999999999]"},
	    /* What Python writes for missing values. */
	    {"{\"a\":NaN,\"b\":[Infinity,-Infinity,1e999,-1e999,1],\"c\":\"NaN, Infinity\"}",
	     "{\"a\": null, \"b\": [null, null, null, null, 1], \"c\": \"NaN, Infinity\"}"},
	    {"NaN", "null"},
	};
	static const char *const broken[] = {"[099999999999999999999]",
	                                     "[99999999999999999999",
	                                     "[99999999999999999999\"]",
	                                     "-",
	                                     "[--99999999999999999999]",
	                                     "[NaNa]",
	                                     "[--Infinity]",
	                                     "{NaN:1}"};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_json_ json_t *v = exact_json_load(cases[i][0], strlen(cases[i][0]), NULL);
		_cleanup_strbuf_ struct strbuf b = {0};

		exact_json_dump(v, 0, &b);
		ck_assert_str_eq(b.data, cases[i][1]);
	}
	for (size_t i = 0; i < ARRAY_SIZE(broken); i++)
		ck_assert_ptr_null(exact_json_load(broken[i], strlen(broken[i]), NULL));
}
END_TEST

/* --- the sampler
 * ----------------------------------------------------------------------------------------- */

START_TEST(test_sampler)
{
	static const int rows[] = {1, 2, 3, 7, 16, 17, 100, 1000, 4097};
	static const int splits[][3] = {{1, 1, 1}, {2, 1, 4}, {1, 8, 1}, {8, 1, 1}, {3, 2, 5}, {1, 4, 2}};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		for (size_t k = 0; k < ARRAY_SIZE(splits); k++) {
			struct sampler s = {.rows = rows[i],
			                    .world_size = splits[k][0],
			                    .micro_batch = splits[k][1],
			                    .accumulation = splits[k][2],
			                    .seed = 42,
			                    .shuffle = true};
			int64_t steps = sampler_steps_per_epoch(&s), out[64], all[64];
			char *seen = calloc(rows[i], 1);

			for (int64_t epoch = 0; epoch < 2; epoch++) {
				int64_t given = 0;

				memset(seen, 0, rows[i]);
				for (int64_t step = epoch * steps; step < (epoch + 1) * steps; step++) {
					sampler_step_all(&s, step, all);
					for (s.rank = 0; s.rank < s.world_size; s.rank++) {
						sampler_step(&s, step, out);
						for (int a = 0; a < s.accumulation; a++)
							for (int b = 0; b < s.micro_batch; b++) {
								int64_t row = out[a * s.micro_batch + b];

								ck_assert_int_eq(
								    row, all[(a * s.world_size + s.rank) *
								                 s.micro_batch +
								             b]);
								if (row < 0)
									continue;
								ck_assert_int_lt(row, rows[i]);
								ck_assert(!seen[row]);
								seen[row] = 1;
								given++;
							}
					}
				}
				ck_assert_int_eq(given, rows[i]);
			}
			free(seen);
		}
	}
}
END_TEST

/* Any split of the same global batch sees the same rows in each step, in the same order. */
START_TEST(test_sampler_splits)
{
	static const int splits[][3] = {{1, 1, 8}, {2, 1, 4}, {4, 2, 1}, {8, 1, 1}, {2, 2, 2}};
	struct sampler base = {
	    .rows = 1001, .world_size = 1, .micro_batch = 8, .accumulation = 1, .seed = 7, .shuffle = true};
	int64_t want[8], got[8];

	for (int64_t step = 0; step < 300; step++) {
		sampler_step_all(&base, step, want);
		for (size_t k = 0; k < ARRAY_SIZE(splits); k++) {
			struct sampler s = base;

			s.world_size = splits[k][0];
			s.micro_batch = splits[k][1];
			s.accumulation = splits[k][2];
			sampler_step_all(&s, step, got);
			ck_assert_int_eq(memcmp(want, got, sizeof(want)), 0);
		}
	}
	/* Another epoch or seed gives another order; without shuffle the order of the file. */
	ck_assert(sampler_permute(&base, 0, 0) != sampler_permute(&base, 1, 0) ||
	          sampler_permute(&base, 0, 1) != sampler_permute(&base, 1, 1));
	base.shuffle = false;
	ck_assert_int_eq(sampler_permute(&base, 3, 77), 77);
}
END_TEST

/* The rows that a step takes, counted in `seen`; returns how many. */
static int64_t take_step(struct sampler *s, int64_t step, int *seen)
{
	int64_t all[256], n = (int64_t)s->world_size * s->micro_batch * s->accumulation, taken = 0;

	ck_assert_int_le(n, ARRAY_SIZE(all));
	sampler_step_all(s, step, all);
	for (int64_t i = 0; i < n; i++)
		if (all[i] >= 0) {
			seen[all[i]]++;
			taken++;
		}
	return taken;
}

/* A run that goes on with another global batch, as often as it likes, sees each row once in each epoch, in
 * the epoch's order. */
START_TEST(test_sampler_goes_on)
{
	const char *given_seed = getenv("SEED");
	unsigned seed = given_seed ? (unsigned)atoi(given_seed) : (unsigned)getpid();

	printf("SEED=%u\n", seed);
	fflush(stdout);

	for (int round = 0; round < 200; round++) {
		int64_t rows = 1 + rand_r(&seed) % 150, step = 0, given = 0, epochs = 3;
		struct sampler s = {.rows = rows, .seed = 5, .shuffle = rand_r(&seed) % 4 != 0};
		_cleanup_free_ int *seen = calloc((size_t)rows, sizeof(*seen));

		while (given < epochs * rows) {
			int64_t steps = 1 + rand_r(&seed) % 12, end;

			s.world_size = 1 + rand_r(&seed) % 5;
			s.micro_batch = 1 + rand_r(&seed) % 4;
			s.accumulation = 1 + rand_r(&seed) % 5;
			sampler_start(&s, step, given);
			ck_assert_int_eq(sampler_seen(&s, step), given);
			end = sampler_steps_until(&s, epochs * rows);
			ck_assert_int_ge(sampler_seen(&s, end), epochs * rows);
			ck_assert_int_lt(sampler_seen(&s, end - 1), epochs * rows);
			for (int64_t last = MIN(step + steps, end); step < last; step++) {
				int64_t before = sampler_permute(&s, given / rows, given % rows);
				int had = seen[before];

				given += take_step(&s, step, seen);
				ck_assert_int_eq(seen[before], had + 1);
				ck_assert_int_eq(sampler_seen(&s, step + 1), given);
				ck_assert_double_le(sampler_epochs(&s, step), sampler_epochs(&s, step + 1));
				if (given % rows == 0)
					for (int64_t i = 0; i < rows; i++)
						ck_assert_msg(seen[i] == given / rows,
						              "round %d: row %d of %d: %d times in %d epochs",
						              round, (int)i, (int)rows, seen[i],
						              (int)(given / rows));
			}
		}
		ck_assert_int_eq(given, epochs * rows);
		ck_assert_double_eq_tol(sampler_epochs(&s, step), (double)epochs, 1e-12);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dataset parts");
	TCase *tc = tcase_create("all");
	const TTest *const tests[] = {test_records,         test_record_pieces,  test_templates,
	                              test_template_prompt, test_template_stops, test_saved_template,
	                              test_budget,          test_knapsack,       test_python_json,
	                              test_sampler,         test_sampler_splits, test_sampler_goes_on};

	tcase_set_timeout(tc, 60);
	for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
		tcase_add_test(tc, tests[i]);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
