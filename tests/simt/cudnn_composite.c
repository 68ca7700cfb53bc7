/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a graph of products, elementwise operations and sums over keys, one operation after another in
 * float64, for one head of one document at a time. Attention of cuDNN before 9.21 is such a graph.
 */
#include <math.h>
#include <string.h>

#include "engine/device/dtype.h"
#include "fake_cudnn.h"

enum { BAD_PARAM = 2000, NOT_SUPPORTED = 3000, VALUES = 64 };

/* What a tensor of the graph is for one head: rows x cols numbers. */
struct value {
	int64_t uid, rows, cols;
	double *x;
};

struct machine {
	struct pack *pack;
	int64_t b, h, heads;
	int count;
	struct value values[VALUES];
};

static const int inputs[] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                             CUDNN_ATTR_OPERATION_POINTWISE_TDESC};

bool fake_is_composite(const struct descriptor *first)
{
	return first->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
}

static int type_of(const struct descriptor *t)
{
	return (int)number(t, CUDNN_ATTR_TENSOR_DATA_TYPE);
}

static int mode_of(const struct descriptor *d)
{
	return (int)number(part(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR), CUDNN_ATTR_POINTWISE_MODE);
}

static int inputs_of(int mode)
{
	switch (mode) {
	case CUDNN_POINTWISE_EXP:
	case CUDNN_POINTWISE_LOG:
	case CUDNN_POINTWISE_GEN_INDEX:
		return 1;
	case CUDNN_POINTWISE_BINARY_SELECT:
		return 3;
	default:
		return 2;
	}
}

static bool is_comparison(int mode)
{
	return mode == CUDNN_POINTWISE_LOGICAL_AND ||
	       (mode >= CUDNN_POINTWISE_CMP_GT && mode <= CUDNN_POINTWISE_CMP_LT);
}

static cudnnStatus_t check_pointwise(const struct descriptor *d)
{
	const struct descriptor *how = part(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
	const struct descriptor *y = part(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC), *mask;
	int mode;

	if (!how || !y)
		return BAD_PARAM;
	mode = mode_of(d);
	for (int i = 0; i < 3; i++)
		if ((i < inputs_of(mode)) != (part(d, inputs[i]) != NULL))
			return BAD_PARAM;
	if ((mode == CUDNN_POINTWISE_GEN_INDEX) != (number(how, CUDNN_ATTR_POINTWISE_AXIS) >= 2) ||
	    is_comparison(mode) != (type_of(y) == CUDNN_DATA_BOOLEAN) ||
	    is_comparison(mode) != (number(how, CUDNN_ATTR_POINTWISE_MATH_PREC) == CUDNN_DATA_BOOLEAN))
		return BAD_PARAM;
	mask = mode == CUDNN_POINTWISE_BINARY_SELECT ? part(d, inputs[2]) : NULL;
	return mask && type_of(mask) != CUDNN_DATA_BOOLEAN ? BAD_PARAM : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_product(const struct descriptor *d)
{
	const struct descriptor *a = part(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
	const struct descriptor *b = part(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
	const struct descriptor *c = part(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC);

	if (!a || !b || !c || !part(d, CUDNN_ATTR_OPERATION_MATMUL_DESC) ||
	    type_of(a) != CUDNN_DATA_BFLOAT16 || type_of(b) != CUDNN_DATA_BFLOAT16 ||
	    dims(a)[3] != dims(b)[2] || dims(a)[2] != dims(c)[2] || dims(b)[3] != dims(c)[3] ||
	    dims(a)[1] % dims(b)[1] || dims(a)[1] != dims(c)[1])
		return BAD_PARAM;
	return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_sum(const struct descriptor *d)
{
	const struct descriptor *x = part(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
	const struct descriptor *y = part(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);

	return x && y && part(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC) && dims(y)[2] == dims(x)[2] &&
	               dims(y)[3] == 1
	           ? CUDNN_STATUS_SUCCESS
	           : BAD_PARAM;
}

cudnnStatus_t fake_composite_check(const struct descriptor *d)
{
	return d->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR   ? check_pointwise(d)
	       : d->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ? check_sum(d)
	                                                                 : check_product(d);
}

/* ---- values ---- */
static bool is_virtual(const struct descriptor *t)
{
	return number(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL) == 1;
}

static const struct value *known(const struct machine *m, const struct descriptor *t)
{
	for (int i = 0; i < m->count; i++)
		if (m->values[i].uid == uid(t))
			return &m->values[i];
	fprintf(stderr, "cuDNN's stand-in: tensor %lld is read before it is written\n", (long long)uid(t));
	abort();
}

static struct value *make_value(struct machine *m, const struct descriptor *t)
{
	struct value *v = &m->values[m->count++];

	if (m->count > VALUES)
		abort();
	*v = (struct value){uid(t), dims(t)[2], dims(t)[3], NULL};
	v->x = calloc((size_t)(v->rows * v->cols), sizeof(double));
	return v;
}

/* The rows of this document, where the operation is told lengths. */
static int64_t limit(struct machine *m, const struct descriptor *lengths, int64_t all)
{
	return lengths ? ((const int32_t *)pointer(m->pack, lengths))[m->b] : all;
}

/* The element of a matrix in memory; its heads may be shared by a group. */
static int64_t place(const struct machine *m, const struct view *v, const struct descriptor *t, int64_t row,
                     int64_t col)
{
	return at(v, m->b, m->h / (m->heads / dims(t)[1]), row) + col * strides(t)[3];
}

static double round_to(double x, int type)
{
	return type == CUDNN_DATA_BFLOAT16 ? bf16_to_float(bf16_from_float((float)x))
	       : type == CUDNN_DATA_FLOAT  ? (float)x
	                                   : x;
}

/* A number that is the same for all scores of a document, or an element of a value. */
static double operand(struct machine *m, const struct descriptor *t, int64_t row, int64_t col)
{
	const struct value *v;

	if (is_virtual(t)) {
		v = known(m, t);
		return v->x[(v->rows > 1 ? row : 0) * v->cols + (v->cols > 1 ? col : 0)];
	}
	return number(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE) == 1 ? *(const float *)pointer(m->pack, t)
	                                                     : (double)limit(m, t, 0);
}

/* ---- operations ---- */
static double apply(int mode, int64_t index, const double x[3])
{
	switch (mode) {
	case CUDNN_POINTWISE_ADD:
		return x[0] + x[1];
	case CUDNN_POINTWISE_SUB:
		return x[0] - x[1];
	case CUDNN_POINTWISE_MUL:
		return x[0] * x[1];
	case CUDNN_POINTWISE_DIV:
		return x[0] / x[1];
	case CUDNN_POINTWISE_EXP:
		return exp(x[0]);
	case CUDNN_POINTWISE_LOG:
		return log(x[0]);
	case CUDNN_POINTWISE_CMP_LT:
		return x[0] < x[1];
	case CUDNN_POINTWISE_CMP_GE:
		return x[0] >= x[1];
	case CUDNN_POINTWISE_CMP_GT:
		return x[0] > x[1];
	case CUDNN_POINTWISE_LOGICAL_AND:
		return x[0] != 0 && x[1] != 0;
	case CUDNN_POINTWISE_BINARY_SELECT:
		return x[2] != 0 ? x[0] : x[1];
	case CUDNN_POINTWISE_GEN_INDEX:
		return (double)index;
	}
	abort();
}

static void run_pointwise(struct machine *m, const struct descriptor *d, const struct descriptor *lengths)
{
	const struct descriptor *y = part(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
	int64_t axis =
	    number(part(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR), CUDNN_ATTR_POINTWISE_AXIS);
	struct value *to = is_virtual(y) ? make_value(m, y) : NULL;
	struct view memory = to ? (struct view){0} : view_of(m->pack, y);
	int64_t rows = to ? dims(y)[2] : limit(m, lengths, dims(y)[2]);
	int mode = mode_of(d);

	for (int64_t row = 0; row < rows; row++) {
		for (int64_t col = 0; col < dims(y)[3]; col++) {
			double x[3] = {0}, out;

			for (int i = 0; i < inputs_of(mode); i++)
				x[i] = operand(m, part(d, inputs[i]), row, col);
			out = round_to(apply(mode, axis == 2 ? row : col, x), type_of(y));
			if (to)
				to->x[row * to->cols + col] = out;
			else
				((float *)memory.p)[place(m, &memory, y, row, col)] = (float)out;
		}
	}
}

static void run_sum(struct machine *m, const struct descriptor *d)
{
	const struct value *x = known(m, part(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
	struct value *to = make_value(m, part(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
	bool max = number(part(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC), CUDNN_ATTR_REDUCTION_OPERATOR) ==
	           CUDNN_REDUCE_TENSOR_MAX;

	for (int64_t row = 0; row < x->rows; row++) {
		double sum = max ? -INFINITY : 0;

		for (int64_t col = 0; col < x->cols; col++)
			sum = max ? fmax(sum, x->x[row * x->cols + col]) : sum + x->x[row * x->cols + col];
		to->x[row] = sum;
	}
}

static double element(struct machine *m, const struct descriptor *t, const struct view *memory, int64_t row,
                      int64_t col)
{
	return is_virtual(t) ? operand(m, t, row, col)
	                     : bf16_to_float(((const uint16_t *)memory->p)[place(m, memory, t, row, col)]);
}

static void run_product(struct machine *m, const struct descriptor *d)
{
	const struct descriptor *a = part(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
	const struct descriptor *b = part(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
	const struct descriptor *c = part(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
	int64_t rows = limit(m, part(d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC), dims(c)[2]);
	int64_t cols = limit(m, part(d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC), dims(c)[3]);
	int64_t inner = limit(m, part(d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC), dims(a)[3]);
	struct view from_a = is_virtual(a) ? (struct view){0} : view_of(m->pack, a);
	struct view from_b = is_virtual(b) ? (struct view){0} : view_of(m->pack, b);
	struct value *to = is_virtual(c) ? make_value(m, c) : NULL;
	struct view memory = to ? (struct view){0} : view_of(m->pack, c);

	if (rows > dims(c)[2] || cols > dims(c)[3] || inner > dims(a)[3])
		abort();
	for (int64_t row = 0; row < rows; row++) {
		for (int64_t col = 0; col < cols; col++) {
			double sum = 0;

			for (int64_t i = 0; i < inner; i++)
				sum += element(m, a, &from_a, row, i) * element(m, b, &from_b, i, col);
			if (to)
				to->x[row * to->cols + col] = round_to(sum, type_of(c));
			else
				((uint16_t *)memory.p)[place(m, &memory, c, row, col)] =
				    bf16_from_float((float)sum);
		}
	}
}

cudnnStatus_t fake_composite_run(struct pack *pack, const struct descriptor *graph)
{
	const struct attribute *operations = find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
	struct descriptor *const *list = (struct descriptor *const *)operations->bytes;
	const struct descriptor *q = part(list[0], CUDNN_ATTR_OPERATION_MATMUL_ADESC);
	const struct descriptor *lengths = part(list[0], CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC);
	struct machine m = {.pack = pack, .heads = dims(q)[1]};

	if (list[operations->count - 1]->type != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
		return NOT_SUPPORTED;
	for (m.b = 0; m.b < dims(q)[0]; m.b++) {
		for (m.h = 0; m.h < m.heads; m.h++) {
			for (int64_t i = 0; i < operations->count; i++) {
				if (list[i]->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
					run_product(&m, list[i]);
				else if (list[i]->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
					run_sum(&m, list[i]);
				else
					run_pointwise(&m, list[i], lengths);
			}
			while (m.count > 0)
				free(m.values[--m.count].x);
		}
	}
	return CUDNN_STATUS_SUCCESS;
}
