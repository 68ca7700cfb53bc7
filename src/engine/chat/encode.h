/* SPDX-License-Identifier: Apache-2.0 */
/* Turns of a conversation -> token ids and labels, by LLaMA-Factory's rules. */
#pragma once

#include <stdbool.h>

#include "engine/chat/conversation.h"
#include "engine/tokenizer/tokenizer.h"

#define LABEL_IGNORE (-100)

struct encoder {
	const struct tokenizer *tok;
	const struct template *template;
	int32_t eos;
	const char *system; /* default system prompt, never NULL */
	int cutoff;         /* tokens of an example at most */
	bool train_on_prompt, mask_history, efficient_eos;
	const struct template_slot *assistant, *function; /* slots, as efficient_eos wants them */
	struct template_slot assistant_kept[TEMPLATE_SLOTS], function_kept[TEMPLATE_SLOTS];
};

struct encoder_options {
	const char *system; /* default system prompt; NULL: the template's */
	int cutoff;         /* tokens of an example at most */
	bool train_on_prompt, mask_history, efficient_eos;
};

/* Checks that options and template go together. The encoder points into itself: it is not to be copied. */
int encoder_init(struct encoder *enc, const struct encoder_options *options, const struct tokenizer *tok,
                 const struct template *template, struct error *err);

/* ids and labels (unshifted, LABEL_IGNORE where no loss counts) of a conversation; both appended to. *cut:
 * how many of its tokens are not among them, since there are more than the cutoff. Errors: -EBADMSG where the
 * example cannot be used (its tools are no JSON, …). */
int encoder_conversation(const struct encoder *enc, const struct example *e, struct token_list *ids,
                         struct token_list *labels, int64_t *cut, struct error *err);

/* Everything up to the last answer of an example, without thoughts of earlier answers; appended. */
int encoder_prompt(const struct encoder *enc, const struct example *e, struct token_list *prompt,
                   struct error *err);

/* An example of a preference: everything up to its last answer as the prompt, then that answer and, where
 * `rejected` is not NULL, the rejected one; each appended to its list. Thoughts of earlier answers are left
 * out. Errors as above. */
int encoder_answers(const struct encoder *enc, const struct example *e, struct token_list *prompt,
                    struct token_list *answer, struct token_list *rejected, struct error *err);

/* How many tokens of a source and a target stay when both share `budget` tokens. */
void encoder_budget(int source, int target, int budget, int *source_kept, int *target_kept);
