/* SPDX-License-Identifier: Apache-2.0 */
/* One record of a file as tokens: a document, a conversation, or a preference. */
#pragma once

#include "engine/chat/encode.h"
#include "engine/dataset/dataset.h"
#include "engine/dataset/reader.h"
#include "engine/dataset/source.h"

/* One record of a batch, and what becomes of it. */
struct encoded_record {
	struct record record;
	const struct source *source;
	const struct records *file;
	bool continued; /* goes on with the document of the record before */
	bool held_out;  /* belongs to the evaluation split */
	struct token_list ids, labels;
	/* Of a preference: the parts that its rows are made of. */
	struct token_list prompt, answer, rejected;
	bool desirable;
	float margin;
	int32_t second;     /* where the second document begins */
	bool cut;           /* the example is longer than a row has room for */
	int64_t cut_tokens; /* so many of its own tokens are not in the row; 0: not known */
	int result;         /* 0, or the negative errno of err */
	struct error err;
};

/* How records are encoded; for many threads at once. */
struct record_encoder {
	const struct dataset_options *options;
	const struct tokenizer *tok;
	struct encoder conversation;
	int32_t pretrain_eos, bos;    /* bos -1: none is put in front */
	struct token_list line_break; /* its ids at the beginning of a text */
};

/* template may be NULL for pretraining. Both it and tok have to outlive the encoder. Errors: -EINVAL,
 * -ENOMEM; the caller clears it in any case. */
int record_encoder_init(struct record_encoder *c, const struct dataset_options *options,
                        const struct tokenizer *tok, const struct template *template, struct error *err);
void record_encoder_clear(struct record_encoder *c);
/* Whether records are pairs of answers, or answers with labels. */
bool record_encoder_prefers(const struct record_encoder *c);
/* Encodes w->record into the lists of w, whose memory is used again; the outcome is w->result. */
void record_encode(const struct record_encoder *c, struct encoded_record *w);
/* The row of an answer that has a label: the prompt with it, then the prompt with the answer to another.
 * Returns 0 or -ENOMEM. */
int record_add_other_answer(const struct record_encoder *c, struct encoded_record *w,
                            const struct token_list *other);
void encoded_record_clear(struct encoded_record *w);
