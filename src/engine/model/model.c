/* SPDX-License-Identifier: Apache-2.0 */
/* Creates a model, and takes the memory of its activations and scratch from an arena. */
#include "engine/model/model.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/model/internal.h"

/* A chunk of logits: large enough for a good GEMM, else as the device would have it. Eight chunks at most:
 * each of them reads and writes the gradients of the whole head. */
static int64_t choose_logits_rows(const struct model *m)
{
	int64_t rows =
	    (int64_t)m->o.logits_bytes / (model_config_outputs(&m->c) * (int64_t)m->size) / 64 * 64;

	rows = MAX(rows, (m->o.max_tokens / 8 + 63) / 64 * 64);
	/* A head whose logits are in one chunk needs no place for its gradients: one chunk where that takes
	 * less memory. */
	if (m->o.in_place && !m->c.tied && (m->o.max_tokens - rows) * (int64_t)m->size <= m->c.hidden * 4)
		return MAX(m->o.max_tokens, 1);
	return MIN(MAX(rows, 256), MAX(m->o.max_tokens, 1));
}

int model_create(struct device *dev, const struct model_config *c, const struct model_layout *layout,
                 const struct model_options *options, struct model **out, struct error *err)
{
	_cleanup_(model_freep) struct model *m = calloc(1, sizeof(*m));
	/* A plan without a device is of batches that may be far larger than this machine's memory. */
	size_t tokens = dev ? (size_t)options->max_tokens : 0, rows;
	int r;

	if (!m)
		return error_oom(err);
	if (c->learned_positions && options->max_sequence > c->max_positions)
		return error_set(err, -EINVAL,
		                 "sequences of %lld tokens do not fit a model with %lld learned positions",
		                 (long long)options->max_sequence, (long long)c->max_positions);
	m->dev = dev;
	m->c = *c;
	m->layout = layout;
	m->o = *options;
	m->o.sequence_degree = MAX(options->sequence_degree, 1);
	m->size = dtype_size(options->type);
	m->q = (int64_t)c->heads * c->head_dim;
	m->kv = (int64_t)c->kv_heads * c->head_dim;
	m->qkv = m->q + 2 * m->kv;
	m->gate_up = (c->gated ? 2 : 1) * (int64_t)c->intermediate;
	m->delta_key = (int64_t)c->delta_key_heads * c->delta_key_dim;
	m->delta_value = model_config_delta_value(c);
	m->channels = model_config_channels(c);
	m->delta_row = model_config_delta_row(c);
	m->wide = MAX(MAX(c->intermediate, c->hidden), MAX(m->q, m->delta_value));
	model_experts_size(m);
	m->vector_weights_of = -1;
	m->logits_rows = options->logits_rows ? options->logits_rows : choose_logits_rows(m);
	rows = dev ? (size_t)m->logits_rows : 1;
	if ((r = model_fp8_check(m, err)) < 0)
		return r;
	if (options->tuning && options->tuning->kind == TUNE_LORA) {
		m->rank = tuning_stored_rank(options->tuning);
		m->trained_rank = options->tuning->rank;
		m->adapter_scale = (float)tuning_scale(options->tuning);
		m->dora = options->tuning->dora;
	}
	m->unit = calloc((size_t)layout->units, sizeof(*m->unit));
	m->layer = calloc((size_t)c->layers + 1, sizeof(*m->layer));
	m->cache = calloc((size_t)c->layers, sizeof(*m->cache));
	m->state = calloc((size_t)c->layers, sizeof(*m->state));
	m->last = calloc((size_t)c->layers, sizeof(*m->last));
	m->o.cache_sequences = MAX(options->cache_sequences, 1);
	if (options->fp8) {
		m->fp8.weight = calloc((size_t)(options->fp8_shared ? 1 : c->layers) * FP8_WEIGHTS,
		                       sizeof(*m->fp8.weight));
		m->fp8.amax = calloc((size_t)model_operands(c), sizeof(*m->fp8.amax));
	}
	m->host_starts = calloc((size_t)c->layers * model_starts(m), sizeof(*m->host_starts));
	m->host_shares =
	    calloc((size_t)m->o.sequence_degree * (size_t)c->experts + 1, sizeof(*m->host_shares));
	m->past = calloc((size_t)m->o.cache_sequences, sizeof(*m->past));
	m->host_parts = calloc((size_t)m->o.cache_sequences + 1, sizeof(int32_t));
	m->host_positions = calloc(tokens + 1, sizeof(int32_t));
	m->host_sequences = calloc(tokens + 1, sizeof(int32_t));
	m->host_rows = calloc(tokens + 1, sizeof(int32_t));
	m->host_targets = calloc(tokens + 1, sizeof(int32_t));
	m->host_losses = calloc(rows, sizeof(float));
	m->token_losses =
	    calloc(options->weighed ? (c->values ? 4 : 2) * tokens * (size_t)m->o.sequence_degree + 1 : 1,
	           sizeof(float));
	if (!m->unit || !m->layer || !m->cache || !m->state || !m->last || !m->host_parts ||
	    !m->host_starts || !m->host_shares || !m->past || !m->host_positions || !m->host_sequences ||
	    !m->host_rows || (options->fp8 && (!m->fp8.weight || !m->fp8.amax)) || !m->host_targets ||
	    !m->host_losses || !m->token_losses)
		return error_oom(err);
	*out = steal_pointer(m);
	return 0;
}

void model_free(struct model *m)
{
	if (!m)
		return;
	free(m->unit);
	free(m->fp8.weight);
	free(m->fp8.amax);
	free(m->layer);
	free(m->cache);
	free(m->state);
	free(m->last);
	free(m->host_parts);
	free(m->past);
	free(m->host_starts);
	free(m->host_shares);
	free(m->host_positions);
	free(m->host_sequences);
	free(m->host_rows);
	free(m->host_targets);
	free(m->host_losses);
	free(m->token_losses);
	free(m);
}

int model_kept_outputs(const struct model *m)
{
	int first = MAX(MAX(m->c.layers - m->o.kept_outputs, model_recomputed(m)), m->layout->lowest - 1);

	return m->o.training ? MAX(m->c.layers - first, 0) : 0;
}

static float *take_statistics(struct model *m, struct arena *a, const char *name, int layer)
{
	size_t rows = (size_t)m->o.max_tokens * (m->c.layer_norm ? 2 : 1);

	return arena_take(a, BUFFER_ACTIVATIONS, rows * sizeof(float), "layer %d %s statistics", layer, name);
}

/* Outputs that nothing reads in the backward pass are not kept. */
static void take_outputs(struct model *m, struct arena *a, int layer)
{
	struct model_activations *act = &m->layer[layer];
	size_t row = (size_t)m->o.max_tokens * m->size;
	static const struct {
		enum parameter_role role, readers[2];
		const char *name;
	} norms[BLOCK_NORMS] = {
	    [NORM_INPUT] = {PARAMETER_INPUT_NORM, {PARAMETER_Q, PARAMETER_DELTA_QKV}, "input norm"},
	    [NORM_POST] = {PARAMETER_POST_NORM, {PARAMETER_GATE, PARAMETER_ROUTER}, "post norm"},
	    [NORM_ATTENTION_OUT] = {PARAMETER_ATTENTION_OUT_NORM,
	                            {PARAMETER_ROLES, PARAMETER_ROLES},
	                            "attention output norm"},
	    [NORM_MLP_OUT] = {PARAMETER_MLP_OUT_NORM, {PARAMETER_ROLES, PARAMETER_ROLES}, "mlp output norm"}};

	for (int i = 0; i < BLOCK_NORMS; i++) {
		if (model_place(m, layer + 1, PART_WEIGHT, norms[i].role) < 0)
			continue;
		act->norm[i].statistics = take_statistics(m, a, norms[i].name, layer);
		if (model_layout_reads_input(m->layout, layer + 1, norms[i].readers[0]) ||
		    model_layout_reads_input(m->layout, layer + 1, norms[i].readers[1]))
			act->norm[i].y = arena_take(a, BUFFER_ACTIVATIONS, row * (size_t)m->c.hidden,
			                            "layer %d %s", layer, norms[i].name);
	}
	if (model_layout_reads_input(m->layout, layer + 1, PARAMETER_DOWN))
		act->active =
		    arena_take(a, BUFFER_ACTIVATIONS, (size_t)m->places * m->size * (size_t)m->c.intermediate,
		               "layer %d mlp activation", layer);
}

/* What is kept of attention, or of linear attention; of what blocks share, both. */
static void take_mixer(struct model *m, struct arena *a, int layer, bool shared)
{
	struct model_activations *act = &m->layer[layer];
	size_t tokens = (size_t)m->o.max_tokens, row = tokens * m->size;
	bool linear = model_config_is_linear(&m->c, layer), any = m->c.delta_value_heads > 0;
	int64_t qkv = linear ? m->delta_row : m->qkv, out = linear ? m->delta_value : m->q;

	if (shared && any) {
		qkv = MAX(m->qkv, m->delta_row);
		out = MAX(m->q, m->delta_value);
		linear = false;
	}
	act->qkv = arena_take(a, BUFFER_ACTIVATIONS, row * (size_t)qkv, "layer %d qkv", layer);
	act->attention = arena_take(a, BUFFER_ACTIVATIONS, row * (size_t)out, "layer %d attention", layer);
	if (linear)
		return;
	act->lse = arena_take(a, BUFFER_ACTIVATIONS, tokens * (size_t)m->c.heads * 4, "layer %d lse", layer);
	if (m->c.gated_attention)
		act->gate = arena_take(a, BUFFER_ACTIVATIONS, row * (size_t)m->q, "layer %d gate", layer);
}

static void take_activations(struct model *m, struct arena *a)
{
	size_t row = (size_t)m->o.max_tokens * m->size;

	for (int l = 0; l <= m->c.layers; l++) {
		struct model_activations *act = &m->layer[l];
		size_t start = a->used;
		bool again = l < model_recomputed(m);
		bool shares = !m->o.training || (again && m->o.recompute == MODEL_RECOMPUTE_BLOCK);
		bool own_input = l == 0 || m->o.training;

		act->at = start;
		act->input = own_input ? arena_take(a, BUFFER_ACTIVATIONS, row * (size_t)m->c.hidden,
		                                    "layer %d input", l)
		                       : m->layer[0].input;
		act->input_end = a->used;
		if (l == m->c.layers)
			break;
		act->routing.starts = m->host_starts + (size_t)l * model_starts(m);
		if (l > 0 && shares) {
			struct model_activations own = *act;

			*act = m->layer[0];
			act->routing.starts = own.routing.starts;
			act->input = own.input;
			act->at = own.at;
			act->input_end = own.input_end;
			continue;
		}
		take_mixer(m, a, l, shares);
		act->middle =
		    arena_take(a, BUFFER_ACTIVATIONS, row * (size_t)m->c.hidden, "layer %d middle", l);
		if (m->c.norm_place != MODEL_NORM_BEFORE) {
			act->attention_out = arena_take(a, BUFFER_ACTIVATIONS, row * (size_t)m->c.hidden,
			                                "layer %d attention output", l);
			act->mlp_out = arena_take(a, BUFFER_ACTIVATIONS, row * (size_t)m->c.hidden,
			                          "layer %d mlp output", l);
		}
		if (m->c.experts)
			model_experts_activations(m, a, l);
		act->gate_up = l > 0 && again ? m->layer[0].gate_up
		                              : arena_take(a, BUFFER_ACTIVATIONS,
		                                           (size_t)(m->places * m->gate_up) * m->size,
		                                           "layer %d gate_up", l);
		if (l >= m->c.layers - model_kept_outputs(m))
			take_outputs(m, a, l);
	}
}

struct model_reuse model_reuse(const struct model *m, int unit)
{
	/* Unit u is block u - 1, and block u is behind it in the forward pass. What blocks share lies with
	 * the first of them. */
	bool head = unit > m->c.layers;

	return (struct model_reuse){.free_from = head ? m->logits_end : m->layer[unit].at,
	                            .written_to = head ? m->logits_end : m->layer[unit].input_end,
	                            .kept_end = m->layer[m->c.layers].input_end,
	                            .end = m->logits_end,
	                            .in_place =
	                                m->o.in_place && (!head || m->logits_rows >= m->o.max_tokens)};
}

size_t model_scratch(const struct model *m, void **memory)
{
	if (m->c.scores) {
		*memory = m->y;
		return (size_t)m->o.max_tokens * (size_t)m->wide * m->size;
	}
	*memory = m->logits;
	return (size_t)m->logits_rows * (size_t)m->c.vocab * m->size;
}

/* Elements of norms and biases of the largest unit whose gradients of these may add up in m->vectors. */
static size_t vectors_apart(const struct model *m)
{
	int64_t most = 0;

	for (int u = 0; u < m->layout->units; u++)
		if (model_gradient_type(m, u) != DTYPE_F32 || (m->o.in_place && !m->layout->unit[u].frozen))
			most = MAX(most, m->layout->unit[u].count - m->layout->unit[u].matrices);
	return (size_t)most;
}

/* Elements of the largest norm, where any unit is frozen. */
static size_t frozen_norms(const struct model *m)
{
	for (int u = 0; u < m->layout->base_units; u++)
		if (m->layout->unit[u].frozen)
			return (size_t)MAX(MAX(m->c.hidden, m->q), m->channels * m->c.conv_width);
	return 0;
}

static void take_adapters(struct model *m, struct arena *a)
{
	size_t tokens = (size_t)m->o.max_tokens, row = tokens * m->size;
	size_t widest = (size_t)MAX(MAX(m->gate_up, m->qkv + (m->c.gated_attention ? m->q : 0)),
	                            MAX(m->c.hidden, m->delta_row));
	size_t group = m->c.delta_value_heads ? MODEL_GROUP_MAX : 3;

	m->low = arena_take(a, BUFFER_SCRATCH, group * row * (size_t)m->rank, "adapter input");
	if (m->dora)
		m->norms = arena_take(a, BUFFER_SCRATCH, widest * sizeof(float), "norms of adapted rows");
	if (!m->o.training)
		return;
	m->d_low = arena_take(a, BUFFER_SCRATCH, group * row * (size_t)m->rank, "adapter gradient");
	if (m->o.tuning->dropout > 0)
		m->masked = arena_take(a, BUFFER_SCRATCH, row * (size_t)m->wide, "dropout");
	if (m->dora) {
		m->unscaled = arena_take(a, BUFFER_SCRATCH, row * widest, "unscaled output");
		m->d_scaled = arena_take(a, BUFFER_SCRATCH, row * widest, "unscaled output's gradient");
	}
}

/* By which the next tokens of the cache's sequences are chosen. */
static void take_choices(struct model *m, struct arena *a)
{
	size_t n = (size_t)m->o.cache_sequences;

	m->sequences = arena_take(a, BUFFER_INPUT, (size_t)m->o.max_tokens * 4, "sequences");
	m->decode_logits = arena_take(a, BUFFER_LOGITS, n * (size_t)m->c.vocab * 4, "next logits");
	m->chosen = arena_take(a, BUFFER_LOGITS, n * 4, "next ids");
	m->uniform = arena_take(a, BUFFER_LOGITS, n * sizeof(double), "random numbers");
}

/* Of ranks that share a sequence. */
static void take_exchange(struct model *m, struct arena *a)
{
	size_t row = (size_t)m->o.max_tokens * m->size;

	/* model_share takes these, too. */
	size_t numbers =
	    (size_t)m->o.sequence_degree * (size_t)MAX(m->o.max_tokens, m->c.experts) * sizeof(float);

	m->exchanged = arena_take(a, BUFFER_SCRATCH, MAX(row * (size_t)m->qkv, numbers), "heads to exchange");
	m->heads_qkv = arena_take(a, BUFFER_SCRATCH, MAX(row * (size_t)m->qkv, numbers), "qkv of own heads");
	m->heads_o = arena_take(a, BUFFER_SCRATCH, row * (size_t)m->q, "attention of own heads");
	if (!m->o.training)
		return;
	m->heads_d_o = arena_take(a, BUFFER_SCRATCH, row * (size_t)m->q, "attention gradient of own heads");
	m->heads_d_qkv = arena_take(a, BUFFER_SCRATCH, row * (size_t)m->qkv, "qkv gradient of own heads");
}

void model_place_buffers(struct model *m, struct arena *a)
{
	size_t tokens = (size_t)m->o.max_tokens, row = tokens * m->size, hidden = (size_t)m->c.hidden;
	size_t spread = (size_t)(m->places * MAX(m->c.intermediate, m->c.hidden));
	size_t table = (size_t)m->o.max_sequence * (size_t)(m->c.rotary_dim / 2) * 4;

	m->h = arena_take(a, BUFFER_SCRATCH, row * hidden, "norm output");
	m->y = arena_take(a, BUFFER_SCRATCH,
	                  (size_t)MAX(m->o.max_tokens * m->wide, m->places * m->c.intermediate) * m->size,
	                  "mlp output");
	m->rstd = arena_take(a, BUFFER_SCRATCH,
	                     tokens * (size_t)MAX(m->c.heads + m->c.kv_heads, m->c.delta_value_heads) * 4,
	                     "norm statistics");
	if (m->c.gated_attention)
		m->projected =
		    arena_take(a, BUFFER_SCRATCH, row * (size_t)(m->qkv + m->q), "q with gates, k and v");
	if (m->c.delta_value_heads)
		m->convolved = arena_take(a, BUFFER_SCRATCH, row * (size_t)m->channels, "convolution output");
	if (m->c.qk_norm)
		m->rotated = arena_take(a, BUFFER_SCRATCH, row * (size_t)m->qkv, "normed q and k");
	if (m->c.experts)
		model_experts_place(m, a);
	if (m->rank > 0)
		take_adapters(m, a);
	model_fp8_place(m, a);
	if (m->o.sequence_degree > 1)
		take_exchange(m, a);
	if (m->o.training) {
		m->d_wide =
		    arena_take(a, BUFFER_SCRATCH, MAX((tokens + 1) * (size_t)m->wide, spread) * m->size,
		               "wide gradient");
		m->d_qkv =
		    arena_take(a, BUFFER_SCRATCH, row * (size_t)MAX(m->qkv, m->delta_row), "qkv gradient");
		if (m->c.gated_attention)
			m->d_gate = arena_take(a, BUFFER_SCRATCH, row * (size_t)m->q, "gate gradient");
		if (m->c.delta_value_heads)
			m->d_convolved =
			    arena_take(a, BUFFER_SCRATCH, row * (size_t)m->channels, "convolution gradient");
		m->dx = arena_take(a, BUFFER_SCRATCH, row * hidden, "residual gradient");
		if (m->c.norm_place != MODEL_NORM_BEFORE || m->c.residual_scale != 1)
			m->d_branch = arena_take(a, BUFFER_SCRATCH, row * hidden, "branch gradient");
		m->unused = arena_take(a, BUFFER_SCRATCH, frozen_norms(m) * sizeof(float),
		                       "gradient of a frozen norm");
		m->vectors = arena_take(a, BUFFER_SCRATCH, vectors_apart(m) * sizeof(float),
		                        "gradients of norms and biases");
		if (m->o.in_place && m->size < sizeof(float))
			m->vector_weights =
			    arena_take(a, BUFFER_SCRATCH, vectors_apart(m) * m->size, "norms and biases");
	}
	m->losses = arena_take(a, BUFFER_LOGITS, (size_t)m->logits_rows * 4, "losses");
	m->ids = arena_take(a, BUFFER_INPUT, tokens * 4, "ids");
	m->targets = arena_take(a, BUFFER_INPUT, tokens * 4, "targets");
	m->positions = arena_take(a, BUFFER_INPUT, tokens * 4, "positions");
	m->starts = arena_take(a, BUFFER_INPUT, (tokens * (size_t)m->o.sequence_degree + 1) * 4, "starts");
	m->rows = arena_take(a, BUFFER_INPUT, tokens * 4, "counted rows");
	if (m->o.weighed)
		m->factors = arena_take(a, BUFFER_INPUT, tokens * 4, "factors of rows");
	if (m->c.values) {
		m->values = arena_take(a, BUFFER_LOGITS, (size_t)m->logits_rows * 4, "values");
		m->d_values =
		    arena_take(a, BUFFER_LOGITS, (size_t)m->logits_rows * m->size, "gradient of values");
		m->value_factors = arena_take(a, BUFFER_INPUT, tokens * 4, "factors of values");
	}
	if (m->o.training)
		m->inverse = arena_take(a, BUFFER_INPUT, tokens * 4, "places of rows");
	for (int t = 0; t < model_tables(&m->c); t++) {
		m->cos[t] = arena_take(a, BUFFER_INPUT, table, "rope cos");
		m->sin[t] = arena_take(a, BUFFER_INPUT, table, "rope sin");
	}
	for (int l = 0; l < m->c.layers && m->o.cache_tokens; l++)
		if (model_config_is_linear(&m->c, l))
			model_state_place(m, a, l);
		else
			m->cache[l] = arena_take(a, BUFFER_CACHE,
			                         (size_t)m->o.cache_sequences * (size_t)m->o.cache_tokens *
			                             2 * (size_t)m->kv * m->size,
			                         "layer %d kv cache", l);
	if (m->o.cache_tokens)
		take_choices(m, a);
	/* These in one piece, and last, for model_reuse. */
	take_activations(m, a);
	m->logits =
	    arena_take(a, BUFFER_LOGITS,
	               (size_t)m->logits_rows * (size_t)model_config_outputs(&m->c) * m->size, "logits");
	m->logits_end = a->used;
}

/* Whether a matrix is trained: one of a block, or that of the head, which may be the embedding. */
static bool trains_matrix(const struct model *m, bool head)
{
	enum parameter_role of_head = m->c.tied ? PARAMETER_EMBEDDING : PARAMETER_HEAD;

	for (int i = 0; i < m->layout->parameters; i++) {
		const struct model_parameter *p = &m->layout->parameter[i];
		bool in_block = p->base > 0 && p->base < m->layout->base_units - 1;

		if (p->part == PART_WEIGHT && p->matrix && !p->frozen &&
		    (head ? p->role == of_head : in_block))
			return true;
	}
	return false;
}

void model_shapes(const struct model *m, struct device_shapes *s)
{
	bool projection = m->c.qk_norm == MODEL_QK_NORM_PROJECTION, all = false, windowed = false;

	for (int l = 0; l < m->c.layers; l++) {
		bool window = model_config_window(&m->c, l) > 0;

		all |= !window;
		windowed |= window;
	}
	*s = (struct device_shapes){.tokens = m->o.max_tokens,
	                            .max_sequence = m->o.max_sequence,
	                            .cache_tokens = m->o.cache_tokens,
	                            .cache_rows = m->o.cache_tokens ? m->o.cache_sequences : 0,
	                            .hidden = m->c.hidden,
	                            .intermediate = m->c.intermediate,
	                            .experts = m->c.experts,
	                            .multiple = m->multiple,
	                            .heads = m->c.heads,
	                            .kv_heads = m->c.kv_heads,
	                            .head_dim = m->c.head_dim,
	                            .sequence_degree = m->o.sequence_degree,
	                            .vocab = model_config_outputs(&m->c),
	                            .logits_rows = m->logits_rows,
	                            .type = m->o.type,
	                            .gradient_type = m->o.gradient_type,
	                            .norm_cols = projection ? (int)m->q : 0,
	                            .gated_attention = m->c.gated_attention,
	                            .projection = MAX(MAX(m->c.gated_attention ? m->qkv + m->q : 0,
	                                                  m->c.delta_value_heads ? m->delta_row : 0),
	                                              MODEL_GROUP_MAX * (int)m->rank),
	                            .delta = {m->c.delta_key_heads, m->c.delta_value_heads,
	                                      m->c.delta_key_dim, m->c.delta_value_dim, m->o.training},
	                            .all_before = all,
	                            .windowed = windowed,
	                            .capped = m->c.attention_cap > 0,
	                            .fp8 = m->o.fp8,
	                            .frozen_blocks = !trains_matrix(m, false),
	                            .frozen_head = !trains_matrix(m, true)};
}

void model_set_unit(struct model *m, int unit, void *parameters, void *gradients)
{
	m->unit[unit].w = parameters;
	m->unit[unit].g = gradients;
}

void model_set_hooks(struct model *m, const struct model_hooks *hooks)
{
	m->hooks = *hooks;
}

void model_set_teacher(struct model *m, struct model *teacher)
{
	m->teacher = teacher;
}
