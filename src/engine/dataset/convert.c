/* SPDX-License-Identifier: Apache-2.0 */
/* One record of a file into an example: Alpaca, ShareGPT, OpenAI messages and TRL's preferences, by the
 * columns of its source. */
#include "engine/dataset/convert.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/chat/exact_json.h"

/* Takes over the string of b. */
static int own(struct example *e, struct strbuf *b, struct text *out, struct error *err)
{
	size_t len = b->len;
	char *s = strbuf_steal(b), **p;

	if (!s)
		return error_oom(err);
	p = realloc(e->owned, (e->owned_count + 1) * sizeof(*p));
	if (!p) {
		free(s);
		return error_oom(err);
	}
	e->owned = p;
	e->owned[e->owned_count++] = s;
	*out = (struct text){s, len};
	return 0;
}

static int add_turn(struct example *e, enum template_role role, struct text content, struct error *err)
{
	if (e->count == e->cap) {
		size_t cap = e->cap ? 2 * e->cap : 8;
		struct turn *p = realloc(e->turns, cap * sizeof(*p));

		if (!p)
			return error_oom(err);
		e->turns = p;
		e->cap = cap;
	}
	e->turns[e->count++] = (struct turn){role, content};
	return 0;
}

/* A string; null or nothing as ""; a list of OpenAI's parts as the text in them. */
static int take_text(struct example *e, const json_t *v, const char *where, const char *what,
                     struct text *out, struct error *err)
{
	_cleanup_strbuf_ struct strbuf b = {0};

	*out = (struct text){"", 0};
	if (!v || json_is_null(v))
		return 0;
	if (json_is_string(v)) {
		*out = (struct text){json_string_value(v), json_string_length(v)};
		return 0;
	}
	if (!json_is_array(v))
		return error_set(err, -EBADMSG, "%s: %s is no string", where, what);
	for (size_t i = 0; i < json_array_size(v); i++) {
		const json_t *part = json_array_get(v, i), *t = json_object_get(part, "text");

		if (!str_eq(json_get_string(part, "type", NULL), "text") || !json_is_string(t))
			return error_set(err, -EBADMSG, "%s: %s holds a part that is no text", where, what);
		strbuf_add(&b, json_string_value(t), json_string_length(t));
	}
	return own(e, &b, out, err);
}

/* JSON text: as it stands, or of a value. */
static int take_json(struct example *e, const json_t *v, struct text *out, struct error *err)
{
	_cleanup_strbuf_ struct strbuf b = {0};

	*out = (struct text){"", 0};
	if (!v || json_is_null(v))
		return 0;
	if (json_is_string(v)) {
		*out = (struct text){json_string_value(v), json_string_length(v)};
		return 0;
	}
	exact_json_dump(v, 0, &b);
	return own(e, &b, out, err);
}

static const json_t *column(const struct example *e, const char *name)
{
	return name ? json_object_get(e->record, name) : NULL;
}

static int take_side_columns(const struct source *s, const char *where, struct example *e, struct error *err)
{
	const json_t *tools = column(e, s->columns.tools);
	int r = take_text(e, column(e, s->columns.system), where, "the system column", &e->system, err);

	/* An empty list is none, but as text or from OpenAI, which becomes text, it is a list of no tools: so
	 * LLaMA-Factory has it, and writes a system prompt there. */
	if (s->format != FORMAT_OPENAI && json_is_array(tools) && json_array_size(tools) == 0)
		return r;
	return r < 0 ? r : take_json(e, tools, &e->tools, err);
}

static int convert_history(const struct source *s, const char *where, struct example *e, struct error *err)
{
	const json_t *history = column(e, s->columns.history);

	for (size_t i = 0; i < json_array_size(history); i++) {
		const json_t *pair = json_array_get(history, i);

		if (json_array_size(pair) != 2)
			return error_set(err, -EBADMSG, "%s: history is no list of [prompt, answer] pairs",
			                 where);
		for (size_t k = 0; k < 2; k++) {
			struct text t;
			int r;

			if ((r = take_text(e, json_array_get(pair, k), where, "history", &t, err)) < 0 ||
			    (r = add_turn(e, k ? ROLE_ASSISTANT : ROLE_USER, t, err)) < 0)
				return r;
		}
	}
	return 0;
}

/* A column that holds an answer as text. */
static int take_answer(const char *name, const char *where, struct example *e, struct turn *out,
                       struct error *err)
{
	out->role = ROLE_ASSISTANT;
	if (!json_is_string(column(e, name)))
		return error_set(err, -EBADMSG, "%s: column '%s' is %s", where, name ? name : "",
		                 column(e, name) ? "no string" : "missing");
	return take_text(e, column(e, name), where, name, &out->content, err);
}

/* What the data has as the answer to a prompt: text, or JSON text of another value; "" where there is none.
 */
static int take_known_answer(const char *name, const char *where, struct example *e, struct error *err)
{
	const json_t *v = column(e, name);
	struct text t;
	int r = json_is_string(v) ? take_text(e, v, where, name, &t, err) : take_json(e, v, &t, err);

	return r < 0 ? r : add_turn(e, ROLE_ASSISTANT, t, err);
}

/* Whether an answer is good: a boolean, or 0 or 1. */
static int take_label(const struct source *s, const char *where, struct example *e, struct error *err)
{
	const json_t *v = column(e, s->columns.label);
	bool number = json_is_integer(v) && (json_integer_value(v) == 0 || json_integer_value(v) == 1);

	if (!json_is_boolean(v) && !number)
		return error_set(err, -EBADMSG, "%s: column '%s' is %s", where, s->columns.label,
		                 v ? "neither true nor false" : "missing");
	e->desirable = json_is_true(v) || (number && json_integer_value(v) == 1);
	return 0;
}

/* By how much the chosen answer is better, where the record says so. */
static int take_margin(const struct source *s, const char *where, struct example *e, struct error *err)
{
	const json_t *v = column(e, s->columns.margin);

	if (!v || json_is_null(v))
		return 0;
	if (!json_is_number(v) || !isfinite((float)json_number_value(v)))
		return error_set(err, -EBADMSG, "%s: column '%s': expected a finite number", where,
		                 s->columns.margin);
	e->margin = (float)json_number_value(v);
	return 0;
}

/* The answers of a pair as texts. */
static int take_pair(const struct source *s, const char *where, struct example *e, struct error *err)
{
	struct turn chosen;
	int r;

	if ((r = take_answer(s->columns.chosen, where, e, &chosen, err)) < 0 ||
	    (r = take_answer(s->columns.rejected, where, e, &e->rejected, err)) < 0 ||
	    (r = take_margin(s, where, e, err)) < 0)
		return r;
	return add_turn(e, chosen.role, chosen.content, err);
}

static int convert_alpaca(const struct source *s, enum dataset_task task, const char *where,
                          struct example *e, struct error *err)
{
	_cleanup_strbuf_ struct strbuf b = {0};
	struct text prompt, query;
	struct turn response;
	int r;

	if ((r = convert_history(s, where, e, err)) < 0 ||
	    (r = take_text(e, column(e, s->columns.prompt), where, s->columns.prompt, &prompt, err)) < 0 ||
	    (r = take_text(e, column(e, s->columns.query), where, s->columns.query, &query, err)) < 0)
		return r;
	if (prompt.len && query.len) {
		strbuf_add(&b, prompt.data, prompt.len);
		strbuf_addc(&b, '\n');
		strbuf_add(&b, query.data, query.len);
		r = own(e, &b, &prompt, err);
		if (r < 0)
			return r;
	} else if (query.len) {
		prompt = query;
	}
	r = add_turn(e, ROLE_USER, prompt, err);
	if (r < 0 || task == DATASET_PRETRAIN)
		return r;
	if (task == DATASET_PAIRS)
		r = take_pair(s, where, e, err);
	else if (task == DATASET_PROMPTS)
		r = take_known_answer(s->columns.response, where, e, err);
	else if ((r = take_answer(s->columns.response, where, e, &response, err)) >= 0)
		r = add_turn(e, response.role, response.content, err);
	if (r < 0 || (task == DATASET_LABELS && (r = take_label(s, where, e, err)) < 0))
		return r;
	return take_side_columns(s, where, e, err);
}

static const json_t *message_member(const json_t *message, const char *key)
{
	return key ? json_object_get(message, key) : NULL;
}

/* The role of a message; -1: one that the tags do not know. */
static int message_role(const struct source *s, const json_t *message)
{
	const struct source_tags *t = &s->tags;
	const json_t *v = message_member(message, t->role);
	const char *name = json_is_string(v) ? json_string_value(v) : NULL;

	return !name                          ? -1
	       : str_eq(name, t->user)        ? ROLE_USER
	       : str_eq(name, t->assistant)   ? ROLE_ASSISTANT
	       : str_eq(name, t->observation) ? ROLE_OBSERVATION
	       : str_eq(name, t->function)    ? ROLE_FUNCTION
	       : str_eq(name, t->system)      ? ROLE_SYSTEM
	                                      : -1;
}

/* The text of an OpenAI message: calls of tools in place of the content, reasoning in front of both. */
static int openai_content(const struct source *s, const json_t *message, int *role, const char *where,
                          struct example *e, struct text *out, struct error *err)
{
	_cleanup_json_ json_t *parsed = NULL;
	_cleanup_strbuf_ struct strbuf b = {0};
	const json_t *calls = json_object_get(message, "tool_calls");
	const json_t *thought = json_object_get(message, "reasoning_content");
	int r;

	r = take_text(e, message_member(message, s->tags.content), where, "a message's content", out, err);
	if (r < 0 || (*role != ROLE_ASSISTANT && *role != ROLE_FUNCTION))
		return r;
	if (json_is_string(thought) && json_string_length(thought)) {
		strbuf_adds(&b, "<think>\n");
		strbuf_add(&b, json_string_value(thought), json_string_length(thought));
		strbuf_adds(&b, "\n</think>\n\n");
	}
	if (json_is_string(calls))
		calls = parsed = exact_json_load(json_string_value(calls), json_string_length(calls), NULL);
	if (json_array_size(calls) > 0) {
		_cleanup_json_ json_t *list = json_array();

		for (size_t i = 0; i < json_array_size(calls); i++) {
			json_t *call = json_array_get(calls, i), *f = json_object_get(call, "function");

			if (json_array_append(list, f ? f : call) < 0)
				return error_oom(err);
		}
		exact_json_dump(list, 0, &b);
		*role = ROLE_FUNCTION;
		return own(e, &b, out, err);
	}
	if (!b.len)
		return 0;
	strbuf_add(&b, out->data, out->len);
	return own(e, &b, out, err);
}

/* Adds a message; answers of tools that follow each other become one turn (OpenAI only). */
static int add_message(struct example *e, int role, struct text content, bool merge, struct error *err)
{
	struct turn *last = e->count ? &e->turns[e->count - 1] : NULL;

	if (merge && role == ROLE_OBSERVATION && last && last->role == ROLE_OBSERVATION) {
		_cleanup_strbuf_ struct strbuf b = {0};

		strbuf_add(&b, last->content.data, last->content.len);
		strbuf_adds(&b, "\n</tool_response>\n<tool_response>\n");
		strbuf_add(&b, content.data, content.len);
		return own(e, &b, &last->content, err);
	}
	return add_turn(e, role, content, err);
}

static int check_turns(const struct example *e, const char *where, struct error *err)
{
	static const char *const due[] = {"user's or a tool's", "assistant's"};

	for (size_t i = 0; i < e->count; i++) {
		enum template_role role = e->turns[i].role;
		bool answer = role == ROLE_ASSISTANT || role == ROLE_FUNCTION;

		if (role == ROLE_SYSTEM || answer != (i % 2 == 1))
			return error_set(err, -EBADMSG, "%s: turn %zu of the conversation should be the %s",
			                 where, i + 1, due[i % 2]);
	}
	if (e->count == 0)
		return error_set(err, -EBADMSG, "%s: the conversation is empty", where);
	if (e->count % 2)
		return error_set(err, -EBADMSG, "%s: the conversation ends without an answer", where);
	return 0;
}

/* Role and content of the i-th message. */
static int take_message(const struct source *s, const json_t *message, size_t i, const char *where,
                        struct example *e, struct turn *out, struct error *err)
{
	bool openai = s->format != FORMAT_SHAREGPT;
	int role = message_role(s, message), r;

	if (role < 0) {
		const json_t *v = message_member(message, s->tags.role);

		if (!json_is_string(v))
			return error_set(err, -EBADMSG, "%s: message %zu has no '%s'", where, i + 1,
			                 s->tags.role);
		return error_set(err, -EBADMSG,
		                 "%s: message %zu: unknown role '%.40s'; map it with data.tags", where, i + 1,
		                 json_string_value(v));
	}
	if (!openai && !message_member(message, s->tags.content))
		return error_set(err, -EBADMSG, "%s: message %zu has no '%s'", where, i + 1, s->tags.content);
	r = openai ? openai_content(s, message, &role, where, e, &out->content, err)
	           : take_text(e, message_member(message, s->tags.content), where, "a message's content",
	                       &out->content, err);
	out->role = (enum template_role)role;
	return r;
}

/* The first `count` of the messages. */
static int add_messages(const struct source *s, const json_t *messages, size_t count, const char *where,
                        struct example *e, struct error *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < count; i++) {
		const json_t *message = json_array_get(messages, i);
		struct turn turn;

		r = take_message(s, message, i, where, e, &turn, err);
		if (r < 0)
			return r;
		if (i == 0 && turn.role == ROLE_SYSTEM) {
			e->system = turn.content;
			if (!e->tools.len)
				r = take_json(e, json_object_get(message, "tools"), &e->tools, err);
		} else {
			r = add_message(e, turn.role, turn.content, s->format != FORMAT_SHAREGPT, err);
		}
	}
	return r;
}

/* An answer of a pair: a message, or a list of one, of which `from` on are the answer. */
static int add_answer(const struct source *s, const char *name, size_t from, const char *where,
                      struct example *e, struct turn *out, struct error *err)
{
	const json_t *answer = column(e, name);
	size_t n = json_array_size(answer);
	int r;

	if (json_is_array(answer) && n != from + 1)
		return error_set(err, -EBADMSG, "%s: column '%s' has %zu messages behind the prompt, not one",
		                 where, name, n > from ? n - from : 0);
	if (json_is_array(answer))
		answer = json_array_get(answer, from);
	if (!json_is_object(answer))
		return error_set(err, -EBADMSG, "%s: column '%s' is %s", where, name,
		                 answer ? "no message" : "missing");
	r = take_message(s, answer, from, where, e, out, err);
	if (r < 0)
		return r;
	if (out->role != ROLE_ASSISTANT && out->role != ROLE_FUNCTION)
		return error_set(err, -EBADMSG, "%s: column '%s' is not an answer of the assistant", where,
		                 name);
	return 0;
}

/* Both answers of a pair as messages. */
static int add_pair(const struct source *s, size_t from, const char *where, struct example *e,
                    struct error *err)
{
	struct turn chosen;
	int r;

	if ((r = add_answer(s, s->columns.chosen, from, where, e, &chosen, err)) < 0 ||
	    (r = add_answer(s, s->columns.rejected, from, where, e, &e->rejected, err)) < 0 ||
	    (r = take_margin(s, where, e, err)) < 0)
		return r;
	return add_turn(e, chosen.role, chosen.content, err);
}

/* The messages that two conversations begin with; but the last message of each is no part of it. */
static size_t common_messages(const json_t *a, const json_t *b)
{
	size_t n = MIN(json_array_size(a), json_array_size(b)), i = 0;

	while (i + 1 < n && json_equal(json_array_get(a, i), json_array_get(b, i)))
		i++;
	return i;
}

static int convert_trl(const struct source *s, enum dataset_task task, const char *where, struct example *e,
                       struct error *err)
{
	const json_t *prompt = column(e, s->columns.prompt), *chosen = column(e, s->columns.chosen);
	const char *answer = task == DATASET_PAIRS ? s->columns.chosen : s->columns.response;
	/* What is known of a prompt may be any list. */
	bool messages =
	    json_is_array(column(e, answer)) &&
	    (task != DATASET_PROMPTS || message_role(s, json_array_get(column(e, answer), 0)) >= 0);
	struct turn turn;
	size_t from = 0;
	int r;

	r = take_side_columns(s, where, e, err);
	if (r < 0)
		return r;
	/* Without a prompt of messages, both answers are conversations that begin with the same one. */
	if (task == DATASET_PAIRS && messages && !json_is_array(prompt)) {
		from = common_messages(chosen, column(e, s->columns.rejected));
		r = add_messages(s, chosen, from, where, e, err);
	} else if (json_is_array(prompt)) {
		r = add_messages(s, prompt, json_array_size(prompt), where, e, err);
	} else if ((r = take_text(e, prompt, where, "the prompt", &turn.content, err)) >= 0) {
		r = add_turn(e, ROLE_USER, turn.content, err);
	}
	if (r < 0)
		return r;
	if (task == DATASET_PAIRS)
		r = messages ? add_pair(s, from, where, e, err) : take_pair(s, where, e, err);
	else if (task == DATASET_PROMPTS && !messages)
		r = take_known_answer(answer, where, e, err);
	else if ((r = messages ? add_answer(s, answer, 0, where, e, &turn, err)
	                       : take_answer(answer, where, e, &turn, err)) >= 0)
		r = add_turn(e, turn.role, turn.content, err);
	if (r < 0 || (task == DATASET_LABELS && (r = take_label(s, where, e, err)) < 0))
		return r;
	return check_turns(e, where, err);
}

static int convert_messages(const struct source *s, enum dataset_task task, const char *where,
                            struct example *e, struct error *err)
{
	bool openai = s->format == FORMAT_OPENAI;
	const json_t *messages;
	int r;

	r = take_side_columns(s, where, e, err);
	if (r < 0)
		return r;
	messages = column(e, s->columns.messages);
	if (!json_is_array(messages))
		return error_set(err, -EBADMSG, "%s: column '%s' is %s", where, s->columns.messages,
		                 messages ? "no list of messages" : "missing");
	r = add_messages(s, messages, json_array_size(messages), where, e, err);
	if (r >= 0 && task == DATASET_PAIRS)
		r = json_is_string(column(e, s->columns.chosen)) ? take_pair(s, where, e, err)
		                                                 : add_pair(s, 0, where, e, err);
	if (r < 0 || (task == DATASET_LABELS && (r = take_label(s, where, e, err)) < 0))
		return r;
	/* An answer of tools that nothing follows is left out, but at the end of a prompt. */
	if (openai && task != DATASET_PROMPTS && e->count && e->count % 2 &&
	    e->turns[e->count - 1].role == ROLE_OBSERVATION)
		e->count--;
	/* A conversation that is to be gone on with. */
	if (task == DATASET_PROMPTS && e->count % 2 && (r = take_known_answer(NULL, where, e, err)) < 0)
		return r;
	return task == DATASET_PRETRAIN && e->count ? 0 : check_turns(e, where, err);
}

/* The answer to a prompt becomes the text of an object that has other columns of the record, too. */
static int keep_columns(const struct source *s, struct example *e, struct error *err)
{
	struct text *answer = &e->turns[e->count - 1].content;
	_cleanup_json_ json_t *columns = json_object(), *all = json_object();
	_cleanup_strbuf_ struct strbuf b = {0};
	bool failed = !columns || !all;

	for (size_t i = 0; s->kept[i] && !failed; i++) {
		json_t *value = json_object_get(e->record, s->kept[i]);

		failed = (value ? json_object_set(columns, s->kept[i], value)
		                : json_object_set_new(columns, s->kept[i], json_null())) < 0;
	}
	if (failed ||
	    json_object_set_new(all, "answer",
	                        answer->len ? json_stringn(answer->data, answer->len) : json_null()) < 0 ||
	    json_object_set(all, "columns", columns) < 0)
		return error_oom(err);
	exact_json_dump(all, 0, &b);
	return own(e, &b, answer, err);
}

static int convert(const struct source *s, enum dataset_task task, const char *data, size_t len,
                   const char *where, struct example *e, struct error *err)
{
	int r;

	if (s->format == FORMAT_TEXT || s->format == FORMAT_PARAGRAPHS || s->format == FORMAT_FILES)
		return add_turn(e, ROLE_USER, (struct text){data, len}, err);
	if ((r = exact_json_parse(data, len, where, &e->record, err)) < 0)
		return r;
	if (!json_is_object(e->record))
		return error_set(err, -EBADMSG, "%s: no JSON object", where);
	if (s->format == FORMAT_SHAREGPT || s->format == FORMAT_OPENAI)
		return convert_messages(s, task, where, e, err);
	if (s->format == FORMAT_TRL)
		return convert_trl(s, task, where, e, err);
	return convert_alpaca(s, task, where, e, err);
}

int example_convert(const struct source *s, enum dataset_task task, const char *data, size_t len,
                    const char *where, struct example *e, struct error *err)
{
	int r = convert(s, task, data, len, where, e, err);

	return r == 0 && task == DATASET_PROMPTS && s->kept && e->count > 0 ? keep_columns(s, e, err) : r;
}
