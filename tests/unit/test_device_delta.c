/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the operations of linear attention (delta.h) against the same token by token in float64, in the way
 * of test_device.c. */
#include "../engine/naive_delta.h"
#include "base/cleanup.h"
#include "engine/device/delta.h"
#include "test_device_each.h"

/* Documents that lie within a chunk, end with one, and span several. */
struct shape {
	int key_heads, value_heads, key_dim, value_dim, beyond; /* elements behind a row */
	int documents, starts[7];
};
static const struct shape shapes[] = {{1, 1, 4, 4, 0, 1, {0, 1}},
                                      {1, 2, 8, 16, 3, 3, {0, 5, 6, 23}},
                                      {2, 2, 16, 8, 8, 2, {0, 64, 128}},
                                      {2, 4, 16, 24, 1, 4, {0, 40, 64, 70, 215}},
                                      {1, 1, 128, 128, 0, 2, {0, 130, 150}},
                                      {1, 2, 64, 128, 8, 6, {0, 1, 2, 90, 91, 191, 193}}};

/* A batch of a shape: values (rounded to the type), and where they are. */
struct batch {
	struct shape s;
	int n, width, out, gates; /* elements of a row */
	double *qkv, *ba, *a_log, *dt_bias, *d_o;
	char *at_qkv, *at_ba, *at_a_log, *at_dt_bias, *at_d_o;
	int32_t *starts;
	struct device_delta d;
};

static struct batch make_batch(const struct shape *s)
{
	struct batch b = {.s = *s, .n = s->starts[s->documents]};
	int q = s->key_heads * s->key_dim, v = s->value_heads * s->value_dim;

	b.width = 2 * q + v + s->beyond;
	b.out = v + s->beyond;
	b.gates = 2 * s->value_heads + s->beyond;
	b.qkv = test_values(b.n * b.width, 1);
	b.ba = test_values(b.n * b.gates, 2);
	b.a_log = test_values(s->value_heads, 3);
	b.dt_bias = test_values(s->value_heads, 4);
	b.d_o = test_values(b.n * b.out, 5);
	/* Some tokens are forgotten at once, others hardly. */
	for (int t = 0; t < b.n; t++)
		for (int h = 0; h < s->value_heads; h++)
			b.ba[t * b.gates + s->value_heads + h] =
			    t % 37 == 11 ? 30 : 2 * b.ba[t * b.gates + s->value_heads + h] - 3;
	b.at_qkv = test_buffer(dev, b.qkv, b.n * b.width, type);
	b.at_ba = test_buffer(dev, b.ba, b.n * b.gates, type);
	b.at_a_log = test_buffer(dev, b.a_log, s->value_heads, type);
	b.at_dt_bias = test_buffer(dev, b.dt_bias, s->value_heads, type);
	b.at_d_o = test_buffer(dev, b.d_o, b.n * b.out, type);
	b.starts = test_put(dev, b.s.starts, (size_t)(s->documents + 1) * sizeof(int32_t));
	b.d = (struct device_delta){
	    b.n,          s->documents, b.starts, s->starts, s->key_heads, s->value_heads, s->key_dim,
	    s->value_dim, b.width,      b.gates,  b.out,     b.at_a_log,   b.at_dt_bias,   type};
	return b;
}

static void free_batch(struct batch *b)
{
	free(b->qkv);
	free(b->ba);
	free(b->a_log);
	free(b->dt_bias);
	free(b->d_o);
	device_free(dev, b->at_qkv);
	device_free(dev, b->at_ba);
	device_free(dev, b->at_a_log);
	device_free(dev, b->at_dt_bias);
	device_free(dev, b->at_d_o);
	device_free(dev, b->starts);
}

/* Columns [from, from + cols) of rows [first, first + n) to a dense matrix, or added from it. */
static double *dense(const double *x, int ld, int first, int n, int from, int cols)
{
	double *out = malloc((size_t)(n * cols) * sizeof(*out));

	for (int t = 0; t < n; t++)
		for (int i = 0; i < cols; i++)
			out[t * cols + i] = x[(first + t) * ld + from + i];
	return out;
}

static void add_dense(double *x, int ld, int first, int n, int from, int cols, const double *add)
{
	for (int t = 0; t < n; t++)
		for (int i = 0; i < cols; i++)
			x[(first + t) * ld + from + i] += add[t * cols + i];
}

/* Calls each with every document of every head. */
static void for_each_head(const struct batch *b, void *context,
                          void (*each)(const struct batch *b, struct naive_delta *d, int document, int head,
                                       void *context))
{
	const struct shape *s = &b->s;

	for (int i = 0; i < s->documents; i++)
		for (int h = 0; h < s->value_heads; h++) {
			int first = s->starts[i], n = s->starts[i + 1] - first, dk = s->key_dim,
			    dv = s->value_dim;
			int kh = h / (s->value_heads / s->key_heads), q = s->key_heads * dk;
			double *x[] = {dense(b->qkv, b->width, first, n, kh * dk, dk),
			               dense(b->qkv, b->width, first, n, q + kh * dk, dk),
			               dense(b->qkv, b->width, first, n, 2 * q + h * dv, dv),
			               dense(b->ba, b->gates, first, n, h, 1),
			               dense(b->ba, b->gates, first, n, s->value_heads + h, 1)};
			double *state = calloc((size_t)(dk * dv), sizeof(*state));
			struct naive_delta d = {n,    dk,   dv,   b->a_log[h], b->dt_bias[h], x[0],
			                        x[1], x[2], x[3], x[4],        state};

			each(b, &d, i, h, context);
			for (int j = 0; j < 5; j++)
				free(x[j]);
			free(state);
		}
}

static void add_output(const struct batch *b, struct naive_delta *d, int document, int head, void *o)
{
	double *out = malloc((size_t)(d->n * d->dv) * sizeof(*out));

	naive_delta_run(d, out, NULL, NULL);
	add_dense(o, b->out, b->s.starts[document], d->n, head * d->dv, d->dv, out);
	free(out);
}

/* bf16 and fp16 round the results alone. */
static double tolerance_of(enum dtype t)
{
	return t == DTYPE_F32 ? 2e-5 : test_tolerance(t);
}

static const char *at_k(const struct batch *b)
{
	return b->at_qkv + (size_t)(b->s.key_heads * b->s.key_dim) * dtype_size(type);
}

static const char *at_v(const struct batch *b)
{
	return b->at_qkv + (size_t)(2 * b->s.key_heads * b->s.key_dim) * dtype_size(type);
}

static const char *at_a(const struct batch *b)
{
	return b->at_ba + (size_t)b->s.value_heads * dtype_size(type);
}

START_TEST(forward)
{
	FOR_ALL for (size_t i = 0; i < COUNT(shapes); i++)
	{
		struct batch b = make_batch(&shapes[i]);
		double *want = calloc((size_t)(b.n * b.out), sizeof(*want));
		void *o = test_buffer(dev, want, b.n * b.out, type);

		device_delta_forward(dev, &b.d, o, b.at_qkv, at_k(&b), at_v(&b), b.at_ba, at_a(&b));
		for_each_head(&b, want, add_output);
		test_close(dev, "o", o, want, b.n * b.out, type, tolerance_of(type), 0.05);
		device_free(dev, o);
		free(want);
		free_batch(&b);
	}
}
END_TEST

struct gradients {
	double *qkv, *ba, *a_log, *dt_bias;
};

static void add_gradients(const struct batch *b, struct naive_delta *d, int document, int head, void *context)
{
	const struct gradients *to = context;
	const struct shape *s = &b->s;
	int n = d->n, dk = d->dk, dv = d->dv, first = s->starts[document];
	int kh = head / (s->value_heads / s->key_heads), q = s->key_heads * dk;
	double *d_o = dense(b->d_o, b->out, first, n, head * dv, dv);
	double *all = calloc((size_t)(n * (2 * dk + dv + 2)), sizeof(*all));
	struct naive_delta_gradients g = {
	    all, all + n * dk, all + 2 * n * dk, all + n * (2 * dk + dv), all + n * (2 * dk + dv + 1), 0, 0};

	naive_delta_back(d, d_o, &g);
	add_dense(to->qkv, b->width, first, n, kh * dk, dk, g.q);
	add_dense(to->qkv, b->width, first, n, q + kh * dk, dk, g.k);
	add_dense(to->qkv, b->width, first, n, 2 * q + head * dv, dv, g.v);
	add_dense(to->ba, b->gates, first, n, head, 1, g.b);
	add_dense(to->ba, b->gates, first, n, s->value_heads + head, 1, g.a);
	to->a_log[head] += g.a_log;
	to->dt_bias[head] += g.dt_bias;
	free(all);
	free(d_o);
}

START_TEST(backward)
{
	FOR_ALL for (size_t i = 0; i < COUNT(shapes); i++)
	{
		struct batch b = make_batch(&shapes[i]);
		int heads = b.s.value_heads;
		struct gradients g = {calloc((size_t)(b.n * b.width), 8), calloc((size_t)(b.n * b.gates), 8),
		                      test_values(heads, 6), test_values(heads, 7)};
		char *d_qkv = test_buffer(dev, g.qkv, b.n * b.width, type),
		     *d_ba = test_buffer(dev, g.ba, b.n * b.gates, type);
		float *d_a_log = test_buffer(dev, g.a_log, heads, DTYPE_F32),
		      *d_dt_bias = test_buffer(dev, g.dt_bias, heads, DTYPE_F32);
		size_t to_k = (size_t)(at_k(&b) - b.at_qkv), to_v = (size_t)(at_v(&b) - b.at_qkv),
		       to_a = (size_t)(at_a(&b) - b.at_ba);

		device_delta_backward(dev, &b.d, d_qkv, d_qkv + to_k, d_qkv + to_v, d_ba, d_ba + to_a,
		                      d_a_log, d_dt_bias, b.at_d_o, b.at_qkv, at_k(&b), at_v(&b), b.at_ba,
		                      at_a(&b));
		for_each_head(&b, &g, add_gradients);
		test_close(dev, "d_qkv", d_qkv, g.qkv, b.n * b.width, type, 2 * tolerance_of(type), 0.2);
		test_close(dev, "d_ba", d_ba, g.ba, b.n * b.gates, type, 2 * tolerance_of(type), 0.5);
		test_close(dev, "d_a_log", d_a_log, g.a_log, heads, DTYPE_F32, 5e-4, 1);
		test_close(dev, "d_dt_bias", d_dt_bias, g.dt_bias, heads, DTYPE_F32, 5e-4, 1);
		device_free(dev, d_qkv);
		device_free(dev, d_ba);
		device_free(dev, d_a_log);
		device_free(dev, d_dt_bias);
		free(g.qkv);
		free(g.ba);
		free(g.a_log);
		free(g.dt_bias);
		free_batch(&b);
	}
}
END_TEST

/* The documents as sequences that come in parts: first some tokens of each, the last document first, then the
 * others one by one. What comes out is what the whole gives. */
START_TEST(carried)
{
	FOR_ALL for (size_t i = 0; i < COUNT(shapes); i++)
	{
		struct batch b = make_batch(&shapes[i]);
		const struct shape *s = &b.s;
		int documents = s->documents, state = s->value_heads * s->key_dim * s->value_dim;
		double *want = calloc((size_t)(b.n * b.out), sizeof(*want)),
		       *zeros = calloc((size_t)(documents * state), sizeof(*zeros));
		float *states = test_buffer(dev, zeros, documents * state, DTYPE_F32);
		size_t size = dtype_size(type);

		for_each_head(&b, want, add_output);
		for (int d = documents - 1; d >= 0; d--) {
			int first = s->starts[d], n = s->starts[d + 1] - first, done = 0;

			while (done < n) {
				int part = done ? 1 : (n + 1) / 2, row = first + done;
				int32_t parts[2] = {0, part},
				        *sequences = malloc((size_t)part * sizeof(*sequences)), *at;
				double *none = calloc((size_t)(part * b.out), sizeof(*none));
				char *o = test_buffer(dev, none, part * b.out, type);
				struct device_delta p = b.d;

				for (int t = 0; t < part; t++)
					sequences[t] = d;
				at = test_put(dev, sequences, (size_t)part * sizeof(*sequences));
				p.tokens = part;
				p.documents = 1;
				p.starts = test_put(dev, parts, sizeof(parts));
				p.host_starts = parts;
				device_delta_carried(dev, &p, states, at, o,
				                     b.at_qkv + (size_t)(row * b.width) * size,
				                     at_k(&b) + (size_t)(row * b.width) * size,
				                     at_v(&b) + (size_t)(row * b.width) * size,
				                     b.at_ba + (size_t)(row * b.gates) * size,
				                     at_a(&b) + (size_t)(row * b.gates) * size);
				test_close(dev, "o of a part", o, want + row * b.out, part * b.out, type,
				           tolerance_of(type), 0.05);
				device_free(dev, o);
				device_free(dev, at);
				device_free(dev, (void *)(uintptr_t)p.starts);
				free(none);
				free(sequences);
				done += part;
			}
		}
		test_guard(dev, "states", states, (size_t)(documents * state) * sizeof(float));
		device_free(dev, states);
		free(want);
		free(zeros);
		free_batch(&b);
	}
}
END_TEST

/* Several parts at once, each of another sequence, with states of their own. */
START_TEST(carried_together)
{
	FOR_ALL
	{
		const struct shape s = {2, 4, 16, 8, 1, 3, {0, 3, 4, 80}};
		static const int32_t order[3] = {4, 0, 2};
		struct batch b = make_batch(&s);
		int state = s.value_heads * s.key_dim * s.value_dim;
		double *want = calloc((size_t)(b.n * b.out), sizeof(*want)),
		       *begin = calloc((size_t)(5 * state), sizeof(*begin));
		float *states = test_buffer(dev, begin, 5 * state, DTYPE_F32);
		void *o = test_buffer(dev, want, b.n * b.out, type);
		int32_t *sequences = malloc((size_t)b.n * sizeof(*sequences)), *at;

		for (int d = 0; d < s.documents; d++)
			for (int t = s.starts[d]; t < s.starts[d + 1]; t++)
				sequences[t] = order[d];
		at = test_put(dev, sequences, (size_t)b.n * sizeof(*sequences));
		device_delta_carried(dev, &b.d, states, at, o, b.at_qkv, at_k(&b), at_v(&b), b.at_ba,
		                     at_a(&b));
		for_each_head(&b, want, add_output);
		test_close(dev, "o", o, want, b.n * b.out, type, tolerance_of(type), 0.05);
		/* Sequences 1 and 3 are as they were. */
		free(begin);
		begin = test_fetch_values(dev, states, 5 * state, DTYPE_F32);
		for (int i = 0; i < 5 * state; i++)
			ck_assert(i / state % 2 == 0 || begin[i] == 0);
		device_free(dev, states);
		device_free(dev, o);
		device_free(dev, at);
		free(want);
		free(begin);
		free(sequences);
		free_batch(&b);
	}
}
END_TEST

static double silu(double x)
{
	return x * naive_sigmoid(x);
}

/* In front of silu. */
static double convolved(const double *x, const double *w, int ld, int width, int t, int first, int channel)
{
	double sum = 0;

	for (int j = 0; j < width; j++)
		if (t - width + 1 + j >= first)
			sum += w[channel * width + j] * x[(t - width + 1 + j) * ld + channel];
	return sum;
}

START_TEST(conv)
{
	static const struct {
		int channels, width, documents, starts[5];
	} cases[] = {{1, 1, 1, {0, 3}},
	             {5, 4, 3, {0, 1, 3, 40}},
	             {64, 4, 2, {0, 100, 130}},
	             {33, 3, 4, {0, 2, 3, 9, 70}}};

	FOR_ALL for (size_t i = 0; i < COUNT(cases); i++)
	{
		int ch = cases[i].channels, width = cases[i].width, n = cases[i].starts[cases[i].documents],
		    ld = ch + 3, ld_y = ch + 8;
		double *x = test_values(n * ld, 1), *w = test_values(ch * width, 2),
		       *dy = test_values(n * ld_y, 3);
		double *y = calloc((size_t)(n * ld_y), 8), *dx = calloc((size_t)(n * ld), 8),
		       *dw = test_values(ch * width, 4);
		double *kept = calloc((size_t)(3 * width * ch), 8);
		void *bx = test_buffer(dev, x, n * ld, type), *bw = test_buffer(dev, w, ch * width, type),
		     *bdy = test_buffer(dev, dy, n * ld_y, type), *by = test_buffer(dev, y, n * ld_y, type),
		     *bdx = test_buffer(dev, dx, n * ld, type),
		     *bdw = test_buffer(dev, dw, ch * width, DTYPE_F32);
		int32_t *starts = test_put(dev, cases[i].starts, sizeof(cases[i].starts));
		struct device_conv c = {n,   cases[i].documents, starts, cases[i].starts, ch, width, ld, ld_y,
		                        type};

		device_conv_forward(dev, &c, by, bx, bw);
		for (int d = 0; d < c.documents; d++)
			for (int t = cases[i].starts[d]; t < cases[i].starts[d + 1]; t++)
				for (int k = 0; k < ch; k++) {
					int first = cases[i].starts[d];
					double z = convolved(x, w, ld, width, t, first, k),
					       s = naive_sigmoid(z),
					       dz = dy[t * ld_y + k] * (s + z * s * (1 - s));

					y[t * ld_y + k] = silu(z);
					for (int j = 0; j < width; j++)
						if (t - width + 1 + j >= first) {
							dx[(t - width + 1 + j) * ld + k] +=
							    w[k * width + j] * dz;
							dw[k * width + j] +=
							    x[(t - width + 1 + j) * ld + k] * dz;
						}
				}
		test_close(dev, "conv", by, y, n * ld_y, type, test_tolerance(type), 0.3);
		device_conv_backward(dev, &c, bdx, bdw, bdy, bx, bw);
		test_close(dev, "conv d_x", bdx, dx, n * ld, type, 2 * test_tolerance(type), 1);
		test_close(dev, "conv d_w", bdw, dw, ch * width, DTYPE_F32, type == DTYPE_F32 ? 1e-4 : 3e-2,
		           1);

		/* The first document in two parts, after another sequence. */
		{
			int first = cases[i].documents - 1, from = cases[i].starts[first],
			    length = cases[i].starts[first + 1] - from, half = (length + 1) / 2;
			void *last = test_buffer(dev, kept, 2 * (width - 1) * ch, type);
			double *none = calloc((size_t)(length * ld_y), 8);
			char *out = test_buffer(dev, none, length * ld_y, type);

			for (int part = 0; part < 2 && half < length; part++) {
				int begin = part ? half : 0, count = part ? length - half : half;
				int32_t parts[2] = {0, count}, *sequences = malloc((size_t)count * 4), *at;
				struct device_conv p = c;

				for (int t = 0; t < count; t++)
					sequences[t] = 1;
				at = test_put(dev, sequences, (size_t)count * 4);
				p.tokens = count;
				p.documents = 1;
				p.starts = test_put(dev, parts, sizeof(parts));
				p.host_starts = parts;
				device_conv_carried(
				    dev, &p, last, at, out + (size_t)(begin * ld_y) * dtype_size(type),
				    (char *)bx + (size_t)((from + begin) * ld) * dtype_size(type), bw);
				device_free(dev, at);
				device_free(dev, (void *)(uintptr_t)p.starts);
				free(sequences);
			}
			if (half < length)
				test_close(dev, "conv in parts", out, y + from * ld_y, length * ld_y, type,
				           test_tolerance(type), 0.3);
			test_guard(dev, "last", last, (size_t)(2 * (width - 1) * ch) * dtype_size(type));
			device_free(dev, last);
			device_free(dev, out);
			free(none);
		}
		device_free(dev, bx);
		device_free(dev, bw);
		device_free(dev, by);
		device_free(dev, bdy);
		device_free(dev, bdx);
		device_free(dev, bdw);
		device_free(dev, starts);
		free(x);
		free(w);
		free(y);
		free(dy);
		free(dx);
		free(dw);
		free(kept);
	}
}
END_TEST

START_TEST(gates)
{
	FOR_ALL for (int i = 0; i < 8; i++)
	{
		int rows = i < 4 ? 3 : 70, cols = i % 4 < 2 ? 5 : 64, ld_x = cols + 3, ld_g = 2 * cols,
		    ld_y = cols + 8;
		bool with_silu = i % 2;
		double *x = test_values(rows * ld_x, 1), *g = test_values(rows * ld_g, 2),
		       *dy = test_values(rows * ld_y, 3);
		double *y = calloc((size_t)(rows * ld_y), 8), *dx = calloc((size_t)(rows * ld_y), 8),
		       *dg = calloc((size_t)(rows * ld_g), 8);
		void *bx = test_buffer(dev, x, rows * ld_x, type),
		     *bg = test_buffer(dev, g, rows * ld_g, type),
		     *bdy = test_buffer(dev, dy, rows * ld_y, type),
		     *by = test_buffer(dev, y, rows * ld_y, type),
		     *bdg = test_buffer(dev, dg, rows * ld_g, type);
		struct device_gating gate = {rows, cols, ld_x, ld_g, ld_y, with_silu, type};

		memcpy(dx, dy, (size_t)(rows * ld_y) * 8);
		for (int t = 0; t < rows * cols; t++) {
			int r = t / cols, k = t % cols;
			double z = g[r * ld_g + k], s = naive_sigmoid(z), f = with_silu ? z * s : s,
			       slope = with_silu ? s + z * s * (1 - s) : s * (1 - s);

			y[r * ld_y + k] = x[r * ld_x + k] * f;
			dx[r * ld_y + k] = dy[r * ld_y + k] * f;
			dg[r * ld_g + k] = dy[r * ld_y + k] * x[r * ld_x + k] * slope;
		}
		device_gate_forward(dev, &gate, by, bx, bg);
		test_close(dev, "gated", by, y, rows * ld_y, type, test_tolerance(type), 0.1);
		device_gate_backward(dev, &gate, bdy, bdg, bdy, bx, bg);
		test_close(dev, "gated d_x", bdy, dx, rows * ld_y, type, test_tolerance(type), 0.1);
		test_close(dev, "d_gate", bdg, dg, rows * ld_g, type, test_tolerance(type), 0.1);
		device_free(dev, bx);
		device_free(dev, bg);
		device_free(dev, bdy);
		device_free(dev, by);
		device_free(dev, bdg);
		free(x);
		free(g);
		free(dy);
		free(y);
		free(dx);
		free(dg);
	}
}
END_TEST

START_TEST(copies_of_groups)
{
	FOR_ALL for (int i = 0; i < 3; i++)
	{
		struct device_group_copy c = {
		    i == 1 ? 300 : 7, i == 2 ? 1 : 4, i == 0 ? 3 : 32, 0, 0, 0, 0, type};
		double *x, *y;
		void *bx, *by;

		c.step_x = 2 * c.cols;
		c.step_y = c.cols;
		c.ld_x = 8 * c.cols + i;
		c.ld_y = 4 * c.cols + 2 * i;
		x = test_values(c.rows * c.ld_x, 1);
		y = test_values(c.rows * c.ld_y, 2);
		bx = test_buffer(dev, x, c.rows * c.ld_x, type);
		by = test_buffer(dev, y, c.rows * c.ld_y, type);
		device_copy_groups(dev, &c, by, bx);
		for (int64_t r = 0; r < c.rows; r++)
			for (int g = 0; g < c.groups; g++)
				for (int k = 0; k < c.cols; k++)
					y[r * c.ld_y + g * c.step_y + k] = x[r * c.ld_x + g * c.step_x + k];
		test_close(dev, "copied groups", by, y, c.rows * c.ld_y, type, 0, 0);
		device_free(dev, bx);
		device_free(dev, by);
		free(x);
		free(y);
	}
}
END_TEST

TCase *test_device_delta(void)
{
	TCase *tc = tcase_create("delta");

	tcase_set_timeout(tc, 240);
	tcase_set_tags(tc, "small"); /* compute-sanitizer runs these */
	tcase_add_test(tc, forward);
	tcase_add_test(tc, backward);
	tcase_add_test(tc, carried);
	tcase_add_test(tc, carried_together);
	tcase_add_test(tc, conv);
	tcase_add_test(tc, gates);
	tcase_add_test(tc, copies_of_groups);
	return tc;
}
