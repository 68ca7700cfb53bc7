/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the times of a step's operations, and of the parts of a micro-step that they make up. */
#include "engine/train/cost_parts.h"

#include <math.h>

#include "base/cleanup.h"
#include "engine/device/delta.h"
#include "engine/model/roles.h"

double cost_gemm(const struct hardware *h, enum dtype type, enum rate_product kind, double m, double n,
                 double k, double c_bytes, bool add)
{
	double rate =
	    h->rates ? rates_product(h->rates, h->slots, h->sizing.threads, type, kind, m, n, k) : 0;
	double bytes = (double)dtype_size(type) * (m * k + k * n) + c_bytes * m * n * (add ? 2 : 1);
	double products = 2 * m * n * k / (hardware_peak(h, type) * h->gemm);

	if (rate > 0)
		return 2 * m * n * k / rate;
	return MAX(products, bytes / (h->bandwidth * h->stream)) + h->start;
}

/* rate: what was measured inside of a node; 0: nothing. */
static double collective(const struct hardware *h, double rate, double bytes, int nodes, int per_node)
{
	double ranks = (double)nodes * per_node, inside, between, steps;

	if (ranks <= 1)
		return 0;
	inside = bytes * (ranks - 1) / ranks / (rate > 0 ? rate : h->intra * h->link);
	between = bytes * (nodes - 1) / nodes / (h->inter * per_node * h->link);
	/* Across many nodes a tree, or what is as deep as one. */
	steps = per_node - 1 + MIN((double)nodes - 1, 2 * log2((double)nodes));
	return (per_node > 1 ? MAX(inside, between) : between) + steps * h->latency;
}

double cost_gather(const struct hardware *h, double bytes, int nodes, int per_node)
{
	return collective(h, h->rates ? rates_gather(h->rates, bytes) : 0, bytes, nodes, per_node);
}

double cost_reduce(const struct hardware *h, double bytes, int nodes, int per_node)
{
	return collective(h, h->rates ? rates_reduce(h->rates, bytes) : 0, bytes, nodes, per_node);
}

double cost_stream(const struct hardware *h, enum dtype type, enum rate_operation op, double bytes)
{
	double rate = h->rates ? rates_operation(h->rates, h->slots, h->sizing.threads, type, op, bytes) : 0;

	return rate > 0 ? bytes / rate : bytes / (h->bandwidth * h->stream) + h->start;
}

/* A product of a block's matrix, which may be in fp8; a CPU widens its codes and multiplies in fp32. */
static double block_gemm(const struct hardware *h, const struct train_options *o, enum rate_product kind,
                         double m, double n, double k, double c_bytes, bool add)
{
	double bytes = m * k + k * n + c_bytes * m * n * (add ? 2 : 1);

	if (!o->fp8)
		return cost_gemm(h, o->precision, kind, m, n, k, c_bytes, add);
	if (h->sizing.engine == DEVICE_ENGINE_CPU)
		return cost_gemm(h, DTYPE_F32, kind, m, n, k, sizeof(float), false) +
		       cost_stream(h, DTYPE_F32, RATE_COPY,
		                   5 * (m * k + k * n) + (sizeof(float) + c_bytes) * m * n);
	return MAX(2 * m * n * k / (h->fp8 * h->gemm), bytes / (h->bandwidth * h->stream)) + h->start;
}

/* A product of a block's matrix [out, in]; of those of the MLP, experts have one each, over their share of
 * the rows. */
static double matrix_gemm(const struct hardware *h, const struct model_config *c,
                          const struct train_options *o, enum rate_product kind, bool mlp, double t,
                          double out, double in, bool add)
{
	double s = (double)dtype_size(o->precision), copies = mlp ? MAX(c->experts, 1) : 1;
	double multiple = mlp && c->experts ? model_expert_multiple(c, (int64_t)t) : 1;
	/* An expert's rows are padded by half of it on the average. */
	double rows = mlp ? t * MAX(c->chosen_experts, 1) / copies + (multiple - 1) / 2 : t;

	if (kind == RATE_PRODUCT_WEIGHT)
		return copies *
		       block_gemm(h, o, kind, out, in, rows, (double)dtype_size(o->gradient_type), add);
	return copies * (kind == RATE_PRODUCT_FORWARD ? block_gemm(h, o, kind, rows, out, in, s, false)
	                                              : block_gemm(h, o, kind, rows, in, out, s, false));
}

/* Making so many elements fp8: two passes read them, or one where the kernel of a GPU that wrote them has
 * found the largest, and `codes` bytes are written for each. */
static double quantize_seconds(const struct hardware *h, const struct train_options *o, double elements,
                               double codes, bool found)
{
	double passes = found && h->sizing.engine != DEVICE_ENGINE_CPU ? 1 : 2;

	return o->fp8 ? cost_stream(h, o->precision, RATE_COPY,
	                            (passes * (double)dtype_size(o->precision) + codes) * elements)
	              : 0;
}

/* Shares of the peak in fp32 that the plain kernels of attention reach at most. For each product of a score
 * they read two numbers from shared memory, for each of an output 1.25, of which a multiprocessor delivers a
 * quarter of what it multiplies: in the forward pass 4 · 1.6 times as long as the products take. Loading and
 * widening of the tiles takes half as long again. The backward pass computes seven products for five. */
#define PLAIN_FORWARD  0.1
#define PLAIN_BACKWARD 0.07
/* Of the speed of the portable kernels with heads of 128, that with heads of 256, predicted: a warp has half
 * as many rows, so that each number is read from shared memory twice as often, and the backward pass computes
 * eight products for seven. */
#define WIDE_FORWARD  0.7
#define WIDE_BACKWARD 0.6

/* Operations a second. Of what was measured on a GPU, fp32 is the plain kernels' and fp16 the portable ones';
 * those have heads of 128, since the other size that is measured has plain kernels. */
static double attention_rate(const struct hardware *h, const struct model_config *c, enum dtype type,
                             double row, bool backward)
{
	enum device_attention_kernels kernels =
	    device_sizing_attention(&h->sizing, type, c->head_dim, c->attention_cap > 0);
	bool plain = kernels == DEVICE_ATTENTION_PLAIN, portable = kernels == DEVICE_ATTENTION_PORTABLE;
	double measured_width =
	    h->sizing.engine == DEVICE_ENGINE_CPU || plain ? c->head_dim : rate_widths[RATE_WIDTHS - 1];
	double share = backward ? h->attention_backward : h->attention_forward,
	       of_portable = backward ? h->portable_backward : h->portable_forward,
	       wide = !portable || c->head_dim <= 128 ? 1
	              : backward                      ? WIDE_BACKWARD
	                                              : WIDE_FORWARD,
	       rate;

	rate = h->rates ? rates_attention(h->rates, h->slots, h->sizing.threads,
	                                  plain      ? DTYPE_F32
	                                  : portable ? DTYPE_F16
	                                             : type,
	                                  backward, row, measured_width)
	                : 0;
	if (rate > 0)
		return rate * wide;
	if (plain)
		return hardware_peak(h, DTYPE_F32) * (backward ? PLAIN_BACKWARD : PLAIN_FORWARD);
	return hardware_peak(h, type) * (portable && of_portable > 0 ? of_portable : share) * wide;
}

static double attention(const struct hardware *h, const struct model_config *c, enum dtype type, double rows,
                        double row, bool backward)
{
	double rate = attention_rate(h, c, type, row, backward), sum = 0;

	/* Q·K and P·V; the backward pass has five such products. */
	for (int l = 0; l < c->layers; l++) {
		double window = model_config_window(c, l), pairs, flops;

		if (model_config_is_linear(c, l))
			continue;
		pairs = window > 0 && window < row ? row * window - window * window / 2 : row * row / 2;
		flops = 4.0 * rows * pairs * c->heads * c->head_dim * (backward ? 2.5 : 1);

		sum += flops / rate + (h->rates ? 0 : h->start);
	}
	return sum / c->layers;
}

double cost_linear_share(const struct model_config *c)
{
	double linear = 0;

	for (int l = 0; l < c->layers; l++)
		linear += model_config_is_linear(c, l);
	return linear / c->layers;
}

/* Share of the peak in fp32 that the gated delta rule reaches: measured on two cores with AVX-512, assumed on
 * a GPU. */
#define DELTA_SHARE 0.2

/* Of t tokens of linear attention: the rule (delta.h), in whose backward pass the forward one is computed
 * again, the convolution, the norm of its output and the gate. */
static double linear_attention(const struct hardware *h, const struct model_config *c, enum dtype type,
                               double t, bool backward)
{
	double dk = c->delta_key_dim, dv = c->delta_value_dim, heads = c->delta_value_heads,
	       s = (double)dtype_size(type);
	double rule = heads * (6 * dk * dv + DEVICE_DELTA_CHUNK * (5 * dk + 3 * dv)),
	       passes = backward ? 4 : 1;

	if (heads == 0)
		return 0;
	return passes * rule * t / (hardware_peak(h, DTYPE_F32) * DELTA_SHARE) +
	       cost_stream(h, type, RATE_COPY,
	                   (backward ? 3 : 1) * t * s *
	                       (2 * (double)model_config_channels(c) + 5 * heads * dv));
}

/* Of `out` outputs a token, chunk by chunk, of which all but the first add to the gradient of the matrix. */
static double head_seconds(const struct hardware *h, enum dtype type, double t, double hidden, double out,
                           double chunk, bool add, bool trained)
{
	double chunks = MAX(ceil(t / chunk), 1), rows = t / chunks, s = (double)dtype_size(type);
	double each = cost_gemm(h, type, RATE_PRODUCT_FORWARD, rows, out, hidden, s, false) +
	              cost_gemm(h, type, RATE_PRODUCT_INPUT, rows, hidden, out, s, false) +
	              cost_stream(h, type, RATE_LOSS, 3 * out * rows * s);
	double first = cost_gemm(h, type, RATE_PRODUCT_WEIGHT, out, hidden, rows, sizeof(float), add);
	double more = cost_gemm(h, type, RATE_PRODUCT_WEIGHT, out, hidden, rows, sizeof(float), true);

	return chunks * each + (trained ? first + (chunks - 1) * more : 0);
}

/* What is trained of a model, of an average block from layout->lowest up. */
struct trained {
	double matrices; /* share of the elements of its matrices */
	double blocks;   /* the number of these blocks */
	bool embedding, head;
};

/* Elements that a token is multiplied with: of experts', those of the chosen ones. */
static double computed(const struct model_parameter *p, const struct model_config *c)
{
	double share = role_of_experts(c, p->role) ? (double)c->chosen_experts / c->experts : 1;

	return (double)p->count * share;
}

static struct trained count_trained(const struct model_layout *l, const struct model_config *c)
{
	struct trained t = {.blocks = MIN(l->base_units - MAX(l->lowest, 1) - 1, c->layers),
	                    .embedding = !l->unit[0].frozen,
	                    .head = !l->unit[c->tied ? 0 : l->base_units - 1].frozen};
	double all = 0, some = 0;

	for (int i = 0; i < l->parameters; i++) {
		const struct model_parameter *p = &l->parameter[i];

		if (p->part != PART_WEIGHT || !p->matrix)
			continue;
		if (p->role == PARAMETER_EMBEDDING)
			t.embedding |= !p->frozen;
		if (p->role == (c->tied ? PARAMETER_EMBEDDING : PARAMETER_HEAD))
			t.head |= !p->frozen;
		if (p->base == 0 || p->base == l->base_units - 1 || p->base < l->lowest)
			continue;
		all += computed(p, c);
		some += p->frozen ? 0 : computed(p, c);
	}
	t.matrices = all > 0 ? some / all : 0;
	return t;
}

double cost_computed_share(const struct model_layout *l, const struct model_config *c)
{
	double all = 0, some = 0;

	for (int i = 0; i < l->parameters; i++) {
		const struct model_parameter *p = &l->parameter[i];

		/* Rows of a table are looked up; a tied embedding is the head's matrix, too. */
		if (p->part != PART_WEIGHT || !p->matrix || p->role == PARAMETER_POSITIONS ||
		    (p->role == PARAMETER_EMBEDDING && !c->tied))
			continue;
		all += 3 * computed(p, c);
		some += (1 + (p->base >= l->lowest || p->base == 0) + !p->frozen) * computed(p, c);
	}
	return all > 0 ? some / all : 1;
}

/* The products of adapters, of an average block. */
static void count_adapters(const struct model_layout *l, const struct model_config *c,
                           const struct train_options *o, double t, const struct hardware *h,
                           struct cost_parts *p)
{
	enum dtype type = o->precision;
	double s = (double)dtype_size(type), forward = 0, backward = 0;

	for (int i = 0; i < l->parameters; i++) {
		const struct model_parameter *a = &l->parameter[i], *w;
		double rank = (double)a->shape[0], in = (double)a->shape[1], out;

		if (a->part != PART_LORA_A || !(w = model_layout_matrix(l, a)))
			continue;
		out = (double)w->count / in;
		forward += cost_gemm(h, type, RATE_PRODUCT_FORWARD, t, rank, in, s, false) +
		           cost_gemm(h, type, RATE_PRODUCT_FORWARD, t, out, rank, s, true);
		/* The input of B is computed again. */
		backward += cost_gemm(h, type, RATE_PRODUCT_FORWARD, t, rank, in, s, false) +
		            cost_gemm(h, type, RATE_PRODUCT_INPUT, t, rank, out, s, false) +
		            cost_gemm(h, type, RATE_PRODUCT_INPUT, t, in, rank, s, true) +
		            cost_gemm(h, type, RATE_PRODUCT_WEIGHT, rank, in, t, sizeof(float), false) +
		            cost_gemm(h, type, RATE_PRODUCT_WEIGHT, out, rank, t, sizeof(float), false);
		if (o->tuning.dropout > 0) {
			forward += cost_stream(h, type, RATE_COPY, 2 * in * t * s);
			backward += cost_stream(h, type, RATE_COPY, 5 * in * t * s);
		}
		if (o->tuning.dora) {
			double norms = cost_gemm(h, type, RATE_PRODUCT_FORWARD, out, in, rank, s, true);

			forward += norms + cost_stream(h, type, RATE_COPY, 2 * out * t * s);
			backward += 2 * norms + cost_stream(h, type, RATE_COPY, 6 * out * t * s) +
			            cost_gemm(h, type, RATE_PRODUCT_FORWARD, t, out, in, s, false);
		}
	}
	p->block_forward += forward / c->layers;
	p->block_backward += backward / c->layers;
}

/* What a mixture of experts has beside the products of its experts. */
static void count_routing(const struct model_config *c, const struct train_options *o, double t,
                          const struct hardware *h, struct cost_parts *p)
{
	enum dtype type = o->precision;
	double s = (double)dtype_size(type), row = c->hidden * s, n = c->chosen_experts;
	double gather = cost_stream(h, type, RATE_COPY, 2 * t * n * row),
	       sum = cost_stream(h, type, RATE_COPY, t * (n + 1) * row);

	p->block_forward +=
	    cost_gemm(h, type, RATE_PRODUCT_FORWARD, t, c->experts, c->hidden, s, false) + gather + sum;
	/* Two gathers, and the weights of the rows, for which the activation is computed again. */
	p->block_backward +=
	    cost_gemm(h, type, RATE_PRODUCT_INPUT, t, c->hidden, c->experts, s, false) +
	    cost_gemm(h, type, RATE_PRODUCT_WEIGHT, c->experts, c->hidden, t, sizeof(float), false) +
	    2 * gather + sum + cost_stream(h, type, RATE_COPY, 4 * t * n * c->intermediate * s) +
	    cost_stream(h, type, RATE_SWIGLU, 3 * t * n * c->intermediate * s);
}

void cost_count_parts(const struct model_layout *l, const struct model_config *c,
                      const struct train_options *o, double row, const struct hardware *h, double logits_rows,
                      bool add, struct cost_parts *p)
{
	struct trained trained = count_trained(l, c);
	enum dtype type = o->precision;
	double rows = (double)o->micro_batch, degree = train_sequence_degree(o), t = rows * row / degree,
	       s = (double)dtype_size(type);
	double hidden = c->hidden, q = (double)c->heads * c->head_dim, kv = (double)c->kv_heads * c->head_dim;
	double qkv = q + 2 * kv, wide = c->intermediate, gate_up_cols = (c->gated ? 2 : 1) * wide,
	       vocab = (double)c->vocab;
	/* Of an average block: columns of its products, and the share of the blocks that have them. */
	double linear = cost_linear_share(c), value = (double)model_config_delta_value(c),
	       delta_row = (double)model_config_delta_row(c);
	const struct {
		double out, in, share;
	} shapes[] = {{qkv + (c->gated_attention ? q : 0), hidden, 1 - linear},
	              {hidden, q, 1 - linear},
	              {gate_up_cols, hidden, 1},
	              {hidden, wide, 1},
	              {delta_row, hidden, linear},
	              {hidden, value, linear}};
	/* The inputs of these products, and gradients of their outputs, whose largest magnitudes are found by
	 * the kernels that write them (model/fp8.c). */
	bool norm_finds = !c->layer_norm && c->norm_place != MODEL_NORM_AFTER,
	     silu = c->activation == MODEL_SILU;
	bool stream = !c->layer_norm && c->norm_place == MODEL_NORM_BEFORE && c->residual_scale == 1;
	const bool found[][2] = {{norm_finds, false}, {true, stream}, {norm_finds, silu},
	                         {silu, stream},      {false, false}, {false, false}};
	double element = t * s, places = element * MAX(c->chosen_experts, 1),
	       norm_qk = c->qk_norm ? 2 * (q + kv) * element : 0;
	double swiglu, unwritten, written, norm, norms, again, rotation, gate_up, down;

	*p = (struct cost_parts){.trained_blocks = trained.blocks};
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		double out = shapes[i].out, in = shapes[i].in, share = shapes[i].share;
		bool mlp = i == 2 || i == 3;

		if (share == 0)
			continue;
		/* Of weights codes are made once a step, of gathered ones in each pass. */
		p->block_forward +=
		    share * (matrix_gemm(h, c, o, RATE_PRODUCT_FORWARD, mlp, t, out, in, false) +
		             quantize_seconds(h, o, t * in, 1, found[i][0]) +
		             quantize_seconds(h, o, out * in, 2, false) /
		                 (o->strategy >= SHARD_ZERO3 ? 1 : (double)o->accumulation));
		p->block_backward +=
		    share *
		    (matrix_gemm(h, c, o, RATE_PRODUCT_INPUT, mlp, t, out, in, false) +
		     quantize_seconds(h, o, t * out, 2, found[i][1]) +
		     (o->strategy >= SHARD_ZERO3 ? quantize_seconds(h, o, out * in, 2, false) : 0) +
		     trained.matrices * (matrix_gemm(h, c, o, RATE_PRODUCT_WEIGHT, mlp, t, out, in, add) +
		                         quantize_seconds(h, o, t * in, 1, found[i][0])));
	}
	if (l->adapts)
		count_adapters(l, c, o, t, h, p);
	if (c->experts)
		count_routing(c, o, t, h, p);
	swiglu = cost_stream(h, type, RATE_SWIGLU, (gate_up_cols + wide) * places);
	norm = cost_stream(h, type, RATE_NORM, 4 * hidden * element);
	rotation = (1 - linear) * cost_stream(h, type, RATE_ROTATION, 2 * (q + kv) * element + norm_qk);
	/* A norm behind attention or the MLP is one more than before it where a block has both. */
	norms = c->norm_place == MODEL_NORM_AROUND ? 4 : 2;
	p->block_forward += attention(h, c, type, rows, row, false) / degree + norms * norm + rotation +
	                    swiglu + linear * linear_attention(h, c, type, t, false);
	gate_up = matrix_gemm(h, c, o, RATE_PRODUCT_FORWARD, true, t, gate_up_cols, hidden, false) +
	          quantize_seconds(h, o, t * hidden, 1, norm_finds);
	down = matrix_gemm(h, c, o, RATE_PRODUCT_FORWARD, true, t, hidden, wide, false) +
	       quantize_seconds(h, o, t * wide, 1, silu);
	/* Recomputed, the block ends with the products of gate and up. */
	if (o->recompute == MODEL_RECOMPUTE_BLOCK)
		p->again = p->block_forward - swiglu - down;
	else if (o->recompute == MODEL_RECOMPUTE_SELECTIVE)
		p->again = norm + gate_up;
	/* The norms are computed once more, before their gradients, and the activation's output is written
	 * once more where a gradient needs it, unless they are kept. */
	unwritten = cost_stream(h, type, RATE_SWIGLU_BACKWARD, (2 * gate_up_cols + wide) * places);
	written = model_layout_reads_input(l, c->layers, PARAMETER_DOWN)
	              ? MAX(unwritten, cost_stream(h, type, RATE_SWIGLU_BACKWARD,
	                                           (2 * gate_up_cols + 2 * wide) * places))
	              : unwritten;
	again = norms * cost_stream(h, type, RATE_NORM, 2 * hidden * element);
	p->saved = again + written - unwritten;
	p->block_backward += attention(h, c, type, rows, row, true) / degree + written + again +
	                     linear * linear_attention(h, c, type, t, true) +
	                     norms * cost_stream(h, type, RATE_NORM_BACKWARD, 4 * hidden * element) +
	                     rotation;
	p->embedding_forward =
	    cost_stream(h, type, RATE_COPY, 2 * hidden * element) * (o->neftune_alpha > 0 ? 2 : 1);
	p->embedding_backward = cost_stream(
	    h, type, RATE_COPY, hidden * (element + 8 * t) + (add || c->tied ? 0 : 4 * vocab * hidden));
	if (!trained.embedding)
		p->embedding_backward = 0;
	p->head =
	    head_seconds(h, type, t, hidden, (double)model_config_outputs(c), logits_rows, add, trained.head);
	p->head += norm + cost_stream(h, type, RATE_NORM_BACKWARD, 4 * hidden * element);
}

double cost_frozen(const struct whole_model *frozen, const struct model_config *c,
                   const struct train_options *o, double row, const struct hardware *h, double logits_rows)
{
	struct train_options forward = {.precision = o->precision,
	                                .micro_batch = o->micro_batch,
	                                .accumulation = 1,
	                                .sequence_degree = o->sequence_degree};
	double t = (double)o->micro_batch * row / train_sequence_degree(o);
	struct cost_parts p;

	cost_count_parts(frozen->layout, c, &forward, row, h, logits_rows, false, &p);
	return p.embedding_forward + c->layers * p.block_forward +
	       cost_gemm(h, o->precision, RATE_PRODUCT_FORWARD, t, (double)model_config_outputs(c), c->hidden,
	                 (double)dtype_size(o->precision), false) +
	       /* The loss reads its logits three times. */
	       cost_stream(h, o->precision, RATE_COPY,
	                   3 * t * (double)model_config_outputs(c) * (double)dtype_size(o->precision));
}
