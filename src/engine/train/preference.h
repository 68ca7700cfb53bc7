/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The losses of preference tasks, as functions of the sums of log-probabilities of whole answers, with their
 * derivatives, and the measurements that are reported. No device and no data here.
 *
 * Sources: DPO (Rafailov et al. 2023), IPO (Azar et al. 2023), hinge (Zhao et al. 2023), conservative DPO
 * (Mitchell 2023, label smoothing), ORPO (Hong et al. 2024), SimPO (Meng et al. 2024), KTO (Ethayarajh et al.
 * 2024), rewards (Bradley and Terry 1952). Definitions and names of measurements are those of TRL.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum preference_kind {
	PREFERENCE_NONE,
	PREFERENCE_DPO,
	PREFERENCE_ORPO,
	PREFERENCE_SIMPO,
	PREFERENCE_KTO,
	PREFERENCE_REWARD
};
enum preference_loss { PREFERENCE_SIGMOID, PREFERENCE_IPO, PREFERENCE_HINGE }; /* of DPO */

struct preference_options {
	enum preference_kind kind;
	enum preference_loss loss;
	double beta;
	double gamma;                                /* SimPO: the margin */
	double label_smoothing;                      /* DPO's sigmoid and SimPO: below 0.5 */
	double desirable_weight, undesirable_weight; /* KTO */
	double center;                               /* rewards: weight of (chosen + rejected)^2 */
	int32_t pad; /* rewards: tokens at the end of an answer that are not read; -1: none */
};
void preference_options_default(struct preference_options *o); /* no preference */

/* Losses that compare the model with a reference. */
bool preference_has_reference(const struct preference_options *o);
/* Documents of a row and what they stand for: see dataset.h. */
bool preference_has_labels(const struct preference_options *o);

/* An answer under the model. */
struct preference_answer {
	double logp;      /* sum of its tokens' log-probabilities; of a reward: the score */
	double reference; /* that of the reference model; 0 where there is none */
	int64_t tokens;   /* of the answer, at least 1 */
};

/* What is summed over all rows of a step. */
enum preference_sum {
	PREFERENCE_SUM_LOSS, /* without ORPO's likelihood term */
	PREFERENCE_SUM_ROWS,
	PREFERENCE_SUM_CHOSEN, /* answers that were chosen, or are desirable */
	PREFERENCE_SUM_REJECTED,
	PREFERENCE_SUM_REWARD_CHOSEN,
	PREFERENCE_SUM_REWARD_REJECTED,
	PREFERENCE_SUM_LOGP_CHOSEN,
	PREFERENCE_SUM_LOGP_REJECTED,
	PREFERENCE_SUM_ACCURATE,
	PREFERENCE_SUM_NLL, /* of ORPO: of the chosen rows' tokens, prompts included */
	PREFERENCE_SUM_NLL_TOKENS,
	PREFERENCE_SUM_ODDS_RATIO, /* log sigmoid of the log odds */
	PREFERENCE_SUM_ODDS,
	PREFERENCE_SUM_KL, /* weighted by rows */
	PREFERENCE_SUMS
};

/* Adds the loss and the measurements of a pair { chosen, rejected } to sums, and sets the derivatives of the
 * loss by the logp of each. margin: of the task reward alone, by how much the reward of the chosen answer is
 * to be above that of the other. */
void preference_pair(const struct preference_options *o, const struct preference_answer pair[2],
                     double margin, double derivative[2], double sums[PREFERENCE_SUMS]);
/* The same of an answer that has a label. kl: the mean of the differences between model and reference in the
 * log-probabilities of answers to other prompts, at least 0. */
void preference_label(const struct preference_options *o, const struct preference_answer *answer,
                      bool desirable, double kl, double *derivative, double sums[PREFERENCE_SUMS]);

/* The loss of the rows in the sums. */
double preference_mean_loss(const struct preference_options *o, const double sums[PREFERENCE_SUMS]);

#define PREFERENCE_METRICS_MAX 24
struct preference_metric {
	const char *name; /* TRL's; static */
	double value;
};
/* The measurements of such rows; returns their number. */
int preference_metrics(const struct preference_options *o, const double sums[PREFERENCE_SUMS],
                       struct preference_metric out[PREFERENCE_METRICS_MAX]);
