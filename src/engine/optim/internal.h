/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of optim/ share. */
#pragma once

#include "engine/optim/optimizer.h"

/* A moment of this rank's part of a unit. */
struct moment8 {
	uint8_t *codes;
	float *scales;
	float *staged; /* host, [own]: what a checkpoint has of it, until optimizer_loaded; else NULL */
};
enum {
	MOMENT8_CHUNK = 1 << 20
}; /* elements that are widened at a time: both moments stay in a GPU's cache */

struct optimizer {
	enum optimizer_kind kind;
	bool with_momentum;
	const struct model_layout *layout;
	struct shard *s;
	double *sums;      /* device, [2 · parameters]: of each tensor */
	double *host_sums; /* the same on the host */
	/* Adafactor, on the device: for each parameter its rows, then its columns, at
	 * factor_at[parameter]. */
	float *factors, *factor_sums;
	int64_t *factor_at, factor_count;
	double *row_means, *weights_rms; /* host, [parameters]: within a step */
	/* Muon: the largest matrix twice, and the square of its smaller side twice. */
	float *momentum; /* of a whole block, where ranks have a part each */
	enum dtype matrix_type;
	void *matrix[2], *square[2];
	int64_t largest_matrix, largest_square;
	/* 8 bits: [units] of both moments (lion has the first), and both moments of a chunk in fp32. */
	struct moment8 *moment8[2];
	float *chunk[2];
};

/* The part of a parameter, or of any range of its unit, that this rank steps; with offload, on the host. */
struct own_range {
	float *master; /* NULL: copy alone is stepped */
	void *copy;    /* in the shard's type; NULL where master is all there is */
	void *gradient;
	enum dtype gradient_type; /* fp32 but for what optimizer_reads allows */
	float *m, *v;
	int64_t first; /* of the range: elements before this rank's part of it */
	int64_t n;     /* 0: none of it is here */
	int64_t place; /* among the elements of all units */
};
struct own_range optimizer_range(const struct shard *s, int unit, int64_t first, int64_t n);
static inline struct own_range optimizer_parameter(const struct shard *s, const struct model_parameter *p)
{
	return optimizer_range(s, p->unit, p->offset, p->count);
}

/* Applies a rule to the range; h's seed, step and place are filled in. */
void optimizer_update(const struct shard *s, const struct own_range *range,
                      const struct optimizer_options *options, const float *grad_scale,
                      struct device_update h);
/* AdamW and Lion likewise. kept: so many of the last of each `width` elements have no weight decay; `width`
 * divides what lies before the range. */
void optimizer_adamw(const struct shard *s, const struct own_range *range,
                     const struct optimizer_options *options, const float *grad_scale, double learning_rate,
                     double weight_decay, int64_t width, int64_t kept);

void optimizer_lion(const struct shard *s, const struct own_range *range,
                    const struct optimizer_options *options, const float *grad_scale, double learning_rate,
                    double weight_decay);

double optimizer_rate(const struct optimizer_options *options, const struct model_parameter *p);
/* The parts of a unit whose elements are stepped alike, in order; none of a unit that is frozen. Their number
 * is returned. */
struct optimizer_span {
	int64_t first, n;
	double rate, decay;
};
enum { OPTIMIZER_SPANS = 4 };
int optimizer_spans(const struct optimizer *o, int unit, const struct optimizer_options *options,
                    struct optimizer_span spans[OPTIMIZER_SPANS]);
double optimizer_decay(const struct optimizer_options *options, const struct model_parameter *p);

/* Tensor sums: zeroed, added to on the device, then brought to the host as sums over all ranks. */
void optimizer_sums_start(struct optimizer *o);
void optimizer_sum_weights(struct optimizer *o, const struct own_range *range, double *sum);
int optimizer_sums_finish(struct optimizer *o, struct error *err);

/* trust.c, adafactor.c, muon.c, moments8.c: a step of all units, without the gathers. */
int optimizer_step_8bit(struct optimizer *o, const struct optimizer_options *options, const float *grad_scale,
                        struct error *err);
/* Of optimizer_loaded. */
int factors_loaded(struct optimizer *o, struct error *err);
int moments8_loaded(struct optimizer *o, struct error *err);
int optimizer_lamb(struct optimizer *o, const struct optimizer_options *options, const float *grad_scale,
                   struct error *err);
int optimizer_lars(struct optimizer *o, const struct optimizer_options *options, const float *grad_scale,
                   struct error *err);
int optimizer_adafactor(struct optimizer *o, const struct optimizer_options *options, const float *grad_scale,
                        struct error *err);
int optimizer_muon(struct optimizer *o, const struct optimizer_options *options, const float *grad_scale,
                   struct error *err);

/* ---- Adafactor ---- */
/* Whether means of rows and of columns stand for its second moments. A norm or a bias, and a matrix of one
 * row or column, has as many rows of one element as it has elements, and no columns. */
static inline bool factor_divides(const struct model_parameter *p)
{
	return p->matrix && p->shape[0] > 1 && p->shape[1] > 1;
}

static inline int64_t factor_rows(const struct model_parameter *p)
{
	return factor_divides(p) ? p->shape[0] : p->count;
}

/* Elements of a row. */
static inline int64_t factor_row_length(const struct model_parameter *p)
{
	return factor_divides(p) ? p->shape[1] : 1;
}

/* Means that are kept of a parameter: first those of its rows, then those of its columns. At most as many as
 * it has elements. */
static inline int64_t factor_means(const struct model_parameter *p)
{
	return factor_divides(p) ? p->shape[0] + p->shape[1] : p->count;
}

static inline float *factor_columns(const struct model_parameter *p, float *means)
{
	return factor_divides(p) ? means + factor_rows(p) : NULL;
}

/* Whether Muon orthogonalizes it; the other parameters are AdamW's. */
bool muon_takes(const struct optimizer *o, const struct model_parameter *p);
/* Whether a unit has such parameters. */
bool muon_steps(const struct optimizer *o, int unit);
