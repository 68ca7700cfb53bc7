/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A preference task's part of a step: which tokens of a micro-batch count, the losses of its answers between
 * the passes, what is known of the reference model, and the evaluation.
 *
 * A row has two documents (dataset.h). The forward pass gives the loss of each token; from the sum over each
 * answer follows the derivative of the row's loss by that sum, and the backward pass is that of
 * cross-entropy, with this number for all tokens of the answer.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/train/internal.h"

bool trainer_prefers(const struct trainer *t)
{
	return t->o.preference.kind != PREFERENCE_NONE;
}

bool trainer_prefers_together(const struct trainer *t)
{
	return preference_has_labels(&t->o.preference) && t->world_size > 1;
}

/* ---- memory ---- */

int preference_allocate(struct trainer *t, struct error *err)
{
	const struct dataset *data[] = {t->train, t->eval};
	struct preference_work *w = &t->preference;

	if (!trainer_prefers(t))
		return 0;
	w->losses = malloc((size_t)(train_tokens(&t->o, t->max_row) * train_sequence_degree(&t->o)) *
	                   sizeof(*w->losses));
	if (!w->losses)
		return error_oom(err);
	for (int i = 0; i < 2 && preference_has_reference(&t->o.preference); i++) {
		if (!data[i])
			continue;
		w->reference[i] = calloc((size_t)dataset_rows(data[i]), sizeof(*w->reference[i]));
		if (!w->reference[i])
			return error_oom(err);
	}
	return 0;
}

void preference_free(struct trainer *t)
{
	free(t->preference.losses);
	free(t->preference.reference[0]);
	free(t->preference.reference[1]);
}

double *trainer_device_sums(const struct trainer *t)
{
	return t->plan->sums + PLAN_SUM_RANKS + t->world_size;
}

/* ---- the answers of a micro-batch ---- */

/* ORPO's likelihood is that of the chosen rows, prompts included. */
static bool has_likelihood(const struct trainer *t)
{
	return t->o.preference.kind == PREFERENCE_ORPO;
}

void preference_begin(struct trainer *t)
{
	struct preference_work *w = &t->preference;
	int64_t n = (int64_t)t->groups * t->o.accumulation * t->o.micro_batch;

	memset(w->sums, 0, sizeof(w->sums));
	w->pairs = w->nll_tokens = 0;
	for (int64_t i = 0; i < n; i++) {
		struct dataset_row row;

		if (t->all_rows[i] < 0)
			continue;
		dataset_row(t->train, t->all_rows[i], &row);
		w->pairs++;
		w->nll_tokens += row.starts[1] - 1;
	}
}

static bool has_scores(const struct trainer *t)
{
	return t->o.preference.kind == PREFERENCE_REWARD;
}

/* Where the score of a document is read, as transformers does: at the last token that is not padding. */
static int32_t score_place(const struct trainer *t, const struct dataset_row *row, int d)
{
	int32_t i = row->starts[d + 1] - 1;

	while (i > row->starts[d] && row->ids[i] == t->o.preference.pad)
		i--;
	return row->ids[i] == t->o.preference.pad ? row->starts[d] : i;
}

/* The sum and the count of an answer: of document d of a row whose tokens begin at `losses`. */
static struct preference_answer sum_answer(const struct trainer *t, const struct dataset_row *row, int d,
                                           const float *losses)
{
	struct preference_answer a = {0};

	if (has_scores(t))
		return (struct preference_answer){.logp = (double)losses[score_place(t, row, d)],
		                                  .tokens = 1};
	for (int32_t i = row->starts[d]; i < row->starts[d + 1]; i++) {
		if (row->targets[i] < 0)
			continue;
		a.logp -= (double)losses[i];
		a.tokens++;
	}
	return a;
}

static int check_row(const struct dataset_row *row, struct error *err)
{
	return row->documents == 2 ? 0 : error_set(err, -EINVAL, "a row of preferences has two documents");
}

/* The mean over all ranks' rows of a micro-step. */
static int estimate_kl(struct trainer *t, const float *losses, double *kl, struct error *err)
{
	const struct preference_work *w = &t->preference;
	double *device = trainer_device_sums(t) + PREFERENCE_SUMS, sums[PLAN_KL] = {0};
	int64_t at = 0;
	int r;

	for (int64_t i = 0; i < w->count && losses && trainer_leads_group(t); i++) {
		struct dataset_row row;

		if (w->rows[i] < 0)
			continue;
		dataset_row(w->data, w->rows[i], &row);
		sums[0] += sum_answer(t, &row, 1, losses + at).logp - w->known[2 * w->rows[i] + 1];
		sums[1]++;
		at += row.length;
	}
	if ((r = trainer_sum(t, device, sums, PLAN_KL, err)) < 0)
		return r;
	*kl = sums[1] > 0 ? MAX(sums[0] / sums[1], 0) : 0;
	return 0;
}

/* ORPO's term: the loss of all tokens of the chosen row, and the factor of each. */
static void add_likelihood(struct trainer *t, const struct dataset_row *row, const float *losses,
                           float *factors)
{
	struct preference_work *w = &t->preference;

	for (int32_t i = 0; i + 1 < row->starts[1]; i++) {
		w->sums[PREFERENCE_SUM_NLL] += (double)losses[i];
		if (factors)
			factors[i] += (float)(1 / (double)w->nll_tokens);
	}
	w->sums[PREFERENCE_SUM_NLL_TOKENS] += row->starts[1] - 1;
}

/* The derivative by a sum of log-probabilities is for each token of the answer; the loss of a token is the
 * negative of its log-probability. */
static void set_factors(const struct trainer *t, const struct dataset_row *row, int d, double derivative,
                        float *factors)
{
	double mean = derivative / (double)t->preference.pairs;

	if (has_scores(t)) {
		factors[score_place(t, row, d)] = (float)mean;
		return;
	}
	for (int32_t i = row->starts[d]; i < row->starts[d + 1]; i++)
		factors[i] = row->targets[i] < 0 ? 0 : (float)-mean;
}

/* Adds the rows of the micro-batch to the sums; factors may be NULL. */
static int weigh(void *context, const float *losses, float *factors, struct error *err)
{
	struct trainer *t = context;
	struct preference_work *w = &t->preference;
	const struct preference_options *o = &t->o.preference;
	int64_t at = 0;
	double kl = 0;
	int r;

	if (preference_has_labels(o) && (r = estimate_kl(t, losses, &kl, err)) < 0)
		return r;
	for (int64_t i = 0; i < w->count && losses; i++) {
		struct preference_answer answers[2];
		struct dataset_row row;
		double derivative[2] = {0};

		if (w->rows[i] < 0)
			continue;
		dataset_row(w->data, w->rows[i], &row);
		if ((r = check_row(&row, err)) < 0)
			return r;
		for (int d = 0; d < 2; d++) {
			answers[d] = sum_answer(t, &row, d, losses + at);
			answers[d].reference = w->known ? w->known[2 * w->rows[i] + d] : 0;
		}
		if (preference_has_labels(o))
			preference_label(o, &answers[0], row.label == 1, kl, &derivative[0], w->sums);
		else
			preference_pair(o, answers, (double)row.margin, derivative, w->sums);
		for (int d = 0; d < 2 && factors; d++)
			set_factors(t, &row, d, derivative[d], factors + at);
		if (has_likelihood(t))
			add_likelihood(t, &row, losses + at, factors ? factors + at : NULL);
		at += row.length;
	}
	if (!trainer_leads_group(t))
		memset(w->sums, 0, sizeof(w->sums));
	return 0;
}

int preference_add(struct trainer *t, struct error *err)
{
	return weigh(t, t->preference.losses, NULL, err);
}

/* Which tokens have a loss, where they are not the answers' alone. */
static void set_targets(const struct trainer *t, const struct dataset_row *row, int32_t *targets)
{
	if (has_likelihood(t))
		for (int32_t i = 0; i + 1 < row->starts[1]; i++)
			targets[i] = row->ids[i + 1];
	for (int32_t i = 0; i < row->length && has_scores(t); i++)
		targets[i] = i == score_place(t, row, 0) || i == score_place(t, row, 1) ? 0 : -100;
}

void preference_set_batch(struct trainer *t, const struct dataset *data, const int64_t *rows, int64_t n,
                          struct model_batch *batch)
{
	struct preference_work *w = &t->preference;
	double(*known)[2] = w->reference[data == t->train ? 0 : 1];
	int64_t at = 0;

	w->data = data;
	w->known = known ? known[0] : NULL;
	w->rows = rows;
	w->count = n;
	batch->weigh = weigh;
	batch->weigh_context = t;
	for (int64_t i = 0; i < n; i++) {
		struct dataset_row row;

		if (rows[i] < 0)
			continue;
		dataset_row(data, rows[i], &row);
		set_targets(t, &row, t->targets + at);
		at += row.length;
	}
}

/* ---- passes over all rows ---- */

/* Evaluates all rows of a split, this rank's part in micro-batches; as many passes on each rank, since the
 * last may have no row on some. */
static int for_all(struct trainer *t, const struct dataset *data,
                   int (*each)(struct trainer *t, struct error *err), struct error *err)
{
	int64_t rows = dataset_rows(data), at = t->group, all = t->groups * t->o.micro_batch;
	struct model_batch b;
	int r;

	for (int64_t done = 0; done < rows; done += all) {
		int64_t n = 0;

		for (; n < t->o.micro_batch && at < rows; at += t->groups)
			t->rows[n++] = at;
		trainer_gather(t, data, t->rows, n, &b);
		preference_set_batch(t, data, t->rows, n, &b);
		if ((r = model_evaluate(t->plan->model, &b, NULL, t->preference.losses, err)) < 0 ||
		    (r = each(t, err)) < 0)
			return r;
	}
	return 0;
}

int preference_evaluate(struct trainer *t, double *loss, struct preference_metric *metrics, struct error *err)
{
	struct preference_work *w = &t->preference;
	double *device = trainer_device_sums(t);
	int r;

	memset(w->sums, 0, sizeof(w->sums));
	if ((r = for_all(t, t->eval, preference_add, err)) < 0)
		return error_prefix(err, "evaluation");
	if ((r = trainer_sum(t, device, w->sums, PREFERENCE_SUMS, err)) < 0)
		return r;
	*loss = preference_mean_loss(&t->o.preference, w->sums);
	if (metrics)
		preference_metrics(&t->o.preference, w->sums, metrics);
	return 0;
}

/* ---- the reference ---- */

static int add_reference(struct trainer *t, struct error *err)
{
	struct preference_work *w = &t->preference;
	double(*known)[2] = w->reference[w->data == t->train ? 0 : 1];
	int64_t at = 0;

	for (int64_t i = 0; i < w->count && trainer_leads_group(t); i++) {
		struct dataset_row row;
		int r;

		dataset_row(w->data, w->rows[i], &row);
		if ((r = check_row(&row, err)) < 0)
			return r;
		for (int d = 0; d < 2; d++)
			known[w->rows[i]][d] = sum_answer(t, &row, d, w->losses + at).logp;
		at += row.length;
	}
	return 0;
}

/* Each rank has its rows, and 0 for those of the others, or of a rank that shares them. */
static int share_reference(struct trainer *t, double *values, int64_t n, struct error *err)
{
	void *staging;
	int64_t most = (int64_t)(model_scratch(t->plan->model, &staging) / sizeof(*values)), piece;
	int r;

	for (int64_t at = 0; at < n && t->world_size > 1; at += piece) {
		piece = MIN(n - at, most);
		if ((r = trainer_sum(t, staging, values + at, piece, err)) < 0)
			return r;
	}
	return 0;
}

int trainer_compute_reference(struct trainer *t, struct error *err)
{
	const struct dataset *data[] = {t->train, t->eval};
	int r;

	for (int i = 0; i < 2; i++) {
		double(*known)[2] = t->preference.reference[i];

		if (!known)
			continue;
		memset(known, 0, (size_t)dataset_rows(data[i]) * sizeof(*known));
		if ((r = for_all(t, data[i], add_reference, err)) < 0 ||
		    (r = share_reference(t, known[0], 2 * dataset_rows(data[i]), err)) < 0)
			return error_prefix(err, "the reference model");
	}
	return 0;
}

static int64_t count_of(const struct trainer *t, int split)
{
	return t->preference.reference[split] ? 2 * dataset_rows(split ? t->eval : t->train) : 0;
}

int64_t trainer_reference_count(const struct trainer *t)
{
	return count_of(t, 0) + count_of(t, 1);
}

void trainer_get_reference(const struct trainer *t, double *out)
{
	for (int i = 0; i < 2; out += count_of(t, i), i++)
		if (t->preference.reference[i])
			memcpy(out, t->preference.reference[i], (size_t)count_of(t, i) * sizeof(*out));
}

void trainer_set_reference(struct trainer *t, const double *in)
{
	for (int i = 0; i < 2; in += count_of(t, i), i++)
		if (t->preference.reference[i])
			memcpy(t->preference.reference[i], in, (size_t)count_of(t, i) * sizeof(*in));
}
