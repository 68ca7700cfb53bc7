/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the hosts file, dtraind.conf and run files: what is read, and which errors name which
 * line and key. */
#include "unit.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "config/daemon.h"
#include "config/hosts.h"
#include "config/run.h"

#include "failing_memory.h"

/* libconfig 1.5 leaks memory of its scanner when its grammar refuses a value. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libconfig.so";
}

static const char alpaca[] =
    "name = \"alpaca\";\n"
    "task = \"sft\";\n"
    "model = { path = \"/models/x\"; };\n"
    "data = { path = [\"a.json\", \"b.json\"]; format = \"alpaca\"; max_length = 512;\n"
    "         columns = { prompt = \"q\"; response = \"a\"; }; };\n"
    "train = { epochs = 2; learning_rate = 1e-4; };\n"
    "environment = { NCCL_DEBUG = \"INFO\"; };\n"
    "output = { dir = \"saves\"; };\n";

START_TEST(run_file_with_defaults)
{
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_parse(alpaca, "x.conf", NULL, &c, &err), &err);
	ck_assert_int_eq(c->task, RUN_SFT);
	ck_assert_str_eq(c->data.path[1], "b.json");
	ck_assert_ptr_null(c->data.path[2]);
	ck_assert_double_eq(c->train.epochs, 2);
	ck_assert_str_eq(c->train.schedule, "cosine");
	ck_assert_str_eq(c->environment[0], "NCCL_DEBUG=INFO");
	ck_assert_str_eq(c->data.columns, "{\"prompt\":\"q\",\"response\":\"a\"}");
	ck_assert(!c->data.packing);
	ck_assert_int_eq(c->resources.nodes.low, 1);
	ck_assert_int_eq(c->resources.nodes.high, 1);
}
END_TEST

/* train.recompute was true or false once; runs in a store, and run files, still have that. */
START_TEST(recompute_by_name_or_truth)
{
	static const struct {
		const char *override, *json, *want;
	} cases[] = {{"train.recompute=auto", "{\"recompute\":\"selective\"}", "auto selective"},
	             {"train.recompute=true", "{\"recompute\":true}", "true true"},
	             {"train.recompute=false", "{\"recompute\":false}", "false false"}};
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const char *override[] = {cases[i].override, NULL};
		_cleanup_(run_config_freep) struct run_config *a = NULL, *b = NULL;
		_cleanup_json_ json_t *json = json_loads(cases[i].json, 0, NULL);
		_cleanup_json_ json_t *run = json_pack("{s:s,s:O}", "task", "sft", "train", json);
		_cleanup_free_ char *both = NULL;

		ck_ok(run_config_parse(alpaca, "x.conf", override, &a, &err), &err);
		ck_ok(run_config_decode(run, "x", false, &b, &err), &err);
		both = str_printf("%s %s", a->train.recompute, b->train.recompute);
		ck_assert_str_eq(both, cases[i].want);
	}
	ck_fails(run_config_parse(alpaca, "x.conf", (const char *[]){"train.recompute=half", NULL}, &c, &err),
	         &err, "has to be one of none|selective|full|auto");
}
END_TEST

START_TEST(packing_default_follows_the_task)
{
	const char *pretrain[] = {"task=pretrain", NULL},
	           *off[] = {"task=pretrain", "data.packing=false", NULL};
	_cleanup_(run_config_freep) struct run_config *a = NULL, *b = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_parse(alpaca, "x.conf", pretrain, &a, &err), &err);
	ck_assert(a->data.packing);
	ck_ok(run_config_parse(alpaca, "x.conf", off, &b, &err), &err);
	ck_assert(!b->data.packing);
}
END_TEST

START_TEST(json_round_trip)
{
	_cleanup_(run_config_freep) struct run_config *a = NULL, *b = NULL;
	_cleanup_json_ json_t *ja = NULL, *jb = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_parse(alpaca, "x.conf", NULL, &a, &err), &err);
	ck_ok(run_config_to_json(a, &ja, &err), &err);
	ck_assert_str_eq(json_get_string(ja, "task", ""), "sft");
	ck_ok(run_config_from_json(ja, &b, &err), &err);
	ck_ok(run_config_to_json(b, &jb, &err), &err);
	ck_assert(json_equal(ja, jb));
}
END_TEST

#define TRAINS                                                                                               \
	"task = \"sft\"; model = { path = \"x\"; }; data = { path = \"y\"; }; output = { dir = \"z\"; };"

#define ON_RANKS(n, parallel)                                                                                \
	"task = \"sft\"; model = { path = \"x\"; }; data = { path = \"y\"; }; output = { dir = \"z\"; }; "   \
	"resources = { devices_per_node = " n "; }; parallel = { " parallel " };"

#define PRECISION(name, train)                                                                               \
	"task = \"sft\"; model = { path = \"x\"; }; data = { path = \"y\"; }; output = { dir = \"z\"; }; "   \
	"train = { precision = \"" name "\"; " train " };"

/* Eight completions of a step on a rank, as many as a prompt has of them. */
#define GRPO(keys)                                                                                           \
	"task = \"grpo\"; model = { path = \"x\"; }; data = { path = \"y\"; }; output = { dir = \"z\"; }; "  \
	"train = { micro_batch = 2; accumulation = 4; }; grpo = { reward = [ \"r\" ]; " keys " };"

#define PPO(keys)                                                                                            \
	"task = \"ppo\"; model = { path = \"x\"; }; data = { path = \"y\"; }; output = { dir = \"z\"; }; "   \
	"train = { micro_batch = 2; accumulation = 4; }; ppo = { reward = [ \"r\" ]; " keys " };"

#define GENERATE(keys) "task = \"generate\"; model = { path = \"x\"; }; generate = { " keys " };"

static const struct {
	const char *text, *override, *words;
} wrong[] = {
    {"task = \"sft\";\nmodel = { pth = \"x\"; };", NULL,
     "x.conf:2: model.pth: unknown key; did you mean model.path?"},
    {"task = \"sft\";\n\ntrain = { epochs = \"two\"; };", NULL,
     "x.conf:3: train.epochs: a string; a number is needed"},
    {"task = \"dance\";", NULL, "x.conf:1: task: \"dance\" is not known; it has to be one of pretrain|sft"},
    {"task = \"sft|generate\";", NULL, "task: \"sft|generate\" is not known"},
    {"task = \"sft\"", "train.beta1=2",
     "--set: train.beta1: 2 is out of range; it has to be within 0 and 0.999999"},
    {"task = \"sft\";", "train.lr=1", "--set: train.lr: unknown key; did you mean train.learning_rate?"},
    {"task = \"sft\"; train = { lr = 1; };", NULL,
     "x.conf:1: train.lr: unknown key; did you mean train.learning_rate?"},
    {"task = \"sft\";", "learning_rate=1", "did you mean train.learning_rate?"},
    {"task = \"sft\"; trian = { seed = 1; };", NULL, "x.conf:1: trian: unknown key; did you mean train?"},
    {"task = \"sft\";", "resource=1", "--set: resource: unknown key; did you mean resources?"},
    {"task = \"sft\";", "train=1", "--set: train: a group of keys; name one of them: train.KEY=VALUE"},
    {"task = \"sft\";", "nonsense", "not of the form section.key=value"},
    {"task = \"sft\";\n model {", NULL, "x.conf:2: syntax error"},
    {"task = \"sft\";", NULL, "exactly one of model.path"},
    {"name = \"x\";", NULL, "task: missing"},
    {"task = \"sft\"; model = { path = \"x\"; };", NULL, "exactly one of data.path"},
    {"task = \"sft\"; model = { path = \"x\"; }; data = { path = \"y\"; };", NULL, "output.dir: missing"},
    {"task = \"sft\"; model = \"x\";", NULL, "model: a group is needed"},
    {"task = \"sft\"; data = { path = [1, 2]; };", NULL, "data.path: not all strings"},
    {"task = \"command\";", NULL, "command: missing"},
    {"command = [];", NULL, "command: missing; name the program to run"},
    {"task = \"generate\"; model = { path = \"x\"; }; generate = { prompt = \"x\"; };\n",
     "resources.one_per_node=true",
     "resources.one_per_node: has no effect with task = \"generate\": it is for commands"},
    {"command = [\"true\"]; environment = [\"NOPE\"];", NULL, "not of the form NAME=VALUE"},
    {"task = \"generate\"; model = { path = \"m\"; }; generate = { prompt = \"a\"; };",
     "resources.save_signal=USR1",
     "resources.save_signal: has no effect with task = \"generate\": it is for commands"},
    {"command = [\"true\"]; resources = { max_restarts = -1; };", NULL, "resources.max_restarts: "},
    {"command = [\"true\"];", "resources.max_node_failures=x", "resources.max_node_failures: "},
    {"task = \"sft\"; command = [\"true\"];", NULL,
     "x.conf: command: has no effect with task = \"sft\"; leave out one of the two"},
    {"task = \"generate\"; model = { path = \"x\"; };", NULL, "generate.prompt: missing"},
    {PRECISION("fp8", "}; lora = { rank = 8; quantize = \"nf4\";"), NULL,
     "train.precision: \"fp8\" makes its codes of weights in bf16, not of those in 4 bits"},
    {"task = \"generate\"; model = { path = \"x\"; }; generate = { prompt = \"x\"; };", "train.precision=fp8",
     "train.precision: \"fp8\" is for training; expected auto, fp32, bf16 or fp16"},
    {ON_RANKS("6", "strategy = \"hybrid\"; shard_degree = 4;"), NULL,
     "parallel.shard_degree: 6 ranks cannot be divided into groups of 4; expected a divisor of 6, such as 3"},
    {ON_RANKS("8", "strategy = \"hybrid\"; shard_degree = 3;"), NULL, "expected a divisor of 8, such as 4"},
    {ON_RANKS("2", "strategy = \"hybrid\"; shard_degree = 8;"), NULL, "expected a divisor of 2, such as 2"},
    {ON_RANKS("2", "offload = \"optimizer\"; }; train = { optimizer = \"muon\";"), NULL,
     "parallel.offload: the host can step adamw, sgd and lion, and train.optimizer is \"muon\""},
    {ON_RANKS("2", "offload_dir = \"/nvme\";"), NULL,
     "parallel.offload_dir: has no effect with parallel.offload = \"none\"; leave it out, or"},
    {ON_RANKS("2", "offload = \"optimizer\"; offload_dir = \"\";"), NULL, "parallel.offload_dir: is empty"},
    {ON_RANKS("2", "strategy = \"zero2\"; offload = \"all\";"), NULL,
     "\"all\" keeps shards of the weights in the host's memory, and parallel.strategy = \"zero2\" has no "
     "shards "
     "of them; use \"zero3\" or \"hybrid\", or"},
    {ON_RANKS("4", "strategy = \"zero3\"; shard_degree = 2;"), NULL,
     "parallel.shard_degree: has no effect with parallel.strategy = \"zero3\"; leave it out, or use"},
    {ON_RANKS("6", "sequence_degree = 4;"), NULL,
     "parallel.sequence_degree: 6 ranks cannot be divided into groups of 4; expected a divisor of 6, such as "
     "3"},
    {"task = \"grpo\"; model = { path = \"x\"; }; data = { path = \"y\"; }; output = { dir = \"z\"; }; "
     "grpo = { reward = [\"r\"]; }; train = { micro_batch = 8; }; "
     "resources = { devices_per_node = 2; }; parallel = { sequence_degree = 2; };",
     NULL, "parallel.sequence_degree: has no effect with task = \"grpo\", whose completions each rank"},
    {ON_RANKS("4", "strategy = \"zero3\"; trial = \"always\";"), NULL,
     "parallel.trial: has no effect with parallel.strategy = \"zero3\"; leave it out, or use the"},
    {"task = \"dpo\"; model = { path = \"x\"; }; data = { path = \"y\"; }; output = { dir = \"z\"; }; "
     "preference = { "
     "reference = \"/r\"; }; lora = { rank = 4; from = \"/a\"; };",
     NULL, "preference.reference: with lora.from the reference is the model with that adapter"},
    {"task = \"dpo\"; model = { path = \"x\"; }; data = { path = \"y\"; }; output = { dir = \"z\"; }; "
     "preference = { label_smoothing = 0.5; };",
     NULL, "preference.label_smoothing: half of the pairs the wrong way round teach nothing"},
    {ON_RANKS("1", "}; lora = { quantize = \"nf4\";"), NULL, "lora.rank: 0, with which the other keys"},
    {ON_RANKS("1", "}; lora = { rank = 4; quantize = \"gptq\";"), NULL, "lora.quantize"},
    {ON_RANKS(
         "1",
         "}; train = { optimizer = \"lion\"; weight_decay = 0.1; }; lora = { rank = 4; init = \"pissa\";"),
     NULL, "train.weight_decay: adamw alone can leave out what is kept of the adapters"},
    {ON_RANKS("4", "prefetch = 16;"), NULL, "parallel.prefetch: 16 is out of range"},
    {PRECISION("fp16", "loss_scale = 1.0;"), NULL,
     "x.conf: train.loss_scale: with 1 small gradients vanish in fp16; 0, by which the scale adapts itself, "
     "or a "
     "fixed scale such as 65536 works"},
    {PRECISION("bf16", "loss_scale = 512.0;"), NULL, "train.loss_scale: only fp16 needs a scaled loss"},
    {PRECISION("fp16", "min_loss_scale = 16.0; loss_scale_power = 3;"), NULL,
     "train.min_loss_scale: 16 is above the first loss scale, 2^3 = 8"},
    {PRECISION("fp16", "loss_scale_window = 0;"), NULL, "train.loss_scale_window: 0 is out of range"},
    {GENERATE("prompt = \"a\"; prompts = \"b\";"), NULL,
     "x.conf: generate.prompts: leave out one of prompt and prompts"},
    {GENERATE("prompt = \"a\"; stop = [\"x\", \"\"];"), NULL,
     "x.conf: generate.stop: an empty string ends every text"},
    {"task = \"sft\"; model = { path = \"x\"; init = \"y\"; };", NULL, "exactly one of model.path"},
    {"task = \"sft\"; model = { path = \"x\"; }; data = { path = []; };", NULL,
     "x.conf: data.path: an empty list; name at least one file"},
    {"task = \"sft\"; model = { path = \"x\"; }; data = { dataset = []; };", NULL,
     "x.conf: data.path: an empty list; name at least one file"},
    {"task = \"sft\"; model = { path = \"x\"; }; data = { dataset = [\"a\"]; path = \"b\"; };", NULL,
     "exactly one of data.path"},
    {PRECISION("bf16", "learning_rate = 0.001; min_learning_rate = 0.002;"), NULL,
     "x.conf: train.min_learning_rate: 0.002 is above train.learning_rate, 0.001"},
    {PRECISION("bf16", "epochs = 0;"), NULL,
     "x.conf: train.epochs: 0 epochs and no train.max_steps: nothing to do"},
    {PRECISION("fp32", "master = \"none\";"), NULL, "train.master: \"none\" is for bf16 weights"},
    {"task = \"dpo\"; model = { path = \"x\"; }; data = { path = \"y\"; }; output = { dir = \"z\"; }; "
     "preference = { beta = 0.0; };",
     NULL, "preference.beta: 0 learns nothing; expected a number above 0"},
    {"command = [\"true\"]; umask = \"08\";", NULL, "x.conf: umask: \"08\" is not three octal digits"},
    {"command = [\"true\"]; umask = \"1000\";", NULL, "umask: \"1000\" is not three octal digits"},
    {"command = [\"true\"]; umask = \"00027\";", NULL, "umask: \"00027\" is not three octal digits"},
    {"command = [\"true\"]; umask = \"\";", NULL, "umask: \"\" is not three octal digits"},
    {"command = [\"true\"]; environment = [\"RANK=1\"];", NULL,
     "x.conf: environment: RANK: dtrain sets it for each rank itself; leave it out"},
    {"command = [\"true\"]; environment = [\"DTRAIN_X=1\"];", NULL, "environment: DTRAIN_X: dtrain sets it"},
    {"command = [\"true\"]; environment = [\"=1\"];", NULL, "\"=1\" is not of the form NAME=VALUE"},
    {"command = [\"true\"]; environment = [\"A=\\xff\"];", NULL, "environment: A: not valid UTF-8"},
    {"command = [\"\"];", NULL, "command: missing; name the program to run"},
    {"command = [\"true\"];", "data.columns=[1]", "data.columns: "},
    {"command = [\"true\"]; data = { columns = { prompt = 1; }; };", NULL, "data.columns: not all strings; "},
    {"command = [\"true\"];", "data.columns=x", "data.columns: "},
    {PRECISION("fp16", "hysteresis = 0;"), NULL, "train.hysteresis: 0 is out of range"},
    {PRECISION("fp32", "gradient_type = \"bf16\";"), NULL,
     "x.conf: train.gradient_type: \"bf16\" is for bf16 weights; expected train.precision = \"bf16\""},
    {PRECISION("bf16", "gradient_type = \"bf16\"; accumulation = 2;"), NULL,
     "train.gradient_type: \"bf16\" is for steps of one micro-step, since sums of several are taken in fp32"},
    {PRECISION("bf16", "gradient_type = \"bf16\";"), "resources.nodes=1..2",
     "train.gradient_type: \"bf16\" is for steps of one micro-step, and with a range of nodes"},
    {PRECISION("bf16", "gradient_type = \"bf16\"; optimizer = \"lion\";"), NULL,
     "train.gradient_type: \"bf16\" is for the optimizers adamw and adamw_8bit"},
    {PRECISION("bf16", "gradient_type = \"bf16\";"), "parallel.offload=optimizer",
     "train.gradient_type: \"bf16\" cannot be offloaded"},
    {PRECISION("bf16", "gradient_type = \"bf16\";"), "lora.rank=8",
     "train.gradient_type: \"bf16\" has no effect with lora"},
    {PRECISION("fp16", "master = \"none\";"), NULL,
     "train.master: \"none\" rounds weights stochastically to bf16, and most steps are below what fp16 can "
     "hold"},
    {ON_RANKS("1", "}; lora = { alpha = 8.0;"), NULL, "lora.rank: 0, with which the other keys"},
    {ON_RANKS("1", "}; lora = { dropout = 0.1;"), NULL, "lora.rank: 0, with which the other keys"},
    {ON_RANKS("1", "}; lora = { rslora = true;"), NULL, "lora.rank: 0, with which the other keys"},
    {ON_RANKS("1", "}; lora = { dora = true;"), NULL, "lora.rank: 0, with which the other keys"},
    {ON_RANKS("1", "}; lora = { init = \"pissa\";"), NULL, "lora.rank: 0, with which the other keys"},
    {ON_RANKS("1", "}; lora = { target = [\"q\"];"), NULL, "lora.rank: 0, with which the other keys"},
    {ON_RANKS("1", "}; lora = { modules_to_save = [\"q\"];"), NULL,
     "lora.rank: 0, with which the other keys"},
    {ON_RANKS("1", "}; lora = { plus_ratio = 2.0;"), NULL, "lora.rank: 0, with which the other keys"},
    {ON_RANKS("1", "}; lora = { from = \"/a\";"), NULL, "lora.rank: 0, with which the other keys"},
    {ON_RANKS("1", "}; lora = { rank = 4; init = \"pissa\"; from = \"/a\";"), NULL,
     "lora.init: has no effect with lora.from"},
    {ON_RANKS("1", "}; lora = { rank = 4; }; train = { freeze_trainable_layers = 2;"), NULL,
     "train.freeze_trainable_layers: has no effect with lora"},
    {ON_RANKS("1", "}; lora = { rank = 4; }; train = { freeze_extra_modules = [\"q\"];"), NULL,
     "train.freeze_trainable_layers: has no effect with lora"},
    {ON_RANKS("1", "}; train = { freeze_trainable_modules = [\"q\"];"), NULL,
     "train.freeze_trainable_modules: has no effect without train.freeze_trainable_layers"},
    {ON_RANKS("1", "}; train = { freeze_extra_modules = [\"q\"];"), NULL,
     "train.freeze_extra_modules: has no effect without train.freeze_trainable_layers"},
    {ON_RANKS("2", "strategy = \"ddp\"; offload = \"all\";"), NULL,
     "parallel.strategy = \"ddp\" has no shards"},
    {ON_RANKS("2", "offload = \"all\"; }; train = { optimizer = \"adafactor\";"), NULL,
     "and train.optimizer is \"adafactor\"; use one of these"},
    {ON_RANKS("1", "}; train = { loss = \"dft\"; label_smoothing = 0.1;"), NULL,
     "x.conf: train.label_smoothing: has no effect with train.loss = \"dft\"; leave one of the two out"},
    {ON_RANKS("1", "}; distillation = { weight = 0.3;"), NULL,
     "x.conf: distillation.weight: has no effect without distillation.teacher; leave it out"},
    {ON_RANKS("1", "}; distillation = { temperature = 2.0;"), NULL,
     "x.conf: distillation.temperature: has no effect without distillation.teacher; leave it out"},
    {ON_RANKS("1", "}; distillation = { teacher = \"/t\"; weight = 0.0;"), NULL,
     "x.conf: distillation.weight: of 0 learns nothing from the teacher"},
    {ON_RANKS("1", "}; distillation = { teacher = \"\";"), NULL,
     "x.conf: distillation.teacher: is empty; name the directory of a model, or leave it out"},
    {ON_RANKS("1", "}; distillation = { teacher = \"/t\"; }; train = { loss = \"dft\";"), NULL,
     "x.conf: train.loss: has no effect with distillation.teacher; leave it out"},
    {ON_RANKS("1", "}; distillation = { teacher = \"/t\"; }; train = { label_smoothing = 0.1;"), NULL,
     "x.conf: train.label_smoothing: has no effect with distillation.teacher; leave it out"},
    {ON_RANKS("1", "}; train = { router_loss = -0.5;"), NULL,
     "x.conf: train.router_loss: -0.5: expected a factor from 0 on, or -1"},
    {ON_RANKS("1", "}; train = { loss = \"focal\";"), NULL, "train.loss: "},
    {PRECISION("fp16", "loss_scale = 0.5;"), NULL, "train.loss_scale: with 0.5 small gradients vanish"},
    {PRECISION("fp16", "min_loss_scale = 8.1; loss_scale_power = 3;"), NULL,
     "train.min_loss_scale: 8.1 is above the first loss scale, 2^3 = 8"},
    {PRECISION("auto", "gradient_type = \"bf16\"; optimizer = \"sgd\";"), NULL,
     "train.gradient_type: \"bf16\" is for the optimizers adamw and adamw_8bit"},
    {"command = [\"true\"]; train = { epochs = 1.0; };", NULL,
     "x.conf: train.epochs: has no effect with task = \"command\": it is for runs of dtrain's own engine; "
     "leave it out"},
    {"command = [\"true\"];", "model.path=x", "model.path: has no effect with task = \"command\""},
    {"command = [\"true\"];", "output.save_steps=0",
     "output.save_steps: has no effect with task = \"command\""},
    {TRAINS, "generate.temperature=0.5",
     "generate.temperature: has no effect with task = \"sft\": it is for task = \"generate\"; leave it out"},
    {TRAINS, "preference.beta=0.1",
     "preference.beta: has no effect with task = \"sft\": it is for the tasks dpo, orpo, simpo, kto and "
     "reward; leave it out"},
    {TRAINS, "train.momentum=0.8",
     "train.momentum: has no effect with train.optimizer = \"adamw\": it is for sgd, lars and muon; leave it "
     "out"},
    {TRAINS " train = { optimizer = \"adafactor\"; nesterov = true; };", NULL,
     "train.nesterov: has no effect with train.optimizer = \"adafactor\""},
    {TRAINS, "train.decay_ratio=0.1",
     "train.decay_ratio: has no effect with train.schedule = \"cosine\": it is for wsd; leave it out"},
    {TRAINS, "train.eval_steps=5", "train.eval_steps: has no effect without data.eval_fraction"},
    {TRAINS " train = { micro_batch = 8; };", "task=grpo",
     "grpo.reward: missing; name the program that gives completions their rewards"},
    {"task = \"grpo\"; model = { path = \"x\"; }; data = { path = \"y\"; }; output = { dir = \"z\"; }; "
     "grpo = { reward = []; };",
     NULL, "grpo.reward: missing; name the program"},
    {GRPO(""), "grpo.reward=", "grpo.reward: missing; name the program"},
    {GRPO("reward_model = \"\";"), NULL,
     "x.conf: grpo.reward_model: is empty; name the directory of a model"},
    {TRAINS " grpo = { reward_model = \"/r\"; };", NULL,
     "grpo.reward_model: has no effect with task = \"sft\""},
    {GRPO(""), "data.packing=true",
     "x.conf: data.packing: has no effect with task = \"grpo\", whose rows are prompts; leave it out"},
    {GRPO(""), "data.train_on_prompt=true",
     "x.conf: data.train_on_prompt: has no effect with task = \"grpo\": completions alone count"},
    {GRPO(""), "data.mask_history=true",
     "x.conf: data.mask_history: has no effect with task = \"grpo\": completions alone count"},
    {GRPO(""), "distillation.teacher=/t", "x.conf: distillation.teacher: is for the tasks pretrain and sft"},
    {GRPO(""), "train.neftune_alpha=5", "x.conf: train.neftune_alpha: is for the tasks pretrain and sft"},
    {GRPO(""), "train.label_smoothing=0.1",
     "x.conf: train.label_smoothing: is for the tasks pretrain and sft"},
    {GRPO(""), "train.router_loss=0.001", "x.conf: train.router_loss: is for the tasks pretrain and sft"},
    {GRPO(""), "train.loss=dft",
     "x.conf: train.loss: is for the tasks pretrain and sft; leave it out, or set grpo.loss"},
    {GRPO(""), "train.precision=fp8",
     "x.conf: train.precision: \"fp8\" is not there for tasks that learn from rewards; expected auto, fp32, "
     "bf16 or fp16"},
    {GRPO(""), "parallel.trial=always",
     "x.conf: parallel.trial: steps that learn from rewards cannot be tried without these"},
    {GRPO("top_p = 0.0;"), NULL, "x.conf: grpo.top_p: 0 leaves no token to choose"},
    {"task = \"grpo\"; model = { init = \"x\"; }; data = { path = \"y\"; }; output = { dir = \"z\"; }; "
     "train = { micro_batch = 8; }; grpo = { reward = [ \"r\" ]; beta = 0.1; };",
     NULL, "x.conf: grpo.beta: needs a reference model, and weights from nothing are none"},
    {GRPO("reference = \"/r\";"), NULL,
     "x.conf: grpo.reference: has no effect with grpo.beta = 0; leave it out"},
    {GRPO("loss = \"cispo\"; epsilon_high = 0.28;"), NULL,
     "x.conf: grpo.epsilon_high: is the highest ratio of the loss cispo; expected at least 1"},
    {GRPO("iterations = 4;"), "output.save_steps=6",
     "x.conf: output.save_steps: 6 is no multiple of grpo.iterations, which is 4, and completions are not "
     "saved; "
     "expected one, such as 8"},
    {GRPO("generations = 3;"), NULL,
     "x.conf: grpo.generations: a rank makes train.micro_batch times train.accumulation = 8 completions for "
     "a step, which is no multiple of 3; expected one, such as train.accumulation = 3 with train.micro_batch "
     "= 1"},
    {GRPO("generations = 16;"), NULL, "which is no multiple of 16"},
    {GRPO(""), "resources.nodes=2..3",
     "x.conf: grpo.generations: a rank makes train.micro_batch times train.accumulation = 12 completions for "
     "a step, with some number of nodes, which is no multiple of 8; expected one, such as train.accumulation "
     "= 16 with train.micro_batch = 1"},
    {GRPO(""), "resources.nodes=6..7",
     "x.conf: resources.nodes: 6 nodes cannot keep the batch of 7 nodes, 28 micro-steps"},
    {GRPO(""), "generate.temperature=0.5",
     "generate.temperature: has no effect with task = \"grpo\": it is for task = \"generate\""},
    {GRPO(""), "preference.beta=0.1",
     "preference.beta: has no effect with task = \"grpo\": it is for the tasks dpo, orpo, simpo, kto and "
     "reward"},
    {GRPO(""), "train.eval_steps=5", "train.eval_steps: has no effect without data.eval_fraction"},
    {TRAINS " train = { micro_batch = 8; };", "task=ppo",
     "ppo.reward: missing; name the program that gives completions their rewards, with its arguments: "
     "[ \"python3\", \"reward.py\" ], or set ppo.reward_model"},
    {PPO("reward_model = \"\";"), NULL, "x.conf: ppo.reward_model: is empty; name the directory of a model"},
    {PPO(""), "data.packing=true",
     "x.conf: data.packing: has no effect with task = \"ppo\", whose rows are prompts; leave it out"},
    {PPO(""), "train.loss=dft", "x.conf: train.loss: is for the tasks pretrain and sft; leave it out"},
    {PPO(""), "parallel.sequence_degree=2", "x.conf: parallel.sequence_degree: "},
    {PPO("beta = 0.0; reference = \"/r\";"), NULL,
     "x.conf: ppo.reference: has no effect with ppo.beta = 0; leave it out"},
    {"task = \"ppo\"; model = { init = \"x\"; }; data = { path = \"y\"; }; output = { dir = \"z\"; }; "
     "ppo = { reward = [ \"r\" ]; };",
     NULL,
     "x.conf: ppo.beta: needs a reference model, and weights from nothing are none; expected 0, or a "
     "directory in ppo.reference"},
    {PPO(""), "output.save_steps=6",
     "x.conf: output.save_steps: 6 is no multiple of ppo.iterations, which is 4, and completions are not "
     "saved; expected one, such as 8"},
    {PPO("mini_batches = 2;"), "output.save_steps=12",
     "x.conf: output.save_steps: 12 is no multiple of ppo.iterations times mini_batches, which is 8, and "
     "completions are not saved; expected one, such as 16"},
    {PPO(""), "train.max_steps=5", "x.conf: train.max_steps: 5 is no multiple of ppo.iterations"},
    {PPO("generations = 3;"), NULL, "x.conf: ppo.generations: a rank makes train.micro_batch times"},
    {PPO("value_learning_rate = 0.1;"), "train.learning_rate=0",
     "x.conf: ppo.value_learning_rate: has no effect with train.learning_rate = 0"},
    {PPO("loss = \"dapo\";"), NULL, "ppo.loss: unknown"},
    {PPO(""), "grpo.beta=0.1", "grpo.beta: has no effect with task = \"ppo\": it is for task = \"grpo\""},
    {GRPO(""), "ppo.gamma=0.9", "ppo.gamma: has no effect with task = \"grpo\": it is for task = \"ppo\""},
    {GRPO(""), "grpo.gamma=0.9", "grpo.gamma: unknown"},
    {GRPO(""), "grpo.loss=ppo", "grpo.loss: "},
    {GRPO(""), "grpo.level=word", "grpo.level: "},
    {GRPO(""), "grpo.scale=all", "grpo.scale: "},
    {GRPO(""), "grpo.generations=1", "grpo.generations: 1 is out of range"},
    {TRAINS, "grpo.beta=0.1",
     "grpo.beta: has no effect with task = \"sft\": it is for task = \"grpo\"; leave it out"},
    {TRAINS " grpo = { reward = [ \"r\" ]; };", NULL, "grpo.reward: has no effect with task = \"sft\""},
    {TRAINS, "grpo.generations=8", "grpo.generations: has no effect with task = \"sft\""},
    {"command = [\"true\"];", "grpo.generations=8",
     "grpo.generations: has no effect with task = \"command\": it is for runs of dtrain's own engine"},
};

/* What is just right, beside what is wrong above. */
static const struct {
	const char *text, *override;
} right[] = {
    {"command = [\"true\"]; umask = \"0777\";", NULL},
    {"command = [\"true\"]; umask = \"7\";", NULL},
    {"command = [\"true\"]; environment = [\"RANKS=1\", \"RAN=\", \"A=B=C\", \"DTRAIN_CPU_ISA=x\", "
     "\"DTRAIN_LIBRARY_PATH=/x\", \"DTRAI=1\"];",
     NULL},
    {PRECISION("bf16", ""), "data.columns={\"prompt\":\"x\"}"},
    {GENERATE("prompts = \"b\"; stop = [\"x\"];"), NULL},
    {PRECISION("bf16", "learning_rate = 0.001; min_learning_rate = 0.001;"), NULL},
    {PRECISION("bf16", "epochs = 0; max_steps = 1;"), NULL},
    {PRECISION("bf16", "master = \"none\";"), NULL},
    {PRECISION("bf16", "gradient_type = \"bf16\"; optimizer = \"adamw_8bit\"; master = \"none\";"), NULL},
    {PRECISION("auto", "gradient_type = \"bf16\"; accumulation = 1;"), "parallel.reduce_type=bf16"},
    {"command = [\"true\"]; resources = { spares = 1; max_node_failures = 1; };", NULL},
    {ON_RANKS("1", "strategy = \"zero2\"; offload = \"all\";"), NULL}, /* one rank has all shards */
    {ON_RANKS("2", "offload = \"all\";"), NULL},
    {ON_RANKS("2", "strategy = \"zero3\"; offload = \"all\";"), NULL},
    {ON_RANKS("2", "strategy = \"hybrid\"; offload = \"all\";"), NULL},
    {ON_RANKS("2", "offload = \"optimizer\"; offload_dir = \"/nvme\"; }; train = { optimizer = \"sgd\";"),
     NULL},
    {ON_RANKS("2", "offload = \"optimizer\"; }; train = { optimizer = \"lion\";"), NULL},
    {ON_RANKS("2", "offload = \"optimizer\"; }; train = { optimizer = \"adamw\";"), NULL},
    {ON_RANKS("2", "}; train = { optimizer = \"muon\";"), NULL},
    {ON_RANKS("6", "strategy = \"hybrid\"; shard_degree = 3;"), NULL},
    {ON_RANKS("6", "sequence_degree = 3;"), NULL},
    {ON_RANKS("1", "}; lora = { rank = 4; init = \"pissa\"; }; train = { weight_decay = 0.1;"), NULL},
    {ON_RANKS(
         "1",
         "}; lora = { rank = 4; init = \"pissa\"; }; train = { optimizer = \"lion\"; weight_decay = 0.0;"),
     NULL},
    {ON_RANKS("1", "}; lora = { rank = 4; }; train = { optimizer = \"lion\"; weight_decay = 0.1;"), NULL},
    {ON_RANKS("1", "}; lora = { rank = 4; from = \"/a\";"), NULL},
    {ON_RANKS("1", "}; train = { freeze_trainable_layers = 2; freeze_trainable_modules = [\"q\"]; "
                   "freeze_extra_modules = [\"q\"];"),
     NULL},
    {PRECISION("fp16", "loss_scale = 1.5;"), NULL},
    {PRECISION("fp16", "min_loss_scale = 8.0; loss_scale_power = 3;"), NULL},
    {PRECISION("fp16", "loss_scale = 512.0; min_loss_scale = 16.0; loss_scale_power = 3;"), NULL},
    {PRECISION("fp8", "}; lora = { rank = 8;"), NULL},
    {"command = [\"true\"];", "output.dir=x"},
    {GENERATE("prompt = \"b\";"), "train.precision=bf16"},
    {TRAINS " train = { optimizer = \"lars\"; momentum = 0.5; nesterov = true; };", NULL},
    {TRAINS, "train.nesterov=false"},
    {TRAINS " train = { schedule = \"wsd\"; decay_ratio = 0.2; };", NULL},
    {TRAINS, "train.eval_steps=0"},
    {TRAINS " train = { eval_steps = 5; };", "data.eval_fraction=0.1"},
    {GRPO(""), NULL},
    {GRPO("generations = 2;"), NULL},
    {GRPO("generations = 8;"), "train.micro_batch=4"},
    {GRPO("beta = 0.1;"), "output.save_steps=7"},
    {GRPO("beta = 0.1; reference = \"/r\";"), NULL},
    {"task = \"grpo\"; model = { init = \"x\"; }; data = { path = \"y\"; }; output = { dir = \"z\"; }; "
     "train = { micro_batch = 8; }; grpo = { reward = [ \"r\", \"-v\" ]; beta = 0.1; reference = \"/r\"; };",
     NULL},
    {GRPO("iterations = 4;"), "output.save_steps=8"},
    {GRPO("iterations = 4;"), "output.save_steps=0"},
    {GRPO("loss = \"cispo\"; epsilon_high = 1.0;"), NULL},
    {GRPO("loss = \"cispo\"; epsilon_high = 0.0;"), NULL},
    {GRPO("loss = \"grpo\"; epsilon_high = 0.28;"), NULL},
    {GRPO("level = \"sequence\"; scale = \"batch\"; mask_truncated = true; sequences = 2; top_k = 5;"), NULL},
    {GRPO(""), "resources.nodes=1..2"},
    {GRPO(""), "lora.rank=8"},
    {GRPO(""), "train.precision=fp16"},
    {GRPO(""), "parallel.trial=never"},
    /* What the message about 2..3 nodes proposes. */
    {"task = \"grpo\"; model = { path = \"x\"; }; data = { path = \"y\"; }; output = { dir = \"z\"; }; "
     "train = { accumulation = 16; }; grpo = { reward = [ \"r\" ]; };",
     "resources.nodes=2..3"},
};

START_TEST(right_run_files_are_taken)
{
	const char *overrides[] = {right[_i].override, NULL};
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_parse(right[_i].text, "x.conf", overrides, &c, &err), &err);
}
END_TEST

/* The section, which is right, makes no key of it more likely. */
START_TEST(nothing_is_suggested_where_nothing_is_alike)
{
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	struct error err = ERROR_INIT;

	ck_assert_int_lt(run_config_parse("train = { nokey = 1; };", "x.conf", NULL, &c, &err), 0);
	ck_assert_str_eq(err.message, "x.conf:1: train.nokey: unknown key");
}
END_TEST

START_TEST(wrong_run_files_say_where)
{
	const char *overrides[] = {wrong[_i].override, NULL};
	struct run_config *c = NULL;
	struct error err = ERROR_INIT;

	ck_fails(run_config_parse(wrong[_i].text, "x.conf", overrides, &c, &err), &err, wrong[_i].words);
	ck_assert_ptr_null(c);
	ck_assert_ptr_null(strchr(err.message, '\n'));
}
END_TEST

/* Keys of preferences, each of which has an effect with the listed tasks, and is refused with any other. */
static const struct {
	const char *key, *value, *tasks;
} preference_keys[] = {
    {"preference.loss", "ipo", "dpo"},
    {"preference.beta", "0.2", "dpo orpo simpo kto"},
    {"preference.center_rewards_coefficient", "0.01", "reward"},
    {"preference.gamma", "0.3", "simpo"},
    {"preference.label_smoothing", "0.1", "dpo simpo"},
    {"preference.desirable_weight", "2.0", "kto"},
    {"preference.undesirable_weight", "2.0", "kto"},
    {"preference.reference", "/r", "dpo kto"},
    {"data.packing", "true", "sft"},
    {"train.loss", "dft", "sft"},
    {"train.label_smoothing", "0.1", "sft"},
    {"train.neftune_alpha", "5", "sft"},
    {"train.router_loss", "0.001", "sft"},
    {"distillation.teacher", "/t", "sft"},
    {"data.train_on_prompt", "true", "sft"},
    {"data.mask_history", "true", "sft"},
};

START_TEST(keys_of_preferences_are_for_their_tasks)
{
	static const char *const tasks[] = {"sft", "dpo", "orpo", "simpo", "kto", "reward"};
	_cleanup_free_ char *set = str_printf("%s=%s", preference_keys[_i].key, preference_keys[_i].value);
	const char *overrides[] = {set, NULL};

	for (size_t t = 0; t < ARRAY_SIZE(tasks); t++) {
		_cleanup_free_ char *text =
		    str_printf("task = \"%s\"; model = { path = \"x\"; }; data = { path = \"y\"; }; "
		               "output = { dir = \"z\"; };",
		               tasks[t]);
		struct run_config *c = NULL;
		struct error err = ERROR_INIT;

		mark_point();
		if (strstr(preference_keys[_i].tasks, tasks[t]))
			ck_ok(run_config_parse(text, "x.conf", overrides, &c, &err), &err);
		else
			ck_fails(run_config_parse(text, "x.conf", overrides, &c, &err), &err,
			         preference_keys[_i].key);
		run_config_free(c);
	}
}
END_TEST

/* What other tasks learn from, the task grpo does not. */
START_TEST(the_rewards_of_a_run)
{
	_cleanup_(run_config_freep) struct run_config *c = NULL, *again = NULL, *other = NULL;
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_parse(GRPO("generations = 4; beta = 0.25; loss = \"cispo\";"), "x.conf",
	                       (const char *[]){"grpo.reward=python3,reward.py", NULL}, &c, &err),
	      &err);
	ck_ok(run_config_to_json(c, &json, &err), &err);
	ck_ok(run_config_from_json(json, &again, &err), &err);
	ck_assert_int_eq(again->task, RUN_GRPO);
	ck_assert(run_task_trains(again->task) && !run_task_prefers(again->task));
	ck_assert_str_eq(again->grpo.reward[0], "python3");
	ck_assert_str_eq(again->grpo.reward[1], "reward.py");
	ck_assert_ptr_null(again->grpo.reward[2]);
	ck_assert_int_eq(again->grpo.generations, 4);
	ck_assert_int_eq(again->grpo.max_new_tokens, 256);
	ck_assert_double_eq(again->grpo.beta, 0.25);
	ck_assert_str_eq(again->grpo.loss, "cispo");
	ck_assert_str_eq(again->grpo.level, "token");
	ck_assert_str_eq(again->grpo.scale, "group");
	/* One word is a program without arguments. */
	ck_ok(run_config_parse(GRPO(""), "x.conf", (const char *[]){"grpo.reward=/bin/score", NULL}, &other,
	                       &err),
	      &err);
	ck_assert_str_eq(other->grpo.reward[0], "/bin/score");
	ck_assert_ptr_null(other->grpo.reward[1]);
}
END_TEST

/* Those of ppo are read and written beside them. */
START_TEST(the_group_of_a_task)
{
	_cleanup_(run_config_freep) struct run_config *c = NULL, *again = NULL, *grpo = NULL;
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_parse(PPO("gamma = 0.5; columns = \"a\"; beta = 0.0;"), "x.conf", NULL, &c, &err),
	      &err);
	ck_ok(run_config_to_json(c, &json, &err), &err);
	ck_ok(run_config_from_json(json, &again, &err), &err);
	ck_assert_int_eq(again->task, RUN_PPO);
	ck_assert(run_task_trains(again->task) && run_task_rewards(again->task) &&
	          !run_task_prefers(again->task));
	ck_assert_ptr_eq(run_config_policy(again), &again->ppo);
	ck_assert_str_eq(again->ppo.reward[0], "r");
	ck_assert_str_eq(again->ppo.columns[0], "a");
	ck_assert_int_eq(again->ppo.iterations, 4);
	ck_assert(again->ppo.gamma == 0.5 && again->ppo.lambda == 0.95 && again->ppo.beta == 0);
	ck_ok(run_config_parse(GRPO(""), "x.conf", NULL, &grpo, &err), &err);
	ck_assert_ptr_eq(run_config_policy(grpo), &grpo->grpo);
	ck_assert(run_task_rewards(grpo->task));
	ck_assert(!run_task_rewards(RUN_SFT) && !run_task_rewards(RUN_REWARD) &&
	          !run_task_rewards(RUN_COMMAND));
}
END_TEST

/* Each in a run file and, where it has a number of its own, with --set: both say the same. */
static const struct {
	const char *written;
	int64_t steps; /* -1: an error, that says: */
	const char *words;
} integers[] = {
    {"10", 10, NULL},
    {"2147483647", 2147483647, NULL},
    {"2147483648", 2147483648, NULL},
    {"4294967306", 4294967306, NULL},
    {"4294967306L", 4294967306, NULL},
    {"+4294967306", 4294967306, NULL},
    {"4294967306LL", 4294967306, NULL},
    {"0xFFFFFFFF", 4294967295, NULL},
    {"0x10000000A", 4294967306, NULL},
    {"0x10000000AL", 4294967306, NULL},
    {"0x00000000000000000000A", 10, NULL},
    {"-2147483648", -1, "train.max_steps: -2147483648 is out of range"},
    {"-2147483649", -1, "train.max_steps: -2147483649 is out of range"},
    {"-4294967295", -1, "train.max_steps: -4294967295 is out of range"},
    {"9223372036854775807", -1, "train.max_steps: 9223372036854775807 is out of range"},
    {"18446744073709551617", -1,
     "x.conf:3: max_steps: 18446744073709551617 is out of range; an integer has to be within "
     "-9223372036854775808 and 9223372036854775807"},
    {"18446744073709551617L", -1, "x.conf:3: max_steps: 18446744073709551617 is out of range"},
    {"-9223372036854775809", -1, "x.conf:3: max_steps: -9223372036854775809 is out of range"},
    {"0x8000000000000000", -1, "x.conf:3: max_steps: 0x8000000000000000 is out of range"},
    {"0x1000000000000000A", -1, "x.conf:3: max_steps: 0x1000000000000000A is out of range"},
    {"0x1000000000000000AL", -1, "x.conf:3: max_steps: 0x1000000000000000A is out of range"},
    {"4294967306.", -1, "train.max_steps: a number; an integer is needed"},
    {"4294967306e0", -1, "train.max_steps: a number; an integer is needed"},
};

START_TEST(integers_keep_all_their_bits)
{
	_cleanup_free_ char *text = str_printf(TRAINS "\n# 99999999999999999999\n"
	                                              "train = { max_steps = %s; }; name = \"x\";\n",
	                                       integers[_i].written);
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	struct error err = ERROR_INIT;
	int r = run_config_parse(text, "x.conf", NULL, &c, &err);

	if (integers[_i].words) {
		ck_fails(r, &err, integers[_i].words);
		return;
	}
	ck_ok(r, &err);
	ck_assert_int_eq(c->train.max_steps, integers[_i].steps);
	ck_assert_str_eq(c->name, "x");
}
END_TEST

/* Only integers are changed: names, strings, comments and the line numbers of errors stay the same. */
START_TEST(integers_are_told_from_what_looks_like_one)
{
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	struct run_config *none = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_parse(
	          "/* 4294967306\n * \" */ name = \"4294967306 \\\" 99999999999999999999 # \";\n"
	          "// 99999999999999999999 \"\n"
	          "task = \"sft\"; model = { path = \"x\"; }; output = { dir = \"z\"; };\n"
	          "data = { path = [ \"a\" \"99999999999999999999\", \"/* 4294967306\" ]; };\n"
	          "train = { learning_rate = 4294967306e-9; warmup_ratio = .25; clip = 429496730.; "
	          "epochs = 1.0E+0; max_steps:4294967306L; seed = 4294967306 # 5\n };",
	          "x.conf", NULL, &c, &err),
	      &err);
	ck_assert_str_eq(c->name, "4294967306 \" 99999999999999999999 # ");
	ck_assert_str_eq(c->data.path[0], "a99999999999999999999");
	ck_assert_str_eq(c->data.path[1], "/* 4294967306");
	ck_assert_double_eq(c->train.learning_rate, 4.294967306);
	ck_assert_double_eq(c->train.warmup_ratio, 0.25);
	ck_assert_double_eq(c->train.clip, 429496730.);
	ck_assert_double_eq(c->train.epochs, 1);
	ck_assert_int_eq(c->train.max_steps, 4294967306);
	ck_assert_int_eq(c->train.seed, 4294967306);
	ck_fails(run_config_parse("command = [\"true\"];\nresources = {\n nodes = 4294967298; };", "x.conf",
	                          NULL, &none, &err),
	         &err,
	         "x.conf:3: resources.nodes: 4294967298 is out of range; it has to be within 1 and 100000");
	ck_fails(run_config_parse("command = [\"true\"]; train = { learning_rate = -9223372036854775808; };",
	                          "x.conf", NULL, &none, &err),
	         &err, "train.learning_rate: -9223372036854775808 is out of range");
	ck_fails(run_config_parse("command = [\"true\"]; train = { seed = 9007199254740993; };", "x.conf",
	                          NULL, &none, &err),
	         &err,
	         "train.seed: 9007199254740993 is out of range; it has to be within 0 and 9007199254740992");
	ck_fails(run_config_parse("task4294967306 = 1;", "x.conf", NULL, &none, &err), &err,
	         "x.conf:1: task4294967306: unknown key");
}
END_TEST

/* Files to include, in a directory of their own. */
static char *write_file(const char *dir, const char *name, const char *text)
{
	char *path = str_path_join(dir, name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), 0600, &err), &err);
	return path;
}

START_TEST(included_files_are_part_of_the_text)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *inner = write_file(dir, "inner.conf", "epochs = 3"),
	                    *outer = NULL;
	_cleanup_free_ char *nested =
	    str_printf("train = { max_steps = 4294967306; \n@include \"%s\"\n };\n", inner);
	_cleanup_free_ char *text = NULL;
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	struct error err = ERROR_INIT;

	outer = write_file(dir, "outer \"1\".conf", nested);
	text = str_printf(
	    TRAINS
	    "\n \t@include \"%s/outer \\\"1\\\".conf\"name = \"x\";\n"
	    "# @include \"/nowhere\"\n/*\n@include \"/nowhere\"\n*/ directory = \"\n@include \\\"/no\\\"\";",
	    dir);
	ck_ok(run_config_parse(text, "x.conf", NULL, &c, &err), &err);
	ck_assert_int_eq(c->train.max_steps, 4294967306);
	ck_assert_double_eq(c->train.epochs, 3);
	ck_assert_str_eq(c->name, "x");
	ck_assert_str_eq(c->directory, "\n@include \"/no\"");
	file_remove_tree(dir, NULL);
}
END_TEST

/* %s in the text and in the words: the included file. */
START_TEST(a_run_is_named_by_its_file)
{
	static const char *const names[][2] = {
	    {"alpaca.conf", "alpaca"}, {"a.v2.conf", "a.v2"}, {"plain", "plain"}, {".conf", ".conf"}};
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "nul.conf");
	_cleanup_(run_config_freep) struct run_config *named = NULL;
	const char *overrides[] = {"name=mine", NULL};
	struct run_config *none = NULL;
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		_cleanup_free_ char *file = write_file(dir, names[i][0], "command = [\"true\"];");
		_cleanup_(run_config_freep) struct run_config *c = NULL;

		ck_ok(run_config_read(file, NULL, &c, &err), &err);
		ck_assert_str_eq(c->name, names[i][1]);
		if (i == 0)
			ck_ok(run_config_read(file, overrides, &named, &err), &err);
	}
	ck_assert_str_eq(named->name, "mine");
	ck_ok(file_write_atomic(path, "a = 1;\0", 7, 0600, &err), &err);
	ck_fails(run_config_read(path, NULL, &none, &err), &err,
	         "nul.conf: not a text file: a NUL byte in it");
	ck_fails(run_config_read("/nonexistent.conf", NULL, &none, &err), &err, "/nonexistent.conf");
	ck_ok(file_write_atomic(path, "\ntask = 5;", 10, 0600, &err), &err);
	ck_fails(run_config_read(path, NULL, &none, &err), &err,
	         "nul.conf:2: task: an integer; a string is needed");
	ck_assert_ptr_null(none);
	file_remove_tree(dir, NULL);
}
END_TEST

START_TEST(the_tokenizer_is_the_models)
{
	static const struct {
		const char *tokenizer, *path, *init, *want;
	} cases[] = {{"t", "m", NULL, "t"},
	             {NULL, "m", NULL, "m"},
	             {"t", NULL, "i/config.json", "t"},
	             {NULL, NULL, "/", "/"},
	             {NULL, NULL, "a/b/config.json", "a/b"},
	             {NULL, NULL, "/config.json", "/"},
	             {NULL, NULL, "config.json", "."}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct run_config c = {.model = {.tokenizer = (char *)cases[i].tokenizer,
		                                 .path = (char *)cases[i].path,
		                                 .init = (char *)cases[i].init}};
		_cleanup_free_ char *tokenizer = run_config_tokenizer(&c);

		ck_assert_str_eq(tokenizer, cases[i].want);
	}
}
END_TEST

static const struct {
	const char *included, *text, *words;
} wrong_includes[] = {
    {"\n\nepchs = 3;", "train = {\n@include \"%s\"\n};",
     "%s:3: train.epchs: unknown key; did you mean train.epochs?"},
    {"epochs = \"x\";", "train = {\n@include \"%s\"\n};", "%s:1: train.epochs: a string; a number is needed"},
    {"", "train = {\n@include \"%s\" epchs = 3;\n};",
     "x.conf:2: train.epchs: unknown key; did you mean train.epochs?"},
    {"task =", "\n@include \"%s\"\n\"sft\"; tsk = 1;", "x.conf:3: tsk: unknown key; did you mean task?"},
    {"a b", "\n@include \"%s\"", "%s:1: syntax error; a setting is written: name = value;"},
    {"name = \"b\";\nx 1", "\n@include \"%s\"\n", "%s:2: syntax error; a setting is written: name = value;"},
    {"name = \"b\";\n", "name = \"a\";\n@include \"%s\"\n",
     "%s:1: name: set twice; the first time at x.conf:1"},
    {"/* never\n", "\n@include \"%s\"\n", "%s:1: a comment without an end: /* … */"},
    {"\nname = \"\n", "\n@include \"%s\"\n", "%s:2: a string without an end: \"…\""},
    {"\na = \001;\n", "\n@include \"%s\"\n", "%s:2: not a text file: the byte 0x01 is in it"},
    {"max_steps = 99999999999999999999;", "train = {\n@include \"%s\"\n};",
     "%s:1: max_steps: 99999999999999999999 is out of range; an integer has to be within "
     "-9223372036854775808 and 9223372036854775807"},
};

START_TEST(an_included_file_is_named)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = write_file(dir, "y", wrong_includes[_i].included);
	_cleanup_strbuf_ struct strbuf text = {0}, words = {0};
	struct error err = ERROR_INIT;
	struct run_config *c = NULL;

	strbuf_addf(&text, wrong_includes[_i].text, path);
	strbuf_addf(&words, wrong_includes[_i].words, path);
	ck_assert_int_lt(run_config_parse(text.data, "x.conf", NULL, &c, &err), 0);
	ck_assert_str_eq(err.message, words.data);
	file_remove_tree(dir, NULL);
}
END_TEST

START_TEST(an_include_that_cannot_be_read)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *fifo = str_path_join(dir, "fifo"), *self = NULL;
	_cleanup_free_ char *myself = str_printf("@include \"%s/self\"\n", dir);
	const struct {
		const char *name, *words;
	} cases[] = {
	    {"/nowhere/x", "x.conf:2: @include \"/nowhere/x\": No such file or directory"},
	    {"/", "x.conf:2: @include \"/\": a directory; a file is needed"},
	    {fifo, "\": not a regular file; a file is needed"},
	    {"/dev/zero", "x.conf:2: @include \"/dev/zero\": not a regular file; a file is needed"},
	    {"/bin/true", "/bin/true: not a text file: a NUL byte in it"},
	};
	struct error err = ERROR_INIT;
	struct run_config *c = NULL;

	ck_assert_int_eq(mkfifo(fifo, 0600), 0);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *text = str_printf("\n@include \"%s\"\n", cases[i].name);

		ck_fails(run_config_parse(text, "x.conf", NULL, &c, &err), &err, cases[i].words);
	}
	self = write_file(dir, "self", myself);
	ck_fails(run_config_parse(myself, "x.conf", NULL, &c, &err), &err,
	         "/self\": too many; does a file include itself?");
	ck_fails(run_config_parse("\n@include \"/x", "x.conf", NULL, &c, &err), &err,
	         "x.conf:2: @include: a string without an end: \"…\"");
	file_remove_tree(dir, NULL);
}
END_TEST

START_TEST(what_libconfig_refuses_is_said_in_full)
{
	_cleanup_strbuf_ struct strbuf deep = {0};
	static const struct {
		const char *text, *words;
	} cases[] = {
	    {"name = \"a\";\nname = \"b\";", "x.conf:2: name: set twice; the first time at x.conf:1"},
	    {"train = { epochs = 1; seed = 2; };\ndata = { path = \"seed = 4\"; };\n"
	     "parallel = { timeout = 3; }; train = { seed = 1; };",
	     "x.conf:3: train: set twice; the first time at x.conf:1"},
	    {"train = {\n epochs = 1;\n # epochs = 3\n seed : 2;\n epochs = 2;\n};",
	     "x.conf:5: train.epochs: set twice; the first time at x.conf:2"},
	    {"\ndata = { path = [1, \"a\"]; };",
	     "x.conf:2: values of several types in an array; [ … ] holds values of one type"},
	    {"\nname = \"a\n\n", "x.conf:2: a string without an end: \"…\""},
	    {"\nname \"a\";", "x.conf:2: syntax error; a setting is written: name = value;"},
	    {"resources = {\n nodes = 2..4;\n};",
	     "x.conf:2: nodes = 2..4: strings, times and ranges are written in double quotes: \"2..4\"; true "
	     "and false without"},
	    {"a = 1; time_limit = 2h; b = 3;", "x.conf:1: time_limit = 2h: strings, times and ranges are "
	                                       "written in double quotes: \"2h\"; true "
	                                       "and false without"},
	    {"# precision = fp16;\ntrain = { seed = 0x10L; precision = bf16; };",
	     "x.conf:2: precision = bf16: strings, times and ranges are written in double quotes: \"bf16\"; "
	     "true and false without"},
	    {"train : {\n precision : bf16 }",
	     "x.conf:2: precision = bf16: strings, times and ranges are written in double quotes: \"bf16\"; "
	     "true and false without"},
	    {"dir = saves/x;", "x.conf:1: dir = saves/x: strings, times and ranges are written in double "
	                       "quotes: \"saves/x\"; true and false without"},
	    {"name =\n 'a';", "x.conf:2: name = 'a': strings, times and ranges are written in double quotes: "
	                      "\"a\"; true and false without"},
	    {"target = [\"q\", v_proj];", "x.conf:1: target = v_proj: strings, times and ranges are written "
	                                  "in double quotes: \"v_proj\"; true and false without"},
	    {"data = {\n packing = yes; };",
	     "x.conf:2: packing = yes: a switch is true or false, written without quotes; strings, times and "
	     "ranges are written in double quotes"},
	    /* Another error, and a word that is none yet. */
	    {"a = True; b 1;\nc = x;", "x.conf:1: syntax error; a setting is written: name = value;"},
	};
	struct error err = ERROR_INIT;
	struct run_config *c = NULL;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		ck_assert_int_lt(run_config_parse(cases[i].text, "x.conf", NULL, &c, &err), 0);
		ck_assert_str_eq(err.message, cases[i].words);
	}
	strbuf_adds(&deep, "\nname = ");
	for (int i = 0; i < 20000; i++)
		strbuf_adds(&deep, "(");
	ck_assert_int_lt(run_config_parse(deep.data, "x.conf", NULL, &c, &err), 0);
	ck_assert_str_eq(err.message, "x.conf:2: nested too deeply; a key is at most in a group: "
	                              "section = { name = value; };");
}
END_TEST

/* In whichever group, and outside of all of them; in a file, with --set and in JSON. A name that is ours is
 * found in its group. */
START_TEST(names_of_other_programs_are_known)
{
	static const struct {
		const char *text, *override, *words;
	} cases[] = {
	    {"train = { per_device_train_batch_size = 1; };", NULL,
	     "x.conf:1: train.per_device_train_batch_size: unknown key; here it is train.micro_batch"},
	    {"per_device_train_batch_size = 1;", NULL,
	     "x.conf:1: per_device_train_batch_size: unknown key; here it is train.micro_batch"},
	    {"lora = { r = 8; };", NULL, "x.conf:1: lora.r: unknown key; here it is lora.rank"},
	    {"zero_optimization = { stage = 2; };", NULL,
	     "x.conf:1: zero_optimization: unknown key; here it is parallel.strategy"},
	    {"do_train = true;", NULL,
	     "x.conf:1: do_train: unknown key; nothing corresponds to it here: leave it out"},
	    {"task = \"sft\";", "model.lora_rank=8",
	     "--set: model.lora_rank: unknown key; here it is lora.rank"},
	    {"task = \"sft\";", "zero_optimization.stage=2",
	     "--set: zero_optimization.stage: unknown key; here it is parallel.strategy"},
	    {"task = \"sft\";", "zero_optimization.offload_optimizer.device=cpu",
	     "--set: zero_optimization.offload_optimizer.device: unknown key; here it is parallel.offload"},
	    {"resources = { gpus_per_node = 8; };", NULL,
	     "x.conf:1: resources.gpus_per_node: unknown key; here it is resources.devices_per_node"},
	    {"train = { bf16 = true; };", NULL,
	     "x.conf:1: train.bf16: unknown key; here it is train.precision = \"bf16\""},
	    {"deepspeed = { stage = 3; };", NULL,
	     "x.conf:1: deepspeed: unknown key; here it is parallel.strategy"},
	    {"warmup_ratio = 0.1;", NULL,
	     "x.conf:1: warmup_ratio: unknown key; did you mean train.warmup_ratio?"},
	};
	struct error err = ERROR_INIT;
	struct run_config *c = NULL;
	_cleanup_json_ json_t *json =
	    json_loads("{\"task\":\"sft\",\"train\":{\"max_grad_norm\":1}}", 0, NULL);

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const char *overrides[] = {cases[i].override, NULL};

		ck_assert_int_lt(run_config_parse(cases[i].text, "x.conf", overrides, &c, &err), 0);
		ck_assert_str_eq(err.message, cases[i].words);
	}
	ck_fails(run_config_from_json(json, &c, &err), &err,
	         "train.max_grad_norm: unknown key; here it is train.clip");
}
END_TEST

/* UTF-8 with a byte order mark, as some editors write it, in an included file, too. */
START_TEST(a_byte_order_mark_is_skipped)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = write_file(dir, "y", "\xef\xbb\xbfname = \"b\";\n"),
	                    *text = str_printf("\xef\xbb\xbf"
	                                       "command = \"true\";\n@include \"%s\"\n",
	                                       path);
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_parse(text, "x.conf", NULL, &c, &err), &err);
	ck_assert_str_eq(c->name, "b");
	file_remove_tree(dir, NULL);
}
END_TEST

#define INSTEAD                                                                                              \
	"a run file is written name = \"value\"; section = { key = 1; }; and dtrain-run(5) lists the keys "  \
	"that correspond to those of other programs (NAMES OF OTHER PROGRAMS)"

/* A program in place of a run file: how it is submitted. A file of another program: how one is written. */
START_TEST(a_program_is_not_a_run_file)
{
	static const struct {
		const char *name, *text, *words; /* words: behind the path; %s: the path */
	} cases[] = {
	    {"t.py", "import torch\n",
	     " is a program, not a run file; a command goes after --: dtrain submit "
	     "-- python3 %s"},
	    {"t.py", "x = 1\n",
	     " is a program, not a run file; a command goes after --: dtrain submit -- "
	     "python3 %s"},
	    {"t.sh", "torchrun train.py\n",
	     " is a program, not a run file; a command goes after --: dtrain submit -- sh %s"},
	    {"t", "#!/bin/sh\nexec torchrun\n",
	     " is a program, not a run file; a command goes after --: dtrain submit -- %s"},
	    {"u", "#!/usr/bin/env -S dtrain submit\nx = 1;\n", ":2: x: unknown key"},
	    {"t.conf", "x = 1;\n", ":1: x: unknown key"},
	    {"t.yaml", "model_name_or_path: /models/x\n", " is a file in YAML; " INSTEAD},
	    {"t.json", "{\"zero_optimization\": {\"stage\": 2}}\n", " is a file in JSON; " INSTEAD},
	    /* A run file, whatever its name is. */
	    {"t.yaml", "modle = \"x\";\n", ":1: modle: unknown key; did you mean model?"},
	};
	_cleanup_free_ char *dir = unit_tmpdir();

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *path = write_file(dir, cases[i].name, cases[i].text), *words = NULL;
		struct error err = ERROR_INIT;
		struct run_config *c = NULL;
		const char *at = strstr(cases[i].words, "%s");

		words = at ? str_printf("%s%.*s%s", path, (int)(at - cases[i].words), cases[i].words, path)
		           : str_printf("%s%s", path, cases[i].words);
		ck_assert_int_lt(run_config_read(path, NULL, &c, &err), 0);
		ck_assert_str_eq(err.message, words);
	}
	file_remove_tree(dir, NULL);
}
END_TEST

/* An integer or "all", in a file, with --set and in JSON. */
START_TEST(all_devices_of_a_node)
{
	static const struct {
		const char *text, *override;
		int64_t wanted;
	} fine[] = {
	    {"", NULL, 1},
	    {"resources = { devices_per_node = 8; };", NULL, 8},
	    {"resources = { devices_per_node = \"all\"; };", NULL, 0},
	    {"resources = { devices_per_node = 8; };", "resources.devices_per_node=all", 0},
	    {"resources = { devices_per_node = \"all\"; };", "resources.devices_per_node=2", 2},
	};
	static const struct {
		const char *text, *override, *words;
	} wrong_ones[] = {
	    {"resources = { devices_per_node = 0; };", NULL,
	     "x.conf:2: resources.devices_per_node: 0 is out of range; it has to be within 1 and 1024"},
	    {"resources = { devices_per_node = \"most\"; };", NULL,
	     "resources.devices_per_node: a string; an integer or \"all\" is needed"},
	    {"", "resources.devices_per_node=some",
	     "--set: resources.devices_per_node: \"some\" is not an integer or \"all\""},
	    {"resources = { spares = 1; };", NULL, "set resources.max_node_failures above 0"},
	    {"resources = { kind = \"tpu\"; };", NULL,
	     "x.conf:2: resources.kind: \"tpu\" is not known; it has to be one of auto|gpu|cpu"},
	    {"task = \"generate\"; model = { path = \"x\"; }; generate = { prompt = \"x\"; };",
	     "resources.devices_per_node=all", "generate runs on one device"},
	};
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(fine); i++) {
		const char *overrides[] = {fine[i].override, NULL};
		_cleanup_free_ char *text = str_printf("command = [\"true\"];\n%s", fine[i].text);
		_cleanup_(run_config_freep) struct run_config *c = NULL, *again = NULL;
		_cleanup_json_ json_t *json = NULL;

		ck_ok(run_config_parse(text, "x.conf", overrides, &c, &err), &err);
		ck_assert_int_eq(c->resources.devices_per_node, fine[i].wanted);
		ck_ok(run_config_to_json(c, &json, &err), &err);
		ck_ok(run_config_from_json(json, &again, &err), &err);
		ck_assert_int_eq(again->resources.devices_per_node, fine[i].wanted);
	}
	for (size_t i = 0; i < ARRAY_SIZE(wrong_ones); i++) {
		const char *overrides[] = {wrong_ones[i].override, NULL};
		_cleanup_free_ char *text = str_printf(
		    "%s\n%s",
		    wrong_ones[i].override && strstr(wrong_ones[i].text, "task") ? ""
		                                                                 : "command = [\"true\"];",
		    wrong_ones[i].text);
		struct run_config *none = NULL;

		ck_fails(run_config_parse(text, "x.conf", overrides, &none, &err), &err, wrong_ones[i].words);
	}
}
END_TEST

/* It is written and read for each part: what it has no use for is left out, and has its defaults again. */
START_TEST(a_command_has_no_keys_of_training)
{
	static const char *const left_out[] = {"data",         "train", "lora", "preference",
	                                       "distillation", "grpo",  "ppo",  "generate"};
	_cleanup_(run_config_freep) struct run_config *c = NULL, *again = NULL;
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_parse("command = [\"true\"]; resources = { nodes = 3; };", "x.conf", NULL, &c, &err),
	      &err);
	ck_ok(run_config_to_json(c, &json, &err), &err);
	for (size_t i = 0; i < ARRAY_SIZE(left_out); i++)
		ck_assert_ptr_null(json_object_get(json, left_out[i]));
	ck_ok(run_config_from_json(json, &again, &err), &err);
	ck_assert_int_eq(again->task, RUN_COMMAND);
	ck_assert_int_eq(again->resources.nodes.high, 3);
	ck_assert_double_eq(again->train.learning_rate, c->train.learning_rate);
	ck_assert_int_eq(again->data.max_length, c->data.max_length);
	ck_assert_str_eq(again->train.precision, c->train.precision);
}
END_TEST

START_TEST(services_believe_no_client)
{
	static const struct {
		const char *text, *words; /* NULL: it is taken */
	} cases[] = {
	    {"{\"task\":\"command\",\"command\":[\"true\"],\"resources\":{\"nodes\":-3}}",
	     "config: resources.nodes: -3 is out of range"},
	    {"[1]", "a JSON object is needed"},
	    {"{\"command\":[\"true\"],\"resources\":7}", "config: resources: a JSON object is needed"},
	    {"{\"command\":[\"true\"],\"name\":\"a\\u0000b\"}", "config: name: a NUL byte in a string"},
	    {"{\"command\":[\"true\",\"a\\u0000b\"]}", "config: command: a NUL byte in a string"},
	    {"{\"command\":[\"true\"],\"name\":null,\"directory\":null}", NULL},
	    {"{\"command\":[\"true\"],\"nodes\":1}", "config: nodes: unknown key"},
	    {"{\"command\":[\"true\"],\"resources\":{\"nods\":1}}", "config: resources.nods: unknown key"},
	    {"{\"task\":\"generate\",\"generate\":{\"prompt\":\"x\"}}", "config: model.path: missing"},
	    {"{\"task\":\"command\"}", "config: command: missing"},
	    {"{\"command\":[\"\"]}", "config: command: missing"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_json_ json_t *json = json_loads(cases[i].text, JSON_ALLOW_NUL, NULL);
		_cleanup_(run_config_freep) struct run_config *c = NULL;
		struct error err = ERROR_INIT;

		if (cases[i].words)
			ck_fails(run_config_from_json(json, &c, &err), &err, cases[i].words);
		else {
			ck_ok(run_config_from_json(json, &c, &err), &err);
			ck_assert_ptr_null(c->name);
		}
	}
}
END_TEST

/* A text of a run file in another encoding cannot be sent. */
START_TEST(what_is_not_utf8_is_named)
{
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	struct error err = ERROR_INIT;
	json_t *json = NULL;

	ck_ok(run_config_parse("command = [\"true\"]; name = \"x\";", "x.conf", NULL, &c, &err), &err);
	c->name[0] = '\xff';
	ck_fails(run_config_to_json(c, &json, &err), &err, "name: not valid UTF-8");
	ck_assert_ptr_null(json);
}
END_TEST

START_TEST(daemon_defaults_and_errors)
{
	_cleanup_(daemon_config_freep) struct daemon_config *c = NULL;
	struct daemon_config *none = NULL;
	struct error err = ERROR_INIT;

	ck_ok(daemon_config_parse("port = 30000; node = \"n1\";", "d.conf", &c, &err), &err);
	ck_assert_int_eq(c->port, 30000);
	ck_assert_double_eq(c->heartbeat, 1);
	ck_fails(daemon_config_parse("port = 70000;", "d.conf", &none, &err), &err,
	         "d.conf:1: port: 70000 is out of range");
	ck_fails(daemon_config_parse("port = 4294996896;", "d.conf", &none, &err), &err,
	         "d.conf:1: port: 4294996896 is out of range; it has to be within 1 and 65535");
	ck_fails(daemon_config_parse("port = 2147483648;", "d.conf", &none, &err), &err,
	         "d.conf:1: port: 2147483648 is out of range");
	ck_fails(daemon_config_parse("\nprot = 1;", "d.conf", &none, &err), &err,
	         "d.conf:2: prot: unknown key; did you mean port?");
	ck_fails(daemon_config_parse("heartbeat = 10.0;", "d.conf", &none, &err), &err, "node_timeout");
	/* The default of the lease grows with the heartbeat; one that is too short is named with its
	 * remedy. */
	daemon_config_free(steal_pointer(c));
	ck_ok(daemon_config_parse("heartbeat = 20.0; node_timeout = 60.0;", "d.conf", &c, &err), &err);
	ck_assert_double_eq(c->lease, 80);
	ck_fails(
	    daemon_config_parse("heartbeat = 2.0; lease = 6.0;", "d.conf", &none, &err), &err,
	    "d.conf: lease: 6 s is not above three times heartbeat, which is 2 s; set lease above 6 s, or "
	    "a shorter heartbeat");
	daemon_config_free(steal_pointer(c));
	ck_ok(daemon_config_parse("port_range = \"29700 - 29999\";", "d.conf", &c, &err), &err);
	ck_assert_int_eq(c->port_low, 29700);
	ck_assert_int_eq(c->port_high, 29999);
	static const char *const ranges[] = {"29700", "29999-29700", "0-5", "1-65536", "a-b", "1-2-3"};
	for (size_t i = 0; i < ARRAY_SIZE(ranges); i++) {
		_cleanup_free_ char *text = str_printf("\nport_range = \"%s\";", ranges[i]);
		_cleanup_free_ char *words =
		    str_printf("d.conf: port_range: \"%s\" is no range of ports from 1 to 65535", ranges[i]);

		ck_fails(daemon_config_parse(text, "d.conf", &none, &err), &err, words);
	}
	ck_fails(daemon_config_parse("allow_devices = [\"/dev/kvm\", \"/srv/x\"];", "d.conf", &none, &err),
	         &err, "d.conf: allow_devices: \"/srv/x\" is not below /dev; it is written \"/dev/kvm\"");
	ck_fails(daemon_config_parse("allow_devices = \"char-drm\";", "d.conf", &none, &err), &err,
	         "d.conf: allow_devices: \"char-drm\" is not below /dev");
	ck_fails(daemon_config_parse("port_range = \"29000-30000\";", "d.conf", &none, &err), &err,
	         "d.conf: port_range: 29600, the service's own port, lies within \"29000-30000\"");
	daemon_config_free(steal_pointer(c));
	ck_ok(daemon_config_parse(
	          "store = \"etcd:https://a:2379/, https://b:2379\"; controllers = [\"n1\", \"n2\"];"
	          "certificate = \"c\"; certificate_key = \"k\"; ca_file = \"a\";",
	          "d.conf", &c, &err),
	      &err);
	ck_assert_str_eq(c->etcd_urls[0], "https://a:2379");
	ck_assert_str_eq(c->etcd_urls[1], "https://b:2379");
	ck_assert_ptr_null(c->etcd_urls[2]);
	ck_assert_str_eq(c->etcd_certificate, "c");
	ck_assert_str_eq(c->etcd_key, "k");
	ck_assert_str_eq(c->etcd_ca, "a");
	static const char *const stores[][2] = {
	    {"store = \"mysql\";", "store: \"mysql\"; expected \"sqlite\" or"},
	    {"controllers = [\"n1\"];", "controllers needs store = "},
	    {"store = \"etcd:https://a:1\";", "with etcd, controllers = "},
	    {"store = \"etcd:https://a:1\"; controller = \"n1\"; controllers = [\"n1\"];",
	     "in place of controller"},
	    {"store = \"etcd:https://a:1\"; controllers = [\"n1\"];",
	     "https:// needs etcd_certificate, etcd_key"},
	    {"store = \"etcd:http://a:1\"; controllers = [\"n1\"];", "\"http://a:1\" is no URL of etcd"},
	    {"store = \"etcd:\"; controllers = [\"n1\"];", "store: \"\" is no URL of etcd"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(stores); i++)
		ck_fails(daemon_config_parse(stores[i][0], "d.conf", &none, &err), &err, stores[i][1]);
	ck_fails(daemon_config_read("/nonexistent.conf", &none, &err), &err, "/nonexistent.conf");
}
END_TEST

/* Keys that belong together, and values that are just right or just wrong; words NULL: they are right. */
static const struct {
	const char *text, *words;
} daemon_files[] = {
    {"certificate = \"c\"; certificate_key = \"k\"; ca_file = \"a\";", NULL},
    {"certificate_key = \"k\"; ca_file = \"a\";", "belong together: certificate is missing"},
    {"certificate = \"c\"; ca_file = \"a\";", "belong together: certificate_key is missing"},
    {"certificate = \"c\"; certificate_key = \"k\";", "belong together: ca_file is missing"},
    {"metrics_ca = \"a\";", "metrics_listen and metrics_ca belong together: metrics_listen is missing"},
    {"metrics_listen = \"a:1\";", "belong together: metrics_ca is missing"},
    {"metrics_ca = \"a\"; metrics_listen = \"a:65535\";", NULL},
    {"metrics_ca = \"a\"; metrics_listen = \"a:65536\";", "\"a:65536\" is no address and port"},
    {"metrics_ca = \"a\"; metrics_listen = \"a:1\";", NULL},
    {"metrics_ca = \"a\"; metrics_listen = \"a:0\";", "\"a:0\" is no address and port"},
    {"metrics_ca = \"a\"; metrics_listen = \":1\";", "\":1\" is no address and port"},
    {"metrics_ca = \"a\"; metrics_listen = \"[]:1\";", "\"[]:1\" is no address and port"},
    {"metrics_ca = \"a\"; metrics_listen = \"a\";", "\"a\" is no address and port"},
    {"port_range = \"29601-29601\";", NULL},
    {"port_range = \"1-29599\";", NULL},
    {"port_range = \"29600-29700\";", "port_range: 29600, the service's own port, lies within"},
    {"port_range = \"29500-29600\";", "port_range: 29600, the service's own port, lies within"},
    {"port_range = \"60000-65535\";", NULL},
    {"port_range = \"\";", NULL},
    {"allow_devices = [\"/dev/a\", \"/dev/../etc\"];", "\"/dev/../etc\" is not below /dev"},
    {"allow_devices = [\"/dev/a\", \"/dev/b\"];", NULL},
    {"node_timeout = 1.0;", "node_timeout: 1 s is not above heartbeat, which is 1 s"},
    {"node_timeout = 1.1;", NULL},
    {"heartbeat = 2.0; lease = 6.1;", NULL},
    {"store = \"etcd:http://127.0.0.1:1,http://localhost:2,http://[::1]:3\"; controllers = [\"n1\"];", NULL},
    {"store = \"etcd:http://127.0.0.2:1\"; controllers = [\"n1\"];", "is no URL of etcd"},
    {"store = \"etcd:https://a:1\"; controllers = [\"n1\"]; etcd_certificate = \"c\"; etcd_key = \"k\"; "
     "etcd_ca = \"a\";",
     NULL},
    {"store = \"etcd:https://a:1\"; controllers = [\"n1\"]; etcd_certificate = \"c\"; etcd_ca = \"a\";",
     "https:// needs etcd_certificate, etcd_key"},
    {"store = \"etcd:https://a:1\"; controllers = [\"n1\"]; etcd_key = \"k\"; etcd_ca = \"a\";",
     "https:// needs etcd_certificate, etcd_key"},
    {"store = \"etcd:https://a:1\"; controllers = [\"n1\"]; etcd_certificate = \"c\"; etcd_key = \"k\";",
     "https:// needs etcd_certificate, etcd_key"},
    /* Those of the service serve as a whole, or not at all. */
    {"store = \"etcd:https://a:1\"; controllers = [\"n1\"]; certificate = \"c\"; certificate_key = \"k\"; "
     "ca_file = \"a\";",
     NULL},
    {"store = \"etcd:https://a:1\"; controllers = [\"n1\"]; certificate = \"c\"; certificate_key = \"k\"; "
     "ca_file = \"a\"; etcd_key = \"k\";",
     "https:// needs etcd_certificate, etcd_key"},
    {"store = \"etcd:https://a:1\"; controllers = [\"n1\"]; certificate = \"c\"; certificate_key = \"k\"; "
     "ca_file = \"a\"; etcd_certificate = \"k\";",
     "https:// needs etcd_certificate, etcd_key"},
    {"store = \"etcd:https://a:1\"; controllers = [\"n1\"]; certificate = \"c\"; certificate_key = \"k\"; "
     "ca_file = \"a\"; etcd_ca = \"k\";",
     "https:// needs etcd_certificate, etcd_key"},
    {"store = \"etcd:///\"; controllers = [\"n1\"];", "store: \"\" is no URL of etcd"},
    {"store = \"etcd:http://127.0.0.1:1\"; controllers = []; ", "with etcd, controllers = "},
    {"store = \"etcd:http://127.0.0.1:1\"; controllers = [\"a\"]; controller = \"a\";",
     "with etcd, controllers = "},
    {"controllers = [\"a\"];", "controllers needs store = "},
    {"controllers = [];", NULL},
    {"store = \"mysql\";", "store: \"mysql\"; expected \"sqlite\" or"},
    {"port_range = \"5\";", "port_range: \"5\" is no range of ports"},
    {"port_range = \" 5 - 9 \";", NULL},
    {"port_range = \"9-5\";", "is no range of ports"},
    {"port_range = \"5-5\";", NULL},
    {"port_range = \"0-5\";", "is no range of ports"},
    {"port_range = \"5-65536\";", "is no range of ports"},
    {"port_range = \"x-5\";", "is no range of ports"},
    {"heartbeat = 2.0; lease = 6.0;", "lease: 6 s is not above three times heartbeat"},
    {"heartbeat = 1.0; node_timeout = 60.0; lease = 3.1;", NULL},
    {"allow_devices = [\"/etc/a\"];", "\"/etc/a\" is not below /dev"},
};

START_TEST(a_daemons_file_is_right_or_says_why)
{
	_cleanup_(daemon_config_freep) struct daemon_config *c = NULL;
	struct error err = ERROR_INIT;
	int r = daemon_config_parse(daemon_files[_i].text, "d.conf", &c, &err);

	if (daemon_files[_i].words)
		ck_fails(r, &err, daemon_files[_i].words);
	else
		ck_ok(r, &err);
}
END_TEST

START_TEST(what_a_daemons_file_gives_is_taken)
{
	_cleanup_(daemon_config_freep) struct daemon_config *six = NULL, *four = NULL, *etcd = NULL;
	struct error err = ERROR_INIT;

	ck_ok(daemon_config_parse("metrics_ca = \"a\"; metrics_listen = \"[::1]:9600\"; allow_root = false;",
	                          "d.conf", &six, &err),
	      &err);
	ck_assert_str_eq(six->metrics_address, "::1");
	ck_assert_int_eq(six->metrics_port, 9600);
	ck_assert(!six->allow_root);
	ck_assert_int_eq(six->port_low, 0);
	ck_assert_ptr_null(six->etcd_urls);
	ck_ok(daemon_config_parse("metrics_ca = \"a\"; metrics_listen = \"10.0.0.1:1\"; heartbeat = 0.5;",
	                          "d.conf", &four, &err),
	      &err);
	ck_assert_str_eq(four->metrics_address, "10.0.0.1");
	ck_assert_int_eq(four->metrics_port, 1);
	ck_assert(four->allow_root);
	ck_assert_double_eq(four->lease, 60); /* the default, where that is long enough */
	ck_assert(!four->hosts_file_given);
	ck_ok(
	    daemon_config_parse("store = \"etcd:https://a:1//\"; controllers = [\"n1\"]; hosts_file = \"h\"; "
	                        "certificate = \"c\"; certificate_key = \"k\"; ca_file = \"a\"; "
	                        "etcd_certificate = \"ec\"; etcd_key = \"ek\"; etcd_ca = \"ea\";",
	                        "d.conf", &etcd, &err),
	    &err);
	ck_assert_str_eq(etcd->etcd_urls[0], "https://a:1");
	ck_assert_ptr_null(etcd->etcd_urls[1]);
	ck_assert_str_eq(etcd->etcd_certificate, "ec");
	ck_assert_str_eq(etcd->etcd_key, "ek");
	ck_assert_str_eq(etcd->etcd_ca, "ea");
	ck_assert(etcd->hosts_file_given);
}
END_TEST

/* The section, name and range of each key that takes numbers, a line each. */
static void check_ranges(const struct keys *keys, const char *want)
{
	_cleanup_strbuf_ struct strbuf text = {0};

	for (size_t i = 0; i < keys->count; i++) {
		const struct key *key = &keys->list[i];

		if (key->min != 0 || key->max != 0)
			strbuf_addf(&text, "%s%s%s %.16g %.16g\n", key->section ? key->section : "",
			            key->section ? "." : "", key->name, key->min, key->max);
	}
	ck_assert_str_eq(text.data, want);
}

/* A range that changes by mistake refuses a file that was right, or accepts one that does harm. */
START_TEST(numbers_have_these_ranges)
{
	check_ranges(
	    &daemon_keys,
	    "port 1 65535\ncpu_slots 0 1024\nslot_threads 0 4096\nheartbeat 0.05 60\nnode_timeout 0.2 3600\n"
	    "lease 1 86400\nshutdown_grace 0 86400\nuser_runs 0 2147483647\nuser_slots 0 2147483647\n"
	    "log_quota 0 1000000000\nkeep_days 0 1000000\nkeep_runs 0 2147483647\ngpu_idle_timeout 0 3600\n"
	    "slot_memory 0 1000000000\nslot_tasks 0 4194304\n");
	check_ranges(
	    &run_keys,
	    "model.init_std 0 10\ndata.max_length 2 1048576\ndata.max_samples 0 1000000000000000\n"
	    "data.eval_fraction 0 1000000000000000\ntrain.epochs 0 1000000000\ntrain.max_steps 0 "
	    "1000000000000\n"
	    "train.micro_batch 1 65536\ntrain.accumulation 1 65536\ntrain.learning_rate 0 100\n"
	    "train.min_learning_rate 0 100\ntrain.warmup_ratio 0 1\ntrain.warmup_steps 0 1000000000000\n"
	    "train.decay_ratio 0 1\ntrain.embedding_learning_rate 0 100\ntrain.weight_decay 0 100\n"
	    "train.beta1 0 0.999999\ntrain.beta2 0 0.999999\ntrain.epsilon 9.999999999999999e-21 1\n"
	    "train.momentum 0 0.999999\ntrain.clip 0 1000000000\ntrain.label_smoothing 0 0.99\n"
	    "train.neftune_alpha 0 10000\ntrain.router_loss -1 1000\ntrain.loss_scale 0 1e+30\n"
	    "train.loss_scale_power 0 64\ntrain.loss_scale_window 1 1000000000000\ntrain.hysteresis 1 "
	    "1000000\n"
	    "train.min_loss_scale 1e-06 1e+30\ntrain.seed 0 9007199254740992\ntrain.eval_steps 0 "
	    "1000000000000\n"
	    "train.freeze_trainable_layers -100000 100000\nlora.rank 0 65536\nlora.alpha 0 1000000000\n"
	    "lora.dropout 0 0.99\nlora.pissa_iterations 0 1000\nlora.plus_ratio 0 1000000\n"
	    "preference.beta 0 1000\npreference.gamma 0 1000\npreference.label_smoothing 0 0.5\n"
	    "preference.desirable_weight 0 1000\npreference.undesirable_weight 0 1000\n"
	    "preference.center_rewards_coefficient 0 1000\ndistillation.weight 0 1\n"
	    "distillation.temperature 0.01 1000\ngrpo.generations 2 4096\nppo.generations 1 4096\n"
	    "grpo.max_new_tokens 1 1048576\nppo.max_new_tokens 1 1048576\n"
	    "grpo.temperature 0.01 100\nppo.temperature 0.01 100\n"
	    "grpo.top_k 0 1000000000\nppo.top_k 0 1000000000\n"
	    "grpo.top_p 0 1\nppo.top_p 0 1\ngrpo.min_p 0 1\nppo.min_p 0 1\n"
	    "grpo.beta 0 1000\nppo.beta 0 1000\ngrpo.epsilon 1e-06 1\nppo.epsilon 1e-06 1\n"
	    "grpo.epsilon_high 0 1000\ngrpo.iterations 1 1000\nppo.iterations 1 1000\n"
	    "grpo.mini_batches 1 1024\nppo.mini_batches 1 1024\n"
	    "grpo.truncation_penalty 0 1000000\nppo.truncation_penalty 0 1000000\n"
	    "grpo.sequences 0 4096\nppo.sequences 0 4096\n"
	    "grpo.log_completions 0 1000000\nppo.log_completions 0 1000000\n"
	    "ppo.gamma 0 1\nppo.lambda 0 1\nppo.value_weight 0 1000\nppo.value_epsilon 0 1000000\n"
	    "ppo.value_learning_rate 0 100\n"
	    "parallel.shard_degree 0 1000000\n"
	    "parallel.sequence_degree 1 1000000\n"
	    "parallel.prefetch 0 15\nparallel.persist_below 0 1000000000000000\nparallel.timeout 1 86400\n"
	    "resources.nodes 1 100000\nresources.spares 0 100000\nresources.devices_per_node 1 1024\n"
	    "resources.threads 0 4096\nresources.grow_after 0 1000000000\nresources.max_restarts 0 1000000\n"
	    "resources.max_node_failures 0 1000000\nresources.max_busy_starts 0 1000000\n"
	    "resources.grace 0 86400\nresources.time_limit 0 1000000000\nresources.save_seconds 0 86400\n"
	    "output.save_steps 0 1000000000000\noutput.keep 0 1000000000\noutput.log_steps 1 1000000000000\n"
	    "output.max_shard_mb 1 1000000000\ngenerate.batch 1 4096\ngenerate.max_new_tokens 1 1000000000\n"
	    "generate.temperature 0 100\ngenerate.top_k 0 1000000000\ngenerate.top_p 0 1\ngenerate.min_p 0 "
	    "1\n"
	    "generate.repetition_penalty 0.01 100\ngenerate.seed 0 9007199254740992\n");
}
END_TEST

/* The installed file may be absent; one that is named may not, and it is text. */
START_TEST(the_daemons_file_may_be_absent)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "d.conf");
	_cleanup_(daemon_config_freep) struct daemon_config *c = NULL, *given = NULL;
	struct daemon_config *none = NULL;
	struct error err = ERROR_INIT;

	ck_ok(daemon_config_read(NULL, &c, &err), &err);
	ck_assert_ptr_nonnull(c);
	ck_ok(file_write_atomic(path, "port = 7;", 9, 0600, &err), &err);
	ck_ok(daemon_config_read(path, &given, &err), &err);
	ck_assert_int_eq(given->port, 7);
	ck_ok(file_write_atomic(path, "port = 7;\0", 10, 0600, &err), &err);
	ck_fails(daemon_config_read(path, &none, &err), &err, "d.conf: not a text file: a NUL byte in it");
	ck_ok(file_remove_tree(dir, &err), &err);
	ck_fails(daemon_config_read(path, &none, &err), &err, "d.conf");
}
END_TEST

static int parse_hosts(const char *text, struct hosts **out, struct error *err)
{
	return hosts_parse(text, strlen(text), "hosts", out, err);
}

START_TEST(hosts_file)
{
	_cleanup_(hosts_freep) struct hosts *h = NULL;
	const struct host *self;
	struct error err = ERROR_INIT;

	ck_ok(parse_hosts("# cluster\n\nn1 slots=8\nn2\tslots=4 addr=10.0.0.2 port=1234 big nvlink # note\n",
	                  &h, &err),
	      &err);
	ck_assert_uint_eq(h->count, 2);
	ck_assert_str_eq(h->list[0].address, "n1");
	ck_assert_int_eq(h->list[1].port, 1234);
	ck_assert_str_eq(h->list[1].labels[1], "nvlink");
	ck_assert_ptr_eq(hosts_find(h, "N2"), &h->list[1]);
	ck_ok(hosts_find_self(h, "n2", &self, &err), &err);
	ck_assert_ptr_eq(self, &h->list[1]);
	ck_fails(hosts_find_self(h, "n9", &self, &err), &err,
	         "\"n9\" of dtraind.conf is not among the hosts");
}
END_TEST

START_TEST(a_hosts_file_is_read)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_path_join(dir, "hosts");
	_cleanup_strbuf_ struct strbuf name = {0}, text = {0};
	_cleanup_(hosts_freep) struct hosts *h = NULL;
	struct hosts *none = NULL;
	struct error err = ERROR_INIT;

	for (int i = 0; i < 253; i++)
		strbuf_addc(&name, i % 64 == 63 ? '.' : 'a');
	strbuf_addf(&text, "%s slots=1024 port=65535 addr=fe80::1%%eth0 submit\nb slots=0 port=1 x:/._-y\n",
	            name.data);
	ck_ok(file_write_atomic(path, text.data, text.len, 0600, &err), &err);
	ck_ok(hosts_read(path, &h, &err), &err);
	ck_assert_uint_eq(h->count, 2);
	ck_assert_str_eq(h->list[0].name, name.data);
	ck_assert_int_eq(h->list[0].slots, 1024);
	ck_assert_int_eq(h->list[0].port, 65535);
	ck_assert_str_eq(h->list[0].address, "fe80::1%eth0");
	ck_assert(h->list[0].submit && !h->list[1].submit);
	ck_assert_int_eq(h->list[1].slots, 0);
	ck_assert_int_eq(h->list[1].port, 1);
	ck_assert_str_eq(h->list[1].labels[0], "x:/._-y");
	ck_assert_ptr_null(h->list[1].labels[1]);
	ck_assert(h->restricts_users);
	ck_ok(file_write_atomic(path, "a\n\0b\n", 5, 0600, &err), &err);
	ck_fails(hosts_read(path, &none, &err), &err, "hosts: not a text file: a NUL byte in it");
	strbuf_adds(&name, "a\n");
	ck_fails(parse_hosts(name.data, &none, &err), &err, "is not a host name");
	ck_ok(file_remove_tree(dir, &err), &err);
	ck_fails(hosts_read(path, &none, &err), &err, "hosts");
}
END_TEST

/* A colon is part of an IPv6 address alone. */
START_TEST(hosts_have_ipv6_addresses)
{
	static const char *const names[] = {"::1", "fe80::1:8", "2001:db8::2", "1:2:3:4:5:6:7:8",
	                                    "::ffff:192.0.2.1"};
	_cleanup_(hosts_freep) struct hosts *h = NULL;
	_cleanup_strbuf_ struct strbuf text = {0};
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		strbuf_addf(&text, "%s slots=8\n", names[i]);
	strbuf_adds(&text, "n1 addr=fe80::2%eth0.7\n");
	ck_ok(parse_hosts(text.data, &h, &err), &err);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		ck_assert_str_eq(h->list[i].address, names[i]);
	ck_assert_str_eq(hosts_find(h, "n1")->address, "fe80::2%eth0.7");
}
END_TEST

/* By the name of the machine, its short form, or an address. */
START_TEST(a_machine_finds_itself)
{
	static const char two[] = "this-is-no-name addr=127.0.0.1\nnor-this addr=127.0.0.2\n";
	static const char other[] = "this-is-no-name addr=192.0.2.77\nnor-this addr=127.0.0.2\n";
	char name[256] = "";
	struct error err = ERROR_INIT;

	ck_assert_int_eq(gethostname(name, sizeof(name) - 1), 0);
	for (int form = 0; form < 3; form++) {
		int length = (int)strcspn(name, ".");
		_cleanup_free_ char *text = str_printf(
		    "x%s addr=192.0.2.77\n%.*sx.example.org addr=192.0.2.78\n%.*s%s slots=3\n", name, length,
		    name, form ? length : (int)strlen(name), name, form == 2 ? ".example.org" : "");
		_cleanup_(hosts_freep) struct hosts *h = NULL;
		const struct host *self = NULL;

		ck_ok(parse_hosts(text, &h, &err), &err);
		ck_ok(hosts_find_self(h, NULL, &self, &err), &err);
		ck_assert_ptr_eq(self, &h->list[2]);
	}
	for (int i = 0; i < 3; i++) {
		_cleanup_(hosts_freep) struct hosts *h = NULL;
		const struct host *self = NULL;
		int r;

		ck_ok(parse_hosts(i == 0   ? two
		                  : i == 1 ? other
		                           : "this-is-no-name addr=192.0.2.77\n",
		                  &h, &err),
		      &err);
		r = hosts_find_self(h, NULL, &self, &err);
		if (r == -ENOTSUP) /* a socket may have any address here */
			return;
		if (i == 0)
			ck_fails(r, &err,
			         "hosts this-is-no-name and nor-this both have an address of this machine");
		else if (i == 1)
			ck_assert_ptr_eq(self, &h->list[1]);
		else
			ck_fails(r, &err, "this machine is not among the hosts: no line for host name ");
	}
}
END_TEST

static const struct {
	const char *text, *words;
} wrong_hosts[] = {
    {"n1 slots=1025\n", "hosts:1: slots=1025: not a whole number from 0 to 1024"},
    {"n1 slots=-1\n", "hosts:1: slots=-1: not a whole number from 0 to 1024"},
    {"n1\nn2 port=65536\n", "hosts:2: port=65536: not a whole number from 1 to 65535"},
    {"n1 8\n", "hosts:1: '8' is a number alone, and the line has no slots=N; expected slots=8"},
    {"n1 slots=2 12\nn2 12 slots=2\nn3 addr=a rack 0\n", "hosts:3: '0' is a number alone"},
    {"n1 la*bel\n", "hosts:1: label 'la*bel': letters, digits and .-_:/ are allowed"},
    {"", "no host in it"},
    {"# nothing\n", "no host in it"},
    {"n1 slots=4junk\n", "hosts:1: slots=4junk: not a whole number"},
    {"n1\nn2\nn1\n", "hosts:3: host n1 is already on line 1"},
    {"n1\nn2 slots=1 addr=a slots=2\n", "hosts:2: slots=2: slots is there twice"},
    {"n1 addr=a addr=a\n", "hosts:1: addr=a: addr is there twice"},
    {"n1 port=0\n", "hosts:1: port=0"},
    {"n1 color=red\n", "'color=red' is not known"},
    {"bad/name\n", "'bad/name' is not a host name"},
    {"n1 addr=a/b\n", "not a host name or an address"},
    {"n1 slots=8\nn2:8\n", "hosts:2: 'n2:8' is not a host name or an address; expected 'n2 slots=8', or 'n2 "
                           "port=8' if the number is "
                           "a port"},
    {"10.0.0.2:1024 slots=8\n", "expected '10.0.0.2 slots=1024', or '10.0.0.2 port=1024' if"},
    {"n1:1025\n", "hosts:1: 'n1:1025' is not a host name or an address; expected 'n1 port=1025'"},
    {"n1:65536\n", "hosts:1: 'n1:65536' is not a host name or an address"},
    {"n1:\n", "hosts:1: 'n1:' is not a host name or an address"},
    {"n1:8:2\n", "hosts:1: 'n1:8:2' is not a host name or an address"},
    {"1:2:3:4:5:6:7:8:9\n", "hosts:1: '1:2:3:4:5:6:7:8:9' is not a host name or an address"},
    {"2001:db8:0000:0000:0000:0000:192.168.100.1000000\n", "000000' is not a host name or an address"},
    {"n1\nn2 addr=10.0.0.2:29600\n", "hosts:2: addr=10.0.0.2:29600: expected addr=10.0.0.2 port=29600"},
    {"n1 addr=a:b\n", "hosts:1: addr=a:b: not a host name or an address"},
};

/* The time to find a host by name does not grow with their number; files with other contents have another
 * hash. */
START_TEST(many_hosts)
{
	enum { MANY = 100000 };
	static const char spaced[] = "# the same\n\ta   slots=1 # a\n\nb\n";
	static const char *const others[] = {"a slots=1 x\nb",      "a slots=1\nb port=7", "a slots=2\nb",
	                                     "a slots=1 addr=c\nb", "b\na slots=1",        "a slots=1\nb\nc"};
	_cleanup_(hosts_freep) struct hosts *h = NULL, *same = NULL;
	_cleanup_strbuf_ struct strbuf text = {0};
	char hash[HOSTS_HASH_SIZE], other[HOSTS_HASH_SIZE], name[32];
	struct error err = ERROR_INIT;

	for (int i = 0; i < MANY; i++)
		strbuf_addf(&text, "node-%d.example.org slots=8\n", i);
	ck_ok(hosts_parse(text.data, text.len, "hosts", &h, &err), &err);
	ck_assert_uint_eq(h->count, MANY);
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "NODE-%d.example.org", i);
		ck_assert_ptr_eq(hosts_find(h, name), &h->list[i]);
	}
	ck_assert_ptr_null(hosts_find(h, "node-100000.example.org"));
	strbuf_adds(&text, "Node-7.example.org\n");
	ck_fails(hosts_parse(text.data, text.len, "hosts", &same, &err), &err,
	         "hosts:100001: host Node-7.example.org is already on line 8");
	hosts_free(steal_pointer(h));
	ck_ok(hosts_parse("a slots=1\nb", 11, "hosts", &h, &err), &err);
	ck_ok(hosts_parse(spaced, strlen(spaced), "hosts", &same, &err), &err);
	ck_ok(hosts_hash(h, hash, &err), &err);
	ck_ok(hosts_hash(same, other, &err), &err);
	ck_assert_str_eq(hash, other);
	for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
		hosts_free(steal_pointer(same));
		ck_ok(hosts_parse(others[i], strlen(others[i]), "hosts", &same, &err), &err);
		ck_ok(hosts_hash(same, other, &err), &err);
		ck_assert_str_ne(hash, other);
	}
}
END_TEST

START_TEST(metrics_have_an_address_and_a_port)
{
	static const struct {
		const char *text, *address; /* NULL: refused, with these words */
		int port;
		const char *words;
	} cases[] = {
	    {"0.0.0.0:9600", "0.0.0.0", 9600, NULL},
	    {"[::1]:1", "::1", 1, NULL},
	    {"[::1:5", "[::1", 5, NULL},
	    {"::1]:5", "::1]", 5, NULL},
	    {"n1.example.org:65535", "n1.example.org", 65535, NULL},
	    {"9600", NULL, 0, "d.conf: metrics_listen: \"9600\" is no address and port"},
	    {":9600", NULL, 0, "is no address and port"},
	    {"n1:", NULL, 0, "is no address and port"},
	    {"n1:65536", NULL, 0, "is no address and port"},
	    {"[]:5", NULL, 0, "is no address and port"},
	};
	struct error err = ERROR_INIT;
	struct daemon_config *none;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *text =
		    str_printf("metrics_listen = \"%s\"; metrics_ca = \"/ca\";", cases[i].text);
		_cleanup_(daemon_config_freep) struct daemon_config *c = NULL;

		if (!cases[i].address) {
			ck_fails(daemon_config_parse(text, "d.conf", &c, &err), &err, cases[i].words);
			continue;
		}
		ck_ok(daemon_config_parse(text, "d.conf", &c, &err), &err);
		ck_assert_str_eq(c->metrics_address, cases[i].address);
		ck_assert_int_eq(c->metrics_port, cases[i].port);
	}
	ck_fails(daemon_config_parse("metrics_ca = \"/ca\";", "d.conf", &none, &err), &err,
	         "metrics_listen and metrics_ca belong together: metrics_listen is missing");
	ck_fails(daemon_config_parse("metrics_listen = \"n1:1\";", "d.conf", &none, &err), &err,
	         "metrics_ca is missing");
}
END_TEST

START_TEST(hosts_may_be_marked_for_users)
{
	_cleanup_(hosts_freep) struct hosts *h = NULL, *none = NULL;
	struct error err = ERROR_INIT;

	ck_ok(parse_hosts("a\nb ssd submit slots=1\nc submitter\n", &h, &err), &err);
	ck_assert(h->restricts_users);
	ck_assert(!h->list[0].submit && h->list[1].submit && !h->list[2].submit);
	ck_ok(parse_hosts("a ssd\n", &none, &err), &err);
	ck_assert(!none->restricts_users && !none->list[0].submit);
}
END_TEST

START_TEST(wrong_hosts_files_say_where)
{
	struct hosts *h = NULL;
	struct error err = ERROR_INIT;

	ck_fails(parse_hosts(wrong_hosts[_i].text, &h, &err), &err, wrong_hosts[_i].words);
}
END_TEST

START_TEST(self_by_host_name_or_address)
{
	_cleanup_(hosts_freep) struct hosts *by_name = NULL, *by_address = NULL, *none = NULL, *two = NULL;
	_cleanup_free_ char *text = NULL;
	char name[256] = "";
	const struct host *self;
	struct error err = ERROR_INIT;

	gethostname(name, sizeof(name) - 1);
	text = str_printf("other addr=192.0.2.1\n%s.example.org addr=192.0.2.2\n", name);
	ck_ok(parse_hosts(text, &by_name, &err), &err);
	ck_ok(hosts_find_self(by_name, NULL, &self, &err), &err);
	ck_assert_ptr_eq(self, &by_name->list[1]);
	ck_ok(parse_hosts("a addr=192.0.2.1\nb addr=127.0.0.1\n", &by_address, &err), &err);
	ck_ok(hosts_find_self(by_address, NULL, &self, &err), &err);
	ck_assert_str_eq(self->name, "b");
	ck_ok(parse_hosts("a addr=192.0.2.1\n", &none, &err), &err);
	ck_fails(hosts_find_self(none, NULL, &self, &err), &err, "not among the hosts");
	ck_ok(parse_hosts("a addr=127.0.0.1\nb addr=127.0.0.1\n", &two, &err), &err);
	ck_fails(hosts_find_self(two, NULL, &self, &err), &err, "hosts a and b both have an address");
}
END_TEST

START_TEST(times_and_ranges)
{
	static const struct {
		const char *text, *override;
		int64_t seconds;
	} fine[] = {
	    {"", NULL, 0},
	    {"resources = { time_limit = 90; };", NULL, 90},
	    {"resources = { time_limit = \"90\"; };", NULL, 90},
	    {"resources = { time_limit = \"90m\"; };", NULL, 5400},
	    {"resources = { time_limit = \"1d2h3m4s\"; };", NULL, 93784},
	    {"", "resources.time_limit=1h30m", 5400},
	    {"", "resources.time_limit=2h", 7200},
	};
	static const char *const none[] = {"",
	                                   "h",
	                                   "2 h",
	                                   "1h30",
	                                   "30m1h",
	                                   "1h1h",
	                                   "-1",
	                                   "1.5h",
	                                   "2w",
	                                   "2hh",
	                                   "h2",
	                                   "5m ",
	                                   "1e3",
	                                   "0x10",
	                                   "9999999999999999999999d",
	                                   "9223372036854775807d",
	                                   "106751991167300d86400s"};

	for (size_t i = 0; i < ARRAY_SIZE(fine); i++) {
		const char *const overrides[] = {fine[i].override, NULL};
		_cleanup_(run_config_freep) struct run_config *c = NULL, *again = NULL;
		_cleanup_free_ char *text = str_printf("command = [\"true\"];\n%s", fine[i].text);
		_cleanup_json_ json_t *json = NULL;
		struct error err = ERROR_INIT;

		ck_ok(run_config_parse(text, "x.conf", overrides, &c, &err), &err);
		ck_assert_int_eq(c->resources.time_limit, fine[i].seconds);
		ck_ok(run_config_to_json(c, &json, &err), &err);
		ck_ok(run_config_from_json(json, &again, &err), &err);
		ck_assert_int_eq(again->resources.time_limit, fine[i].seconds);
	}
	for (size_t i = 0; i < ARRAY_SIZE(none); i++) {
		_cleanup_free_ char *override = str_printf("resources.time_limit=%s", none[i]);
		_cleanup_free_ char *message = str_printf(
		    "--set: resources.time_limit: \"%s\" is not a number of seconds or a time such as "
		    "\"90m\" or \"1h30m\"",
		    none[i]);
		const char *const overrides[] = {override, NULL};
		struct run_config *c;
		struct error err = ERROR_INIT;

		ck_fails(run_config_parse("command = [\"true\"];", "x.conf", overrides, &c, &err), &err,
		         message);
	}
}
END_TEST

/* A program is asked by a signal, a native run by TERM; a cancelled one has no more than its grace. */
START_TEST(ranges_of_nodes)
{
	static const char *const training =
	    "task = \"pretrain\"; model = { init = \"c\"; }; data = { path = \"a\"; "
	    "}; output = { dir = \"o\"; };";
	static const struct {
		bool command;
		const char *nodes;
		const char *more;
		int64_t low, high; /* 0: refused, */
		const char *error; /* with these words */
	} cases[] = {
	    {true, "2..4", NULL, 2, 4, NULL},
	    {true, "3", NULL, 3, 3, NULL},
	    {true, "3..3", NULL, 3, 3, NULL},
	    {true, "2..3", "resources.devices_per_node=all", 2, 3, NULL},
	    {false, "2..4", "train.accumulation=3", 2, 4, NULL},
	    {false, "1..2", NULL, 1, 2, NULL},
	    {true, "4..2", NULL, 0, 0,
	     "resources.nodes: \"4..2\" is not an integer or a range such as \"2..4\""},
	    {true, "2..", NULL, 0, 0, "\"2..\" is not an integer or a range"},
	    {true, "2..4x", NULL, 0, 0, "\"2..4x\" is not an integer or a range"},
	    {true, "..2", NULL, 0, 0, "\"..2\" is not an integer or a range"},
	    {true, "2...4", NULL, 0, 0, "\"2...4\" is not an integer or a range"},
	    {true, "0..4", NULL, 0, 0, "resources.nodes: 0 is out of range"},
	    {true, "1..1000000", NULL, 0, 0, "resources.nodes: 1000000 is out of range"},
	    {false, "2..4", NULL, 0, 0,
	     "resources.nodes: 3 nodes cannot keep the batch of 4 nodes, 4 micro-steps; the nearest that can "
	     "are 2 "
	     "and 4 nodes; all of 2..4 can with train.accumulation = 3"},
	    {false, "2..4", "train.accumulation=4", 0, 0, "with train.accumulation = 3"},
	    {false, "2..4", "train.accumulation=5", 0, 0, "with train.accumulation = 6"},
	    {false, "1..100", NULL, 0, 0,
	     "3 nodes cannot keep the batch of 100 nodes, 100 micro-steps; the nearest "
	     "that can are 2 and 4 nodes"},
	    {false, "1..2", "resources.devices_per_node=all", 0, 0,
	     "resources.devices_per_node: \"all\" may be"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *nodes = str_printf("resources.nodes=%s", cases[i].nodes);
		const char *const overrides[] = {nodes, cases[i].more, NULL};
		const char *text = cases[i].command ? "command = [\"true\"];" : training;
		_cleanup_(run_config_freep) struct run_config *c = NULL, *again = NULL;
		_cleanup_json_ json_t *json = NULL;
		struct error err = ERROR_INIT;
		int r = run_config_parse(text, "x.conf", overrides, &c, &err);

		if (cases[i].error) {
			ck_fails(r, &err, cases[i].error);
			continue;
		}
		ck_ok(r, &err);
		ck_ok(run_config_to_json(c, &json, &err), &err);
		ck_ok(run_config_from_json(json, &again, &err), &err);
		ck_assert_int_eq(again->resources.nodes.low, cases[i].low);
		ck_assert_int_eq(again->resources.nodes.high, cases[i].high);
	}
}
END_TEST

START_TEST(how_a_run_is_stopped)
{
	static const char training[] = "task = \"pretrain\"; model = { init = \"c\"; }; data = { path = "
	                               "\"a\"; }; output = { dir = \"o\"; };";
	static const struct {
		const char *text;
		struct stop_times now, cancel, save;
	} cases[] = {
	    {"command = \"true\"; resources = { grace = 8; };", {0, 8}, {0, 8}, {0, 8}},
	    {"command = \"true\"; resources = { grace = 8; save_signal = \"USR1\"; save_seconds = \"2m\"; };",
	     {0, 8},
	     {4, 4},
	     {120, 8}},
	    {"command = \"true\"; resources = { grace = 8; save_signal = \"USR1\"; save_seconds = 1; };",
	     {0, 8},
	     {1, 7},
	     {1, 8}},
	    {training, {0, 30}, {0, 30}, {0, 90}},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct stop_times wanted[] = {cases[i].now, cases[i].cancel, cases[i].save};
		_cleanup_(run_config_freep) struct run_config *c = NULL;
		struct error err = ERROR_INIT;

		ck_ok(run_config_parse(cases[i].text, "x.conf", NULL, &c, &err), &err);
		for (int how = RUN_STOP_NOW; how <= RUN_STOP_SAVE; how++) {
			struct stop_times times = run_config_stop_times(c, how);

			ck_assert_double_eq(times.save, wanted[how].save);
			ck_assert_double_eq(times.grace, wanted[how].grace);
		}
	}
}
END_TEST

/* A variable is replaced by the one of the same name, unless the earlier one is to be kept. */
START_TEST(a_variable_is_set_once)
{
	static const struct {
		const char *entry;
		bool keep;
		const char *first, *second; /* the list after it */
	} steps[] = {
	    {"A=1", false, "A=1", NULL},   {"A=2", true, "A=1", NULL},   {"A=2", false, "A=2", NULL},
	    {"AB=3", true, "A=2", "AB=3"}, {"AB=", false, "A=2", "AB="}, {"A=4=5", false, "A=4=5", "AB="},
	};
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_parse(alpaca, "x.conf", NULL, &c, &err), &err);
	str_list_free(steal_pointer(c->environment));
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
		ck_ok(run_config_set_variable(c, steps[i].entry, steps[i].keep, "x", &err), &err);
		ck_assert_str_eq(c->environment[0], steps[i].first);
		ck_assert_pstr_eq(c->environment[1], steps[i].second);
		ck_assert(!steps[i].second || !c->environment[2]);
	}
	ck_fails(run_config_set_variable(c, "=1", false, "x", &err), &err, "not of the form NAME=VALUE");
	ck_fails(run_config_set_variable(c, "A", false, "x", &err), &err, "not of the form NAME=VALUE");
}
END_TEST

static int take_run_file(void *context, struct error *err)
{
	const char *overrides[] = {"train.learning_rate=2e-4", "data.path=c.json,d.json", NULL};
	_cleanup_(run_config_freep) struct run_config *c = NULL, *again = NULL;
	_cleanup_json_ json_t *json = NULL;
	int r = run_config_parse(alpaca, "x.conf", overrides, &c, err);

	(void)context;
	if (r < 0 || (r = run_config_set_variable(c, "A=b", false, "x", err)) < 0 ||
	    (r = run_config_to_json(c, &json, err)) < 0)
		return r;
	return run_config_from_json(json, &again, err);
}

static int take_hosts(void *context, struct error *err)
{
	static const char text[] = "n1 slots=4 addr=10.0.0.1 port=7 fast large\nn2 # the second\n";
	_cleanup_(hosts_freep) struct hosts *h = NULL;

	(void)context;
	char hash[HOSTS_HASH_SIZE];
	int r = hosts_parse(text, strlen(text), "hosts", &h, err);

	if (r < 0 || (r = hosts_hash(h, hash, err)) < 0)
		return r;
	ck_assert_str_eq(hash, "dbb377820d41bd1f");
	return 0;
}

static int take_daemon_file(void *context, struct error *err)
{
	_cleanup_(daemon_config_freep) struct daemon_config *c = NULL;

	(void)context;
	return daemon_config_parse(
	    "port = 30000; log_dir = \"/l\"; port_range = \"1-5\"; metrics_listen = \"[::1]:5\"; "
	    "metrics_ca = \"/m\"; allow_devices = [\"/dev/a\"]; certificate = \"c\"; certificate_key = "
	    "\"k\"; ca_file = \"a\"; store = \"etcd:https://a:1/, https://b:2\"; controllers = [\"n1\"];",
	    "dtraind.conf", &c, err);
}

START_TEST(memory_may_run_out_at_any_place)
{
	memory_runs_out(take_run_file, NULL);
	memory_runs_out(take_hosts, NULL);
	memory_runs_out(take_daemon_file, NULL);
}
END_TEST

START_TEST(tasks_have_names)
{
	enum run_task task;

	for (enum run_task t = 0; t <= RUN_COMMAND; t++) {
		ck_assert(run_task_by_name(run_task_name(t), &task));
		ck_assert_int_eq(task, t);
	}
	ck_assert(!run_task_by_name("dance", &task));
	ck_assert(!run_task_by_name("", &task));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("config");
	TCase *t = tcase_create("config");

	tcase_add_test(t, run_file_with_defaults);
	tcase_add_test(t, recompute_by_name_or_truth);
	tcase_add_test(t, packing_default_follows_the_task);
	tcase_add_test(t, json_round_trip);
	tcase_add_loop_test(t, keys_of_preferences_are_for_their_tasks, 0, ARRAY_SIZE(preference_keys));
	tcase_add_test(t, tasks_have_names);
	tcase_add_test(t, the_rewards_of_a_run);
	tcase_add_test(t, the_group_of_a_task);
	tcase_add_test(t, a_variable_is_set_once);
	tcase_add_test(t, memory_may_run_out_at_any_place);
	tcase_add_loop_test(t, wrong_run_files_say_where, 0, ARRAY_SIZE(wrong));
	tcase_add_loop_test(t, right_run_files_are_taken, 0, ARRAY_SIZE(right));
	tcase_add_test(t, nothing_is_suggested_where_nothing_is_alike);
	tcase_add_loop_test(t, integers_keep_all_their_bits, 0, ARRAY_SIZE(integers));
	tcase_add_test(t, integers_are_told_from_what_looks_like_one);
	tcase_add_test(t, included_files_are_part_of_the_text);
	tcase_add_loop_test(t, an_included_file_is_named, 0, ARRAY_SIZE(wrong_includes));
	tcase_add_test(t, an_include_that_cannot_be_read);
	tcase_add_test(t, what_libconfig_refuses_is_said_in_full);
	tcase_add_test(t, names_of_other_programs_are_known);
	tcase_add_test(t, a_byte_order_mark_is_skipped);
	tcase_add_test(t, a_program_is_not_a_run_file);
	tcase_add_test(t, all_devices_of_a_node);
	tcase_add_test(t, a_command_has_no_keys_of_training);
	tcase_add_test(t, services_believe_no_client);
	tcase_add_test(t, what_is_not_utf8_is_named);
	tcase_add_test(t, daemon_defaults_and_errors);
	tcase_add_test(t, numbers_have_these_ranges);
	tcase_add_loop_test(t, a_daemons_file_is_right_or_says_why, 0, ARRAY_SIZE(daemon_files));
	tcase_add_test(t, what_a_daemons_file_gives_is_taken);
	tcase_add_test(t, a_run_is_named_by_its_file);
	tcase_add_test(t, the_tokenizer_is_the_models);
	tcase_add_test(t, a_hosts_file_is_read);
	tcase_add_test(t, hosts_have_ipv6_addresses);
	tcase_add_test(t, a_machine_finds_itself);
	tcase_add_test(t, the_daemons_file_may_be_absent);
	tcase_set_timeout(t, 60);
	tcase_add_test(t, hosts_file);
	tcase_add_test(t, many_hosts);
	tcase_add_test(t, metrics_have_an_address_and_a_port);
	tcase_add_test(t, hosts_may_be_marked_for_users);
	tcase_add_loop_test(t, wrong_hosts_files_say_where, 0, ARRAY_SIZE(wrong_hosts));
	tcase_add_test(t, times_and_ranges);
	tcase_add_test(t, how_a_run_is_stopped);
	tcase_add_test(t, ranges_of_nodes);
	tcase_add_test(t, self_by_host_name_or_address);
	suite_add_tcase(s, t);
	return unit_run(s);
}
