/* SPDX-License-Identifier: Apache-2.0 */
/* adapter_config.json, the modules that it names, and adapters against their base. */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/adapter_start.h"

static int parse(const char *text, struct peft_config *c, struct error *err)
{
	*err = (struct error)ERROR_INIT;
	return peft_config_parse(text, strlen(text), "adapter_config.json", c, err);
}

/* The rank that a module has with this config, 0: none. */
static int64_t rank_of(const struct peft_config *c, const char *module, double *scale)
{
	struct error err = ERROR_INIT;
	int64_t rank = 0;
	int r = peft_config_match(c, module, &rank, scale, &err);

	ck_ok(r, &err);
	return r > 0 ? rank : 0;
}

#define LORA(members) "{\"peft_type\": \"LORA\", " members "}"

START_TEST(what_is_not_supported_is_named)
{
	static const struct {
		const char *text, *words;
	} cases[] = {
	    {"[]", "adapter_config.json: a JSON object is needed"},
	    {"{\"r\": 4}", "peft_type is missing"},
	    {"{\"peft_type\": \"IA3\"}", "peft_type: \"IA3\": only \"LORA\" is supported"},
	    {LORA("\"target_modules\": [\"q\"], \"bias\": \"all\""), "bias: \"all\": only \"none\""},
	    {LORA("\"target_modules\": [\"q\"], \"r\": 0"), "r: 0: expected an integer from 1 to 65536"},
	    {LORA("\"target_modules\": [\"q\"], \"r\": 2.5"), "r: 2.5: expected an integer"},
	    {LORA("\"target_modules\": [\"q\"], \"lora_alpha\": \"x\""),
	     "lora_alpha: \"x\": expected a number"},
	    {LORA("\"target_modules\": [\"q\"], \"lora_dropout\": 1.5"),
	     "lora_dropout: 1.5: expected a number from 0 to 1"},
	    {LORA("\"target_modules\": [\"q\"], \"use_dora\": 1"), "use_dora: 1: expected true or false"},
	    {LORA("\"target_modules\": [\"q\"], \"lora_bias\": true"), "lora_bias: true: not supported"},
	    {LORA("\"target_modules\": [\"q\"], \"trainable_token_indices\": [1]"),
	     "trainable_token_indices: [1]: not supported"},
	    {LORA("\"target_modules\": [\"q\"], \"use_new_thing\": true"),
	     "use_new_thing: true: this key is not known"},
	    {LORA("\"target_modules\": [\"q\"], \"init_lora_weights\": \"loftq\""),
	     "init_lora_weights: \"loftq\": not supported"},
	    {LORA("\"target_modules\": 3"), "target_modules: 3: expected a list of names"},
	    {LORA("\"target_modules\": [\"\"]"), "target_modules: [\"\"]: expected a list of names"},
	    {LORA("\"r\": 4"), "target_modules names no module"},
	    {LORA("\"target_modules\": [\"q\"], \"rank_pattern\": {\"k\": 0}"),
	     "rank_pattern.k: 0: expected"},
	    {LORA("\"target_modules\": \".*\", \"layers_to_transform\": 1"),
	     "layers_to_transform: 1: only possible"},
	    {LORA("\"target_modules\": [\"q\"], \"task_type\": 7"), "task_type: 7: expected a string"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct peft_config c = {0};
		struct error err;

		ck_fails(parse(cases[i].text, &c, &err), &err, cases[i].words);
	}
}
END_TEST

START_TEST(modules_are_those_that_peft_finds)
{
	_cleanup_(peft_config_free) struct peft_config list = {0}, regex = {0}, all = {0}, layers = {0};
	struct error err;
	int64_t rank;
	double scale;

	ck_ok(parse(LORA("\"r\": 4, \"lora_alpha\": 8, \"target_modules\": [\"q_proj\", \"mlp.up_proj\"], "
	                 "\"exclude_modules\": [\"layers.3.self_attn.q_proj\"], \"rank_pattern\": "
	                 "{\"layers.1.mlp.up_proj\": 2}, \"alpha_pattern\": {\"q_pro.\": 16}, "
	                 "\"modules_to_save\": [\"lm_head\", \"layers.7\"]"),
	            &list, &err),
	      &err);
	ck_assert_int_eq(rank_of(&list, "model.layers.0.self_attn.q_proj", &scale), 4);
	ck_assert_double_eq(scale, 4);
	ck_assert_int_eq(rank_of(&list, "q_proj", &scale), 4);
	ck_assert_int_eq(rank_of(&list, "model.layers.0.self_attn.xq_proj", &scale), 0);
	ck_assert_int_eq(rank_of(&list, "model.layers.1.mlp.up_proj", &scale), 2);
	ck_assert_double_eq(scale, 4);
	ck_assert_int_eq(rank_of(&list, "model.layers.11.mlp.up_proj", &scale), 4);
	ck_assert_double_eq(scale, 2);
	ck_assert_int_eq(rank_of(&list, "model.layers.3.self_attn.q_proj", &scale), 0);
	ck_assert_int_eq(rank_of(&list, "model.layers.7.self_attn.q_proj", &scale), 0);
	ck_assert(peft_config_saves(&list, "lm_head"));
	ck_assert(peft_config_saves(&list, "model.layers.7.mlp"));
	ck_assert(!peft_config_saves(&list, "model.layers.70.mlp"));

	ck_ok(parse(LORA("\"r\": 16, \"lora_alpha\": 4, \"use_rslora\": true, \"target_modules\": "
	                 "\"model\\\\.layers\\\\.\\\\d+\\\\.mlp\\\\.(up|down)_proj\""),
	            &regex, &err),
	      &err);
	ck_assert_int_eq(rank_of(&regex, "model.layers.12.mlp.up_proj", &scale), 16);
	ck_assert_double_eq(scale, 1);
	ck_assert_int_eq(rank_of(&regex, "model.layers.12.mlp.gate_proj", &scale), 0);
	ck_assert_int_eq(rank_of(&regex, "x.model.layers.12.mlp.up_proj", &scale), 0);

	ck_ok(parse(LORA("\"target_modules\": \"all-linear\""), &all, &err), &err);
	ck_assert_int_eq(rank_of(&all, "model.layers.0.mlp.gate_proj", &scale), 8);
	ck_assert_int_eq(rank_of(&all, "lm_head", &scale), 0);
	ck_assert_int_eq(rank_of(&all, "model.embed_tokens", &scale), 0);

	ck_ok(parse(LORA("\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [1, 3], "
	                 "\"layers_pattern\": \"layers\""),
	            &layers, &err),
	      &err);
	ck_assert_int_eq(rank_of(&layers, "model.layers.3.self_attn.q_proj", &scale), 8);
	ck_assert_int_eq(rank_of(&layers, "model.layers.2.self_attn.q_proj", &scale), 0);
	ck_assert_int_eq(rank_of(&layers, "model.blocks.3.self_attn.q_proj", &scale), 0);
	str_list_free(steal_pointer(layers.layers_pattern));
	ck_assert_int_eq(rank_of(&layers, "model.blocks.3.self_attn.q_proj", &scale), 8);

	free(regex.target_pattern);
	regex.target_pattern = strdup("(q");
	ck_fails(peft_config_match(&regex, "q", &rank, &scale, &err), &err,
	         "target_modules: regular expression \"(q\"");
	free(regex.target_pattern);
	regex.target_pattern = strdup("(a*)*b");
	ck_fails(peft_config_match(&regex, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaacb", &rank, &scale, &err),
	         &err, "takes too long");
}
END_TEST

START_TEST(a_config_reads_back_as_it_was_written)
{
	static const char text[] = LORA("\"r\": 4, \"lora_alpha\": 8.5, \"lora_dropout\": 0.25, "
	                                "\"use_rslora\": true, \"use_dora\": true, "
	                                "\"fan_in_fan_out\": true, \"target_modules\": [\"q_proj\", "
	                                "\"down_proj\"], \"exclude_modules\": \"x.*\", "
	                                "\"modules_to_save\": [\"lm_head\"], \"rank_pattern\": {\"a\": 2}, "
	                                "\"alpha_pattern\": {\"b\": 3}, "
	                                "\"layers_to_transform\": [1], \"init_lora_weights\": "
	                                "\"pissa_niter_4\", \"task_type\": \"CAUSAL_LM\", "
	                                "\"base_model_name_or_path\": \"/models/base\"");
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/" PEFT_CONFIG_FILE, dir);
	_cleanup_(peft_config_free) struct peft_config c = {0}, again = {0};
	_cleanup_json_ json_t *wanted = NULL, *written = NULL;
	struct error err;
	const char *key;
	json_t *v;

	ck_ok(parse(text, &c, &err), &err);
	ck_ok(peft_config_write(dir, &c, &err), &err);
	ck_ok(peft_config_read(dir, &again, &err), &err);
	ck_ok(json_read_file(path, &written, &err), &err);
	ck_ok(json_parse(text, strlen(text), "text", &wanted, &err), &err);
	json_object_foreach(wanted, key, v)
	    ck_assert_msg(json_equal(v, json_object_get(written, key)), "%s differs", key);
	ck_assert_str_eq(json_get_string(written, "bias", ""), "none");
	ck_assert_int_eq(again.pissa_iterations, 4);
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

/* How A and B began: what PEFT writes for it, and again after it was read. */
START_TEST(beginnings_are_read_and_written)
{
	static const struct {
		const char *text, *written;
		enum peft_init init;
		int64_t iterations;
	} cases[] = {
	    {"true", "true", PEFT_INIT_DEFAULT, 0},
	    {"null", "true", PEFT_INIT_DEFAULT, 0},
	    {"false", "false", PEFT_INIT_RANDOM, 0},
	    {"\"gaussian\"", "\"gaussian\"", PEFT_INIT_GAUSSIAN, 0},
	    {"\"eva\"", "true", PEFT_INIT_DEFAULT, 0},
	    {"\"orthogonal\"", "true", PEFT_INIT_DEFAULT, 0},
	    {"\"pissa\"", "\"pissa\"", PEFT_INIT_PISSA, 0},
	    {"\"pissa_niter_16\"", "\"pissa_niter_16\"", PEFT_INIT_PISSA, 16},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/" PEFT_CONFIG_FILE, dir);
		_cleanup_free_ char *text =
		    str_printf(LORA("\"target_modules\": [\"q\"], \"init_lora_weights\": %s"), cases[i].text);
		_cleanup_(peft_config_free) struct peft_config c = {0};
		_cleanup_json_ json_t *written = NULL;
		_cleanup_free_ char *init = NULL;
		struct error err;

		ck_ok(parse(text, &c, &err), &err);
		ck_assert_int_eq(c.init, cases[i].init);
		ck_assert_int_eq(c.pissa_iterations, cases[i].iterations);
		ck_ok(peft_config_write(dir, &c, &err), &err);
		ck_ok(json_read_file(path, &written, &err), &err);
		init = json_dumps(json_object_get(written, "init_lora_weights"), JSON_ENCODE_ANY);
		ck_assert_str_eq(init, cases[i].written);
		ck_ok(file_remove_tree(dir, &err), &err);
	}
}
END_TEST

START_TEST(names_of_tensors_are_those_of_peft)
{
	static const struct {
		const char *tensor, *name;
		enum peft_role role;
		bool written;
	} cases[] = {
	    {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
	     "model.layers.0.self_attn.q_proj", PEFT_A, true},
	    {"base_model.model.model.layers.0.mlp.down_proj.lora_B.weight", "model.layers.0.mlp.down_proj",
	     PEFT_B, true},
	    {"base_model.model.q.lora_magnitude_vector", "q", PEFT_MAGNITUDE, true},
	    {"base_model.model.q.lora_magnitude_vector.weight", "q", PEFT_MAGNITUDE, false},
	    {"base_model.model.model.embed_tokens.lora_embedding_A", "model.embed_tokens", PEFT_EMBEDDING_A,
	     true},
	    {"base_model.model.model.embed_tokens.lora_embedding_B", "model.embed_tokens", PEFT_EMBEDDING_B,
	     true},
	    {"base_model.model.model.embed_tokens.base_layer.weight", "model.embed_tokens.weight", PEFT_WHOLE,
	     false},
	    {"base_model.model.lm_head.weight", "lm_head.weight", PEFT_WHOLE, true},
	};
	_cleanup_free_ char *none = NULL;
	struct error err = ERROR_INIT;
	enum peft_role role;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *name = NULL, *tensor = peft_tensor_name(cases[i].name, cases[i].role);

		ck_ok(peft_tensor_parse(cases[i].tensor, &name, &role, &err), &err);
		ck_assert_str_eq(name, cases[i].name);
		ck_assert_int_eq(role, cases[i].role);
		ck_assert_int_eq(str_eq(tensor, cases[i].tensor), cases[i].written);
	}
	ck_fails(peft_tensor_parse("model.q.lora_A.weight", &none, &role, &err), &err, "does not begin with");
	ck_fails(peft_tensor_parse("base_model.model.q.lora_B.bias", &none, &role, &err), &err,
	         "this part of an adapter is not supported");
}
END_TEST

/* ---- adapters on disk ---- */

static int fill(void *context, size_t index, size_t offset, size_t len, void *buf, struct error *err)
{
	(void)context, (void)index, (void)offset, (void)err;
	memset(buf, 0, len);
	return 0;
}

struct shape {
	const char *name;
	int64_t rows, columns; /* columns 0: a vector */
};

static void write_adapter(const char *dir, const char *config, const struct shape *shapes, size_t n)
{
	struct tensor_source sources[8];
	struct error err = ERROR_INIT;
	_cleanup_free_ char *path = str_printf("%s/" PEFT_CONFIG_FILE, dir);

	for (size_t i = 0; i < n; i++)
		sources[i] = (struct tensor_source){.name = shapes[i].name,
		                                    .type = TENSOR_F32,
		                                    .dims = shapes[i].columns ? 2 : 1,
		                                    .shape = {shapes[i].rows, shapes[i].columns},
		                                    .fill = fill};
	ck_ok(file_write_atomic(path, config, strlen(config), 0644, &err), &err);
	ck_ok(safetensors_write(dir, PEFT_WEIGHTS_STEM, sources, n, 0, &err), &err);
}

#define M(name, suffix) "base_model.model." name "." suffix
#define Q               "layers.0.q_proj"

START_TEST(an_adapter_fits_its_base_or_is_refused)
{
	static const struct hf_parameter base[] = {
	    {"embed_tokens.weight", 2, {10, 4}, false, false}, {Q ".weight", 2, {6, 4}, false, false},
	    {"layers.0.up.weight", 2, {4, 4}, false, false},   {"norm.weight", 1, {4}, false, false},
	    {"lm_head.weight", 2, {10, 4}, false, false},
	};
	static const char
	    plain[] = LORA("\"r\": 2, \"target_modules\": [\"q_proj\"]"),
	    dora[] = LORA("\"r\": 2, \"target_modules\": [\"q_proj\"], \"use_dora\": true"),
	    head[] = LORA("\"r\": 2, \"target_modules\": [\"q_proj\"], \"modules_to_save\": [\"lm_head\"]"),
	    turned[] = LORA("\"r\": 2, \"target_modules\": [\"q_proj\", \"up\"], \"fan_in_fan_out\": true"),
	    embed[] = LORA("\"r\": 2, \"target_modules\": [\"embed_tokens\"]");
	static const struct {
		const char *config, *words; /* NULL: it is accepted */
		struct shape shapes[4];
	} cases[] = {
	    {plain, NULL, {{M(Q, "lora_A.weight"), 2, 4}, {M(Q, "lora_B.weight"), 6, 2}}},
	    {dora,
	     NULL,
	     {{M(Q, "lora_A.weight"), 2, 4},
	      {M(Q, "lora_B.weight"), 6, 2},
	      {M(Q, "lora_magnitude_vector"), 6, 0}}},
	    {head,
	     NULL,
	     {{M(Q, "lora_A.weight"), 2, 4}, {M(Q, "lora_B.weight"), 6, 2}, {M("lm_head", "weight"), 10, 4}}},
	    {turned,
	     NULL,
	     {{M(Q, "lora_A.weight"), 2, 6},
	      {M(Q, "lora_B.weight"), 4, 2},
	      {M("layers.0.up", "lora_A.weight"), 2, 4},
	      {M("layers.0.up", "lora_B.weight"), 4, 2}}},
	    {embed,
	     NULL,
	     {{M("embed_tokens", "lora_embedding_A"), 2, 10}, {M("embed_tokens", "lora_embedding_B"), 4, 2}}},
	    {plain,
	     "lora_A.weight has shape [3, 4]; its rank in adapter_config.json needs [2, 4]",
	     {{M(Q, "lora_A.weight"), 3, 4}, {M(Q, "lora_B.weight"), 6, 3}}},
	    {plain,
	     "lora_B.weight has shape [6, 3]; its rank",
	     {{M(Q, "lora_A.weight"), 2, 4}, {M(Q, "lora_B.weight"), 6, 3}}},
	    {plain,
	     "the adapter of layers.0.q_proj is for [8, 4]; the base has [6, 4]: it is another model",
	     {{M(Q, "lora_A.weight"), 2, 4}, {M(Q, "lora_B.weight"), 8, 2}}},
	    {plain, "module layers.0.q_proj lacks its matrix B", {{M(Q, "lora_A.weight"), 2, 4}}},
	    {plain,
	     "the base has no layers.9.q_proj.weight",
	     {{M("layers.9.q_proj", "lora_A.weight"), 2, 4}, {M("layers.9.q_proj", "lora_B.weight"), 6, 2}}},
	    {plain,
	     "target_modules of adapter_config.json does not name layers.0.up",
	     {{M("layers.0.up", "lora_A.weight"), 2, 4}, {M("layers.0.up", "lora_B.weight"), 4, 2}}},
	    {dora,
	     "lacks a magnitude vector, but use_dora is true",
	     {{M(Q, "lora_A.weight"), 2, 4}, {M(Q, "lora_B.weight"), 6, 2}}},
	    {plain,
	     "has a magnitude vector, but use_dora is false",
	     {{M(Q, "lora_A.weight"), 2, 4},
	      {M(Q, "lora_B.weight"), 6, 2},
	      {M(Q, "lora_magnitude_vector"), 6, 0}}},
	    {dora,
	     "lora_magnitude_vector has shape [4]; the module needs [6]",
	     {{M(Q, "lora_A.weight"), 2, 4},
	      {M(Q, "lora_B.weight"), 6, 2},
	      {M(Q, "lora_magnitude_vector"), 4, 0}}},
	    {head,
	     "modules_to_save names lm_head.weight, which is missing",
	     {{M(Q, "lora_A.weight"), 2, 4}, {M(Q, "lora_B.weight"), 6, 2}}},
	    {head,
	     "tensor base_model.model.lm_head.weight has shape [12, 4]; the base needs [10, 4]",
	     {{M(Q, "lora_A.weight"), 2, 4}, {M(Q, "lora_B.weight"), 6, 2}, {M("lm_head", "weight"), 12, 4}}},
	    {turned,
	     "target_modules names layers.0.up, whose matrices are missing",
	     {{M(Q, "lora_A.weight"), 2, 6}, {M(Q, "lora_B.weight"), 4, 2}}},
	    {plain, "its name does not begin with base_model.model.", {{"q.lora_A.weight", 2, 4}}},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(peft_adapter_closep) struct peft_adapter *a = NULL, *alone = NULL;
		_cleanup_free_ char *dir = unit_tmpdir();
		struct error err = ERROR_INIT;
		size_t n = 0;

		while (n < 4 && cases[i].shapes[n].name)
			n++;
		ck_assert(!peft_is_adapter(dir));
		write_adapter(dir, cases[i].config, cases[i].shapes, n);
		ck_assert(peft_is_adapter(dir));
		if (cases[i].words) {
			ck_fails(peft_adapter_open(dir, base, ARRAY_SIZE(base), &a, &err), &err,
			         cases[i].words);
			ck_assert(strstr(err.message, dir));
		} else {
			ck_ok(peft_adapter_open(dir, base, ARRAY_SIZE(base), &a, &err), &err);
			ck_ok(peft_adapter_open(dir, NULL, 0, &alone, &err), &err);
			ck_assert_uint_ge(a->n_modules, 1);
			ck_assert_uint_eq(a->n_wholes, cases[i].config == head);
			ck_assert_int_eq(a->modules[0].transposed,
			                 cases[i].config == turned || cases[i].config == embed);
			ck_assert_int_eq(a->modules[0].magnitude != NULL, cases[i].config == dora);
			ck_assert_uint_eq(a->modules[0].base, cases[i].config == embed ? 0 : 1);
		}
		ck_ok(file_remove_tree(dir, &err), &err);
	}
}
END_TEST

/* A run has one rank and one scale for all modules. */
START_TEST(a_run_goes_on_from_an_adapter_of_its_keys)
{
	static const struct shape shapes[] = {{M(Q, "lora_A.weight"), 2, 4}, {M(Q, "lora_B.weight"), 6, 2}};
	struct model_parameter parameter[] = {
	    {.saved = M(Q, "lora_A.weight"), .dims = 2, .shape = {2, 4}},
	    {.saved = M(Q, "lora_B.weight"), .dims = 2, .shape = {6, 2}},
	};
	const struct model_layout layout = {.adapts = true, .parameters = 2, .parameter = parameter};
	static const struct {
		const char *config, *words; /* NULL: it is accepted */
		double alpha;
	} cases[] = {
	    {LORA("\"r\": 2, \"lora_alpha\": 16, \"target_modules\": [\"q_proj\"]"), NULL, 16},
	    /* As many digits as the message has. */
	    {LORA("\"r\": 2, \"lora_alpha\": 22.627416997969522, \"target_modules\": [\"q_proj\"]"), NULL,
	     22.627417},
	    {LORA("\"r\": 2, \"lora_alpha\": 22.627416997969522, \"target_modules\": [\"q_proj\"]"),
	     "expected lora.rank = 2, lora.alpha = 22.627417 and", 22.6},
	    {LORA("\"r\": 2, \"lora_alpha\": 16, \"target_modules\": [\"q_proj\"], \"alpha_pattern\": "
	          "{\"q_proj\": 8}"),
	     "gives layers.0.q_proj the rank 2 and the scale 4 (rank_pattern, alpha_pattern); expected "
	     "rank 2 and scale 8",
	     16},
	    {LORA("\"r\": 2, \"lora_alpha\": 16, \"target_modules\": [\"q_proj\"], \"alpha_pattern\": "
	          "{\"k_proj\": 8}"),
	     NULL, 16},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct model_tuning tuning = {.kind = TUNE_LORA, .rank = 2, .alpha = cases[i].alpha};
		_cleanup_(peft_adapter_closep) struct peft_adapter *a = NULL;
		_cleanup_free_ char *dir = unit_tmpdir();
		struct error err = ERROR_INIT;
		int r;

		write_adapter(dir, cases[i].config, shapes, ARRAY_SIZE(shapes));
		r = adapter_open(dir, &tuning, &layout, &a, &err);
		if (cases[i].words)
			ck_fails(r, &err, cases[i].words);
		else
			ck_ok(r, &err);
		ck_ok(file_remove_tree(dir, &err), &err);
	}
}
END_TEST

START_TEST(a_pickled_adapter_is_not_read)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *bin = str_printf("%s/adapter_model.bin", dir),
	                    *config = str_printf("%s/" PEFT_CONFIG_FILE, dir);
	static const char text[] = LORA("\"target_modules\": [\"q\"]");
	struct error err = ERROR_INIT;
	struct peft_adapter *a;

	ck_ok(file_write_atomic(config, text, strlen(text), 0644, &err), &err);
	ck_fails(peft_adapter_open(dir, NULL, 0, &a, &err), &err, "adapter_model.safetensors");
	ck_ok(file_write_atomic(bin, "", 0, 0644, &err), &err);
	ck_fails(peft_adapter_open(dir, NULL, 0, &a, &err), &err, "adapter_model.bin is not read");
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("peft");
	TCase *tc = tcase_create("peft");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, what_is_not_supported_is_named);
	tcase_add_test(tc, modules_are_those_that_peft_finds);
	tcase_add_test(tc, a_config_reads_back_as_it_was_written);
	tcase_add_test(tc, beginnings_are_read_and_written);
	tcase_add_test(tc, names_of_tensors_are_those_of_peft);
	tcase_add_test(tc, an_adapter_fits_its_base_or_is_refused);
	tcase_add_test(tc, a_run_goes_on_from_an_adapter_of_its_keys);
	tcase_add_test(tc, a_pickled_adapter_is_not_read);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
