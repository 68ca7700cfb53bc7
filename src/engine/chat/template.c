/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the template of a model, and turns the slots of a role into ids. */
#include "engine/chat/template.h"

#include <errno.h>
#include <string.h>

#include "base/str.h"
#include "engine/chat/template_table.h"

#define CONTENT "{{content}}"

static const struct template_slot plain_slots[] = {{SLOT_TEXT, CONTENT}, {SLOT_END, NULL}};
static const struct template_slot plain_eos_slots[] = {
    {SLOT_TEXT, CONTENT}, {SLOT_EOS, NULL}, {SLOT_END, NULL}};

/* Templates by what the tokenizer's chat template (Jinja) contains; the first row whose words all occur
 * wins. */
static const struct {
	const char *words[3];
	const char *name;
} template_markers[] = {
    {{"<|start_header_id|>", "GPT4 Correct"}, "openchat-3.6"},
    {{"<|start_header_id|>"}, "llama3"},
    {{"<|im_start|>", "<|im_sep|>"}, "phi4"},
    {{"<|im_start|>", "You are Qwen, created by Alibaba Cloud"}, "qwen"},
    {{"<|im_start|>", "<tool_call>", "<think>"}, "qwen3"},
    {{"<|im_start|>", "<tool_call>"}, "qwen3_nothink"},
    {{"<|im_start|>"}, "chatml"},
    {{"[INST]", "<<SYS>>"}, "llama2"},
    {{"[INST] "}, "mistral"},
    {{"[INST]"}, "ministral"},
    {{"<start_of_turn>"}, "gemma"},
    {{"<｜User｜>", "</think>"}, "deepseekr1"},
    {{"<｜User｜>"}, "deepseek3"},
    {{"<|START_OF_TURN_TOKEN|>"}, "cohere"},
    {{"<|start_of_role|>"}, "granite3"},
    {{"GPT4 Correct User"}, "openchat"},
    {{"[gMASK]<sop>"}, "glm4"},
    {{"<|user|>", "<|end|>"}, "phi"},
    {{"<|user|>"}, "zephyr"},
    {{"### Instruction:", "### Response:"}, "alpaca"},
    {{"USER: ", "ASSISTANT:"}, "vicuna"},
    {{"User: ", "Assistant:"}, "deepseek"},
};

const struct template *template_at(size_t i)
{
	/* The table is short: walking it keeps its length in one place. */
	for (size_t n = 0; template_table[n].name; n++)
		if (n == i)
			return &template_table[n];
	return NULL;
}

int template_find(const char *name, const struct template **out, struct error *err)
{
	_cleanup_strbuf_ struct strbuf names = {0};

	for (const struct template *t = template_table; t->name; t++)
		if (str_eq(t->name, name)) {
			*out = t;
			return 0;
		}
	for (const struct template *t = template_table; t->name; t++)
		strbuf_addf(&names, "%s%s", names.len ? ", " : "", t->name);
	return error_set(err, -EINVAL, "unknown template '%s'; known are: %s", name,
	                 names.data ? names.data : "");
}

int template_resolve(const char *name, const struct tokenizer *tok, const struct template **out,
                     struct error *err)
{
	const char *jinja = name ? NULL : tokenizer_chat_template(tok);

	for (size_t i = 0; jinja && i < ARRAY_SIZE(template_markers); i++) {
		bool all = true;

		for (size_t k = 0; k < 3 && template_markers[i].words[k]; k++)
			all = all && strstr(jinja, template_markers[i].words[k]);
		if (all) {
			name = template_markers[i].name;
			break;
		}
	}
	return template_find(name ? name : "default", out, err);
}

const struct template_slot *template_slots(const struct template *t, enum template_role role)
{
	static const struct template_slot none[] = {{SLOT_END, NULL}};
	const struct template_slot *plain = plain_slots, *slots = none;

	switch (role) {
	case ROLE_PREFIX:
		return t->prefix;
	case ROLE_SYSTEM:
		slots = t->system;
		break;
	case ROLE_OBSERVATION:
		slots = t->observation[0].kind ? t->observation : t->user;
		break;
	case ROLE_USER:
		slots = t->user;
		break;
	case ROLE_FUNCTION:
		slots = t->function[0].kind ? t->function : t->assistant;
		plain = t->efficient_eos ? plain_slots : plain_eos_slots;
		break;
	case ROLE_ASSISTANT:
		slots = t->assistant;
		plain = t->efficient_eos ? plain_slots : plain_eos_slots;
		break;
	}
	return slots[0].kind ? slots : plain;
}

int32_t template_eos(const struct template *t, const struct tokenizer *tok)
{
	int32_t id = -1;

	if (t && t->replace_eos && t->stop_words[0])
		id = tokenizer_token_to_id(tok, t->stop_words[0]);
	if (id < 0)
		id = tokenizer_eos(tok);
	return id >= 0 ? id : tokenizer_token_to_id(tok, "<|endoftext|>");
}

int template_encode(const struct tokenizer *tok, int32_t eos, const struct template_slot *slots,
                    const char *content, size_t len, struct token_list *out, struct error *err)
{
	for (; slots->kind; slots++) {
		_cleanup_strbuf_ struct strbuf text = {0};
		const char *at;
		int32_t id = -1;
		int r;

		switch (slots->kind) {
		case SLOT_TEXT:
			at = strstr(slots->text, CONTENT);
			strbuf_add(&text, slots->text, at ? (size_t)(at - slots->text) : strlen(slots->text));
			if (at) {
				strbuf_add(&text, content, len);
				strbuf_adds(&text, at + strlen(CONTENT));
			}
			if (text.failed)
				return error_oom(err);
			if (text.len) {
				r = tokenizer_encode(tok, text.data, text.len, false, out, err);
				if (r < 0)
					return r;
			}
			continue;
		case SLOT_TOKEN:
			id = tokenizer_token_to_id(tok, slots->text);
			if (id < 0)
				return error_set(err, -EINVAL,
				                 "the tokenizer has no token %s, which the template needs",
				                 slots->text);
			break;
		case SLOT_BOS:
			id = tokenizer_bos(tok);
			break;
		case SLOT_EOS:
			id = eos;
			break;
		case SLOT_END:
			break;
		}
		if (id >= 0 && token_list_add(out, &id, 1) < 0)
			return error_oom(err);
	}
	return 0;
}

int template_prompt(const struct tokenizer *tok, const char *name, const char *system, const char *user,
                    struct token_list *out, struct error *err)
{
	_cleanup_strbuf_ struct strbuf text = {0};
	const struct template *t;
	int32_t eos;
	int r;

	r = template_resolve(name, tok, &t, err);
	if (r < 0)
		return r;
	eos = template_eos(t, tok);
	if (!system)
		system = t->default_system ? t->default_system : "";
	r = template_encode(tok, eos, template_slots(t, ROLE_PREFIX), "", 0, out, err);
	if (r < 0)
		return r;
	if (*system && t->system_in_user) {
		const char *slot = template_slots(t, ROLE_SYSTEM)[0].text, *at = strstr(slot, CONTENT);

		strbuf_add(&text, slot, at - slot);
		strbuf_adds(&text, system);
		strbuf_adds(&text, at + strlen(CONTENT));
	} else if (*system) {
		r = template_encode(tok, eos, template_slots(t, ROLE_SYSTEM), system, strlen(system), out,
		                    err);
		if (r < 0)
			return r;
	}
	strbuf_adds(&text, user);
	if (text.failed)
		return error_oom(err);
	return template_encode(tok, eos, template_slots(t, ROLE_USER), text.data, text.len, out, err);
}

int template_stops(const struct tokenizer *tok, const char *name, struct token_list *out, struct error *err)
{
	const struct template *t;
	int32_t id;
	int r;

	r = template_resolve(name, tok, &t, err);
	if (r < 0)
		return r;
	id = template_eos(t, tok);
	if (id >= 0 && token_list_add(out, &id, 1) < 0)
		return error_oom(err);
	for (size_t i = 0; i < ARRAY_SIZE(t->stop_words) && t->stop_words[i]; i++) {
		int32_t stop = tokenizer_token_to_id(tok, t->stop_words[i]);

		if (stop >= 0 && stop != id && token_list_add(out, &stop, 1) < 0)
			return error_oom(err);
	}
	return 0;
}
