/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations into ids and labels: which parts are learnt, and what is cut off where a row is too long. */
#include "engine/chat/encode.h"

#include <errno.h>
#include <string.h>

#include "base/str.h"
#include "engine/chat/tool_calls.h"

/* Without the end tokens: with efficient_eos one stands behind all answers instead. False: the template ends
 * answers with words of its own. */
static bool without_eos(const struct template_slot *slots, struct template_slot *kept)
{
	bool had = false;
	size_t n = 0;

	for (; slots->kind; slots++) {
		if (slots->kind == SLOT_EOS)
			had = true;
		else
			kept[n++] = *slots;
	}
	kept[n] = (struct template_slot){SLOT_END, NULL};
	return had;
}

int encoder_init(struct encoder *enc, const struct encoder_options *o, const struct tokenizer *tok,
                 const struct template *template, struct error *err)
{
	*enc = (struct encoder){
	    .tok = tok,
	    .template = template,
	    .eos = template_eos(template, tok),
	    .system = o->system                  ? o->system
	              : template->default_system ? template->default_system
	                                         : "",
	    .cutoff = o->cutoff,
	    .train_on_prompt = o->train_on_prompt,
	    .mask_history = o->mask_history,
	    .efficient_eos = o->efficient_eos || template->efficient_eos,
	    .assistant = template_slots(template, ROLE_ASSISTANT),
	    .function = template_slots(template, ROLE_FUNCTION),
	};
	if (enc->train_on_prompt && enc->mask_history)
		return error_set(err, -EINVAL,
		                 "data.train_on_prompt and data.mask_history exclude each other");
	if (enc->train_on_prompt && enc->efficient_eos)
		return error_set(err, -EINVAL, "data.train_on_prompt does not go with efficient_eos%s%s",
		                 o->efficient_eos ? "" : ", which is part of template ",
		                 o->efficient_eos ? "" : template->name);
	if (enc->efficient_eos && !template->efficient_eos) {
		if (!without_eos(enc->assistant, enc->assistant_kept))
			return error_set(
			    err, -EINVAL,
			    "data.efficient_eos does not go with template %s, whose answers end with "
			    "words of their own",
			    template->name);
		without_eos(enc->function, enc->function_kept);
		enc->assistant = enc->assistant_kept;
		enc->function = enc->function_kept;
	}
	if (enc->eos < 0 && enc->efficient_eos)
		return error_set(err, -EINVAL,
		                 "the tokenizer has no end token (eos_token), which efficient_eos needs");
	return 0;
}

void encoder_budget(int source, int target, int budget, int *source_kept, int *target_kept)
{
	int most;

	if (2 * (int64_t)target < budget)
		most = budget;
	else if (2 * (int64_t)source < budget)
		most = budget - source;
	else
		most = (int)(budget * ((double)target / ((double)source + target)));
	*target_kept = MIN(most, target);
	*source_kept = MIN(MAX(budget - *target_kept, 0), source);
}

/* The words without the line breaks around them. */
static struct text thought_word(const struct template *t, int which)
{
	const char *s = template_thought(t)[which];
	size_t n;

	s += strspn(s, "\n ");
	n = strlen(s);
	while (n && (s[n - 1] == '\n' || s[n - 1] == ' '))
		n--;
	return (struct text){s, n};
}

static const char *find_text(struct text in, struct text what)
{
	return memmem(in.data, in.len, what.data, what.len);
}

/* The text without its thoughts and the words around them, and without line breaks at its beginning; b owns
 * the new text. */
static struct text drop_thoughts(const struct template *t, struct text content, struct strbuf *b)
{
	const char *open = template_thought(t)[0], *close = template_thought(t)[1];
	struct text rest = content;
	const char *from, *to;

	while ((from = find_text(rest, (struct text){open, strlen(open)}))) {
		struct text inner = {from + strlen(open), rest.data + rest.len - from - strlen(open)};

		to = find_text(inner, (struct text){close, strlen(close)});
		if (!to)
			break;
		strbuf_add(b, rest.data, from - rest.data);
		to += strlen(close);
		rest = (struct text){to, rest.data + rest.len - to};
	}
	strbuf_add(b, rest.data, rest.len);
	content = (struct text){b->data ? b->data : "", b->len};
	while (content.len && *content.data == '\n') {
		content.data++;
		content.len--;
	}
	return content;
}

/* A function's turn: a thought in front of the JSON stays, the JSON becomes the template's form of a call. */
static int encode_function(const struct encoder *enc, struct text content, struct token_list *out,
                           struct error *err)
{
	const char *open = template_thought(enc->template)[0], *close = template_thought(enc->template)[1];
	const char *from = find_text(content, (struct text){open, strlen(open)}), *to = NULL;
	_cleanup_strbuf_ struct strbuf call = {0}, b = {0};
	int r;

	if (from)
		to = find_text((struct text){from, content.data + content.len - from},
		               (struct text){close, strlen(close)});
	if (to) {
		to += strlen(close);
		strbuf_add(&call, from, to - from);
		strbuf_add(&b, content.data, from - content.data);
		strbuf_add(&b, to, content.data + content.len - to);
		content = (struct text){b.data ? b.data : "", b.len};
	}
	r = tools_call(enc->template->tools, &content, &call, err);
	if (r < 0)
		return r;
	if (call.failed || b.failed)
		return error_oom(err);
	return template_encode(enc->tok, enc->eos, enc->function, call.data, call.len, out, err);
}

/* The system prompt with the tools, "" for none; *present: it is written, even where it is empty: as in
 * LLaMA-Factory, a list of no tools is enough. */
static int system_text(const struct encoder *enc, const struct example *e, struct strbuf *out, bool *present,
                       struct error *err)
{
	if (e->system.len)
		strbuf_add(out, e->system.data, e->system.len);
	else
		strbuf_adds(out, enc->system);
	*present = out->len || e->tools.len;
	strbuf_adds(out, ""); /* so that it is a string */
	if (e->tools.len) {
		int r = tools_describe(enc->template, &e->tools, out, err);

		if (r < 0)
			return r;
	}
	return out->failed ? error_oom(err) : 0;
}

static int encode_source(const struct encoder *enc, const struct example *e, size_t i, struct token_list *out,
                         struct error *err)
{
	const struct template *t = enc->template;
	const struct turn *turn = &e->turns[i];
	_cleanup_strbuf_ struct strbuf system = {0}, user = {0};
	struct text content = turn->content;
	bool present = false;
	int r = 0;

	if (i == 0) {
		if ((r = template_encode(enc->tok, enc->eos, template_slots(t, ROLE_PREFIX), "", 0, out,
		                         err)) < 0 ||
		    (r = system_text(enc, e, &system, &present, err)) < 0)
			return r;
		if (present && t->system_in_user && turn->role == ROLE_USER) {
			const char *slot = template_slots(t, ROLE_SYSTEM)[0].text;
			const char *at = strstr(slot, "{{content}}");

			strbuf_add(&user, slot, at - slot);
			strbuf_add(&user, system.data, system.len);
			strbuf_adds(&user, at + strlen("{{content}}"));
			strbuf_add(&user, content.data, content.len);
			if (user.failed)
				return error_oom(err);
			content = (struct text){user.data, user.len};
		} else if (present && !t->system_in_user) {
			r = template_encode(enc->tok, enc->eos, template_slots(t, ROLE_SYSTEM), system.data,
			                    system.len, out, err);
		}
	}
	if (r < 0)
		return r;
	return template_encode(enc->tok, enc->eos, template_slots(t, turn->role), content.data, content.len,
	                       out, err);
}

/* history: an earlier answer, whose thoughts are left out. */
static int encode_target(const struct encoder *enc, const struct turn *turn, bool history,
                         struct token_list *out, struct error *err)
{
	const struct template *t = enc->template;
	_cleanup_strbuf_ struct strbuf b = {0};
	struct text content = turn->content;
	int r;

	if (t->reasoning) {
		if (history)
			content = drop_thoughts(t, content, &b);
		if (b.failed)
			return error_oom(err);
		if (!history && !find_text(content, thought_word(t, 0)) &&
		    !find_text(content, thought_word(t, 1))) {
			_cleanup_free_ char *empty =
			    str_printf("%s%s", template_thought(t)[0], template_thought(t)[1]);

			if (!empty)
				return error_oom(err);
			r = tokenizer_encode(enc->tok, empty, strlen(empty), false, out, err);
			if (r < 0)
				return r;
		}
	}
	if (turn->role == ROLE_FUNCTION)
		return encode_function(enc, content, out, err);
	return template_encode(enc->tok, enc->eos, enc->assistant, content.data, content.len, out, err);
}

struct pair {
	struct token_list source, target;
	int source_kept, target_kept; /* 0 and 0: cut off */
};

static int emit_pair(const struct encoder *enc, const struct pair *p, bool first, struct token_list *ids,
                     struct token_list *labels)
{
	const int32_t ignore = LABEL_IGNORE;
	int r = token_list_add(ids, p->source.ids, p->source_kept);

	if (r == 0)
		r = token_list_add(ids, p->target.ids, p->target_kept);
	if (r == 0 && enc->train_on_prompt)
		r = token_list_add(labels, p->source.ids, p->source_kept);
	for (int i = 0; r == 0 && !enc->train_on_prompt && i < p->source_kept; i++) {
		/* The first token after an answer stands where the end token would be: predicting the end
		 * token there teaches the model to stop. */
		bool stop = enc->efficient_eos && !first && i == 0;

		r = token_list_add(labels, stop ? &enc->eos : &ignore, 1);
	}
	if (enc->mask_history && !first) {
		for (int i = 0; r == 0 && i < p->target_kept; i++)
			r = token_list_add(labels, &ignore, 1);
	} else if (r == 0) {
		r = token_list_add(labels, p->target.ids, p->target_kept);
	}
	return r;
}

int encoder_conversation(const struct encoder *enc, const struct example *e, struct token_list *ids,
                         struct token_list *labels, int64_t *cut, struct error *err)
{
	size_t n = e->count / 2;
	int total = enc->efficient_eos ? 1 : 0, r = 0;
	struct pair *pairs = calloc(n ? n : 1, sizeof(*pairs));

	*cut = 0;
	if (!pairs)
		return error_oom(err);
	for (size_t i = 0; r == 0 && i < n; i++) {
		r = encode_source(enc, e, 2 * i, &pairs[i].source, err);
		if (r == 0)
			r = encode_target(enc, &e->turns[2 * i + 1], enc->mask_history && i + 1 < n,
			                  &pairs[i].target, err);
	}
	/* What is left of the budget goes to the turns in order; with mask_history to the last one first. */
	for (size_t k = 0; r == 0 && k < n && total < enc->cutoff; k++) {
		struct pair *p = &pairs[enc->mask_history ? n - 1 - k : k];

		encoder_budget(p->source.len, p->target.len, enc->cutoff - total, &p->source_kept,
		               &p->target_kept);
		total += p->source_kept + p->target_kept;
	}
	for (size_t i = 0; r == 0 && i < n; i++) {
		bool first = enc->mask_history ? i == n - 1 : i == 0;

		*cut += (int64_t)(pairs[i].source.len + pairs[i].target.len) - pairs[i].source_kept -
		        pairs[i].target_kept;
		if (pairs[i].source_kept + pairs[i].target_kept > 0)
			r = emit_pair(enc, &pairs[i], first, ids, labels) < 0 ? error_oom(err) : 0;
	}
	if (r == 0 && enc->efficient_eos &&
	    (token_list_add(ids, &enc->eos, 1) < 0 || token_list_add(labels, &enc->eos, 1) < 0))
		r = error_oom(err);
	for (size_t i = 0; i < n; i++) {
		token_list_free(&pairs[i].source);
		token_list_free(&pairs[i].target);
	}
	free(pairs);
	return r;
}

int encoder_prompt(const struct encoder *enc, const struct example *e, struct token_list *prompt,
                   struct error *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i + 1 < e->count; i++)
		r = i % 2 ? encode_target(enc, &e->turns[i], true, prompt, err)
		          : encode_source(enc, e, i, prompt, err);
	return r;
}

int encoder_answers(const struct encoder *enc, const struct example *e, struct token_list *prompt,
                    struct token_list *answer, struct token_list *rejected, struct error *err)
{
	const struct turn *answers[] = {&e->turns[e->count - 1], &e->rejected};
	struct token_list *out[] = {answer, rejected};
	int r = encoder_prompt(enc, e, prompt, err);

	for (size_t k = 0; r == 0 && k < 2 && out[k]; k++) {
		r = encode_target(enc, answers[k], false, out[k], err);
		if (r == 0 && enc->efficient_eos && token_list_add(out[k], &enc->eos, 1) < 0)
			r = error_oom(err);
	}
	return r;
}
