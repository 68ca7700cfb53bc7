/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the template of a model, and turns the slots of a role into ids. */
#include "engine/chat/template.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/chat/jinja.h"
#include "engine/chat/template_table.h"

#define CONTENT "{{content}}"

static const struct template_slot plain_slots[] = {{SLOT_TEXT, CONTENT}, {SLOT_END, NULL}};
static const struct template_slot plain_eos_slots[] = {
    {SLOT_TEXT, CONTENT}, {SLOT_EOS, NULL}, {SLOT_END, NULL}};

/* Templates by what the tokenizer's chat template (Jinja) contains; the first row whose words all occur wins.
 * A line break in a word also stands for Jinja's \n. Without a name: no template of the table is like it. */
static const struct {
	const char *words[3];
	const char *name;
} template_markers[] = {
    {{"<|start_header_id|>", "GPT4 Correct"}, "openchat-3.6"},
    {{"<|start_header_id|>"}, "llama3"},
    {{"<|start|>", "<|channel|>"}, "gpt_oss"},
    {{"<|im_start|>", "<|im_sep|>"}, "phi4"},
    {{"<|im_start|>", "named SmolLM", "## Metadata"}, NULL},
    {{"<|im_start|>", "named SmolLM"}, "smollm2"},
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
    {{"'<|' + message['role'] + '|>' + message['content'] + '<|end|>'"}, "phi4_mini"},
    {{"<|user|>", "<|end|>"}, "phi"},
    {{"'<|user|>\n' + message['content'] + '\n'", "eos_token", "bos_token"}, "olmo2"},
    {{"'<|user|>\n' + message['content'] + '\n'", "eos_token"}, "tulu"},
    {{"'<|user|>\n' + message['content'] + eos_token"}, "zephyr"},
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
	size_t best = strlen(name) / 3 + 1;
	const char *near = NULL;

	for (const struct template *t = template_table; t->name; t++)
		if (str_eq(t->name, name)) {
			*out = t;
			return 0;
		}
	for (const struct template *t = template_table; t->name; t++) {
		size_t d = str_distance(t->name, name);

		if (d < best) {
			best = d;
			near = t->name;
		}
		strbuf_addf(&names, "%s%s", names.len ? ", " : "", t->name);
	}
	return error_set(err, -EINVAL, "unknown template '%s'; %s%s%sknown are: %s", name,
	                 near ? "did you mean " : "", near ? near : "", near ? "? " : "",
	                 names.data ? names.data : "");
}

/* What follows `words` in Jinja source that begins with them; NULL: it does not. */
static const char *after_words(const char *jinja, const char *words)
{
	for (; *words; words++) {
		if (*jinja == *words)
			jinja++;
		else if (*words == '\n' && jinja[0] == '\\' && jinja[1] == 'n')
			jinja += 2;
		else
			return NULL;
	}
	return jinja;
}

static bool jinja_contains(const char *jinja, const char *words)
{
	for (; *jinja; jinja++)
		if (after_words(jinja, words))
			return true;
	return false;
}

/* The system prompt that Jinja source writes in turns of <|im_start|> where a conversation has none. NULL:
 * there is no such text, or no memory (err->code < 0). */
static char *im_start_system(const char *jinja, struct error *err)
{
	static const char begin[] = "<|im_start|>system\n", end[] = "<|im_end|>";

	for (; *jinja; jinja++) {
		const char *at = after_words(jinja, begin);
		_cleanup_strbuf_ struct strbuf text = {0};

		while (at && *at && !str_starts(at, end) && !strchr("'\"{}", *at)) {
			const char *line = after_words(at, "\n");

			if (!line && *at == '\\')
				at++;
			if (!line && !*at)
				break;
			strbuf_addc(&text, line ? '\n' : *at);
			at = line ? line : at + 1;
		}
		if (at && text.failed) {
			error_oom(err);
			return NULL;
		}
		if (at && str_starts(at, end) && text.len)
			return strbuf_steal(&text);
	}
	return NULL;
}

/* Whether Jinja source contains a system prompt: its beginning, up to what Jinja has to write in another
 * way. */
static bool jinja_has_system(const char *jinja, const char *system)
{
	_cleanup_free_ char *head = strndup(system, MIN(strcspn(system, "\n'\"\\"), (size_t)40));

	return head && jinja_contains(jinja, head);
}

/* A chat template that jinja.c wrote begins with what it was made of. 1: it is such. */
static int read_saved(const char *jinja, struct template_choice *out, struct error *err)
{
	const char *at = str_starts(jinja, JINJA_BEGIN) ? jinja + strlen(JINJA_BEGIN) : NULL;
	const char *end = at ? strstr(at, JINJA_END) : NULL;
	_cleanup_json_ json_t *made_of = end ? json_loadb(at, end - at, 0, NULL) : NULL;
	const char *name = json_get_string(made_of, "template", NULL);
	const char *system = json_get_string(made_of, "system", NULL);
	const struct template *t;
	int r;

	if (!name)
		return 0;
	r = template_find(name, &t, err);
	if (r < 0)
		return error_prefix(err, "the tokenizer's chat template");
	out->template = *t;
	out->source = TEMPLATE_SAVED;
	if (system && !(out->system = strdup(system)))
		return error_oom(err);
	if (system)
		out->template.default_system = out->system;
	out->reason = strdup("by the tokenizer's chat template, which dtrain wrote");
	return out->reason ? 1 : error_oom(err);
}

/* The reason: the words that were recognized, in one line. */
static int name_words(const char *const *words, size_t n, struct template_choice *out, struct error *err)
{
	_cleanup_strbuf_ struct strbuf b = {0};

	strbuf_adds(&b, "the tokenizer's chat template contains ");
	for (size_t i = 0; i < n; i++) {
		strbuf_adds(&b, i ? " and " : "");
		for (const char *c = words[i]; *c; c++) {
			if (*c == '\n')
				strbuf_adds(&b, "\\n");
			else
				strbuf_addc(&b, *c);
		}
	}
	out->reason = b.failed ? NULL : strbuf_steal(&b);
	return out->reason ? 0 : error_oom(err);
}

static int recognize(const char *jinja, struct template_choice *out, struct error *err)
{
	const struct template *t;
	size_t i = 0, k;
	int r;

	for (; i < ARRAY_SIZE(template_markers); i++) {
		for (k = 0; k < 3 && template_markers[i].words[k]; k++)
			if (!jinja_contains(jinja, template_markers[i].words[k]))
				break;
		if (k == 3 || !template_markers[i].words[k])
			break;
	}
	if (i == ARRAY_SIZE(template_markers) || !template_markers[i].name)
		return error_set(err, -EINVAL,
		                 "the tokenizer's chat template is none that is known here: set "
		                 "data.template to the one that is like it, or to \"default\"");
	r = template_find(template_markers[i].name, &t, err);
	if (r < 0)
		return r;
	out->template = *t;
	out->source = TEMPLATE_RECOGNIZED;
	if (jinja_contains(jinja, "<|im_start|>")) {
		struct error none = ERROR_INIT;

		out->system = im_start_system(jinja, &none);
		if (none.code < 0)
			return error_oom(err);
	}
	if (out->system)
		out->template.default_system = out->system;
	else if (t->default_system && !jinja_has_system(jinja, t->default_system))
		out->template.default_system = NULL;
	return name_words(template_markers[i].words, k, out, err);
}

int template_choose(const char *name, const struct tokenizer *tok, struct template_choice *out,
                    struct error *err)
{
	const char *jinja = name ? NULL : tokenizer_chat_template(tok);
	const struct template *t;
	int r = jinja ? read_saved(jinja, out, err) : 0;

	if (r != 0)
		return MIN(r, 0);
	if (jinja)
		return recognize(jinja, out, err);
	r = template_find(name ? name : "default", &t, err);
	if (r < 0)
		return r;
	out->template = *t;
	out->source = name ? TEMPLATE_NAMED : TEMPLATE_FALLBACK;
	out->reason = strdup(name ? "by data.template" : "the tokenizer has no chat template");
	return out->reason ? 0 : error_oom(err);
}

void template_choice_clear(struct template_choice *choice)
{
	free(choice->system);
	free(choice->reason);
	*choice = (struct template_choice){.source = TEMPLATE_NAMED};
}

const char *const *template_thought(const struct template *t)
{
	static const char *const think[2] = {"<think>\n", "\n</think>\n\n"};

	return t->thought[0] ? t->thought : think;
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

int template_prompt(const struct tokenizer *tok, const struct template *t, const char *system,
                    const char *user, struct token_list *out, struct error *err)
{
	_cleanup_strbuf_ struct strbuf text = {0};
	int32_t eos = template_eos(t, tok);
	int r;

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

int template_stops(const struct tokenizer *tok, const struct template *t, struct token_list *out,
                   struct error *err)
{
	int32_t id = template_eos(t, tok);

	if (id >= 0 && token_list_add(out, &id, 1) < 0)
		return error_oom(err);
	for (size_t i = 0; i < ARRAY_SIZE(t->stop_words) && t->stop_words[i]; i++) {
		int32_t stop = tokenizer_token_to_id(tok, t->stop_words[i]);

		if (stop >= 0 && stop != id && token_list_add(out, &stop, 1) < 0)
			return error_oom(err);
	}
	return 0;
}
