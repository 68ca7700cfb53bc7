/* SPDX-License-Identifier: Apache-2.0 */
/* Templates as Jinja source, in which Hugging Face tokenizers keep them. */
#pragma once

#include "engine/chat/template.h"

struct strbuf;

/* The first line is a comment with what the source was made of, a JSON object: {"template": NAME}, and
 * "system" where the default system prompt is not the template's own. */
#define JINJA_BEGIN "{#- dtrain: "
#define JINJA_END   " -#}"

/* How a training wrote its conversations. */
struct jinja_options {
	bool efficient_eos;    /* as in encoder_options */
	bool without_thoughts; /* those of earlier answers were left out, as with mask_history and preferences
	                        */
};

/* Appends Jinja source that writes conversations as t does with this tokenizer. Tools and calls of them, for
 * which it has no form, are errors in it. */
int jinja_write(const struct template *t, const struct tokenizer *tok, const struct jinja_options *options,
                struct strbuf *out, struct error *err);

/* The same for a tokenizer that a model is saved with, which was trained with this choice and default system
 * prompt (NULL: the template's). Appends nothing where the model's own chat template stays: where it is the
 * choice, or is like it. One that a run has saved is written again. */
int jinja_for_training(const struct template_choice *choice, const struct tokenizer *tok, const char *system,
                       const struct jinja_options *options, struct strbuf *out, struct error *err);
