/* SPDX-License-Identifier: Apache-2.0 */
/* What dtrain estimate computes: the names of devices, the arithmetic of costs, and the plans of known
 * models. */
#include "dtrain_fixture.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/train/estimate.h"

#define GIB ((double)((int64_t)1 << 30))

/* The shapes of Llama 3.1 8B, 70B and 405B, from their papers and config.json. */
enum { LLAMA_8B, LLAMA_70B, LLAMA_405B };
static const struct {
	const char *name;
	int hidden, intermediate, layers, heads;
	double parameters;
} llamas[] = {{"8B", 4096, 14336, 32, 32, 8030261248.0},
              {"70B", 8192, 28672, 80, 64, 70553706496.0},
              {"405B", 16384, 53248, 126, 128, 405853388800.0}};

static void llama(int which, struct model_config *c)
{
	_cleanup_free_ char *text = str_printf(
	    "{\"model_type\":\"llama\",\"hidden_size\":%d,\"intermediate_size\":%d,"
	    "\"num_hidden_layers\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":8,"
	    "\"vocab_size\":128256,\"max_position_embeddings\":131072,\"rope_theta\":500000.0,"
	    "\"tie_word_embeddings\":false}",
	    llamas[which].hidden, llamas[which].intermediate, llamas[which].layers, llamas[which].heads);
	struct error err = ERROR_INIT;

	ck_ok(model_config_parse(text, strlen(text), "config.json", c, &err), &err);
}

/* ---- devices ---- */

static const struct {
	const char *text;
	int nodes, per_node; /* nodes 0: no number was given; -1: an error */
	const char *name;    /* or what the error contains */
} notations[] = {
    {"H100-80GB", 0, 0, "H100-80GB"},
    {"8xH100-80GB", 1, 8, "H100-80GB"},
    {"8xh100", 1, 8, "H100-80GB"},
    {"8xA100", -1, 0, "did you mean A100-80GB? Expected one of H100-80GB"},
    {"4xcpu", 1, 4, "cpu"},
    {"12xcpu", 1, 12, "cpu"},
    {"16384xH100-80GB", 2048, 8, "H100-80GB"},
    {"3x4xa100-40gb", 3, 4, "A100-40GB"},
    {"12xH100-80GB", -1, 0, "12 devices are no whole nodes of 8; expected NODESxDEVICESxH100-80GB"},
    {"8xH10", -1, 0, "did you mean H100-80GB? Expected one of H100-80GB, H200-141GB,"},
    {"H200", 0, 0, "H200-141GB"},
    {"H20", -1, 0, "did you mean H"},
    {"MI300X", -1, 0, "no device \"MI300X\" is known"},
    {"0xcpu", -1, 0, "0 devices: expected 1 to"},
    {"99999999xcpu", -1, 0, "devices: expected 1 to"},
    {"1048576x2xcpu", -1, 0, "more than"},
    {"8x", -1, 0, "no device \"\" is known"},
    {"", -1, 0, "no device \"\" is known"},
};

START_TEST(devices_are_named)
{
	struct hardware_set set = {.nodes = -1};
	struct error err = ERROR_INIT;
	int r = hardware_parse(notations[_i].text, &set, &err);

	if (notations[_i].nodes < 0) {
		ck_fails(r, &err, notations[_i].name);
		return;
	}
	ck_ok(r, &err);
	ck_assert_int_eq(set.nodes, notations[_i].nodes);
	ck_assert_int_eq(set.per_node, notations[_i].per_node);
	ck_assert_str_eq(set.device.name, notations[_i].name);
}
END_TEST

START_TEST(boards_are_known)
{
	ck_assert_str_eq(hardware_by_board("NVIDIA H100 80GB HBM3", 85520809984)->name, "H100-80GB");
	ck_assert_str_eq(hardware_by_board("NVIDIA A100-SXM4-40GB", 42949672960)->name, "A100-40GB");
	ck_assert_str_eq(hardware_by_board("NVIDIA A100-SXM4-80GB", 85899345920)->name, "A100-80GB");
	ck_assert_str_eq(hardware_by_board("NVIDIA GeForce RTX 4090", 25757220864)->name, "RTX4090-24GB");
	ck_assert_ptr_null(hardware_by_board("AMD Instinct MI300X", 206158430208));
}
END_TEST

/* Memory is what a program can have of a GPU: a worker's device has so much. */
START_TEST(the_driver_keeps_a_part)
{
	const struct hardware *h;
	struct hardware found;

	for (size_t i = 0; (h = hardware_at(i)); i++) {
		if (h->sizing.engine != DEVICE_ENGINE_CUDA)
			continue;
		ck_assert_int_lt(h->memory, h->shown);
		ck_assert_double_gt((double)h->memory, 0.97 * (double)h->shown);
		ck_assert_int_eq(hardware_usable(h, h->shown), h->memory);
		ck_assert_int_le(llabs(hardware_usable(h, h->shown / 2) - h->memory / 2), 1);
	}
	/* nvidia-smi shows 81559 MiB, and torch.cuda has a total of 79.1 GiB. */
	ck_assert(hardware_find("H100", &found));
	ck_assert_double_eq_tol((double)found.memory / GIB, 79.1, 0.05);
	ck_assert(hardware_find("H200", &found));
	ck_assert_double_eq_tol((double)found.memory / GIB, 139.8, 0.05);
}
END_TEST

/* ---- costs, against sums by hand ---- */

/* A device whose every rate is a round number. */
static struct hardware round_hardware(void)
{
	return (struct hardware){.name = "round",
	                         .sizing = {.engine = DEVICE_ENGINE_CUDA},
	                         .memory = (int64_t)1 << 36,
	                         .fp32 = 1e12,
	                         .bf16 = 1e14,
	                         .fp16 = 1e14,
	                         .bandwidth = 1e12,
	                         .intra = 1e11,
	                         .inter = 1e10,
	                         .gemm = 0.5,
	                         .attention_forward = 0.5,
	                         .attention_backward = 0.25,
	                         .portable_forward = 0.2,
	                         .portable_backward = 0.1,
	                         .stream = 1,
	                         .link = 1};
}

#define ck_near(a, b) ck_assert_double_eq_tol((a), (b), 1e-9 * fabs(b))

START_TEST(products_by_the_roofline)
{
	struct hardware h = round_hardware();

	/* 2·1000³ operations at half of 1e12. */
	ck_near(cost_gemm(&h, DTYPE_F32, RATE_PRODUCT_FORWARD, 1000, 1000, 1000, 4, false), 4e-3);
	/* One row: 2·(1000 + 1000·1000) + 2·1000 bytes at 1e12 outweigh 2e6 operations at 5e13. */
	ck_near(cost_gemm(&h, DTYPE_BF16, RATE_PRODUCT_FORWARD, 1, 1000, 1000, 2, false), 2.004e-6);
	/* C in fp32, read and written: 2·2·1000·8 + 8·10⁶ bytes. */
	ck_near(cost_gemm(&h, DTYPE_BF16, RATE_PRODUCT_FORWARD, 1000, 1000, 8, 4, true), 8.032e-6);
	h.start = 1e-5;
	ck_near(cost_gemm(&h, DTYPE_F32, RATE_PRODUCT_FORWARD, 1000, 1000, 1000, 4, false), 4.01e-3);
}
END_TEST

/* A rank alone computes at 8e9 operations a second, each of five at the same time at 2e9; three are between
 * them, on a logarithmic scale. A file without the number of ranks says nothing of several: it is refused. */
START_TEST(ranks_share_the_processor)
{
	_cleanup_free_ struct rates *r = calloc(1, sizeof(*r)), *again = calloc(1, sizeof(*again));
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;

	r->sets = 2;
	for (int i = 0; i < 2; i++) {
		struct rate_set *s = &r->set[i];
		double *lists[] = {s->product[0][0], s->attention[0][0], s->operation[0][0]};

		s->threads = 1;
		s->ranks = i ? 5 : 1;
		s->has[DTYPE_F32] = true;
		for (size_t k = 0; k < sizeof(s->product[0]) / sizeof(double); k++)
			lists[0][k] = i ? 2e9 : 8e9;
		for (size_t k = 0; k < sizeof(s->attention[0]) / sizeof(double); k++)
			lists[1][k] = i ? 2e9 : 8e9;
		for (size_t k = 0; k < sizeof(s->operation[0]) / sizeof(double); k++)
			lists[2][k] = i ? 2e9 : 8e9;
	}
	ck_near(rates_product(r, 1, 1, DTYPE_F32, RATE_PRODUCT_INPUT, 300, 300, 300), 8e9);
	ck_near(rates_product(r, 3, 1, DTYPE_F32, RATE_PRODUCT_INPUT, 300, 300, 300), 4e9);
	ck_near(rates_product(r, 7, 1, DTYPE_F32, RATE_PRODUCT_INPUT, 300, 300, 300), 2e9);
	ck_near(rates_attention(r, 5, 1, DTYPE_F32, true, 100, 64), 2e9);
	ck_near(rates_operation(r, 1, 3, DTYPE_F32, RATE_COPY, 1e6), 24e9);
	ck_near(rates_operation(r, 2, 3, DTYPE_F32, RATE_COPY, 1e6), 6e9);
	json = rates_encode(r);
	ck_ok(rates_decode(json, "file", again, &err), &err);
	ck_near(rates_operation(again, 3, 1, DTYPE_F32, RATE_COPY, 1e6), 4e9);
	for (size_t i = 0; i < 2; i++)
		json_object_del(json_array_get(json_object_get(json, "sets"), i), "ranks");
	ck_fails(rates_decode(json, "file", again, &err), &err,
	         "file: an earlier release measured it, without ranks that run at the same time; write a new "
	         "one with dtrain estimate --measure");
}
END_TEST

START_TEST(collectives_by_the_slowest_link)
{
	struct hardware h = round_hardware();

	ck_assert_double_eq(cost_gather(&h, 8e9, 1, 1), 0);
	/* Seven eighths of 8 GB enter each rank at 1e11. */
	ck_near(cost_gather(&h, 8e9, 1, 8), 0.07);
	/* Three quarters enter each node at 8 · 1e10, 31/32 each rank at 1e11. */
	ck_near(cost_gather(&h, 8e9, 4, 8), 0.0775);
	h.inter = 5e9;
	ck_near(cost_gather(&h, 8e9, 4, 8), 0.15);
	/* One rank a node has the network alone. */
	ck_near(cost_gather(&h, 8e9, 2, 1), 0.8);
	h.latency = 1e-3;
	ck_near(cost_gather(&h, 8e9, 2, 1), 0.801);
	ck_near(cost_gather(&h, 8e9, 1, 8), 0.077);
}
END_TEST

/* Communication can be no faster than its link, and what is hidden is not waited for. */
START_TEST(slow_links_are_waited_for)
{
	struct hardware_set fast = {round_hardware(), 1, 8}, slow = fast;
	struct train_options o;
	struct model_config c;
	struct estimate a, b;
	struct error err = ERROR_INIT;

	llama(LLAMA_8B, &c);
	train_options_default(&o);
	o.precision = DTYPE_BF16;
	slow.device.intra = 1e9;
	ck_ok(estimate_run(&(struct estimate_input){&c, &o, 4096, &fast}, &a, &err), &err);
	ck_ok(estimate_run(&(struct estimate_input){&c, &o, 4096, &slow}, &b, &err), &err);
	/* 2 · 4 bytes of 8.03e9 parameters, seven eighths of them, at 1e9. */
	ck_assert_double_eq_tol(b.cost.communication, 56.2, 0.1);
	ck_assert_double_ge(b.cost.step, 56.2);
	ck_assert_double_eq_tol(a.cost.communication, 0.562, 0.001);
	ck_assert_double_le(a.cost.exposed, 0.1 * a.cost.communication);
	ck_assert_double_eq(a.cost.forward, b.cost.forward);
	ck_assert_double_eq_tol(
	    a.cost.step, a.cost.forward + a.cost.backward + a.cost.head + a.cost.optimizer + a.cost.exposed,
	    1e-9);
}
END_TEST

/* Seconds of the collectives of a step by four ranks on so many processors. */
static double collectives(enum shard_strategy strategy, int processors, const struct rates *rates)
{
	struct hardware_set where = {.nodes = 1, .per_node = 4};
	struct train_options o;
	struct model_config c;
	struct estimate e;
	struct error err = ERROR_INIT;

	llama(LLAMA_8B, &c);
	train_options_default(&o);
	o.strategy = strategy;
	ck_assert(hardware_find("cpu", &where.device));
	hardware_fill_cpu(&where.device, 4, 1, processors);
	where.device.rates = rates;
	ck_ok(estimate_run(&(struct estimate_input){&c, &o, 64, &where}, &e, &err), &err);
	return e.cost.communication;
}

/* Two ranks on each processor compute and copy half as fast, and in each collective a rank waits until the
 * others have had their turn. Of the table's rates, which are no measurements, no turns are counted. */
START_TEST(ranks_that_share_processors_wait_for_turns)
{
	_cleanup_free_ struct rates *r = calloc(1, sizeof(*r));
	int units = llamas[LLAMA_8B].layers + 2;
	double half, whole;

	r->sets = 1;
	r->set[0].threads = r->set[0].ranks = 1;
	for (int t = 0; t < RATE_TYPES; t++) {
		struct rate_set *s = &r->set[0];
		double *lists[] = {s->product[t][0], s->attention[t][0], s->operation[t][0]};
		size_t sizes[] = {sizeof(s->product[0]), sizeof(s->attention[0]), sizeof(s->operation[0])};

		s->has[t] = true;
		for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
			for (size_t k = 0; k < sizes[i] / sizeof(double); k++)
				lists[i][k] = 1e12;
	}
	/* ZeRO-2 sums each unit, and gathers it; DDP does both in one collective. */
	whole = collectives(SHARD_ZERO2, 4, r);
	half = collectives(SHARD_ZERO2, 2, r);
	ck_assert_double_eq_tol(half - 2 * whole, 2 * units * 1e-3, 1e-6);
	whole = collectives(SHARD_DDP, 4, r);
	half = collectives(SHARD_DDP, 2, r);
	ck_assert_double_eq_tol(half - 2 * whole, units * 1e-3, 1e-6);
	whole = collectives(SHARD_DDP, 4, NULL);
	half = collectives(SHARD_DDP, 2, NULL);
	ck_assert_double_eq_tol(half, 2 * whole, 1e-6);
}
END_TEST

/* ---- memory ---- */

static void estimate_llama(int which, const char *devices, int64_t row, int accumulation,
                           struct estimate_list *out)
{
	struct hardware_set set;
	struct train_options o;
	struct model_config c;
	struct error err = ERROR_INIT;

	llama(which, &c);
	train_options_default(&o);
	o.precision = DTYPE_BF16;
	o.accumulation = accumulation;
	ck_ok(hardware_parse(devices, &set, &err), &err);
	ck_ok(estimate_list(&(struct estimate_input){&c, &o, row, &set}, out, &err), &err);
}

static const struct estimate *find(const struct estimate_list *list, enum shard_strategy strategy,
                                   enum model_recompute recompute)
{
	for (size_t i = 0; i < list->count; i++)
		if (list->all[i].strategy == strategy && list->all[i].recompute == recompute &&
		    list->all[i].kept == 0 && list->all[i].outputs == 0)
			return &list->all[i];
	ck_abort_msg("no plan of strategy %d", strategy);
	return NULL;
}

/* Bytes of weights, gradients and optimizer state for each parameter: bf16 with fp32 AdamW. */
static double state_bytes(const struct estimate *e, int which)
{
	return (double)(e->bytes[BUFFER_WEIGHTS] + e->bytes[BUFFER_GRADIENTS] + e->bytes[BUFFER_OPTIMIZER]) /
	       llamas[which].parameters;
}

START_TEST(bytes_of_a_parameter)
{
	struct estimate_list list;
	double ranks = 8;

	estimate_llama(_i, "8xH100-80GB", 8192, 2, &list);
	/* Gradients are fp32: two bytes more than where they are bf16. */
	ck_assert_double_eq_tol(state_bytes(find(&list, SHARD_DDP, MODEL_RECOMPUTE_BLOCK), _i), 18, 0.01);
	ck_assert_double_eq_tol(state_bytes(find(&list, SHARD_ZERO1, MODEL_RECOMPUTE_BLOCK), _i),
	                        6 + 12 / ranks, 0.01);
	/* Of each block its input alone. */
	ck_assert_double_eq_tol(
	    (double)find(&list, SHARD_DDP, MODEL_RECOMPUTE_BLOCK)->bytes[BUFFER_ACTIVATIONS],
	    8192.0 * 2 *
	        (llamas[_i].hidden * (llamas[_i].layers + 2.0) + 2.0 * llamas[_i].hidden + 2048 +
	         2.0 * llamas[_i].intermediate),
	    0.01 * (double)find(&list, SHARD_DDP, MODEL_RECOMPUTE_BLOCK)->bytes[BUFFER_ACTIVATIONS]);
}
END_TEST

/* Bytes a parameter of mixed precision with Adam as the ZeRO papers have them, with gradients in two
 * bytes; ours are in four. */
static double published_bytes(enum shard_strategy strategy, double g)
{
	return strategy == SHARD_DDP     ? 16
	       : strategy == SHARD_ZERO1 ? 4 + 12 / g
	       : strategy == SHARD_ZERO2 ? 2 + 14 / g
	                                 : 16 / g;
}

static const struct {
	const char *devices;
	int ranks;
} sizes[] = {{"8xH100-80GB", 8}, {"64xH100-80GB", 64}, {"512xH100-80GB", 512}, {"16384xH100-80GB", 16384}};

/* The published bytes, plus two for each gradient that is held. With one micro-step some would lie in
 * activations. Slots are apart. */
START_TEST(bytes_as_published)
{
	for (int which = LLAMA_8B; which <= LLAMA_405B; which++) {
		double g = sizes[_i].ranks;
		struct estimate_list list;

		estimate_llama(which, sizes[_i].devices, 8192, 2, &list);
		for (int s = SHARD_DDP; s <= SHARD_ZERO3; s++) {
			enum shard_strategy strategy = (enum shard_strategy)s;
			double gradients = strategy >= SHARD_ZERO2 ? 2 / g : 2;

			ck_assert_double_eq_tol(
			    state_bytes(find(&list, strategy, MODEL_RECOMPUTE_BLOCK), which),
			    published_bytes(strategy, g) + gradients, 0.02);
		}
	}
}
END_TEST

/* cuDNN does not compute capped scores, so that nothing is planned for it. */
START_TEST(capped_scores_need_no_cudnn)
{
	struct device_sizing with = {.engine = DEVICE_ENGINE_CUDA, .cudnn = true}, without = with;
	struct device_shapes shapes = {.tokens = 8192,
	                               .max_sequence = 8192,
	                               .hidden = 64,
	                               .intermediate = 64,
	                               .heads = 64,
	                               .kv_heads = 8,
	                               .head_dim = 128,
	                               .vocab = 100,
	                               .logits_rows = 64,
	                               .type = DTYPE_BF16};

	without.cudnn = false;
	ck_assert_uint_gt(device_sizing_scratch(&with, &shapes), device_sizing_scratch(&without, &shapes));
	shapes.capped = true;
	ck_assert_uint_eq(device_sizing_scratch(&with, &shapes), device_sizing_scratch(&without, &shapes));
	shapes.capped = false;
	shapes.type = DTYPE_F16;
	ck_assert_uint_eq(device_sizing_scratch(&with, &shapes), device_sizing_scratch(&without, &shapes));
}
END_TEST

/* Attention on a GPU, by the kernels that there are for it: shares of 1e14, or of 1e12 in fp32. */
static const struct {
	enum dtype type;
	int head_dim;
	double cap, forward, backward;
} attentions[] = {
    {DTYPE_BF16, 64, 0, 5e13, 2.5e13},  {DTYPE_F16, 64, 0, 2e13, 1e13},     {DTYPE_F16, 128, 50, 2e13, 1e13},
    {DTYPE_BF16, 128, 50, 2e13, 1e13},  {DTYPE_BF16, 64, 50, 2e13, 1e13},   {DTYPE_F16, 32, 0, 1e11, 0.7e11},
    {DTYPE_BF16, 512, 0, 1e11, 0.7e11}, {DTYPE_BF16, 256, 0, 1.4e13, 6e12},
};

START_TEST(attention_by_its_kernels)
{
	struct hardware_set where = {round_hardware(), 1, 1};
	struct train_options o;
	struct model_config c;
	struct estimate fast, e;
	struct error err = ERROR_INIT;
	double operations;

	llama(LLAMA_8B, &c);
	train_options_default(&o);
	o.precision = DTYPE_BF16;
	o.micro_batch = 1;
	ck_ok(estimate_run(&(struct estimate_input){&c, &o, 4096, &where}, &fast, &err), &err);
	c.heads = 4096 / attentions[_i].head_dim;
	c.kv_heads = c.heads / 4;
	c.head_dim = attentions[_i].head_dim;
	c.attention_cap = attentions[_i].cap;
	o.precision = attentions[_i].type;
	ck_ok(estimate_run(&(struct estimate_input){&c, &o, 4096, &where}, &e, &err), &err);
	/* Two products, and five, of half of 4096² scores of 4096 elements in all, in 32 blocks. */
	operations = 32 * 2.0 * 4096 * 4096 * 4096;
	ck_assert_double_eq_tol(e.cost.forward - fast.cost.forward,
	                        operations / attentions[_i].forward - operations / 5e13,
	                        1e-6 * fast.cost.forward);
	ck_assert_double_eq_tol(e.cost.backward - fast.cost.backward,
	                        2.5 * (operations / attentions[_i].backward - operations / 2.5e13),
	                        1e-6 * fast.cost.backward);
}
END_TEST

/* A reward model's head gives one number where that of logits gives 128256, in time and in scratch. */
START_TEST(a_head_of_scores_takes_little)
{
	struct estimate logits, scores;
	struct hardware_set where;
	struct train_options o;
	struct model_config c;
	struct error err = ERROR_INIT;

	llama(LLAMA_8B, &c);
	train_options_default(&o);
	o.precision = DTYPE_F16; /* whose products a processor computes in fp32 */
	ck_ok(hardware_parse("4xcpu", &where, &err), &err);
	hardware_fill_cpu(&where.device, where.per_node, 1, where.per_node);
	ck_ok(estimate_run(&(struct estimate_input){&c, &o, 2048, &where}, &logits, &err), &err);
	model_config_set_scores(&c);
	o.preference.kind = PREFERENCE_REWARD;
	ck_ok(estimate_run(&(struct estimate_input){&c, &o, 2048, &where}, &scores, &err), &err);
	ck_assert_double_lt(scores.cost.head, 0.1 * logits.cost.head);
	ck_assert_uint_lt(scores.bytes[BUFFER_SCRATCH], logits.bytes[BUFFER_SCRATCH] / 2);
}
END_TEST

/* Muon waits for the momentum of a whole block; a rank computes all of a matrix of which it steps a part. */
START_TEST(muon_gathers_momentum)
{
	struct hardware_set one = {round_hardware(), 1, 1}, fast = {round_hardware(), 1, 8}, slow = fast;
	struct train_options o;
	struct model_config c;
	struct estimate all, a, b;
	struct error err = ERROR_INIT;

	llama(LLAMA_8B, &c);
	train_options_default(&o);
	o.precision = DTYPE_BF16;
	o.optimizer = OPTIMIZER_MUON;
	o.strategy = SHARD_ZERO1;
	slow.device.intra = 1e9;
	ck_ok(estimate_run(&(struct estimate_input){&c, &o, 4096, &one}, &all, &err), &err);
	ck_ok(estimate_run(&(struct estimate_input){&c, &o, 4096, &fast}, &a, &err), &err);
	ck_ok(estimate_run(&(struct estimate_input){&c, &o, 4096, &slow}, &b, &err), &err);
	/* 4 bytes of the blocks' 6.98e9 parameters, seven eighths of them, at 1e9 and at 1e11. */
	ck_assert_double_eq_tol(b.cost.optimizer - a.cost.optimizer, 24.2, 0.1);
	/* 218 million elements in 8 parts: the rank of gate's second half and up's first computes both, 0.54
	 * of the products of a block. */
	ck_assert_double_gt(a.cost.optimizer - 0.244, all.cost.optimizer / 4);
	ck_assert_double_lt(a.cost.optimizer - 0.244, all.cost.optimizer * 0.7);
}
END_TEST

/* Parameters that are too small to be divided are copied whole, each by the rank of its number: the estimate
 * lies between the rank with the most of them and the one with the least. */
START_TEST(copies_are_those_of_a_rank_in_the_middle)
{
	static const char small[] =
	    "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":128,"
	    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":2,"
	    "\"vocab_size\":700,\"tie_word_embeddings\":true}";
	struct hardware_set where = {.nodes = 1, .per_node = 4};
	size_t of_rank[4] = {0}, most = 0, least = SIZE_MAX;
	struct model_layout *layout = NULL;
	struct train_options o;
	struct model_config c;
	struct estimate e;
	struct error err = ERROR_INIT;

	ck_ok(model_config_parse(small, strlen(small), "config.json", &c, &err), &err);
	ck_ok(model_layout_create(&c, &layout, &err), &err);
	/* In fp32: the weight, and two moments. */
	for (int i = 0; i < layout->parameters; i++)
		of_rank[i % 4] += (size_t)layout->parameter[i].count * 12;
	model_layout_free(layout);
	for (int r = 0; r < 4; r++) {
		most = MAX(most, of_rank[r]);
		least = MIN(least, of_rank[r]);
	}
	train_options_default(&o);
	o.precision = DTYPE_F32;
	o.strategy = SHARD_DDP;
	o.copies_state = true;
	ck_assert(hardware_find("cpu", &where.device));
	hardware_fill_cpu(&where.device, 4, 1, 4);
	ck_ok(estimate_run(&(struct estimate_input){&c, &o, 64, &where}, &e, &err), &err);
	ck_assert_uint_gt(most, 2 * least);
	ck_assert_uint_eq(e.copies, least + (most - least) / 2);
}
END_TEST

/* What OpenBLAS 0.3.21 had resident of its buffer after the products of a step, on a processor with AVX-512.
 */
static const struct {
	int hidden, intermediate, heads;
	int64_t vocab, tokens;
	enum dtype type;
	size_t bytes;
} packings[] = {
    {128, 256, 4, 4096, 512, DTYPE_F32, 576 << 10},  {384, 768, 6, 259, 512, DTYPE_F32, 864 << 10},
    {384, 1152, 6, 4096, 512, DTYPE_F16, 960 << 10}, {512, 1024, 8, 4096, 1024, DTYPE_F32, 1664 << 10},
    {192, 576, 3, 259, 128, DTYPE_F32, 528 << 10},
};

static struct device_shapes packing_shapes(int hidden, int intermediate, int64_t vocab, int64_t tokens,
                                           enum dtype type)
{
	return (struct device_shapes){.tokens = tokens,
	                              .hidden = hidden,
	                              .intermediate = intermediate,
	                              .heads = hidden / 64,
	                              .kv_heads = hidden / 64,
	                              .head_dim = 64,
	                              .vocab = vocab,
	                              .logits_rows = tokens,
	                              .type = type};
}

START_TEST(libraries_copy_parts_of_matrices)
{
	struct device_shapes s = packing_shapes(packings[_i].hidden, packings[_i].intermediate,
	                                        packings[_i].vocab, packings[_i].tokens, packings[_i].type);
	double bytes = (double)cpu_packing_bytes(&s, false, 1, true), one;

	ck_assert_double_eq_tol(bytes / (double)packings[_i].bytes, 1, 0.001);
	/* Each thread has a part of A of its own. */
	s.type = DTYPE_F32;
	one = (double)cpu_packing_bytes(&s, false, 1, true);
	ck_assert_double_gt((double)cpu_packing_bytes(&s, false, 2, true), one);
	ck_assert_double_lt((double)cpu_packing_bytes(&s, false, 2, true), 2 * one);
}
END_TEST

/* By how many KiB a process grew that computed the products of a step with oneDNN 2.6.3, each twice, on a
 * processor with AVX512_BF16; some 100 are the library's own. */
static const struct {
	int hidden, intermediate;
	int64_t vocab, tokens;
	bool accumulates, orthogonalizes;
	int kib;
} kept_of_products[] = {
    {512, 1024, 259, 1024, false, false, 3152}, {192, 384, 8000, 128, false, false, 1716},
    {192, 384, 8000, 128, false, true, 2288},   {512, 2048, 4096, 1024, true, false, 5280},
    {512, 2048, 4096, 1024, true, true, 6884},
};

START_TEST(products_in_bf16_keep_code_and_sums)
{
	struct device_shapes s =
	    packing_shapes(kept_of_products[_i].hidden, kept_of_products[_i].intermediate,
	                   kept_of_products[_i].vocab, kept_of_products[_i].tokens, DTYPE_BF16);
	double kib;

	s.orthogonalizes = kept_of_products[_i].orthogonalizes;
	kib = (double)cpu_packing_bytes(&s, kept_of_products[_i].accumulates, 1, true) / 1024;
	ck_assert_double_eq_tol(kib + 100, kept_of_products[_i].kib, 260);
}
END_TEST

/* Muon multiplies a matrix of more rows than columns with its transpose, whose sums in fp32 have no place in
 * bf16: oneDNN keeps a square of the shorter side. A matrix that is wide needs none. */
START_TEST(tall_matrices_of_muon_keep_a_square)
{
	struct device_shapes s = packing_shapes(512, 1024, 259, 1024, DTYPE_BF16);
	size_t none = cpu_packing_bytes(&s, false, 1, true), tall, wide;

	s.orthogonalizes = true;
	tall = cpu_packing_bytes(&s, false, 1, true) - none;
	s.intermediate = 512;
	s.orthogonalizes = false;
	none = cpu_packing_bytes(&s, false, 1, true);
	s.orthogonalizes = true;
	wide = cpu_packing_bytes(&s, false, 1, true) - none;
	ck_assert_uint_gt(tall, wide + 512 * 512 * sizeof(float));
}
END_TEST

/* A gradient that is not computed has no copies of its operands. */
START_TEST(libraries_copy_nothing_of_what_is_frozen)
{
	struct device_shapes s = {.tokens = 512,
	                          .hidden = 768,
	                          .intermediate = 2048,
	                          .heads = 12,
	                          .kv_heads = 4,
	                          .head_dim = 64,
	                          .vocab = 32000,
	                          .logits_rows = 256,
	                          .type = _i ? DTYPE_BF16 : DTYPE_F32};
	size_t whole = cpu_packing_bytes(&s, false, 1, true), head, none;

	s.frozen_head = true;
	head = cpu_packing_bytes(&s, false, 1, true);
	s.frozen_blocks = true;
	none = cpu_packing_bytes(&s, false, 1, true);
	/* Of the head's gradient, 256 rows of 32000; then of gate's and up's, 4096 columns of 256. */
	if (_i == 0)
		ck_assert_uint_eq(whole - head, (32000 - 4096) * 256 * sizeof(float));
	ck_assert_uint_le(head, whole);
	ck_assert_uint_lt(none, head);
	ck_assert_uint_gt(none, 0);
}
END_TEST

/* One plan in bf16, with options that the caller has set otherwise. */
static void estimate_one(int which, const char *devices, int64_t row, struct train_options *o,
                         struct estimate *out)
{
	struct error err = ERROR_INIT;
	struct hardware_set where;
	struct model_config c;

	llama(which, &c);
	o->precision = DTYPE_BF16;
	ck_ok(hardware_parse(devices, &where, &err), &err);
	ck_ok(estimate_run(&(struct estimate_input){&c, o, row, &where}, out, &err), &err);
}

/* Where not everything fits, as many whole blocks are kept as leave a part of the memory free: one more would
 * not. */
START_TEST(whole_blocks_are_kept_while_they_fit)
{
	const struct estimate *kept = NULL, *full;
	struct estimate_list list;
	struct train_options o;
	struct estimate more;
	char text[64], want[64];

	estimate_llama(LLAMA_70B, "512xH100-80GB", 8192, 1, &list);
	full = find(&list, SHARD_ZERO3, MODEL_RECOMPUTE_BLOCK);
	ck_assert(!find(&list, SHARD_ZERO3, MODEL_KEEP_ALL)->fits);
	for (size_t i = 0; i < list.count; i++)
		if (list.all[i].strategy == SHARD_ZERO3 && list.all[i].kept > 0 &&
		    list.all[i].recompute == MODEL_RECOMPUTE_BLOCK)
			kept = &list.all[i];
	ck_assert_ptr_nonnull(kept);
	ck_assert(kept->fits && full->fits && kept->spare);
	ck_assert_double_lt(kept->cost.step, full->cost.step);
	ck_assert_uint_gt(kept->total, full->total);
	snprintf(want, sizeof(want), "full, %d kept", kept->kept);
	ck_assert_str_eq(estimate_recompute_text(text, sizeof(text), kept), want);
	ck_assert_str_eq(estimate_recompute_text(text, sizeof(text), full), "full");
	train_options_default(&o);
	o.strategy = SHARD_ZERO3;
	o.recompute = MODEL_RECOMPUTE_BLOCK;
	o.kept_blocks = kept->kept + 1;
	estimate_one(LLAMA_70B, "512xH100-80GB", 8192, &o, &more);
	ck_assert(!more.spare);
	ck_assert_ptr_eq(estimate_best(&list, SHARD_ZERO3, MODEL_RECOMPUTE_BLOCK), full);
	ck_assert_int_eq(list.all[list.choice].fits, true);
}
END_TEST

static const struct estimate *find_outputs(const struct estimate_list *list, enum shard_strategy strategy)
{
	for (size_t i = 0; i < list->count; i++)
		if (list->all[i].strategy == strategy && list->all[i].outputs > 0)
			return &list->all[i];
	return NULL;
}

/* Where everything fits, the outputs of norms and of the activation of as many blocks are kept as leave a
 * part of the memory free: one more would not. Each takes two norms, SwiGLU's output and the norms'
 * statistics, and saves the same time.
 */
START_TEST(outputs_are_kept_while_they_fit)
{
	const struct estimate *whole, *kept;
	struct estimate_list list;
	struct train_options o;
	struct model_config c;
	struct estimate more;
	size_t block;
	double saved;
	char text[64], want[64];

	estimate_llama(LLAMA_8B, "8xH100-80GB", 16384, 1, &list);
	whole = find(&list, SHARD_ZERO3, MODEL_KEEP_ALL);
	kept = find_outputs(&list, SHARD_ZERO3);
	ck_assert_ptr_nonnull(kept);
	llama(LLAMA_8B, &c);
	ck_assert_int_lt(kept->outputs, c.layers);
	ck_assert(kept->spare && whole->spare);
	ck_assert(kept->recompute == MODEL_KEEP_ALL && kept->kept == 0);
	block = 16384 * ((size_t)(2 * c.hidden + c.intermediate) * 2 + 2 * sizeof(float));
	ck_assert_uint_eq(kept->bytes[BUFFER_ACTIVATIONS],
	                  whole->bytes[BUFFER_ACTIVATIONS] + (size_t)kept->outputs * block);
	saved = whole->cost.step - kept->cost.step;
	ck_assert_double_gt(saved, 0);
	ck_assert_double_eq_tol(whole->cost.backward - kept->cost.backward, saved, 1e-3 * saved);
	ck_assert_double_eq(whole->cost.forward, kept->cost.forward);
	snprintf(want, sizeof(want), "none, outputs of %d kept", kept->outputs);
	ck_assert_str_eq(estimate_recompute_text(text, sizeof(text), kept), want);
	ck_assert_str_eq(estimate_recompute_key(kept), "auto");
	ck_assert_str_eq(estimate_recompute_key(whole), "none");
	train_options_default(&o);
	o.strategy = SHARD_ZERO3;
	o.kept_outputs = kept->outputs + 1;
	estimate_one(LLAMA_8B, "8xH100-80GB", 16384, &o, &more);
	ck_assert_int_eq(more.outputs, kept->outputs + 1);
	ck_assert(!more.spare);
	ck_assert_double_eq_tol(whole->cost.step - more.cost.step,
	                        saved * (kept->outputs + 1) / kept->outputs, 1e-3 * saved);
	/* Nothing is kept of what a run asks for by name. */
	ck_assert_ptr_eq(estimate_best(&list, SHARD_ZERO3, MODEL_KEEP_ALL), whole);
	ck_assert_ptr_eq(estimate_best(&list, SHARD_ZERO3, -1), kept);
	/* Much room, and not enough for everything else. */
	estimate_llama(LLAMA_8B, "8xH100-80GB", 8192, 1, &list);
	ck_assert_int_eq(find_outputs(&list, SHARD_ZERO3)->outputs, c.layers);
	estimate_llama(LLAMA_70B, "512xH100-80GB", 8192, 1, &list);
	ck_assert(!find(&list, SHARD_ZERO3, MODEL_KEEP_ALL)->fits);
	ck_assert_ptr_null(find_outputs(&list, SHARD_ZERO3));
}
END_TEST

/* The communicator of all ranks, and those of the strategy: NCCL allocates for each. */
START_TEST(each_communicator_takes_memory)
{
	static const struct {
		const char *devices;
		enum shard_strategy strategy;
		int mib;
	} cases[] = {{"1xH100-80GB", SHARD_DDP, 1024},
	             {"8xH100-80GB", SHARD_DDP, 1024 + 512},
	             {"8xH100-80GB", SHARD_ZERO2, 1024 + 512},
	             {"8xH100-80GB", SHARD_ZERO3, 1024 + 2 * 512},
	             {"2x8xH100-80GB", SHARD_ZERO3, 1024 + 2 * 512},
	             {"2x8xH100-80GB", SHARD_HYBRID, 1024 + 4 * 512},
	             {"8xB200-180GB", SHARD_DDP, 1024 + 768},
	             {"2x8xB200-180GB", SHARD_HYBRID, 1024 + 4 * 768},
	             {"2xRTX4090-24GB", SHARD_ZERO3, 1024 + 2 * 512}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct train_options o;
		struct estimate e;

		train_options_default(&o);
		o.strategy = cases[i].strategy;
		o.shard_degree = 8;
		estimate_one(LLAMA_8B, cases[i].devices, 8192, &o, &e);
		ck_assert_uint_eq(e.outside, (size_t)cases[i].mib << 20);
		ck_assert_uint_eq(e.total, e.plan + e.outside);
	}
}
END_TEST

/* Of D ranks each has a part of the activations, and of the operations; what they send each other goes in
 * parts of its own from each rank to each, between nodes, too. */
START_TEST(ranks_share_sequences)
{
	static const int degrees[] = {1, 2, 4, 8};
	struct hardware_set where;
	struct estimate e[5];
	struct train_options o;
	struct error err = ERROR_INIT;
	double bytes, far;

	train_options_default(&o);
	o.precision = DTYPE_BF16;
	o.strategy = SHARD_ZERO3;
	for (int i = 0; i < 4; i++) {
		o.sequence_degree = degrees[i];
		estimate_one(LLAMA_8B, "8xH200-141GB", 32768, &o, &e[i]);
		ck_assert_int_eq(e[i].cost.tokens, 8 * 32768 / degrees[i]);
		ck_assert_double_eq_tol((double)e[i].bytes[BUFFER_ACTIVATIONS] * degrees[i],
		                        (double)e[0].bytes[BUFFER_ACTIVATIONS],
		                        0.01 * (double)e[0].bytes[BUFFER_ACTIVATIONS]);
		ck_assert_double_eq_tol(e[i].cost.forward * degrees[i], e[0].cost.forward,
		                        0.1 * e[0].cost.forward);
		ck_assert(i == 0 || e[i].outside > e[0].outside);
	}
	estimate_one(LLAMA_8B, "2x4xH200-141GB", 32768, &o, &e[4]);
	ck_ok(hardware_parse("2x4xH200-141GB", &where, &err), &err);
	/* Of q, k, v and o, each three times in a block, half goes to the other node. */
	bytes = 3 * 32 * 4096.0 * 2 * (2 * 4096 + 2 * 1024);
	far = bytes / 2 / (where.device.inter * where.device.link);
	ck_assert_double_gt(e[4].cost.exposed, far);
	ck_assert_double_gt(e[4].cost.communication - e[0].cost.communication, far);
	ck_assert_double_lt(e[3].cost.exposed, 0.6 * e[4].cost.exposed);
}
END_TEST

/* "auto" leaves a fiftieth of the memory free, where a plan does. */
START_TEST(a_part_of_the_memory_stays_free)
{
	_cleanup_free_ struct estimate_list *list = malloc(sizeof(*list));
	struct hardware_set where;
	struct train_options o;
	struct model_config c;
	struct estimate_input in = {&c, &o, 8192, &where};
	struct error err = ERROR_INIT;
	const struct estimate *all, *best;
	size_t least = SIZE_MAX;

	llama(LLAMA_70B, &c);
	train_options_default(&o);
	o.precision = DTYPE_BF16;
	for (int nodes = 1; nodes <= 64; nodes *= 2) {
		ck_ok(hardware_parse("64x8xH100-80GB", &where, &err), &err);
		where.nodes = nodes;
		ck_ok(estimate_list(&in, list, &err), &err);
		for (size_t i = 0; i < list->count; i++) {
			const struct estimate *e = &list->all[i];

			ck_assert_int_eq(e->spare, e->total <= e->available - e->available / 50);
			ck_assert(e->spare || (e->kept == 0 && e->outputs == 0));
		}
		ck_assert(nodes < 8 || list->all[list->choice].spare);
	}
	/* Keeping everything fits, within the part that stays free. */
	all = find(list, SHARD_ZERO3, MODEL_KEEP_ALL);
	where.device.memory = (int64_t)(all->total + all->total / 100);
	ck_ok(estimate_list(&in, list, &err), &err);
	all = find(list, SHARD_ZERO3, MODEL_KEEP_ALL);
	ck_assert_str_eq(estimate_fits_text(all), "tight");
	best = estimate_best(list, SHARD_ZERO3, -1);
	ck_assert_str_eq(estimate_fits_text(best), "yes");
	ck_assert(best->kept > 0 && best->cost.step > all->cost.step);
	ck_assert_ptr_eq(estimate_best(list, SHARD_ZERO3, MODEL_KEEP_ALL), all); /* asked for by name */
	ck_assert(list->all[list->choice].spare);
	/* Nothing leaves it free: what fits is better than what does not. */
	for (size_t i = 0; i < list->count; i++)
		least = MIN(least, list->all[i].total);
	where.device.memory = (int64_t)(least + least / 100);
	ck_ok(estimate_list(&in, list, &err), &err);
	ck_assert_int_ge(list->choice, 0);
	ck_assert_str_eq(estimate_fits_text(&list->all[list->choice]), "tight");
	ck_assert_ptr_eq(estimate_best(list, -1, -1), &list->all[list->choice]);
	where.device.memory = (int64_t)least - 1;
	ck_ok(estimate_list(&in, list, &err), &err);
	ck_assert_int_eq(list->choice, -1);
	ck_assert_str_eq(estimate_fits_text(estimate_best(list, -1, -1)), "no");
}
END_TEST

/* What fits with one slot alone is named before more devices are. */
START_TEST(one_slot_is_nearer_than_more_devices)
{
	struct hardware_set where;
	struct train_options o;
	struct model_config c;
	struct estimate_input in = {&c, &o, 8192, &where};
	struct error err = ERROR_INIT;
	struct estimate e;

	llama(LLAMA_405B, &c);
	train_options_default(&o);
	o.precision = DTYPE_BF16;
	o.strategy = SHARD_ZERO3;
	o.recompute = MODEL_RECOMPUTE_BLOCK;
	o.accumulation = 2;
	ck_ok(hardware_parse("64x8xH200", &where, &err), &err);
	o.prefetch = 0;
	ck_ok(estimate_run(&in, &e, &err), &err);
	where.device.memory = (int64_t)e.total + _i - 1;
	o.prefetch = 1;
	ck_fails(estimate_check(&in, &err), &err,
	         _i ? "; parallel.strategy = \"zero3\" and parallel.prefetch = 0 would take "
	            : " on 1024 devices would take ");
}
END_TEST

/* Of adapters of q and v alone, no gradient needs what down reads: it is neither written again nor kept, and
 * what keeping saves are the norms. */
START_TEST(outputs_that_nothing_reads_cost_nothing)
{
	static char *const some[] = {"q_proj", "v_proj", NULL}, *const all[] = {"all", NULL};
	struct train_options o;
	double saved[2];

	for (int which = 0; which < 2; which++) {
		struct estimate e[2];

		train_options_default(&o);
		o.tuning = (struct model_tuning){
		    .kind = TUNE_LORA, .rank = 8, .alpha = 16, .target = which ? some : all};
		for (int kept = 0; kept < 2; kept++) {
			o.kept_outputs = kept * llamas[LLAMA_8B].layers;
			estimate_one(LLAMA_8B, "1xH100-80GB", 8192, &o, &e[kept]);
		}
		saved[which] = e[0].cost.step - e[1].cost.step;
	}
	ck_assert_double_gt(saved[1], 0);
	ck_assert_double_gt(saved[0], 1.5 * saved[1]);
}
END_TEST

START_TEST(large_models_take_no_time)
{
	for (int which = LLAMA_8B; which <= LLAMA_405B; which++) {
		clock_t start = clock();
		struct estimate_list list;

		estimate_llama(which, sizes[_i].devices, 8192, 1, &list);
		/* Processor time, and far above the 0.02 s that it takes: what grows with the square of the
		 * ranks or of the units takes minutes. */
		ck_assert_double_lt((double)(clock() - start) / CLOCKS_PER_SEC, 5);
		ck_assert_int_ge(list.count, 4);
		ck_assert_int_eq(list.all[0].cost.tokens, (int64_t)sizes[_i].ranks * 8192);
		for (size_t i = 0; i < list.count; i++) {
			ck_assert_double_gt(list.all[i].cost.mfu, 0.1);
			ck_assert_double_lt(list.all[i].cost.mfu, 0.75);
		}
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("estimate");
	TCase *tc = tcase_create("devices");

	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, devices_are_named, 0, ARRAY_SIZE(notations));
	tcase_add_test(tc, boards_are_known);
	tcase_add_test(tc, the_driver_keeps_a_part);
	suite_add_tcase(s, tc);
	tc = tcase_create("costs");
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, products_by_the_roofline);
	tcase_add_test(tc, ranks_share_the_processor);
	tcase_add_test(tc, collectives_by_the_slowest_link);
	tcase_add_test(tc, slow_links_are_waited_for);
	tcase_add_test(tc, muon_gathers_momentum);
	suite_add_tcase(s, tc);
	tc = tcase_create("memory");
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, bytes_of_a_parameter, 0, ARRAY_SIZE(llamas));
	tcase_add_loop_test(tc, bytes_as_published, 0, ARRAY_SIZE(sizes));
	tcase_add_loop_test(tc, libraries_copy_nothing_of_what_is_frozen, 0, 2);
	tcase_add_test(tc, ranks_that_share_processors_wait_for_turns);
	tcase_add_test(tc, copies_are_those_of_a_rank_in_the_middle);
	tcase_add_loop_test(tc, libraries_copy_parts_of_matrices, 0, ARRAY_SIZE(packings));
	tcase_add_loop_test(tc, products_in_bf16_keep_code_and_sums, 0, ARRAY_SIZE(kept_of_products));
	tcase_add_test(tc, tall_matrices_of_muon_keep_a_square);
	tcase_add_test(tc, whole_blocks_are_kept_while_they_fit);
	tcase_add_test(tc, outputs_are_kept_while_they_fit);
	tcase_add_test(tc, each_communicator_takes_memory);
	tcase_add_test(tc, ranks_share_sequences);
	tcase_add_test(tc, a_part_of_the_memory_stays_free);
	tcase_add_loop_test(tc, one_slot_is_nearer_than_more_devices, 0, 2);
	tcase_add_test(tc, outputs_that_nothing_reads_cost_nothing);
	tcase_add_test(tc, a_head_of_scores_takes_little);
	tcase_add_test(tc, capped_scores_need_no_cudnn);
	tcase_add_loop_test(tc, attention_by_its_kernels, 0, ARRAY_SIZE(attentions));
	tcase_add_loop_test(tc, large_models_take_no_time, 0, ARRAY_SIZE(sizes));
	suite_add_tcase(s, tc);
	return unit_run(s);
}
