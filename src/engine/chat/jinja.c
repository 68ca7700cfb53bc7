/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the Jinja source of a template. All white space between its tags is taken away by their dashes, so
 * that it means the same whatever trim_blocks and lstrip_blocks are. */
#include "engine/chat/jinja.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"

#define CONTENT "{{content}}"

static void add_literal(struct strbuf *out, const char *text, size_t len)
{
	strbuf_addc(out, '\'');
	for (size_t i = 0; i < len; i++) {
		if (text[i] == '\n')
			strbuf_adds(out, "\\n");
		else if (strchr("'\\", text[i]))
			strbuf_addf(out, "\\%c", text[i]);
		else
			strbuf_addc(out, text[i]);
	}
	strbuf_addc(out, '\'');
}

static void add_text(struct strbuf *out, const char *text)
{
	add_literal(out, text, strlen(text));
}

/* An expression: the texts and tokens of the slots, with a variable in the place of the content. */
static void add_slots(struct strbuf *out, const struct template_slot *slots, const struct template *t,
                      const struct tokenizer *tok, bool without_eos, const char *variable)
{
	_cleanup_strbuf_ struct strbuf text = {0};
	bool first = true;

	for (; slots->kind; slots++) {
		const char *token = slots->text, *at;

		if (slots->kind == SLOT_EOS && without_eos)
			continue;
		if (slots->kind == SLOT_BOS)
			token = tokenizer_id_to_token(tok, tokenizer_bos(tok));
		if (slots->kind == SLOT_EOS)
			token = tokenizer_id_to_token(tok, template_eos(t, tok));
		at = slots->kind == SLOT_TEXT ? strstr(token, CONTENT) : NULL;
		if (token)
			strbuf_add(&text, token, at ? (size_t)(at - token) : strlen(token));
		if (!at)
			continue;
		if (text.len) {
			strbuf_adds(out, first ? "" : " + ");
			add_literal(out, text.data, text.len);
			first = false;
		}
		strbuf_addf(out, "%s%s", first ? "" : " + ", variable);
		first = false;
		text.len = 0;
		strbuf_adds(&text, at + strlen(CONTENT));
	}
	if (text.len || first) {
		strbuf_adds(out, first ? "" : " + ");
		add_literal(out, text.data ? text.data : "", text.len);
	}
	out->failed = out->failed || text.failed;
}

/* "#" would end the comment before "}"; within JSON's strings it can be written in another way. */
static int add_comment(struct strbuf *out, const struct template *t)
{
	const struct template *named;
	_cleanup_json_ json_t *made_of = json_pack("{s:s}", "template", t->name);
	_cleanup_free_ char *text = NULL;

	if (made_of && template_find(t->name, &named, NULL) == 0 &&
	    !str_eq(t->default_system ? t->default_system : "",
	            named->default_system ? named->default_system : ""))
		json_object_set_new(made_of, "system",
		                    json_string(t->default_system ? t->default_system : ""));
	text = json_to_string(made_of);
	if (!text)
		return -ENOMEM;
	strbuf_adds(out, JINJA_BEGIN);
	for (const char *c = text; *c; c++) {
		if (*c == '#')
			strbuf_adds(out, "\\u0023");
		else
			strbuf_addc(out, *c);
	}
	strbuf_adds(out, JINJA_END "\n");
	return 0;
}

static void add_system(struct strbuf *out, const struct template *t, const struct tokenizer *tok)
{
	strbuf_adds(out, "{%- if tools -%}\n"
	                 "    {{- raise_exception('this chat template has no form for tools') -}}\n"
	                 "{%- endif -%}\n"
	                 "{%- if messages and messages[0]['role'] == 'system' -%}\n"
	                 "    {%- set system = messages[0]['content'] -%}\n"
	                 "    {%- set turns = messages[1:] -%}\n"
	                 "{%- else -%}\n"
	                 "    {%- set system = ");
	add_text(out, t->default_system ? t->default_system : "");
	strbuf_adds(out, " -%}\n"
	                 "    {%- set turns = messages -%}\n"
	                 "{%- endif -%}\n"
	                 "{{- ");
	add_slots(out, template_slots(t, ROLE_PREFIX), t, tok, false, "");
	strbuf_adds(out, " -}}\n");
	if (t->system_in_user)
		return;
	strbuf_adds(out, "{%- if system -%}\n"
	                 "    {{- ");
	add_slots(out, template_slots(t, ROLE_SYSTEM), t, tok, false, "system");
	strbuf_adds(out, " -}}\n"
	                 "{%- endif -%}\n");
}

static void add_user(struct strbuf *out, const struct template *t, const struct tokenizer *tok)
{
	struct template_slot only[2] = {template_slots(t, ROLE_SYSTEM)[0], {SLOT_END, NULL}};

	strbuf_adds(out, "    {%- if message['role'] == 'user' -%}\n");
	if (t->system_in_user) {
		strbuf_adds(out, "        {%- if loop.first and system -%}\n"
		                 "            {%- set content = ");
		add_slots(out, only, t, tok, false, "system");
		strbuf_adds(out, " + content -%}\n"
		                 "        {%- endif -%}\n");
	}
	strbuf_adds(out, "        {{- ");
	add_slots(out, template_slots(t, ROLE_USER), t, tok, false, "content");
	strbuf_adds(out, " -}}\n");
}

/* An earlier answer without its thoughts and the words around them: of each part that ends with the closing
 * word, what precedes the opening one. A part without an opening word is no thought. */
static void drop_thoughts(struct strbuf *out, const struct template *t)
{
	const char *open = template_thought(t)[0], *close = template_thought(t)[1];

	strbuf_adds(out, "        {%- if not loop.last -%}\n"
	                 "            {%- set kept = namespace(text='') -%}\n"
	                 "            {%- for part in content.split(");
	add_text(out, close);
	strbuf_adds(out, ") -%}\n"
	                 "                {%- if loop.last -%}\n"
	                 "                    {%- set kept.text = kept.text + part -%}\n"
	                 "                {%- elif ");
	add_text(out, open);
	strbuf_adds(out, " in part -%}\n"
	                 "                    {%- set kept.text = kept.text + part.split(");
	add_text(out, open);
	strbuf_adds(out, ")[0] -%}\n"
	                 "                {%- else -%}\n"
	                 "                    {%- set kept.text = kept.text + part + ");
	add_text(out, close);
	strbuf_adds(out, " -%}\n"
	                 "                {%- endif -%}\n"
	                 "            {%- endfor -%}\n"
	                 "            {%- set content = kept.text.lstrip('\\n') -%}\n"
	                 "        {%- endif -%}\n");
}

/* An answer without a thought gets an empty one; last: only the last answer. */
static void add_empty_thought(struct strbuf *out, const struct template *t, bool last)
{
	_cleanup_strbuf_ struct strbuf thought = {0};

	strbuf_addf(out, "        {%%- if %s", last ? "loop.last and " : "");
	for (int i = 0; i < 2; i++) {
		const char *word = template_thought(t)[i];
		size_t len;

		strbuf_adds(&thought, word);
		word += strspn(word, "\n ");
		len = strlen(word);
		while (len && strchr("\n ", word[len - 1]))
			len--;
		strbuf_adds(out, i ? " and " : "");
		add_literal(out, word, len);
		strbuf_adds(out, " not in content");
	}
	strbuf_adds(out, " -%}\n"
	                 "            {{- ");
	add_text(out, thought.data ? thought.data : "");
	strbuf_adds(out, " -}}\n"
	                 "        {%- endif -%}\n");
	out->failed = out->failed || thought.failed;
}

static void add_assistant(struct strbuf *out, const struct template *t, const struct tokenizer *tok,
                          const struct jinja_options *o)
{
	strbuf_adds(out,
	            "    {%- elif message['role'] == 'assistant' -%}\n"
	            "        {%- if message['tool_calls'] -%}\n"
	            "            {{- raise_exception('this chat template has no form for calls of tools') "
	            "-}}\n"
	            "        {%- endif -%}\n");
	if (t->reasoning && o->without_thoughts)
		drop_thoughts(out, t);
	if (t->reasoning)
		add_empty_thought(out, t, o->without_thoughts);
	strbuf_adds(out, "        {{- ");
	add_slots(out, template_slots(t, ROLE_ASSISTANT), t, tok, o->efficient_eos && !t->efficient_eos,
	          "content");
	strbuf_adds(out, " -}}\n");
}

int jinja_write(const struct template *t, const struct tokenizer *tok, const struct jinja_options *o,
                struct strbuf *out, struct error *err)
{
	const struct template_slot end[2] = {{SLOT_EOS, NULL}, {SLOT_END, NULL}};

	if (add_comment(out, t) < 0)
		return error_oom(err);
	add_system(out, t, tok);
	strbuf_adds(out, "{%- for message in turns -%}\n"
	                 "    {%- set content = message['content'] or '' -%}\n");
	add_user(out, t, tok);
	add_assistant(out, t, tok, o);
	strbuf_adds(out, "    {%- elif message['role'] in ('tool', 'observation') -%}\n"
	                 "        {{- ");
	add_slots(out, template_slots(t, ROLE_OBSERVATION), t, tok, false, "content");
	strbuf_adds(out, " -}}\n"
	                 "    {%- else -%}\n"
	                 "        {{- raise_exception('no turn can be of the role ' + message['role']) -}}\n"
	                 "    {%- endif -%}\n"
	                 "{%- endfor -%}\n");
	if (o->efficient_eos || t->efficient_eos) {
		strbuf_adds(out, "{%- if turns and turns[-1]['role'] == 'assistant' -%}\n"
		                 "    {{- ");
		add_slots(out, end, t, tok, false, "");
		strbuf_adds(out, " -}}\n"
		                 "{%- endif -%}\n");
	}
	return out->failed ? error_oom(err) : 0;
}

static const char *or_none(const char *text)
{
	return text ? text : "";
}

int jinja_for_training(const struct template_choice *choice, const struct tokenizer *tok, const char *system,
                       const struct jinja_options *options, struct strbuf *out, struct error *err)
{
	_cleanup_(template_choice_clear) struct template_choice own = {.source = TEMPLATE_NAMED};
	struct template t = choice->template;

	if (choice->source == TEMPLATE_RECOGNIZED)
		return 0;
	if (system)
		t.default_system = system;
	/* A model's own chat template may have a form for tools. */
	if (choice->source == TEMPLATE_NAMED && tokenizer_chat_template(tok) &&
	    template_choose(NULL, tok, &own, NULL) == 0 && own.source == TEMPLATE_RECOGNIZED &&
	    str_eq(own.template.name, t.name) &&
	    str_eq(or_none(own.template.default_system), or_none(t.default_system)))
		return 0;
	return jinja_write(&t, tok, options, out, err);
}
