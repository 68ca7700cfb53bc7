/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chat templates as data: what stands around a turn of each role, in the form LLaMA-Factory gives it. A turn
 * is a list of slots, each tokenized on its own, so that no merge of the BPE crosses a slot's end.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/tokenizer/tokenizer.h"

enum slot_kind {
	SLOT_END,
	SLOT_TEXT,  /* text, "{{content}}" in it replaced by the turn's content */
	SLOT_TOKEN, /* one token by name */
	SLOT_BOS,   /* the tokenizer's, nothing where it has none */
	SLOT_EOS,
};

struct template_slot {
	enum slot_kind kind;
	const char *text;
};

enum tool_format { TOOLS_DEFAULT, TOOLS_QWEN, TOOLS_LLAMA3, TOOLS_MISTRAL, TOOLS_NONE };

#define TEMPLATE_SLOTS 6

/* All slot lists end with SLOT_END. An empty user, system or assistant means the plain content (and the end
 * token after an answer, unless efficient_eos); an empty observation is as user, an empty function as
 * assistant. */
struct template
{
	const char *name;
	struct template_slot prefix[TEMPLATE_SLOTS], system[TEMPLATE_SLOTS], user[TEMPLATE_SLOTS],
	    assistant[TEMPLATE_SLOTS], observation[TEMPLATE_SLOTS], function[TEMPLATE_SLOTS];
	const char *default_system;
	const char *stop_words[4];
	const char *thought[2];    /* around a chain of thought; NULL: <think> */
	enum tool_format tools;    /* how tools are described and calls are written */
	const char *tool_words[2]; /* before and after the list of tools; NULL: the format's own */
	bool efficient_eos;        /* no end token after each answer, one at the end of all */
	bool replace_eos;          /* the first stop word is the end token */
	bool system_in_user;       /* the system prompt goes into the first user turn */
	bool reasoning;            /* an answer without a thought gets an empty one */
};

enum template_role { ROLE_USER, ROLE_ASSISTANT, ROLE_OBSERVATION, ROLE_FUNCTION, ROLE_SYSTEM, ROLE_PREFIX };

enum template_source {
	TEMPLATE_NAMED,      /* by its name */
	TEMPLATE_SAVED,      /* the tokenizer's chat template is one that dtrain wrote, which names it */
	TEMPLATE_RECOGNIZED, /* by what the tokenizer's chat template contains */
	TEMPLATE_FALLBACK,   /* "default", since the tokenizer has no chat template */
};

struct template_choice {
	struct template template; /* its default system prompt may be `system` */
	enum template_source source;
	char *system, *reason; /* reason: words for a person */
};

/* By name: the names are LLaMA-Factory's, and a few more. -EINVAL and all names in the message for an unknown
 * one. */
int template_find(const char *name, const struct template **out, struct error *err);
/* The template `name`, or (NULL) the one of the tokenizer's own chat template, with the default system prompt
 * that is in it, or "default" where it has none. -EINVAL: no such name, or a chat template that is none of
 * the table. The caller clears *out, which is {0} before, in any case. */
int template_choose(const char *name, const struct tokenizer *tok, struct template_choice *out,
                    struct error *err);
void template_choice_clear(struct template_choice *choice);
/* The i-th template of the table, NULL behind the last. */
const struct template *template_at(size_t i);

/* The slots of a role, the defaults above applied. */
const struct template_slot *template_slots(const struct template *t, enum template_role role);
/* The end token: the first stop word where the template says so and the tokenizer has it, else the
 * tokenizer's own, else <|endoftext|>; -1: none. */
int32_t template_eos(const struct template *t, const struct tokenizer *tok);

/* The delimiters before [0] and after [1] a chain of thought. */
const char *const *template_thought(const struct template *t);

/* Appends slots with content to out. `eos` from template_eos. */
int template_encode(const struct tokenizer *tok, int32_t eos, const struct template_slot *slots,
                    const char *content, size_t len, struct token_list *out, struct error *err);

/* Appends the ids of one user turn, ready for the answer to be generated: what `dtrain generate --chat`
 * feeds. system NULL: the template's own, "": none. */
int template_prompt(const struct tokenizer *tok, const struct template *t, const char *system,
                    const char *user, struct token_list *out, struct error *err);
/* Appends the ids that end an answer: the end token and the stop words that are single tokens. */
int template_stops(const struct tokenizer *tok, const struct template *t, struct token_list *out,
                   struct error *err);
