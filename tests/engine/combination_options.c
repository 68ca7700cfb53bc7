/* SPDX-License-Identifier: Apache-2.0 */
/* The model and the options of a case, by its axes. */
#include "combinations.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

/* ---- models ---- */

#define SIZES                                                                                                \
	"\"hidden_size\":32,\"intermediate_size\":48,\"head_dim\":16,\"num_attention_heads\":2,"             \
	"\"num_key_value_heads\":1,\"max_position_embeddings\":64"

static const char *const families[] = {
    "\"model_type\":\"llama\"," SIZES,
    "\"model_type\":\"qwen3\"," SIZES,
    "\"model_type\":\"qwen2\"," SIZES,
    "\"model_type\":\"gpt2\",\"n_embd\":32,\"n_inner\":64,\"n_head\":2,\"n_positions\":64",
    "\"model_type\":\"olmo2\"," SIZES,
    "\"model_type\":\"gemma2\",\"query_pre_attn_scalar\":16,\"sliding_window\":8," SIZES,
    "\"model_type\":\"phi3\",\"pad_token_id\":0," SIZES,
    "\"model_type\":\"granite\",\"embedding_multiplier\":3.0,\"attention_multiplier\":0.3,"
    "\"residual_multiplier\":0.7,\"logits_scaling\":1.5," SIZES,
    "\"model_type\":\"gemma3_text\",\"query_pre_attn_scalar\":16,\"sliding_window\":8," SIZES,
    "\"model_type\":\"llama\",\"attention_bias\":true,\"mlp_bias\":true," SIZES,
    "\"model_type\":\"glm4\"," SIZES,
    "\"model_type\":\"qwen3_5_text\",\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,"
    "\"linear_key_head_dim\":8,\"linear_value_head_dim\":16,\"full_attention_interval\":2," SIZES,
    "\"model_type\":\"qwen3_moe\",\"num_experts\":5,\"num_experts_per_tok\":2,"
    "\"moe_intermediate_size\":24," SIZES,
    "\"model_type\":\"mixtral\",\"num_local_experts\":3," SIZES};

/* Of the families, the last ones. */
enum { GLM4 = 10, LINEAR, FIRST_WITH_EXPERTS };

bool has_experts(const struct setup *s)
{
	return s->axis[FAMILY] >= FIRST_WITH_EXPERTS;
}

bool has_linear_attention(const struct setup *s)
{
	return s->axis[FAMILY] == LINEAR;
}

int make_config(const struct setup *s, struct model_config *c, struct error *err)
{
	static const int vocabularies[] = {VOCABULARY_LEAST, 800, 70};
	bool gpt2 = s->axis[FAMILY] == 3;
	_cleanup_free_ char *text =
	    str_printf("{%s,\"%s\":%d,\"vocab_size\":%d,\"tie_word_embeddings\":%s}",
	               families[s->axis[FAMILY]], gpt2 ? "n_layer" : "num_hidden_layers", 1 + s->axis[LAYERS],
	               vocabularies[s->axis[VOCABULARY]], s->axis[TIED] ? "true" : "false");
	int r = model_config_parse(text, strlen(text), "config.json", c, err);

	/* Ranks that share a sequence divide both kinds of heads. */
	if (r == 0 && s->axis[SEQUENCE] == 3 && !gpt2) {
		c->heads = 4;
		c->kv_heads = 2;
	}
	if (r == 0 && s->axis[TASK] == 7)
		model_config_set_scores(c);
	return r;
}

/* ---- options ---- */

static char *const every[] = {"all", NULL};

/* Modules by their places in a block: q, v, o, gate, down. */
static const char *module_name(int family, int which)
{
	static const char *const llama[] = {"q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"};
	static const char *const gpt2[] = {"attn.c_attn", "attn.c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"};
	static const char *const phi3[] = {"qkv_proj", "qkv_proj", "o_proj", "gate_up_proj", "down_proj"};

	static const char *const experts[] = {"q_proj", "v_proj", "o_proj", "k_proj", "o_proj"};
	static const char *const glm4[] = {"q_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"};
	static const char *const linear[] = {"in_proj_qkv", "in_proj_z", "out_proj", "gate_proj",
	                                     "down_proj"};

	return family == GLM4                 ? glm4[which]
	       : family == LINEAR             ? linear[which]
	       : family == 3                  ? gpt2[which]
	       : family == 6                  ? phi3[which]
	       : family >= FIRST_WITH_EXPERTS ? experts[which]
	                                      : llama[which];
}

static void add_name(struct names *n, int layer, int family, const char *module)
{
	int at = 0;

	while (n->list[at])
		at++;
	if (layer < 0)
		snprintf(n->text[at], sizeof(n->text[at]), "%s", module);
	else
		snprintf(n->text[at], sizeof(n->text[at]), "%s.%d%s%s", family == 3 ? "h" : "layers", layer,
		         *module ? "." : "", module);
	n->list[at] = n->text[at];
}

static void name_targets(const struct setup *s, struct names *n)
{
	int family = s->axis[FAMILY], last = s->axis[LAYERS];
	bool fused = family == 3 || family == 6,
	     block = s->axis[SAVED] == 1 || s->axis[SAVED] == 2 || s->axis[SAVED] == 8;
	char module[40];

	/* Where a whole block is trained, adapters are in another one. */
	if (block && last > 0) {
		int which = s->axis[TARGET] % 5;

		snprintf(module, sizeof(module), "%s%s",
		         family == 3                                 ? ""
		         : which < 3 && family == LINEAR             ? "linear_attn."
		         : which < 3 || family >= FIRST_WITH_EXPERTS ? "self_attn."
		                                                     : "mlp.",
		         module_name(family, which));
		add_name(n, s->axis[SAVED] == 1 ? 0 : last, family, module);
		return;
	}
	switch (s->axis[TARGET]) {
	case 0:
		add_name(n, -1, family, "all");
		break;
	case 1:
		add_name(n, -1, family, module_name(family, 0));
		add_name(n, -1, family, module_name(family, 1));
		n->list[fused ? 1 : 2] = NULL;
		break;
	case 2:
		add_name(n, -1, family, module_name(family, 4));
		break;
	case 3:
		add_name(n, -1, family, module_name(family, 3));
		break;
	case 4:
	case 5: /* one block alone */
		snprintf(module, sizeof(module), "%s%s",
		         family == 3        ? ""
		         : family == LINEAR ? "linear_attn."
		                            : "self_attn.",
		         module_name(family, 0));
		add_name(n, s->axis[TARGET] == 4 ? 0 : last, family, module);
		break;
	case 6: /* another matrix in each of two blocks */
		snprintf(module, sizeof(module), "%s%s",
		         family == 3        ? ""
		         : family == LINEAR ? "linear_attn."
		                            : "self_attn.",
		         module_name(family, 1));
		add_name(n, 0, family, module);
		snprintf(module, sizeof(module), "%s%s",
		         family == 3                    ? ""
		         : family >= FIRST_WITH_EXPERTS ? "self_attn."
		                                        : "mlp.",
		         module_name(family, 4));
		add_name(n, last, family, module);
		break;
	case 7:
		add_name(n, -1, family, module_name(family, 2));
		break;
	case 8:
		add_name(n, -1, family, fused ? module_name(family, 0) : "k_proj");
		break;
	default:
		add_name(n, -1, family, module_name(family, 1));
		add_name(n, -1, family, module_name(family, 3));
		add_name(n, -1, family, module_name(family, 4));
	}
}

static void name_saved(const struct setup *s, struct names *n)
{
	int family = s->axis[FAMILY], last = s->axis[LAYERS];

	switch (s->axis[SAVED]) {
	case 0:
		break;
	case 1: /* a whole block */
		add_name(n, last, family, "");
		break;
	case 2:
		add_name(n, 0, family, "");
		break;
	case 3:
		add_name(n, -1, family, family == 3 ? "wte" : "embed_tokens");
		break;
	case 4:
		add_name(n, -1, family, s->axis[TIED] ? family == 3 ? "ln_f" : "norm" : "lm_head");
		break;
	case 5:
		add_name(n, -1, family, family == 3 ? "ln_1" : "input_layernorm");
		break;
	case 6:
		add_name(n, -1, family, module_name(family, 2));
		break;
	case 7:
		add_name(n, last, family, family == 3 ? "mlp" : "mlp");
		break;
	case 8:
		add_name(n, 0, family, "");
		add_name(n, -1, family, family == 3 ? "wpe" : "lm_head");
		break;
	default:
		add_name(n, -1, family, family == 3 ? "ln_f" : "model.norm");
		add_name(n, -1, family, family == 3 ? "c_fc" : family == 6 ? "qkv_proj" : "k_proj");
	}
}

static void set_tuning(const struct setup *s, struct train_options *o, struct lists *l)
{
	int family = s->axis[FAMILY];
	struct model_tuning *t = &o->tuning;

	switch (s->axis[TUNING]) {
	case 0:
	case 1:
		return;
	case 2: /* freeze training */
		*t = (struct model_tuning){.kind = TUNE_SOME,
		                           .layers = 1 + s->axis[RANK] % (1 + s->axis[LAYERS])};
		if (s->axis[ADAPTER] % 2)
			t->layers = -t->layers;
		if (s->axis[TARGET] > 2) {
			static const char *const parts[3][7] = {
			    {"mlp", "q_proj", "self_attn", "k_proj", "down_proj", "input_layernorm",
			     "v_proj"},
			    {"mlp", "c_attn", "attn", "ln_1", "c_proj", "ln_2", "c_fc"},
			    {"mlp", "qkv_proj", "self_attn", "o_proj", "down_proj", "input_layernorm",
			     "gate_up_proj"}};

			static const char *const of_experts[] = {"experts",   "gate", "up_proj", "w1",
			                                         "down_proj", "w2",   "v_proj"};

			add_name(&l->modules, -1, family,
			         family >= FIRST_WITH_EXPERTS && s->axis[DROPOUT] % 2
			             ? of_experts[s->axis[TARGET] - 3]
			             : parts[family == 3   ? 1
			                     : family == 6 ? 2
			                                   : 0][s->axis[TARGET] - 3]);
			t->modules = l->modules.list;
		}
		if (s->axis[SAVED] > 5) {
			static const char *const parts[2][4] = {
			    {"embed_tokens", "lm_head", "model.norm", "norm"},
			    {"wte", "wpe", "ln_f", "transformer"}};

			add_name(&l->extra, -1, family, parts[family == 3][s->axis[SAVED] - 6]);
			t->extra = l->extra.list;
		}
		return;
	default:
		*t =
		    (struct model_tuning){.kind = TUNE_LORA,
		                          .rank = 1 + s->axis[RANK] * 2,
		                          .alpha = 4,
		                          .dropout = s->axis[DROPOUT] == 3 ? 0.3 : 0,
		                          .rslora = s->axis[ADAPTER] == 4,
		                          .dora = s->axis[ADAPTER] == 1 || s->axis[ADAPTER] == 4,
		                          .init = s->axis[ADAPTER] == 2 ? LORA_INIT_PISSA : LORA_INIT_DEFAULT,
		                          .target = every};
		name_targets(s, &l->target);
		t->target = l->target.list;
		name_saved(s, &l->saved);
		t->saved = l->saved.list[0] ? l->saved.list : NULL;
	}
}

/* AdamW and SGD are more likely than the others. */
static enum optimizer_kind optimizer_of(const struct setup *s)
{
	static const enum optimizer_kind kinds[] = {
	    OPTIMIZER_SGD,       OPTIMIZER_ADAMW,      OPTIMIZER_ADAMW,     OPTIMIZER_SGD,  OPTIMIZER_ADAMW,
	    OPTIMIZER_SGD,       OPTIMIZER_LION,       OPTIMIZER_LAMB,      OPTIMIZER_LARS, OPTIMIZER_MUON,
	    OPTIMIZER_ADAFACTOR, OPTIMIZER_ADAMW_8BIT, OPTIMIZER_LION_8BIT, OPTIMIZER_ADAMW};

	return kinds[s->axis[OPTIMIZER]];
}

static void set_precision(const struct setup *s, struct train_options *o)
{
	static const enum dtype types[] = {DTYPE_F32,  DTYPE_F32, DTYPE_F32,  DTYPE_BF16,
	                                   DTYPE_BF16, DTYPE_F16, DTYPE_BF16, DTYPE_BF16};

	o->precision = types[s->axis[PRECISION]];
	o->without_master = s->axis[PRECISION] == 6;
	o->fp8 = s->axis[PRECISION] == 7;
	o->scaler.power = (int[]){10, 17, 24}[s->axis[SCALE]];
	o->scaler.window = 3;
}

static void set_task(const struct setup *s, struct train_options *o)
{
	static const enum preference_kind kinds[] = {PREFERENCE_NONE, PREFERENCE_NONE,  PREFERENCE_DPO,
	                                             PREFERENCE_DPO,  PREFERENCE_ORPO,  PREFERENCE_SIMPO,
	                                             PREFERENCE_KTO,  PREFERENCE_REWARD};
	static const enum preference_loss losses[] = {PREFERENCE_SIGMOID, PREFERENCE_SIGMOID,
	                                              PREFERENCE_SIGMOID, PREFERENCE_IPO};

	o->preference.kind = kinds[s->axis[TASK]];
	o->preference.loss = s->axis[TASK] < 4 ? losses[s->axis[TASK]] : PREFERENCE_SIGMOID;
	o->preference.beta = 0.5;
	o->preference.center = 0.1;
	o->preference.undesirable_weight = 0.8;
}

static void set_loss(const struct setup *s, struct train_options *o)
{
	if (o->preference.kind != PREFERENCE_NONE)
		return;
	o->label_smoothing = s->axis[LOSS] == 3 ? 0.2 : 0;
	o->dft = s->axis[LOSS] == 4;
	o->neftune_alpha = s->axis[NOISE] == 4 ? 3 : 0;
}

void set_options(const struct setup *s, struct train_options *o, struct lists *l, const char *directory)
{
	static const enum shard_strategy strategies[] = {SHARD_DDP,   SHARD_ZERO3,  SHARD_ZERO1, SHARD_ZERO2,
	                                                 SHARD_ZERO3, SHARD_HYBRID, SHARD_HYBRID};
	static const enum model_recompute ways[] = {MODEL_KEEP_ALL, MODEL_RECOMPUTE_BLOCK,
	                                            MODEL_RECOMPUTE_SELECTIVE};
	static const int64_t persist[] = {0, 500, 2500, 7000};
	int world = 1 + s->axis[WORLD];

	train_options_default(o);
	o->max_steps = STEPS;
	o->log_steps = 1;
	o->micro_batch = 1 + s->axis[MICRO];
	o->accumulation = 1 + s->axis[ACCUMULATION];
	o->optimizer = optimizer_of(s);
	o->learning_rate = o->optimizer == OPTIMIZER_SGD                                           ? 0.01
	                   : o->optimizer == OPTIMIZER_LARS                                        ? 1
	                   : o->optimizer == OPTIMIZER_LION || o->optimizer == OPTIMIZER_LION_8BIT ? 5e-4
	                                                                                           : 4e-3;
	o->schedule = SCHEDULE_CONSTANT;
	o->epsilon = 1e-4;
	o->weight_decay = s->axis[DECAY] ? 0.1 : 0;
	o->decay_all = s->axis[DECAY] == 2;
	o->clip = (double[]){0, 1, 0.1}[s->axis[CLIP]];
	o->embedding_rate = s->axis[RATES] ? 2 * o->learning_rate : 0;
	o->plus_ratio = s->axis[RATES] == 2 ? 3 : 0;
	set_precision(s, o);
	set_task(s, o);
	set_loss(s, o);
	set_tuning(s, o, l);
	o->recompute = ways[s->axis[RECOMPUTE]];
	o->kept_blocks = s->axis[KEPT_BLOCKS];
	o->kept_outputs = s->axis[KEPT_OUTPUTS];
	o->strategy = strategies[s->axis[STRATEGY]];
	o->shard_degree = s->axis[DEGREE] == 0 ? (world % 2 ? 1 : 2) : s->axis[DEGREE] == 1 ? 1 : world;
	o->sequence_degree = s->axis[SEQUENCE] == 3 && world % 2 == 0 ? 2 : 0;
	o->reduce_type = s->axis[WIRE] == 1 ? DTYPE_BF16 : DTYPE_F32;
	o->offload = s->axis[OFFLOAD] == 1   ? SHARD_OFFLOAD_OPTIMIZER
	             : s->axis[OFFLOAD] == 2 ? SHARD_OFFLOAD_ALL
	                                     : SHARD_OFFLOAD_NONE;
	if (!optimizer_steps_on_host(o->optimizer))
		o->offload = SHARD_OFFLOAD_NONE;
	if (o->offload && s->axis[DISK]) {
		o->offload_dir = directory;
		o->state_piece = (int64_t[]){0, 600, 1000, 4096}[s->axis[DISK]];
	}
	if (s->axis[GRADIENT] && o->precision == DTYPE_BF16 && o->accumulation == 1 && !o->offload &&
	    optimizer_reads(o->optimizer, DTYPE_BF16))
		o->gradient_type = DTYPE_BF16;
	o->quantize = o->tuning.kind == TUNE_ALL || s->axis[TUNING] < 4 ? SHARD_QUANTIZE_NONE
	              : s->axis[QUANTIZE] == 1                          ? SHARD_NF4
	              : s->axis[QUANTIZE] == 2                          ? SHARD_NF4_DOUBLE
	                                                                : SHARD_QUANTIZE_NONE;
	o->prefetch = (int[]){1, 0, 2, 3, 8}[s->axis[PREFETCH]];
	o->persist_below = persist[s->axis[PERSIST]];
	o->eval_steps = (int64_t[]){0, 1, 2, 3}[s->axis[EVALUATE]];
}
