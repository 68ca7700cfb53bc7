/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Knowledge distillation: cross-entropy and the divergence from a teacher's distribution, with the gradient.
 * The divergence is over the ids of which both models have logits, the first `shared` ones, with softmaxes of
 * their own; so a row has up to three maxima and three sums of exponentials.
 */
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"
#include "engine/device/cpu/vec.h"

/* With cap 0 the logits stay as they are. */
VINLINE vf soft_cap(vf v, float cap)
{
	return cap > 0 ? v_tanh(v / cap) * cap : v;
}

VINLINE vf load_logits(const void *x, int64_t i, enum dtype type, int64_t n, float cap)
{
	return soft_cap(load_part(x, i, type, n), cap);
}

/* The lanes below n; zero in the others. */
VINLINE vf first_lanes(vf v, int64_t n)
{
	return n == VW ? v : v_select(v_lanes() < (int32_t)n, v, v_set(0));
}

struct distillation_row {
	float cap, teacher_cap, inverse; /* 1 / temperature */
	float max, shared_max, teacher_max;
	double sum;         /* of exp(y - max), y being all logits */
	double student_sum; /* of exp((y - shared_max) / temperature), of the shared ids */
	double teacher_sum; /* of exp((t - teacher_max) / temperature), t being the teacher's logits */
	double difference;  /* of the latter times ((t - teacher_max) - (y - shared_max)) / temperature */
};

/* The maximum with the cap, which is applied by the same function as to the elements. A NaN is no maximum;
 * the sums become NaN with it. */
VINLINE float capped_max(const void *x, int64_t begin, int64_t end, enum dtype type, float cap)
{
	vf max = v_set(-INFINITY);

	for (int64_t i = begin; i < end; i += VW) {
		int64_t k = end - i < VW ? end - i : VW;
		vf v = load_part(x, i, type, k);

		max = v_max(k == VW ? v : v_select(v_lanes() < (int32_t)k, v, v_set(-INFINITY)), max);
	}
	return soft_cap(v_set(v_hmax(max)), cap)[0];
}

/* exp of the elements' logits below the maxima: of the cross-entropy, and of both distributions. */
struct exps {
	vf hard, student, teacher, difference;
};

VINLINE struct exps exps_at(const struct distillation_row *r, const void *x, const void *t, int64_t i,
                            enum dtype type, int64_t n, bool shared)
{
	vf y = load_logits(x, i, type, n, r->cap);
	struct exps e = {.hard = v_exp(y - r->max)};

	if (shared) {
		vf below = (y - r->shared_max) * r->inverse;
		vf teacher = (load_logits(t, i, type, n, r->teacher_cap) - r->teacher_max) * r->inverse;

		e.student = v_exp(below);
		e.teacher = v_exp(teacher);
		/* 0 · log 0 is 0; a NaN stays a NaN. */
		e.difference = v_select(e.teacher > 0, e.teacher * (teacher - below), e.teacher);
	}
	return e;
}

VINLINE void add_sums(struct distillation_row *r, const void *x, const void *t, int64_t begin, int64_t end,
                      enum dtype type, bool shared)
{
	for (int64_t p = begin; p < end; p += 1024) {
		int64_t stop = p + 1024 < end ? p + 1024 : end;
		struct exps sum = {};

		for (int64_t i = p; i < stop; i += VW) {
			int64_t k = stop - i < VW ? stop - i : VW;
			struct exps e = exps_at(r, x, t, i, type, k, shared);

			sum.hard += first_lanes(e.hard, k);
			if (shared) {
				sum.student += first_lanes(e.student, k);
				sum.teacher += first_lanes(e.teacher, k);
				sum.difference += first_lanes(e.difference, k);
			}
		}
		r->sum += v_hsum(sum.hard);
		if (shared) {
			r->student_sum += v_hsum(sum.student);
			r->teacher_sum += v_hsum(sum.teacher);
			r->difference += v_hsum(sum.difference);
		}
	}
}

/* The gradient without the target's own part: each exp times the factor of its distribution. */
VINLINE void store_gradient(const struct distillation_row *r, void *x, const void *t, int64_t begin,
                            int64_t end, float hard, float student, float teacher, enum dtype type,
                            bool shared)
{
	for (int64_t i = begin; i < end; i += VW) {
		int64_t k = end - i < VW ? end - i : VW;
		struct exps e = exps_at(r, x, t, i, type, k, shared);
		vf g = e.hard * hard;

		if (shared)
			g += e.student * student - e.teacher * teacher;
		if (r->cap > 0) {
			vf h = v_tanh(load_part(x, i, type, k) / r->cap);

			g *= 1.0f - h * h;
		}
		store_part(x, i, type, g, k);
	}
}

VINLINE void distillation_row(const struct device_distillation *d, void *x, const void *t, int32_t target,
                              int64_t n, float scale, float *loss, bool capped, enum dtype type)
{
	int64_t shared = n < d->teacher_vocab ? n : d->teacher_vocab;
	/* Zero is a constant here where neither model has a cap. */
	struct distillation_row r = {.cap = capped ? d->cap : 0,
	                             .teacher_cap = capped ? d->teacher_cap : 0,
	                             .inverse = 1 / d->temperature};
	double hard = 1 - (double)d->weight, soft = (double)d->weight * d->temperature, below, at_target;
	float rest;

	if (target < 0 || target >= n) {
		*loss = 0;
		memset(x, 0, (size_t)n * dtype_size(type));
		return;
	}
	r.shared_max = capped_max(x, 0, shared, type, r.cap);
	r.teacher_max = capped_max(t, 0, shared, type, r.teacher_cap);
	rest = shared < n ? capped_max(x, shared, n, type, r.cap) : -INFINITY;
	r.max = rest > r.shared_max ? rest : r.shared_max;
	add_sums(&r, x, t, 0, shared, type, true);
	add_sums(&r, x, t, shared, n, type, false);

	/* The target's logit is read before it is overwritten. Its gradient is computed in float64: it is the
	 * difference of 1 and a probability that may be near to it. */
	at_target = load_logits(x, target, type, 1, r.cap)[0];
	below = at_target - r.max;
	*loss = (float)(hard * (log(r.sum) - below) +
	                soft * d->temperature *
	                    (r.difference / r.teacher_sum + log(r.student_sum) - log(r.teacher_sum)));
	below = hard * (exp(below) / r.sum - 1);
	if (target < shared) {
		double teacher = (double)load_logits(t, target, type, 1, r.teacher_cap)[0] - r.teacher_max;

		below += soft * (exp((at_target - r.shared_max) / d->temperature) / r.student_sum -
		                 exp(teacher / d->temperature) / r.teacher_sum);
	}
	if (r.cap > 0)
		below *= 1 - pow(tanh((double)s_load(x, target, type) / r.cap), 2);
	hard *= scale;
	soft *= scale;
	store_gradient(&r, x, t, 0, shared, (float)(hard / r.sum), (float)(soft / r.student_sum),
	               (float)(soft / r.teacher_sum), type, true);
	store_gradient(&r, x, t, shared, n, (float)(hard / r.sum), 0, 0, type, false);
	s_store(x, target, type, (float)(below * scale));
}

void KERNEL(distillation)(struct device *dev, const struct device_distillation *d, void *logits,
                          enum dtype type, const int32_t *targets, int64_t rows, int64_t vocab, float scale,
                          float *loss)
{
#pragma omp parallel for schedule(static) num_threads(dev->threads) if (rows * vocab > PARALLEL_MIN)
	for (int64_t r = 0; r < rows; r++) {
		const void *t = at_const(d->teacher, r * d->teacher_vocab, type);

		if (d->cap > 0 || d->teacher_cap > 0)
			WITH_TYPE(type, distillation_row(d, at(logits, r * vocab, TYPE), t, targets[r], vocab,
			                                 scale, &loss[r], true, TYPE));
		else
			WITH_TYPE(type, distillation_row(d, at(logits, r * vocab, TYPE), t, targets[r], vocab,
			                                 scale, &loss[r], false, TYPE));
	}
}
