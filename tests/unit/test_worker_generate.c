/* SPDX-License-Identifier: Apache-2.0 */
/* Generation from a run file, in a process, with a model that has learned what follows on what. */
#include <fcntl.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/safetensors.h"
#include "worker/tasks.h"
#include "worker_fixture.h"

enum { SECONDS = 60 };

static const char generate[] = "task = \"generate\"; model = { path = \"model\"; };\n"
                               "train = { precision = \"fp32\"; }; generate = { max_new_tokens = 20; };\n";

#define generate_config(name, ...) worker_write_task(name, generate, (const char *const[]){__VA_ARGS__, NULL})

/* What the model has learned: "ab" goes on "cdefgh" and ends; so does "uv" with "wxyz". */
static void setup(void)
{
	_cleanup_free_ char *output = NULL;

	worker_setup();
	worker_file("text.txt", "abcdefgh\nuvwxyz\n");
	output = worker_train("model", "output.dir=model", "train.max_steps=100", "data.packing=false",
	                      "train.learning_rate=0.01", "output.log_steps=100", "output.tensorboard=false");
}

/* stdout of a prompt is what follows it and a newline. */
static void expect_text(const char *name, const char *text)
{
	_cleanup_free_ char *output = worker_output(name, 1);

	ck_assert_str_eq(output, text);
}

START_TEST(a_prompt_goes_on)
{
	generate_config("short", "generate.prompt=abc");
	expect_text("short", "defgh\n");
	generate_config("two", "generate.prompt=uv", "generate.max_new_tokens=2");
	expect_text("two", "wx\n");
	generate_config("one", "generate.prompt=uv", "generate.max_new_tokens=1");
	expect_text("one", "w\n");
	/* The beginning of what a stop string is waits, and is printed where it was none. */
	generate_config("stop", "generate.prompt=abc", "generate.stop=fg");
	expect_text("stop", "de\n");
	generate_config("no-stop", "generate.prompt=abc", "generate.stop=ghi,zz");
	expect_text("no-stop", "defgh\n");
	/* A prompt does not stop. */
	generate_config("prompt", "generate.prompt=abc", "generate.stop=bc");
	expect_text("prompt", "defgh\n");
}
END_TEST

/* Each read of the pipe gets one write. */
START_TEST(a_text_is_printed_as_it_comes)
{
	static const char *const pieces[] = {"d", "e", "f", "g", "h", "\n"};
	int ends[2], status;
	char piece[64];
	pid_t pid;

	generate_config("short", "generate.prompt=abc");
	ck_assert_int_eq(pipe2(ends, O_DIRECT | O_CLOEXEC), 0);
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		setenv("DTRAIN_CONFIG", "short.json", 1);
		dup2(ends[1], STDOUT_FILENO);
		_exit(worker_main());
	}
	close(ends[1]);
	for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
		ssize_t n = read(ends[0], piece, sizeof(piece));

		ck_assert_msg(n == (ssize_t)strlen(pieces[i]) && !memcmp(piece, pieces[i], (size_t)n), "%.*s",
		              (int)n, piece);
	}
	ck_assert_int_eq(read(ends[0], piece, sizeof(piece)), 0);
	close(ends[0]);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
END_TEST

/* Whoever reads the text does not get it: that is an error, also where nothing is left to be written. */
START_TEST(a_text_that_cannot_be_printed_is_an_error)
{
	worker_file("prompts.txt", "uvwx\n");
	generate_config("prompt", "generate.prompt=abc");
	generate_config("file", "generate.prompts=prompts.txt");
	for (int i = 0; i < 2; i++) {
		_cleanup_free_ char *errors = NULL;
		int status;
		pid_t pid;

		fflush(NULL);
		pid = fork();
		if (pid == 0) {
			int full = open("/dev/full", O_WRONLY | O_CLOEXEC),
			    told = open("told", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

			setenv("DTRAIN_CONFIG", i ? "file.json" : "prompt.json", 1);
			dup2(full, STDOUT_FILENO);
			dup2(told, STDERR_FILENO);
			_exit(worker_main());
		}
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
		errors = worker_read("told");
		expect_words(errors, "cannot write to stdout: No space left on device");
	}
}
END_TEST

/* Lines of a file of prompts, which are answered in their order, however many at once. */
START_TEST(prompts_of_a_file_go_on)
{
	static const char *const batches[] = {"generate.batch=1", "generate.batch=2", "generate.batch=8"};

	worker_file("prompts.jsonl", "{\"id\": 1, \"prompt\": \"uvwx\"}\n{\"prompt\": \"abcd\", \"id\": 2}\n"
	                             "{\"id\": 3, \"prompt\": \"u\"}\n");
	for (size_t i = 0; i < ARRAY_SIZE(batches); i++) {
		_cleanup_free_ char *output = NULL;

		generate_config("file", "generate.prompts=prompts.jsonl", "generate.max_new_tokens=4",
		                batches[i]);
		output = worker_output("file", 1);
		ck_assert_str_eq(
		    output,
		    "{\"id\":1,\"prompt\":\"uvwx\",\"completion\":\"yz\",\"finish_reason\":\"stop\"}\n"
		    "{\"prompt\":\"abcd\",\"id\":2,\"completion\":\"efgh\",\"finish_reason\":\"length\"}\n"
		    "{\"id\":3,\"prompt\":\"u\",\"completion\":\"vwxy\",\"finish_reason\":\"length\"}\n");
	}
	generate_config("stop", "generate.prompts=prompts.jsonl", "generate.stop=y,f");
	{
		_cleanup_free_ char *output = worker_output("stop", 1);

		ck_assert_str_eq(
		    output,
		    "{\"id\":1,\"prompt\":\"uvwx\",\"completion\":\"\",\"finish_reason\":\"stop\"}\n"
		    "{\"prompt\":\"abcd\",\"id\":2,\"completion\":\"e\",\"finish_reason\":\"stop\"}\n"
		    "{\"id\":3,\"prompt\":\"u\",\"completion\":\"vwx\",\"finish_reason\":\"stop\"}\n");
	}
}
END_TEST

/* All members of an object are in the answer as they were, those that only other programs can read as
 * numbers, too. */
START_TEST(members_of_a_prompt_stay)
{
	_cleanup_free_ char *output = NULL;

	worker_file("prompts.jsonl",
	            "\xef\xbb\xbf{\"id\": 18446744073709551615, \"prompt\": \"abcd\", \"of\": [{}, "
	            "1.50, true, null, \"\\u0000\"]}\n");
	generate_config("file", "generate.prompts=prompts.jsonl");
	output = worker_output("file", 1);
	ck_assert_str_eq(
	    output, "{\"id\":18446744073709551615,\"prompt\":\"abcd\",\"of\":[{},1.5,true,null,\"\\u0000\"],"
	            "\"completion\":\"efgh\",\"finish_reason\":\"stop\"}\n");
}
END_TEST

/* A model that names other ids ends with them, whichever file names them. */
START_TEST(ids_that_end_an_answer)
{
	static const struct {
		const char *file, *ids, *text;
	} cases[] = {
	    /* The ids of bytes begin at 3 or above; that of a token is found by its name below. */
	    {"model/generation_config.json", "{\"eos_token_id\": %d}", "de\n"},
	    {"model/generation_config.json", "{\"eos_token_id\": [1, %d, 0]}", "de\n"},
	    {"model/generation_config.json", "{\"eos_token_id\": [1, \"x\"]}", "defgh\n"},
	    {"model/generation_config.json", "{}", "defgh\n"},
	};
	_cleanup_json_ json_t *tokenizer = worker_json("model/tokenizer.json");
	int f = (int)json_get_int(json_object_get(json_object_get(tokenizer, "model"), "vocab"), "f", -1);

	ck_assert_int_ge(f, 0);
	generate_config("ends", "generate.prompt=abc");
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		char text[100];

		snprintf(text, sizeof(text), cases[i].ids, f);
		worker_file(cases[i].file, text);
		expect_text("ends", cases[i].text);
	}
	ck_assert_int_eq(unlink("model/generation_config.json"), 0);
	expect_text("ends", "defgh\n");
	worker_file("model/generation_config.json", "{");
	worker_fails("ends", "model/generation_config.json");
}
END_TEST

START_TEST(choices_at_random_are_those_of_their_seed)
{
	_cleanup_free_ char *a = NULL, *b = NULL, *c = NULL;

	generate_config("a", "generate.prompt=ab", "generate.temperature=3", "generate.seed=1");
	generate_config("c", "generate.prompt=ab", "generate.temperature=3", "generate.seed=2");
	a = worker_output("a", 1);
	b = worker_output("a", 1);
	c = worker_output("c", 1);
	ck_assert_str_eq(a, b);
	ck_assert_str_ne(a, c);
	/* The same prompt of a file goes on otherwise each time. */
	worker_file("prompts.txt", "ab\nab\n");
	generate_config("file", "generate.prompts=prompts.txt", "generate.temperature=3", "generate.seed=1",
	                "generate.max_new_tokens=12");
	free(steal_pointer(a));
	a = worker_output("file", 1);
	ck_assert_ptr_nonnull(strchr(a, '\n'));
	ck_assert_int_ne(strncmp(a, strchr(a, '\n') + 1, strcspn(a, "\n")), 0);
	/* The likeliest alone, by each of the limits. */
	for (size_t i = 0; i < 3; i++) {
		generate_config("likely", "generate.prompt=abc", "generate.temperature=1",
		                ((const char *const[]){"generate.top_k=1", "generate.top_p=0.001",
		                                       "generate.min_p=1"})[i]);
		expect_text("likely", "defgh\n");
	}
	/* What was there already is less likely. */
	generate_config("penalty", "generate.prompt=abcdefgh", "generate.repetition_penalty=100");
	generate_config("plain", "generate.prompt=hgfedabc");
	expect_text("plain", "defgh\n");
	generate_config("penalty", "generate.prompt=hgfedabc", "generate.repetition_penalty=100");
	free(steal_pointer(b));
	b = worker_output("penalty", 1);
	ck_assert_msg(!strpbrk(b, "abcdefgh"), "%s", b);
}
END_TEST

START_TEST(a_conversation_has_a_template)
{
	_cleanup_free_ char *with = NULL, *without = NULL;

	worker_file("chat.jsonl", "{\"instruction\": \"ab\", \"output\": \"uvw\"}\n");
	worker_config("chat", "task=sft", "data.path=chat.jsonl", "data.format=alpaca",
	              "data.template=alpaca", "data.packing=false", "data.max_length=256",
	              "train.max_steps=60", "train.learning_rate=0.01", "output.dir=chat",
	              "output.log_steps=60");
	free(worker_output("chat", 1));
	worker_write_task(
	    "chat-generate",
	    "task = \"generate\"; model = { path = \"chat\"; }; train = { precision = \"fp32\"; };",
	    (const char *const[]){"generate.prompt=ab", "generate.chat=true", "data.template=alpaca",
	                          "generate.max_new_tokens=20", NULL});
	expect_text("chat-generate", "uvw\n");
	/* The prompt alone is not what it has learned. */
	worker_write_task(
	    "plain-generate",
	    "task = \"generate\"; model = { path = \"chat\"; }; train = { precision = \"fp32\"; };",
	    (const char *const[]){"generate.prompt=ab", "generate.max_new_tokens=20", NULL});
	without = worker_output("plain-generate", 1);
	ck_assert_str_ne(without, "uvw\n");
}
END_TEST

START_TEST(an_adapter_is_merged)
{
	worker_file("text.txt", "abzzz\n");
	worker_config_model("adapter", "lora.rank=8", "output.dir=adapter", "train.max_steps=60",
	                    "data.packing=false", "train.learning_rate=0.03", "output.log_steps=60");
	free(worker_output("adapter", 1));
	generate_config("with", "generate.prompt=ab", "generate.adapter=adapter");
	expect_text("with", "zzz\n");
	generate_config("without", "generate.prompt=ab");
	expect_text("without", "cdefgh\n");
	generate_config("absent", "generate.prompt=ab", "generate.adapter=absent");
	worker_fails("absent", "absent");
}
END_TEST

/* Rows of the model's embedding, of which two are exchanged. */
struct exchanged {
	const struct tensor *embedding;
	int64_t rows[2];
};

static int fill_exchanged(void *context, size_t index, size_t offset, size_t len, void *buf,
                          struct error *err)
{
	const struct exchanged *x = context;
	int64_t columns = x->embedding->shape[1], first = (int64_t)(offset / sizeof(float));
	float *out = buf;
	int r = 0;

	(void)index;
	for (int64_t i = first; i < first + (int64_t)(len / sizeof(float)) && r == 0; i++) {
		int64_t row = i / columns;

		row = row == x->rows[0] ? x->rows[1] : row == x->rows[1] ? x->rows[0] : row;
		r = tensor_to_f32(x->embedding, row * columns + i % columns, 1, out++, err);
	}
	return r;
}

/* An adapter of the model that has its embedding in place of a module, with the rows of two characters
 * exchanged. */
static void write_exchanged(const char *directory, const char *module, const char *name,
                            const char *characters)
{
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	_cleanup_json_ json_t *tokenizer = worker_json("model/tokenizer.json");
	_cleanup_free_ char *config = str_printf("%s/adapter_config.json", directory),
	                    *text = str_printf("{\"peft_type\": \"LORA\", \"r\": 1, \"target_modules\": [], "
	                                       "\"modules_to_save\": [\"%s\"]}",
	                                       module);
	const json_t *vocabulary = json_object_get(json_object_get(tokenizer, "model"), "vocab");
	struct tensor_source source = {.name = name, .type = TENSOR_F32, .dims = 2, .fill = fill_exchanged};
	struct exchanged x = {0};
	struct error err = ERROR_INIT;

	ck_ok(safetensors_open("model", &st, &err), &err);
	x.embedding = safetensors_find(st, "model.embed_tokens.weight");
	ck_assert_ptr_nonnull(x.embedding);
	for (size_t i = 0; i < ARRAY_SIZE(x.rows); i++)
		x.rows[i] = json_get_int(vocabulary, (char[]){characters[i], '\0'}, -1);
	ck_assert(x.rows[0] >= 0 && x.rows[1] >= 0);
	memcpy(source.shape, x.embedding->shape, sizeof(source.shape));
	source.context = &x;
	ck_ok(file_mkdirs(directory, 0755, &err), &err);
	worker_file(config, text);
	ck_ok(safetensors_write(directory, "adapter_model", &source, 1, 0, &err), &err);
}

/* The model ties its head to the embedding; an adapter may change one of the two. */
START_TEST(a_tied_head_is_not_the_embedding_that_an_adapter_has)
{
	write_exchanged("embedding", "embed_tokens", "base_model.model.model.embed_tokens.weight", "cd");
	write_exchanged("head", "lm_head", "base_model.model.lm_head.weight", "dz");
	generate_config("embedding", "generate.prompt=abd", "generate.adapter=embedding",
	                "generate.max_new_tokens=1");
	expect_text("embedding", "d\n");
	generate_config("head", "generate.prompt=abc", "generate.adapter=head", "generate.max_new_tokens=1");
	expect_text("head", "z\n");
}
END_TEST

/* A file may have the head of a model that ties it, and not the embedding. */
START_TEST(a_model_may_be_stored_as_its_head)
{
	_cleanup_free_ char *bytes = NULL;
	struct error err = ERROR_INIT;
	char *name;
	size_t len;

	ck_ok(file_read("model/model.safetensors", 0, &bytes, &len, &err), &err);
	name = memmem(bytes, len, "\"model.embed_tokens.weight\"", 27);
	ck_assert_ptr_nonnull(name);
	/* JSON may have spaces behind the name. */
	memcpy(name, "\"lm_head.weight\"           ", 27);
	ck_ok(file_write_atomic("model/model.safetensors", bytes, len, 0644, &err), &err);
	generate_config("short", "generate.prompt=abc");
	expect_text("short", "defgh\n");
	worker_file("text.txt", "abzzz\n");
	worker_config_model("train", "output.dir=trained", "train.max_steps=1", "data.packing=false");
	free(worker_output("train", 1));
}
END_TEST

START_TEST(what_cannot_be_generated)
{
	_cleanup_free_ char *config = worker_read("model/config.json"), *filled = NULL, *narrow = NULL;
	char prompt[400], key[500];
	struct worker_call call;

	/* As long as the model takes, which is 256 tokens: none is left. */
	memset(prompt, 'a', sizeof(prompt));
	snprintf(key, sizeof(key), "generate.prompt=%.256s", prompt);
	generate_config("long", key);
	worker_fails("long", "generate.prompt has 256 tokens; the model takes 256");
	snprintf(key, sizeof(key), "generate.prompt=%.255s", prompt);
	generate_config("fits", key);
	filled = worker_output("fits", 1);
	ck_assert_uint_le(strlen(filled), 2);
	prompt[256] = '\n';
	prompt[257] = '\0';
	worker_file("prompts.txt", "ab\n");
	{
		_cleanup_free_ char *text = str_printf("ab\n%s", prompt);

		worker_file("prompts.txt", text);
	}
	generate_config("file", "generate.prompts=prompts.txt");
	worker_fails("file", "prompts.txt: prompt 2 has 256 tokens; the model takes 256");
	generate_config("absent", "generate.prompts=absent.txt");
	worker_fails("absent", "absent.txt");
	/* One device alone. */
	generate_config("ranks", "generate.prompt=a");
	call = worker_wait((setenv("WORLD_SIZE", "2", 1), setenv("DTRAIN_RENDEZVOUS_DIR", ".", 1),
	                    worker_start("ranks", 0, 1)),
	                   "ranks", 0);
	ck_assert_int_eq(call.status, 1);
	expect_words(call.errors, "error: generate runs on one device, not on 2\n");
	worker_release(&call);
	unsetenv("WORLD_SIZE");
	narrow = strdup(config);
	ck_assert_ptr_nonnull(strstr(narrow, "\"hidden_size\": 48"));
	memcpy(strstr(narrow, "\"hidden_size\": 48"), "\"hidden_size\": 64", strlen("\"hidden_size\": 64"));
	worker_file("model/config.json", narrow);
	worker_fails("ranks", " has shape ");
	ck_assert_int_eq(unlink("model/config.json"), 0);
	worker_fails("ranks", "model");
	worker_file("model/config.json", config);
	ck_assert_int_eq(unlink("model/model.safetensors"), 0);
	worker_fails("ranks", "neither model.safetensors nor");
}
END_TEST

/* An empty prompt begins as a document. */
START_TEST(an_empty_prompt_begins_a_document)
{
	_cleanup_free_ char *names = NULL, *output = NULL;

	worker_file("prompts.jsonl", "{\"prompt\": \"\"}\n");
	generate_config("empty", "generate.prompts=prompts.jsonl");
	output = worker_output("empty", 1);
	expect_line(output, "{\"prompt\":\"\",\"completion\":\"");
	worker_file("model/tokenizer_config.json", "{\"bos_token\": null, \"eos_token\": \"</s>\"}");
	worker_fails("empty",
	             "prompts.jsonl: prompt 1: the tokenizer makes no token of it; a longer one is needed");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("worker generate");
	TCase *t = tcase_create("generate");

	tcase_add_checked_fixture(t, setup, worker_teardown);
	tcase_set_timeout(t, SECONDS);
	tcase_add_test(t, a_prompt_goes_on);
	tcase_add_test(t, a_text_is_printed_as_it_comes);
	tcase_add_test(t, prompts_of_a_file_go_on);
	tcase_add_test(t, members_of_a_prompt_stay);
	tcase_add_test(t, ids_that_end_an_answer);
	tcase_add_test(t, choices_at_random_are_those_of_their_seed);
	tcase_add_test(t, a_conversation_has_a_template);
	tcase_add_test(t, an_adapter_is_merged);
	tcase_add_test(t, a_tied_head_is_not_the_embedding_that_an_adapter_has);
	tcase_add_test(t, a_model_may_be_stored_as_its_head);
	tcase_add_test(t, what_cannot_be_generated);
	tcase_add_test(t, an_empty_prompt_begins_a_document);
	tcase_add_test(t, a_text_that_cannot_be_printed_is_an_error);
	suite_add_tcase(suite, t);
	return unit_run(suite);
}
