/* SPDX-License-Identifier: Apache-2.0 */
/* The losses of preference tasks and their derivatives, for one row at a time, and the means over rows. */
#include "engine/train/preference.h"

#include <math.h>

#include "base/cleanup.h"

void preference_options_default(struct preference_options *o)
{
	*o = (struct preference_options){
	    .beta = 0.1, .gamma = 0.5, .desirable_weight = 1, .undesirable_weight = 1, .pad = -1};
}

bool preference_has_reference(const struct preference_options *o)
{
	return o->kind == PREFERENCE_DPO || o->kind == PREFERENCE_KTO;
}

bool preference_has_labels(const struct preference_options *o)
{
	return o->kind == PREFERENCE_KTO;
}

static double sigmoid(double x)
{
	return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double log_sigmoid(double x)
{
	return x >= 0 ? -log1p(exp(-x)) : x - log1p(exp(x));
}

/* log(1 - exp(x)), x < 0; above -1e-7 as TRL does not go beyond it either. */
static double log1mexp(double x)
{
	x = MIN(x, -1e-7);
	return x > -0.6931471805599453 ? log(-expm1(x)) : log1p(-exp(x));
}

/* -(1 - s) log sigmoid(x) - s log sigmoid(-x), and its derivative by x. */
static double smoothed_sigmoid(double x, double smoothing, double *derivative)
{
	*derivative = -(1 - smoothing) * sigmoid(-x) + smoothing * sigmoid(x);
	return -(1 - smoothing) * log_sigmoid(x) - smoothing * log_sigmoid(-x);
}

/* Of the differences to the reference. */
static double dpo(const struct preference_options *o, const struct preference_answer pair[2], double d[2])
{
	double chosen = pair[0].logp - pair[0].reference, rejected = pair[1].logp - pair[1].reference;
	double loss, dx, x;

	if (o->loss == PREFERENCE_IPO) {
		x = chosen / (double)pair[0].tokens - rejected / (double)pair[1].tokens - 1 / (2 * o->beta);
		d[0] = 2 * x / (double)pair[0].tokens;
		d[1] = -2 * x / (double)pair[1].tokens;
		return x * x;
	}
	x = o->beta * (chosen - rejected);
	if (o->loss == PREFERENCE_HINGE) {
		loss = MAX(1 - x, 0);
		dx = x < 1 ? -1 : 0;
	} else {
		loss = smoothed_sigmoid(x, o->label_smoothing, &dx);
	}
	d[0] = o->beta * dx;
	d[1] = -o->beta * dx;
	return loss;
}

static double simpo(const struct preference_options *o, const double mean[2], double d[2])
{
	double dx, loss = smoothed_sigmoid(o->beta * (mean[0] - mean[1]) - o->gamma, o->label_smoothing, &dx);

	d[0] = o->beta * dx;
	d[1] = -o->beta * dx;
	return loss;
}

/* The odds-ratio term. d log(1 - exp(m)) / dm = -exp(m) / (1 - exp(m)). */
static double orpo(const struct preference_options *o, const double mean[2], double d[2],
                   double sums[PREFERENCE_SUMS])
{
	double odds = (mean[0] - mean[1]) - (log1mexp(mean[0]) - log1mexp(mean[1]));
	double ratio = log_sigmoid(odds), dx = -o->beta * sigmoid(-odds);

	for (int i = 0; i < 2; i++) {
		double slope = mean[i] < -1e-7 ? 1 / -expm1(mean[i]) : 1;

		d[i] = (i ? -dx : dx) * slope;
	}
	sums[PREFERENCE_SUM_ODDS_RATIO] += ratio;
	sums[PREFERENCE_SUM_ODDS] += odds;
	return -o->beta * ratio;
}

/* Bradley and Terry's, and the square that keeps the mean of both near 0. */
static double bradley_terry(const struct preference_options *o, const double value[2], double margin,
                            double d[2])
{
	double sum = value[0] + value[1], dx;
	double loss = smoothed_sigmoid(value[0] - value[1] - margin, 0, &dx);

	d[0] = 2 * o->center * sum + dx;
	d[1] = 2 * o->center * sum - dx;
	return loss + o->center * sum * sum;
}

void preference_pair(const struct preference_options *o, const struct preference_answer pair[2],
                     double margin, double d[2], double sums[PREFERENCE_SUMS])
{
	bool means = o->kind == PREFERENCE_ORPO || o->kind == PREFERENCE_SIMPO;
	double value[2], reward[2];

	for (int i = 0; i < 2; i++)
		value[i] = means ? pair[i].logp / (double)pair[i].tokens : pair[i].logp;
	switch (o->kind) {
	case PREFERENCE_ORPO:
		sums[PREFERENCE_SUM_LOSS] += orpo(o, value, d, sums);
		break;
	case PREFERENCE_SIMPO:
		sums[PREFERENCE_SUM_LOSS] += simpo(o, value, d);
		break;
	case PREFERENCE_REWARD:
		sums[PREFERENCE_SUM_LOSS] += bradley_terry(o, value, margin, d);
		break;
	default:
		sums[PREFERENCE_SUM_LOSS] += dpo(o, pair, d);
	}
	for (int i = 0; i < 2; i++) {
		if (means)
			d[i] /= (double)pair[i].tokens;
		reward[i] =
		    o->kind == PREFERENCE_REWARD ? value[i] : o->beta * (value[i] - pair[i].reference);
	}
	sums[PREFERENCE_SUM_ROWS]++;
	sums[PREFERENCE_SUM_CHOSEN]++;
	sums[PREFERENCE_SUM_REJECTED]++;
	sums[PREFERENCE_SUM_REWARD_CHOSEN] += reward[0];
	sums[PREFERENCE_SUM_REWARD_REJECTED] += reward[1];
	sums[PREFERENCE_SUM_LOGP_CHOSEN] += value[0];
	sums[PREFERENCE_SUM_LOGP_REJECTED] += value[1];
	sums[PREFERENCE_SUM_ACCURATE] += reward[0] > reward[1];
}

void preference_label(const struct preference_options *o, const struct preference_answer *answer,
                      bool desirable, double kl, double *derivative, double sums[PREFERENCE_SUMS])
{
	double ratio = answer->logp - answer->reference, sign = desirable ? 1 : -1;
	double weight = desirable ? o->desirable_weight : o->undesirable_weight;
	double s = sigmoid(sign * o->beta * (ratio - kl));

	*derivative = -weight * sign * o->beta * s * (1 - s);
	sums[PREFERENCE_SUM_LOSS] += weight * (1 - s);
	sums[PREFERENCE_SUM_ROWS]++;
	sums[PREFERENCE_SUM_KL] += kl;
	sums[desirable ? PREFERENCE_SUM_CHOSEN : PREFERENCE_SUM_REJECTED]++;
	sums[desirable ? PREFERENCE_SUM_REWARD_CHOSEN : PREFERENCE_SUM_REWARD_REJECTED] += o->beta * ratio;
	sums[desirable ? PREFERENCE_SUM_LOGP_CHOSEN : PREFERENCE_SUM_LOGP_REJECTED] += answer->logp;
}

static double mean(const double *sums, enum preference_sum sum, enum preference_sum count)
{
	return sums[count] > 0 ? sums[sum] / sums[count] : NAN;
}

double preference_mean_loss(const struct preference_options *o, const double sums[PREFERENCE_SUMS])
{
	if (sums[PREFERENCE_SUM_ROWS] <= 0)
		return 0;
	return mean(sums, PREFERENCE_SUM_LOSS, PREFERENCE_SUM_ROWS) +
	       (o->kind == PREFERENCE_ORPO ? mean(sums, PREFERENCE_SUM_NLL, PREFERENCE_SUM_NLL_TOKENS) : 0);
}

/* Which measurements a task has, and of which sums they are the means. */
enum { OF_PAIRS = 1, OF_ORPO = 2, OF_KTO = 4, OF_REWARD = 8 };

static const struct {
	const char *name;
	int kinds;
	enum preference_sum sum, count;
} metrics[] = {
    {"rewards/chosen", OF_PAIRS | OF_KTO, PREFERENCE_SUM_REWARD_CHOSEN, PREFERENCE_SUM_CHOSEN},
    {"rewards/rejected", OF_PAIRS | OF_KTO, PREFERENCE_SUM_REWARD_REJECTED, PREFERENCE_SUM_REJECTED},
    {"rewards/accuracies", OF_PAIRS, PREFERENCE_SUM_ACCURATE, PREFERENCE_SUM_ROWS},
    {"logps/chosen", OF_PAIRS | OF_KTO, PREFERENCE_SUM_LOGP_CHOSEN, PREFERENCE_SUM_CHOSEN},
    {"logps/rejected", OF_PAIRS | OF_KTO, PREFERENCE_SUM_LOGP_REJECTED, PREFERENCE_SUM_REJECTED},
    {"kl", OF_KTO, PREFERENCE_SUM_KL, PREFERENCE_SUM_ROWS},
    {"nll_loss", OF_ORPO, PREFERENCE_SUM_NLL, PREFERENCE_SUM_NLL_TOKENS},
    {"log_odds_ratio", OF_ORPO, PREFERENCE_SUM_ODDS_RATIO, PREFERENCE_SUM_ROWS},
    {"log_odds_chosen", OF_ORPO, PREFERENCE_SUM_ODDS, PREFERENCE_SUM_ROWS},
    {"accuracy", OF_REWARD, PREFERENCE_SUM_ACCURATE, PREFERENCE_SUM_ROWS},
};

int preference_metrics(const struct preference_options *o, const double sums[PREFERENCE_SUMS],
                       struct preference_metric out[PREFERENCE_METRICS_MAX])
{
	static const int kinds[] = {[PREFERENCE_DPO] = OF_PAIRS,
	                            [PREFERENCE_ORPO] = OF_PAIRS | OF_ORPO,
	                            [PREFERENCE_SIMPO] = OF_PAIRS,
	                            [PREFERENCE_KTO] = OF_KTO,
	                            [PREFERENCE_REWARD] = OF_REWARD};
	double chosen = mean(sums, PREFERENCE_SUM_REWARD_CHOSEN, PREFERENCE_SUM_CHOSEN);
	double rejected = mean(sums, PREFERENCE_SUM_REWARD_REJECTED, PREFERENCE_SUM_REJECTED);
	int n = 0;

	for (size_t i = 0; i < ARRAY_SIZE(metrics); i++)
		if (metrics[i].kinds & kinds[o->kind])
			out[n++] = (struct preference_metric){metrics[i].name,
			                                      mean(sums, metrics[i].sum, metrics[i].count)};
	if (o->kind == PREFERENCE_REWARD) {
		out[n++] = (struct preference_metric){"margin", chosen - rejected};
		out[n++] = (struct preference_metric){"mean_reward", (chosen + rejected) / 2};
	} else if (o->kind != PREFERENCE_NONE) {
		out[n++] = (struct preference_metric){"rewards/margins", chosen - rejected};
	}
	return n;
}
