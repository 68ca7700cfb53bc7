/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain check: the errors in files that a run file names, one line each, and the list of checks that were
 * not done; the arguments of dtrain export. */
#include "dtrain_fixture.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"

#define NOT_CHECKED                                                                                          \
	"not checked: that the files are equal on all nodes, each example of the data, and that the "        \
	"cluster "                                                                                           \
	"has devices with enough memory\n"
#define GOOD                                                                                                 \
	"task = \"sft\"; model = { init = \"" SRCDIR                                                         \
	"/etc/examples/tiny-llama.json\"; tokenizer = \"" SRCDIR                                             \
	"/tests/engine/bytes\"; }; data = { path = \"good.json\"; template = \"qwen\"; }; output = { dir = " \
	"\"saves/x\"; };"

static void write_file(const char *name, const char *text)
{
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(name, text, strlen(text), 0644, &err), &err);
}

static void setup(void)
{
	fixture_setup();
	ck_assert_int_eq(chdir(fixture_dir()), 0);
	write_file("good.json", "[{\"instruction\":\"a\",\"output\":\"b\"}]");
	write_file("good.conf", GOOD);
}

START_TEST(what_is_fine_is_listed)
{
	_cleanup_(call_release) struct call call = fixture_call(cmd_check, "check good.conf");

	ck_assert_str_eq(call.errors, "");
	ck_assert_int_eq(call.status, 0);
	ck_assert_str_eq(
	    call.output,
	    "model       " SRCDIR
	    "/etc/examples/tiny-llama.json: llama, 4 layers, 4.0 M parameters, from random weights\n"
	    "tokenizer   " SRCDIR "/tests/engine/bytes: 259 tokens\n"
	    "template    qwen (by data.template)\ndata        good.json: alpaca\noutput      saves/x: can be "
	    "written\n"
	    "good.conf: fine\n" NOT_CHECKED);
}
END_TEST

static const struct {
	const char *override, *words; /* words: a line on stderr behind "dtrain: good.conf: ", or its begin */
	bool begins;
} wrong[] = {
    {"model.init=none.json", "model.init: cannot read none.json: No such file or directory\n", false},
    {"model.init=good.json", "model.init: good.json: ", true},
    {"model.tokenizer=none", "model.tokenizer: ", true},
    {"parallel.strategy=zero3 --set parallel.persist_below=100000000 --set resources.devices_per_node=2",
     "parallel: parallel.persist_below is 100000000, but the largest unit of this model has ", true},
    {"parallel.strategy=zero3 --set parallel.persist_below=100000000 --set resources.nodes=2 --set "
     "resources.devices_per_node=1",
     "parallel: parallel.persist_below is 100000000, but the largest unit of this model has ", true},
    {"model.init=small.json",
     "model.tokenizer: the tokenizer in " SRCDIR
     "/tests/engine/bytes has ids up to 258, but the model's vocab_size is 258; expected a vocab_size of at "
     "least 259\n",
     false},
    {"data.template=qwenn", "data.template: unknown template 'qwenn'; did you mean qwen? known are: ", true},
    {"data.tool_prompt=good.json",
     "data.tool_prompt: good.json: {{tools}} is missing; it has to stand where the list of tools goes\n",
     false},
    {"data.path=none.json", "data.path: cannot read none.json: No such file or directory\n", false},
    {"data.path=good.json,odd.json",
     "data.path: odd.json:1: the columns there are (x) tell no format: alpaca has instruction and output, "
     "sharegpt conversations, openai messages; map them with data.columns\n",
     false},
    {"output.dir=good.conf/x", "output.dir: DIR/good.conf is not a directory\n", false},
    {"data.path=pipe.txt --set data.format=text --set task=pretrain",
     "data.path: cannot read pipe.txt: it is a pipe; a regular file is needed\n", false},
    {"parallel.offload=optimizer --set parallel.offload_dir=nvme",
     "parallel.offload_dir: nvme: No such file or directory; name a directory that you can write to on each "
     "node, or leave the key out: ",
     true},
    {"parallel.offload=optimizer --set parallel.offload_dir=good.json",
     "parallel.offload_dir: good.json is not a directory; ", true},
    {"lora.rank=4 --set lora.target=no_proj", "lora.target: the model has no no_proj; expected ", true},
    {"lora.rank=5000", "lora.rank: 5000 is more than model.layers.0.self_attn.q_proj.weight, a matrix of ",
     true},
    {"lora.rank=4 --set lora.from=nowhere", "lora.from: ", true},
    {"lora.rank=4 --set lora.from=adapter", "lora.from: adapter/adapter_config.json: ", true},
    {"train.freeze_trainable_layers=1 --set train.freeze_extra_modules=no_norm",
     "train.freeze_extra_modules: the model has no no_norm; expected ", true},
    {"model.init=gptq.json",
     "model.init: gptq.json: quantization_config: quant_method \"gptq\" is not supported", true},
    {"task=reward --set model.init=granite.json",
     "model.init: granite.json: transformers has no sequence classification of the family granite, ", true},
    {"model.init=scores.json", "model.init: scores.json is a reward model ", true},
    {"data.path=empty.json", "data: empty.json: there are no examples in it\n", false},
    {"data.path=list.json,empty.jsonl",
     "data: list.json and the other files: there are no examples in them\n", false},
    {"data.columns={\"promt\":\"a\"}", "data: columns: 'promt' is not known here; known are ", true},
    {"directory=/nowhere", "directory: /nowhere: No such file or directory\n", false},
    {"resources.max_restarts=-1", NULL, false},
};

START_TEST(what_is_wrong_is_named)
{
	_cleanup_free_ char *line = str_printf("check -s %s good.conf", wrong[_i].override), *want = NULL;
	_cleanup_free_ char *here = getcwd(NULL, 0);
	_cleanup_(call_release) struct call call = {0};
	const char *dir;

	write_file("odd.json", "[{\"x\":1}]");
	write_file("empty.json", "");
	write_file("empty.jsonl", "");
	write_file("list.json", "[]");
	ck_assert_int_eq(mkfifo("pipe.txt", 0600), 0);
	ck_assert_int_eq(mkdir("adapter", 0700), 0);
	write_file("adapter/adapter_config.json", "{\"peft_type\": \"LORA\", \"r\": -1}");
	write_file("small.json", "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"
	                         "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":258}");
	write_file("gptq.json", "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"
	                        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":300,"
	                        "\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}}");
	write_file("granite.json", "{\"model_type\":\"granite\",\"hidden_size\":64,\"intermediate_size\":96,"
	                           "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":300}");
	write_file("scores.json", "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"
	                          "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":300,"
	                          "\"architectures\":[\"LlamaForSequenceClassification\"],\"num_labels\":1}");
	call = fixture_call(cmd_check, line);
	if (!wrong[_i].words) {
		ck_assert_int_eq(call.status, STATUS_USAGE);
		return;
	}
	dir = strstr(wrong[_i].words, "DIR");
	want = dir ? str_printf("dtrain: good.conf: %.*s%s%s", (int)(dir - wrong[_i].words), wrong[_i].words,
	                        here, dir + 3)
	           : str_printf("dtrain: good.conf: %s", wrong[_i].words);
	ck_assert_int_eq(call.status, 1);
	if (wrong[_i].begins)
		ck_assert_msg(str_starts(call.errors, want), "%s", call.errors);
	else
		ck_assert_str_eq(call.errors, want);
	ck_assert_ptr_null(strstr(call.output, "fine"));
	ck_assert_msg(str_ends(call.output, NOT_CHECKED), "%s", call.output);
}
END_TEST

static void make_output(const char *dir, const char *file)
{
	_cleanup_free_ char *path = str_printf("%s/%s", dir, file), *parent = strdup(path);
	struct error err = ERROR_INIT;

	*strrchr(parent, '/') = '\0';
	ck_ok(file_mkdirs(parent, 0700, &err), &err);
	write_file(path, "{}");
}

/* What the worker refuses is refused before: a run in a directory of other files, or of a finished run. */
START_TEST(an_output_directory_is_what_the_worker_accepts)
{
	static const struct {
		const char *options;
		int status;
		const char *words; /* of the output, or a line of the errors */
	} cases[] = {
	    {"-s output.dir=used", 1,
	     "output.dir used is not empty and has no checkpoint to resume from; choose another or set "
	     "output.overwrite = true\n"},
	    {"-s output.dir=used -s output.resume=never", 1,
	     "output.dir used is not empty; choose another or set output.overwrite = true\n"},
	    {"-s output.dir=used -s output.overwrite=true", 0, "output      used: can be written\n"},
	    {"-s output.dir=fresh", 0, "output      fresh: can be written\n"},
	    {"-s output.dir=begun", 0,
	     "output      begun: can be written; the run goes on from checkpoint-7\n"},
	    {"-s output.dir=begun -s output.resume=never", 1, "output.dir begun is not empty; "},
	    {"-s output.dir=fresh -s output.resume=must", 1,
	     "output.resume is \"must\", but fresh has no checkpoint\n"},
	    /* Another node may have it. */
	    {"-s output.dir=fresh -s output.resume=must -s resources.nodes=2", 0, "output      fresh: "},
	};

	make_output("used", "model.safetensors");
	make_output("fresh", "cache/x");
	make_output("begun", "checkpoint-7/dtrain/state.json");
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *line = str_printf("check %s good.conf", cases[i].options),
		                    *want = str_printf("dtrain: good.conf: %s", cases[i].words);
		_cleanup_(call_release) struct call call = fixture_call(cmd_check, line);

		ck_assert_msg(call.status == cases[i].status, "%s: %s", line, call.errors);
		ck_assert_msg(call.status ? str_starts(call.errors, want)
		                          : strstr(call.output, cases[i].words) != NULL,
		              "%s: %s%s", line, call.output, call.errors);
	}
}
END_TEST

/* STATUS_UNREACHABLE: nothing spoke against it before the service was asked. */
START_TEST(a_submission_warns_of_a_directory_in_use)
{
	static const struct {
		const char *options;
		int status;
		const char *errors;
	} cases[] = {
	    {"-s output.dir=used", STATUS_UNREACHABLE,
	     "dtrain: warning: output.dir used is not empty on this machine, and has no checkpoint"},
	    {"-s output.dir=begun -s output.resume=never", STATUS_UNREACHABLE,
	     "dtrain: warning: output.dir begun is not empty on this machine"},
	    {"-s output.dir=used -s output.overwrite=true", STATUS_UNREACHABLE, ""},
	    {"-s output.dir=fresh", STATUS_UNREACHABLE, ""},
	    {"-s output.dir=begun", STATUS_UNREACHABLE, ""},
	    {"-s output.dir=none -s output.resume=must", STATUS_UNREACHABLE, ""},
	};

	make_output("used", "model.safetensors");
	make_output("fresh", "cache/x");
	make_output("begun", "checkpoint-7/dtrain/state.json");
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *line = str_printf("submit %s good.conf", cases[i].options);
		_cleanup_(call_release) struct call call = fixture_call(cmd_submit, line);

		ck_assert_msg(call.status == cases[i].status, "%s: %d %s", line, call.status, call.errors);
		ck_assert_msg(str_starts(call.errors, cases[i].errors), "%s: %s", line, call.errors);
	}
}
END_TEST

/* Also where the number of ranks, by which the work is divided, is that of the slots of a node. */
START_TEST(what_can_be_divided_is_fine)
{
	static const char *const options[] = {
	    "-s resources.devices_per_node=2",
	    "-s parallel.strategy=zero3 -s resources.devices_per_node=2",
	    "-s parallel.strategy=zero3 -s resources.devices_per_node=all",
	};

	for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
		_cleanup_free_ char *line = str_printf("check %s good.conf", options[i]);
		_cleanup_(call_release) struct call call = fixture_call(cmd_check, line);

		ck_assert_str_eq(call.errors, "");
		ck_assert_int_eq(call.status, 0);
		ck_assert_ptr_nonnull(strstr(call.output, "good.conf: fine\n"));
	}
}
END_TEST

/* A model's directory: absent, and without weights. */
START_TEST(a_model_has_weights)
{
	_cleanup_(call_release) struct call absent = {0}, empty = {0};
	struct error err = ERROR_INIT;

	write_file("m.conf",
	           "task = \"generate\"; model = { path = \"m\"; }; generate = { prompt = \"x\"; };");
	absent = fixture_call(cmd_check, "check m.conf");
	ck_assert_int_eq(absent.status, 1);
	ck_assert_str_eq(absent.errors,
	                 "dtrain: m.conf: model.path: cannot read m: No such file or directory\n");
	ck_assert_int_eq(mkdir("m", 0700), 0);
	ck_ok(file_copy(SRCDIR "/etc/examples/tiny-llama.json", "m/config.json", &err), &err);
	ck_ok(file_copy(SRCDIR "/tests/engine/bytes/tokenizer.json", "m/tokenizer.json", &err), &err);
	empty = fixture_call(cmd_check, "check m.conf");
	ck_assert_int_eq(empty.status, 1);
	ck_assert_msg(str_starts(empty.errors, "dtrain: m.conf: model.path: m"), "%s", empty.errors);
	ck_assert_ptr_nonnull(strstr(empty.errors, "safetensors"));
}
END_TEST

/* A name of a hub, and an adapter, in place of a model's directory. */
START_TEST(what_is_no_model_is_explained)
{
	static const struct {
		const char *options, *errors;
	} cases[] = {
	    {"-s model.path=meta-llama/Llama-3.2-1B",
	     "dtrain: m.conf: model.path: meta-llama/Llama-3.2-1B: No such file or directory, and nothing is "
	     "fetched from hubs here; download the model and name its directory\n"},
	    {"-s model.path=adapter",
	     "dtrain: m.conf: model.path: adapter is an adapter, not a model; name the "
	     "model that it belongs to, and the adapter with lora.from, or for "
	     "dtrain generate with --adapter\n"},
	    {"-s model.path=./none", "dtrain: m.conf: model.path: cannot read ./none: No such file or "
	                             "directory\n"},
	    {"-s model.path=stopped", "dtrain: m.conf: model.path: stopped has no model, but checkpoints of "
	                              "a run that has not ended: name one "
	                              "of them, such as stopped/checkpoint-20\n"},
	};

	_cleanup_(call_release) struct call none = {0};

	write_file("m.conf", "task = \"generate\"; model = { tokenizer = \"" SRCDIR
	                     "/tests/engine/bytes\"; }; generate = { prompt = \"x\"; };");
	ck_assert_int_eq(mkdir("adapter", 0700), 0);
	write_file("adapter/adapter_config.json", "{\"peft_type\": \"LORA\"}");
	ck_assert_int_eq(mkdir("stopped", 0700) | mkdir("stopped/checkpoint-8", 0700) |
	                     mkdir("stopped/checkpoint-20", 0700),
	                 0);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *line = str_printf("check %s m.conf", cases[i].options);
		_cleanup_(call_release) struct call call = fixture_call(cmd_check, line);

		ck_assert_int_eq(call.status, 1);
		ck_assert_str_eq(call.errors, cases[i].errors);
	}
	write_file("n.conf", "task = \"pretrain\"; model = { init = \"" SRCDIR
	                     "/etc/examples/tiny-llama.json\"; }; data = { path = \"good.json\"; }; output = "
	                     "{ dir = \"x\"; };");
	none = fixture_call(cmd_check, "check n.conf");
	ck_assert_ptr_nonnull(strstr(none.errors, "/etc/examples: no tokenizer.json there; name a directory "
	                                          "that has one (in a run file: model.tokenizer)\n"));
}
END_TEST

START_TEST(a_program_is_looked_for)
{
	_cleanup_(call_release) struct call good = {0}, bad = {0};

	write_file("c.conf", "command = [\"sh\"]; environment = [\"PATH=/nowhere:/bin\"];");
	write_file("d.conf", "command = [\"sh\"]; environment = [\"PATH=/nowhere\"];");
	good = fixture_call(cmd_check, "check c.conf");
	ck_assert_str_eq(good.output,
	                 "program     /bin/sh\nc.conf: fine\nnot checked: that the program is the same on "
	                 "all nodes, and that the cluster has the devices\n");
	bad = fixture_call(cmd_check, "check d.conf");
	ck_assert_int_eq(bad.status, 1);
	ck_assert_str_eq(bad.errors, "dtrain: d.conf: command: no program sh in PATH (/nowhere)\n");
}
END_TEST

/* A directory with the name of the program is skipped in PATH, and is not a program. */
START_TEST(a_directory_is_no_program)
{
	_cleanup_(call_release) struct call passed = {0}, absent = {0}, named = {0};

	ck_assert_int_eq(mkdir("bin", 0700), 0);
	ck_assert_int_eq(mkdir("bin/sh", 0700), 0);
	write_file("p.conf", "command = [\"sh\"]; environment = [\"PATH=bin:/bin\"];");
	write_file("a.conf", "command = [\"sh\"]; environment = [\"PATH=bin\"];");
	write_file("n.conf", "command = [\"./bin\"];");
	passed = fixture_call(cmd_check, "check p.conf");
	ck_assert_int_eq(passed.status, 0);
	ck_assert_msg(str_starts(passed.output, "program     /bin/sh\n"), "%s", passed.output);
	absent = fixture_call(cmd_check, "check a.conf");
	ck_assert_str_eq(absent.errors, "dtrain: a.conf: command: no program sh in PATH (bin)\n");
	named = fixture_call(cmd_check, "check n.conf");
	ck_assert_int_eq(named.status, 1);
	ck_assert_str_eq(named.errors,
	                 "dtrain: n.conf: command: cannot execute ./bin, a directory: Permission denied\n");
}
END_TEST

/* Each file may have answers of one kind, and one file examples that are skipped: the data as a whole
 * counts. */
START_TEST(preferences_are_judged_as_a_whole)
{
	_cleanup_(call_release) struct call both = {0}, one = {0}, skipped = {0}, none = {0};

	write_file("up.json", "[{\"instruction\":\"p\",\"output\":\"A\",\"label\":true}]");
	write_file("down.json", "[{\"instruction\":\"q\",\"output\":\"B\",\"label\":false}]");
	write_file("odd.json", "[{\"instruction\":\"q\",\"output\":\"B\",\"label\":\"yes\"}]");
	both = fixture_call(cmd_check, "check -s task=kto --set data.path=up.json,down.json good.conf");
	ck_assert_msg(both.status == 0, "%s", both.errors);
	ck_assert_ptr_null(strstr(both.output, "warning"));
	one = fixture_call(cmd_check, "check -s task=kto --set data.path=up.json,up.json good.conf");
	ck_assert_int_eq(one.status, 0);
	ck_assert_ptr_nonnull(strstr(one.output, "the label of each of the first 2 examples is true"));
	skipped =
	    fixture_call(cmd_check, "check -s task=kto --set data.path=up.json,odd.json,down.json good.conf");
	ck_assert_msg(skipped.status == 0, "%s", skipped.errors);
	ck_assert_ptr_nonnull(strstr(skipped.output, "1 of the first 3 examples are skipped: odd.json:1"));
	none = fixture_call(cmd_check, "check -s task=kto --set data.path=odd.json good.conf");
	ck_assert_int_eq(none.status, 1);
	ck_assert_ptr_nonnull(strstr(none.errors, "odd.json:1"));
}
END_TEST

/* The nodes check them. */
START_TEST(a_model_and_an_adapter_may_be_on_the_nodes_alone)
{
	static const char *const lines[] = {
	    "submit --set lora.rank=4 --set lora.from=nowhere good.conf",
	    "submit --set model.init=nowhere.json good.conf",
	    "submit --set model.init=nowhere/config.json good.conf",
	};

	for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
		_cleanup_(call_release) struct call call = fixture_call(cmd_submit, lines[i]);

		ck_assert_msg(call.status == STATUS_UNREACHABLE, "%s: %d: %s", lines[i], call.status,
		              call.errors);
	}
}
END_TEST

/* What is wrong with the arguments of dtrain export is said before anything is written. */
START_TEST(an_export_is_refused_for_its_arguments)
{
	static const struct {
		const char *options, *errors;
	} cases[] = {
	    {"--precision fp8", "dtrain: export: --precision: \"fp8\": expected one of fp32, bf16, fp16\n"},
#define SIZE(TEXT)                                                                                           \
	{"--max-shard-size " TEXT, "dtrain: export: --max-shard-size: \"" TEXT                               \
	                           "\": expected a size with its unit, such as 500MB or 5GB\n"}
	    SIZE("GB"),
	    SIZE("x"),
	    SIZE("5XB"),
	    SIZE("-5GB"),
	    SIZE("1.2.3MB"),
	    SIZE("0"),
	    SIZE("5"),
	    SIZE("1048575"),
	    SIZE("0.5"),
	    SIZE("1e9"),
	    SIZE("1000000TB"),
#undef SIZE
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *line = str_printf("export %s m out", cases[i].options);
		_cleanup_(call_release) struct call call = fixture_call(cmd_export, line);

		ck_assert_str_eq(call.errors, cases[i].errors);
		ck_assert_int_eq(call.status, 2);
		ck_assert(!file_exists("out"));
	}
}
END_TEST

/* The directory m: a model's configuration, and two tensors of 1,000 bytes, which are none of that
 * model's. */
static void write_model(void)
{
	static const char header[] =
	    "{\"a\":{\"dtype\":\"F32\",\"shape\":[250],\"data_offsets\":[0,1000]},"
	    "\"b\":{\"dtype\":\"F32\",\"shape\":[250],\"data_offsets\":[1000,2000]}}";
	static const char zeros[2000];
	uint64_t len = strlen(header);
	_cleanup_strbuf_ struct strbuf file = {0};
	struct error err = ERROR_INIT;

	strbuf_add(&file, &len, sizeof(len));
	strbuf_adds(&file, header);
	strbuf_add(&file, zeros, sizeof(zeros));
	ck_assert_int_eq(mkdir("m", 0700), 0);
	ck_ok(file_write_atomic("m/model.safetensors", file.data, file.len, 0644, &err), &err);
	ck_ok(file_copy(SRCDIR "/etc/examples/tiny-llama.json", "m/config.json", &err), &err);
}

START_TEST(an_adapter_is_checked_with_its_model)
{
	_cleanup_(call_release) struct call used = {0}, unused = {0};

	write_model();
	write_file("g.conf", "task = \"generate\"; model = { path = \"m\"; tokenizer = \"" SRCDIR
	                     "/tests/engine/bytes\"; }; generate = { prompt = \"x\"; };");
	used = fixture_call(cmd_check, "check -s generate.adapter=nowhere g.conf");
	ck_assert_int_eq(used.status, 1);
	ck_assert_msg(strstr(used.errors, "g.conf: generate.adapter: ") != NULL, "%s", used.errors);
	unused = fixture_call(cmd_check, "check g.conf");
	ck_assert_msg(!strstr(unused.errors, "adapter"), "%s", unused.errors);
}
END_TEST

/* A model of two tensors of 1,000 bytes, in one file or two. */
START_TEST(an_export_has_files_of_the_size)
{
	static const struct {
		const char *options;
		bool one_file;
	} cases[] = {
	    {"", true},
	    {"--max-shard-size 1048576", true},
	    {"--max-shard-size 2000B", true},
	    {"--max-shard-size 2KB", true},
	    {"--max-shard-size 0.002mb", true},
	    {"--max-shard-size 0.000002GB", true},
	    {"--max-shard-size 1.99KiB", true},
	    {"--max-shard-size 1999B", false},
	    {"--max-shard-size 1.9KB", false},
	    {"--max-shard-size 1.9KiB", false},
	    {"--max-shard-size 0.0019MB", false},
	    {"--max-shard-size 0.0018MiB", false},
	    {"--max-shard-size 0.0000019GB", false},
	    {"--max-shard-size 0.0000018GiB", false},
	};

	write_model();
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *line = str_printf("export --overwrite%s%s m out",
		                                       *cases[i].options ? " " : "", cases[i].options);
		_cleanup_(call_release) struct call call = fixture_call(cmd_export, line);

		ck_assert_msg(call.status == 0, "%s: %s", line, call.errors);
		ck_assert_str_eq(call.output, "out: 2 tensors, 2.0 KiB\n");
		ck_assert_msg(file_exists("out/model.safetensors") == cases[i].one_file, "%s", line);
	}
}
END_TEST

struct tensor {
	const char *name;
	int rows, columns; /* columns 0: a vector */
};

/* DIR/NAME with these tensors, all of them 0. */
static void write_tensors(const char *path, const struct tensor *list, size_t count)
{
	_cleanup_strbuf_ struct strbuf header = {0}, file = {0};
	_cleanup_free_ char *zeros = NULL;
	struct error err = ERROR_INIT;
	size_t at = 0;
	uint64_t len;

	for (size_t i = 0; i < count; i++) {
		size_t size = 4u * (size_t)list[i].rows * (size_t)MAX(list[i].columns, 1);

		strbuf_addf(&header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%d", i ? "," : "{", list[i].name,
		            list[i].rows);
		if (list[i].columns)
			strbuf_addf(&header, ",%d", list[i].columns);
		strbuf_addf(&header, "],\"data_offsets\":[%zu,%zu]}", at, at + size);
		at += size;
	}
	strbuf_adds(&header, "}");
	len = header.len;
	zeros = calloc(1, at);
	strbuf_add(&file, &len, sizeof(len));
	strbuf_add(&file, header.data, header.len);
	strbuf_add(&file, zeros, at);
	ck_ok(file_write_atomic(path, file.data, file.len, 0644, &err), &err);
}

/* The directory `name`: a model of one layer with all of its weights. */
static void write_whole_model(const char *name)
{
	static const struct tensor tensors[] = {
	    {"model.embed_tokens.weight", 300, 8},
	    {"model.norm.weight", 8, 0},
	    {"model.layers.0.input_layernorm.weight", 8, 0},
	    {"model.layers.0.post_attention_layernorm.weight", 8, 0},
	    {"model.layers.0.self_attn.q_proj.weight", 8, 8},
	    {"model.layers.0.self_attn.k_proj.weight", 8, 8},
	    {"model.layers.0.self_attn.v_proj.weight", 8, 8},
	    {"model.layers.0.self_attn.o_proj.weight", 8, 8},
	    {"model.layers.0.mlp.gate_proj.weight", 16, 8},
	    {"model.layers.0.mlp.up_proj.weight", 16, 8},
	    {"model.layers.0.mlp.down_proj.weight", 8, 16},
	};
	_cleanup_free_ char *config = str_printf("%s/config.json", name),
	                    *weights = str_printf("%s/model.safetensors", name),
	                    *tokenizer = str_printf("%s/tokenizer.json", name);
	struct error err = ERROR_INIT;

	ck_assert_int_eq(mkdir(name, 0700), 0);
	write_file(config, "{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":16,"
	                   "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":300,"
	                   "\"tie_word_embeddings\":true}");
	write_tensors(weights, tensors, ARRAY_SIZE(tensors));
	ck_ok(file_copy(SRCDIR "/tests/engine/bytes/tokenizer.json", tokenizer, &err), &err);
}

static void write_adapter(const char *name, int width)
{
	const struct tensor tensors[] = {
	    {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 2, width},
	    {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", 8, 2},
	};
	_cleanup_free_ char *config = str_printf("%s/adapter_config.json", name),
	                    *weights = str_printf("%s/adapter_model.safetensors", name);

	ck_assert_int_eq(mkdir(name, 0700), 0);
	write_file(config, "{\"peft_type\":\"LORA\",\"task_type\":\"CAUSAL_LM\",\"r\":2,\"lora_alpha\":4,"
	                   "\"target_modules\":[\"q_proj\"]}");
	write_tensors(weights, tensors, ARRAY_SIZE(tensors));
}

/* What is looked at, with a model that is there. words: a line of the output, or of the errors. */
static const struct {
	const char *line;
	int status;
	const char *words;
} looks[] = {
    {"check s.conf", 0, "model       whole: llama, 1 layers, 3064 parameters\n"},
    {"check -s data.template=qwen s.conf", 0, "template    qwen (by data.template)\n"},
    {"check s.conf", 0, "tokenizer   whole: 259 tokens\n"},
    {"check -s generate.chat=true g.conf", 0, "template    default (the tokenizer has no chat template)\n"},
    {"check s.conf", 0, "s.conf: fine\n"},
    {"check -s task=reward -s data.path=pairs.json s.conf", 0,
     "model       whole: llama, 1 layers, 3072 parameters, with a new score head\n"},
    {"check -s model.path=good.json s.conf", 1, "s.conf: model.path: good.json is not a directory\n"},
    {"check -s task=dpo -s data.path=pairs.json -s preference.reference=other s.conf", 0,
     "reference   other\n"},
    {"check -s task=dpo -s data.path=pairs.json -s preference.reference=m s.conf", 1,
     "s.conf: preference.reference: "},
    {"check -s task=dpo -s data.path=pairs.json -s preference.reference=good.json s.conf", 1,
     "s.conf: preference.reference: good.json is not a directory\n"},
    {"check -s lora.rank=2 -s lora.target=q_proj s.conf", 0, "trained     32 parameters\n"},
    {"check -s lora.rank=2 -s lora.alpha=4 -s lora.target=q_proj -s lora.from=adapter s.conf", 0,
     "trained     32 parameters, from the adapter in adapter\n"},
    {"check -s lora.rank=2 -s lora.alpha=4 -s lora.target=q_proj -s lora.from=odd s.conf", 1, "s.conf: "},
    {"check -s train.freeze_trainable_layers=1 s.conf", 0, "trained     656 parameters\n"},
    {"check g.conf", 0, "g.conf: fine\n"},
    {"check g.conf", 0,
     "not checked: that the model is on the node that runs it, and that its device has enough memory\n"},
    {"check -s generate.adapter=adapter g.conf", 0, "adapter     adapter: fits the model\n"},
    {"check -s generate.adapter=odd g.conf", 1, "g.conf: generate.adapter: "},
    {"check -s parallel.strategy=zero3 -s parallel.offload=optimizer -s parallel.offload_dir=whole s.conf", 0,
     "offload     whole: can be written\n"},
    {"check -s output.dir=whole/a/b s.conf", 0, "output      whole/a/b: can be written\n"},
    {"check -s output.dir=/ -s output.overwrite=true s.conf", 0, "output      /: can be written\n"},
    {"check -s data.path=1.txt,2.txt,3.txt,4.txt,5.txt,6.txt,7.txt,8.txt,9.txt -s data.format=text -s "
     "task=pretrain s.conf",
     0, "data        8.txt: text\ndata        and 1 more files\n"},
    {"check -s data.dataset=none s.conf", 1, "s.conf: data.dataset: "},
    {"check -s data.tool_prompt=tools.txt s.conf", 0, "tools       described by tools.txt\n"},
};

START_TEST(a_run_is_looked_at)
{
	/* As another user than root. */
	bool denied = geteuid() != 0 && strstr(looks[_i].line, "output.dir=/ ");
	const char *words =
	    denied ? "s.conf: output.dir: cannot write to /: Permission denied\n" : looks[_i].words;
	_cleanup_(call_release) struct call call = {0};
	char text[16];

	write_whole_model("whole");
	write_whole_model("other");
	write_model();
	write_adapter("adapter", 8);
	write_adapter("odd", 9);
	write_file("tools.txt", "before {{tools}} after");
	write_file("pairs.json", "[{\"instruction\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}]");
	for (int i = 1; i <= 9; i++) {
		snprintf(text, sizeof(text), "%d.txt", i);
		write_file(text, "text\n");
	}
	write_file("s.conf", strstr(looks[_i].line, "dataset=")
	                         ? "task = \"sft\"; model = { path = \"whole\"; }; data = { template = "
	                           "\"qwen\"; dataset_dir = \".\"; }; output = { dir = \"saves/x\"; };"
	                         : "task = \"sft\"; model = { path = \"whole\"; }; data = { path = "
	                           "\"good.json\"; template = \"qwen\"; }; output = { dir = \"saves/x\"; };");
	write_file("g.conf", "task = \"generate\"; model = { path = \"whole\"; }; generate = { prompt = "
	                     "\"x\"; };");
	call = fixture_call(cmd_check, looks[_i].line);
	ck_assert_msg(call.status == (denied ? 1 : looks[_i].status), "%s: %d: %s%s", looks[_i].line,
	              call.status, call.output, call.errors);
	ck_assert_msg(strstr(call.status ? call.errors : call.output, words), "%s: %s%s", looks[_i].line,
	              call.output, call.errors);
	ck_assert(call.status != 0 || !*call.errors);
}
END_TEST

/* What could only fail on the nodes is not submitted. */
START_TEST(an_adapter_that_does_not_fit_is_not_submitted)
{
	_cleanup_(call_release) struct call odd = {0}, good = {0}, target = {0};
	static const struct exchange accepted[] = {{"GET /v1/devices", "{\"devices\":[]}"},
	                                           {"POST /v1/runs ", "{\"id\":17,\"state\":\"queued\"}"}};

	write_whole_model("whole");
	write_adapter("adapter", 8);
	write_adapter("odd", 9);
	write_file("s.conf",
	           "task = \"sft\"; model = { path = \"whole\"; }; data = { path = \"good.json\"; template = "
	           "\"qwen\"; }; lora = { rank = 2; alpha = 4.0; target = [\"q_proj\"]; };\n"
	           "output = { dir = \"saves/x\"; };");
	odd = fixture_call(cmd_submit, "submit -s lora.from=odd s.conf");
	ck_assert_int_eq(odd.status, 1);
	ck_assert_msg(str_starts(odd.errors, "dtrain: ") && strstr(odd.errors, "odd"), "%s", odd.errors);
	target = fixture_call(cmd_submit, "submit -s lora.target=no_proj s.conf");
	ck_assert_int_eq(target.status, 1);
	ck_assert_msg(str_starts(target.errors, "dtrain: lora.target: "), "%s", target.errors);
	good = fixture_exchange(cmd_submit, "submit -s lora.from=adapter s.conf", accepted, 2);
	ck_assert_str_eq(good.errors, "");
	ck_assert_int_eq(good.status, 0);
}
END_TEST

/* The matrices that an adapter changes, and a bar on a terminal. */
START_TEST(an_adapter_is_merged)
{
	_cleanup_(call_release) struct call call = {0}, bar = {0}, again = {0};

	write_whole_model("whole");
	write_adapter("adapter", 8);
	call = fixture_call(cmd_export, "export -a adapter whole out");
	ck_assert_str_eq(call.errors, "");
	ck_assert_str_eq(call.output, "out: 11 tensors, 12.0 KiB, the adapter merged into 1 module\n");
	again = fixture_call(cmd_export, "export -a adapter whole out");
	ck_assert_int_eq(again.status, 1);
	ck_assert_msg(strstr(again.errors, "out") != NULL, "%s", again.errors);
	bar = fixture_terminal(cmd_export, "export --overwrite --precision bf16 whole out", 80);
	ck_assert_int_eq(bar.status, 0);
	ck_assert_msg(str_starts(bar.output, "\r[") &&
	                  strstr(bar.output, "##############################] 100 %  "),
	              "%s", bar.output);
	ck_assert_msg(str_ends(bar.output, "\r\033[Kout: 11 tensors, 6.0 KiB\r\n"), "%s", bar.output);
}
END_TEST

/* Files that cannot be read as examples, and those of which some are skipped. */
START_TEST(what_is_said_once)
{
	_cleanup_(call_release) struct call pairs = {0}, empty = {0}, twice = {0};

	write_file("pairs.json", "[{\"instruction\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}]");
	pairs = fixture_call(cmd_check, "check -s task=dpo --set data.path=pairs.json good.conf");
	ck_assert_int_eq(pairs.status, 0);
	ck_assert_ptr_null(strstr(pairs.output, "warning"));
	/* What is wrong with the adapter is not said again of its division. */
	twice = fixture_call(cmd_check, "check -s lora.rank=5000 -s resources.devices_per_node=2 good.conf");
	ck_assert_int_eq(twice.status, 1);
	ck_assert_msg(strchr(twice.errors, '\n')[1] == '\0', "%s", twice.errors);
	/* A template alone, without a tokenizer that could have one. */
	empty = fixture_call(cmd_check, "check -s model.tokenizer=none good.conf");
	ck_assert_int_eq(empty.status, 1);
	ck_assert_ptr_nonnull(strstr(empty.output, "template    qwen\n"));
}
END_TEST

/* What the log of the run would warn of. */
START_TEST(warnings_are_given_before_the_run)
{
	_cleanup_(call_release) struct call plain = fixture_call(cmd_check, "check good.conf"),
	                                    call = fixture_call(
	                                        cmd_check,
	                                        "check -s data.max_length=9000 -s train.max_steps=2 "
	                                        "-s train.warmup_steps=3 good.conf");

	ck_assert_ptr_null(strstr(plain.output, "warning"));
	ck_assert_int_eq(call.status, 0);
	ck_assert_ptr_nonnull(strstr(call.output, "warning     data.max_length is 9000, but the model's "
	                                          "max_position_embeddings is "));
	ck_assert_ptr_nonnull(
	    strstr(call.output, "warning     train.warmup_steps is 3, but the run has 2 steps: the learning "
	                        "rate never reaches its highest value\n"));
}
END_TEST

START_TEST(dropout_of_a_model_is_not_applied)
{
	_cleanup_json_ json_t *config = NULL;
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;

	ck_ok(json_read_file(SRCDIR "/etc/examples/tiny-llama.json", &config, &err), &err);
	ck_assert_int_eq(json_object_set_new(config, "attention_dropout", json_real(0.25)), 0);
	text = json_dumps(config, 0);
	write_file("dropout.json", text);
	{
		_cleanup_(call_release) struct call call =
		    fixture_call(cmd_check, "check -s model.init=dropout.json good.conf");

		ck_assert_int_eq(call.status, 0);
		ck_assert_ptr_nonnull(strstr(call.output, "warning     the dropout of 0.25 in config.json is "
		                                          "not applied: only lora.dropout is\n"));
	}
}
END_TEST

/* The run, and nothing else, as it would be submitted. */
START_TEST(a_run_is_shown_as_json)
{
	_cleanup_(call_release) struct call good =
	                                        fixture_call(cmd_check, "check --json -s name=x good.conf"),
	                                    bad = fixture_call(cmd_check,
	                                                       "check --json -s model.init=none good.conf");
	_cleanup_json_ json_t *run = json_loads(good.output, 0, NULL);

	ck_assert_int_eq(good.status, 0);
	ck_assert_str_eq(good.errors, "");
	ck_assert_str_eq(json_get_string(run, "name", ""), "x");
	ck_assert_str_eq(json_get_string(run, "directory", ""), fixture_dir());
	ck_assert_int_eq(bad.status, 1);
	ck_assert_msg(str_starts(bad.errors, "dtrain: good.conf: model.init: "), "%s", bad.errors);
	ck_assert_msg(str_starts(bad.output, "{"), "%s", bad.output);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dtrain_check");
	TCase *tc = tcase_create("check");

	tcase_add_checked_fixture(tc, setup, fixture_teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, what_is_fine_is_listed);
	tcase_add_loop_test(tc, what_is_wrong_is_named, 0, ARRAY_SIZE(wrong));
	tcase_add_test(tc, an_output_directory_is_what_the_worker_accepts);
	tcase_add_test(tc, a_submission_warns_of_a_directory_in_use);
	tcase_add_test(tc, preferences_are_judged_as_a_whole);
	tcase_add_test(tc, a_model_and_an_adapter_may_be_on_the_nodes_alone);
	tcase_add_test(tc, a_model_has_weights);
	tcase_add_test(tc, what_can_be_divided_is_fine);
	tcase_add_test(tc, what_is_no_model_is_explained);
	tcase_add_test(tc, a_program_is_looked_for);
	tcase_add_test(tc, a_directory_is_no_program);
	tcase_add_test(tc, an_export_is_refused_for_its_arguments);
	tcase_add_test(tc, an_export_has_files_of_the_size);
	tcase_add_test(tc, an_adapter_is_checked_with_its_model);
	tcase_add_loop_test(tc, a_run_is_looked_at, 0, ARRAY_SIZE(looks));
	tcase_add_test(tc, warnings_are_given_before_the_run);
	tcase_add_test(tc, dropout_of_a_model_is_not_applied);
	tcase_add_test(tc, a_run_is_shown_as_json);
	tcase_add_test(tc, an_adapter_that_does_not_fit_is_not_submitted);
	tcase_add_test(tc, an_adapter_is_merged);
	tcase_add_test(tc, what_is_said_once);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
