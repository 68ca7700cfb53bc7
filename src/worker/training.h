/* SPDX-License-Identifier: Apache-2.0 */
/* A training run in a worker: its parts, which train.c prepares in their order and frees, and what other
 * files do with them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"
#include "config/run.h"
#include "engine/checkpoint/agreement.h"
#include "engine/checkpoint/peft.h"
#include "engine/checkpoint/saver.h"
#include "engine/comm/comm.h"
#include "engine/dataset/dataset.h"
#include "engine/device/device.h"
#include "engine/model/model_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/train/options.h"
#include "engine/train/trainer.h"
#include "worker/completions.h"
#include "worker/environment.h"
#include "worker/precision.h"
#include "worker/report.h"
#include "worker/rewards.h"
#include "worker/service_client.h"

/* What each rank reads for itself. */
enum { INPUT_CONFIG, INPUT_OTHER, INPUT_TOKENIZER, INPUT_PADDING, INPUT_DATA, INPUT_EVAL, INPUTS };

struct training {
	const struct run_config *c;
	const struct environment *env;
	struct service_client *service;

	struct train_options options;
	struct precision precision;
	struct model_config model, other; /* other: a teacher, or a reward model that gives rewards */
	struct device *dev;
	struct tokenizer *tok;
	struct strbuf chat_template;    /* saved in place of the tokenizer's own; empty: that stays */
	struct token_list stops;        /* ids that end an answer */
	struct token_list ends;         /* of a task that learns from rewards: these, and the end of a text */
	struct rewards rewards;         /* of such a task */
	struct completions completions; /* likewise: the file that some of them are written to */
	struct dataset *data, *eval;
	struct comm *comm;
	struct trainer *trainer;
	struct saver *saver;
	struct report *report;
	int64_t tokens_before; /* of the run's earlier attempts */
	int64_t reported_step; /* of the newest checkpoint that the report has */
	char *config, *tokenizer;
	struct peft_config adapter; /* what is saved of it, where the run trains one */
	char **targets, **whole;    /* its lists of modules */
	char *target_pattern;       /* in place of the first; NULL: none */
	char data_name[256];        /* names the files of the data in errors */
	struct agreement_item inputs[INPUTS];
	bool settled;
	double printed_at; /* when the progress of the preparation was last printed */
};

static inline bool training_first_rank(const struct training *t)
{
	return t->env->rank == 0;
}

/* data.c: opens tokenizer, template and data, and digests what the ranks have to agree on. */
int training_open_data(struct training *t, struct error *err);

/* start.c: with the trainer made, weights, optimizer and position are those of the checkpoint that the saver
 * has found, or those that the run begins with. Every rank calls it. */
int training_start_weights(struct training *t, struct error *err);
/* What decides which rows a step sees. NULL: out of memory; the caller frees it. */
char *training_fingerprint(const struct training *t);

/* same_model.c: -EINVAL where the checkpoint that the run goes on from is of another model or adapter. Of the
 * first rank; a checkpoint whose descriptions it does not find is taken as it is. */
int training_check_model(const struct training *t, struct error *err);

/* adapter_description.c: fills t->adapter from the options and the trainer's layout. */
int training_describe_adapter(struct training *t, struct error *err);
