/* SPDX-License-Identifier: Apache-2.0 */
/* The format of a file, and what its columns and tags are called, by the columns of one of its records. */
#include "engine/dataset/columns.h"

#include <errno.h>

#include "base/json.h"
#include "base/str.h"

const struct source_columns source_columns_default = {.prompt = "instruction",
                                                      .query = "input",
                                                      .response = "output",
                                                      .messages = "conversations",
                                                      .chosen = "chosen",
                                                      .rejected = "rejected",
                                                      .margin = "margin"};
const struct source_tags source_tags_sharegpt = {.role = "from",
                                                 .content = "value",
                                                 .user = "human",
                                                 .assistant = "gpt",
                                                 .observation = "observation",
                                                 .function = "function_call",
                                                 .system = "system"};
static const struct source_tags openai_tags = {.role = "role",
                                               .content = "content",
                                               .user = "user",
                                               .assistant = "assistant",
                                               .observation = "tool",
                                               .function = "function",
                                               .system = "system"};

/* "a, b": the columns of a record, for messages; owned by the caller. */
static char *column_names(const json_t *record)
{
	struct strbuf b = {0};
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)record, key, value)
	{
		if (b.len > 200) {
			strbuf_adds(&b, ", …");
			break;
		}
		strbuf_addf(&b, "%s%s", b.len ? ", " : "", key);
	}
	if (!b.len)
		strbuf_adds(&b, "none");
	return strbuf_steal(&b);
}

static const char *first_of(const json_t *record, const char *a, const char *b)
{
	return json_is_array(json_object_get(record, a))   ? a
	       : json_is_array(json_object_get(record, b)) ? b
	                                                   : NULL;
}

static bool has(const json_t *record, const char *key)
{
	return key && json_object_get(record, key);
}

/* TRL's columns: chosen and rejected, or prompt, completion and label, unless alpaca's are there. */
static bool is_trl(const struct source *s, const json_t *record)
{
	if (s->columns.given)
		return json_is_array(json_object_get(record, s->columns.prompt ? s->columns.prompt : "")) ||
		       (s->columns.chosen && !s->columns.prompt);
	return !has(record, "instruction") && (has(record, "chosen") || has(record, "completion"));
}

/* The format by the names of the columns. */
static int detect_format(struct source *s, const json_t *record, const char *messages, enum dataset_task task,
                         const char *where, struct error *err)
{
	bool pretrain = task == DATASET_PRETRAIN, prompts = task == DATASET_PROMPTS;
	bool preference = !pretrain && task != DATASET_SFT;
	bool named = s->columns.prompt || s->columns.messages;
	const json_t *first = messages ? json_array_get(json_object_get(record, messages), 0) : NULL;
	_cleanup_free_ char *names = NULL;

	/* A run that names the column of the answer alone. */
	if (prompts && s->columns.given && !named && has(record, "prompt"))
		s->columns.prompt = "prompt";
	if (pretrain && (s->columns.given ? s->columns.prompt != NULL : has(record, "text"))) {
		s->format = FORMAT_JSONL;
	} else if (preference && !first &&
	           (is_trl(s, record) ||
	            (prompts && !s->columns.given && !has(record, "instruction") && has(record, "prompt")))) {
		s->format = FORMAT_TRL;
	} else if (!pretrain && first && has(first, s->tags.given ? s->tags.role : "from")) {
		s->format = FORMAT_SHAREGPT;
	} else if (!pretrain && first) {
		s->format = FORMAT_OPENAI;
	} else if (!pretrain && (s->columns.given ? s->columns.prompt != NULL : has(record, "instruction"))) {
		s->format = FORMAT_ALPACA;
	} else {
		names = column_names(record);
		return error_set(
		    err, -EINVAL,
		    "%s: the columns there are (%s) tell no format: %s; map them with data.columns", where,
		    names ? names : "",
		    pretrain     ? "pretrain wants text"
		    : prompts    ? "a prompt stands in prompt, instruction, messages or conversations"
		    : preference ? "an answer and another one stand in chosen and rejected, and kto has "
		                   "completion and label"
		                 : "alpaca has instruction and output, sharegpt conversations, openai "
		                   "messages");
	}
	return 0;
}

/* Columns by the names that the formats have by default. Those at the side are read from each record that has
 * them. */
static void default_names(struct source *s, const json_t *record, const char *messages,
                          enum dataset_task task)
{
	bool chat = s->format == FORMAT_SHAREGPT || s->format == FORMAT_OPENAI;
	bool pretrain = task == DATASET_PRETRAIN;
	/* What data for rewards call the answer to a prompt. */
	static const char *const answers[] = {"completion", "answer", "solution", "ground_truth"};

	s->columns = source_columns_default;
	s->columns.label = has(record, "kto_tag") ? "kto_tag" : "label";
	if (s->format == FORMAT_TRL) {
		s->columns.prompt = "prompt";
		s->columns.response = "completion";
		for (size_t i = 0; task == DATASET_PROMPTS && i < ARRAY_SIZE(answers); i++)
			if (has(record, answers[i])) {
				s->columns.response = answers[i];
				break;
			}
		s->columns.query = NULL;
		s->columns.messages = NULL;
		s->columns.tools = "tools";
	}
	if (pretrain && !chat && s->format != FORMAT_ALPACA) {
		s->columns = (struct source_columns){.prompt = "text"};
	} else if (chat) {
		s->columns.messages = messages                     ? messages
		                      : s->format == FORMAT_OPENAI ? "messages"
		                                                   : "conversations";
		s->columns.tools = "tools";
	}
	if (!pretrain || s->format != FORMAT_JSONL) {
		s->columns.system = "system";
		s->columns.history = chat || s->format == FORMAT_TRL ? NULL : "history";
	}
}

static int need_column(const json_t *record, const char *name, const char *what, const char *where,
                       struct error *err)
{
	_cleanup_free_ char *names = NULL;

	if (has(record, name))
		return 0;
	names = column_names(record);
	if (!name)
		return error_set(err, -ENOKEY,
		                 "%s: data.columns names no column for the %s; the columns there are: %s",
		                 where, what, names ? names : "");
	return error_set(err, -ENOKEY,
	                 "%s: column '%s' is missing; the columns there are: %s; map it with data.columns",
	                 where, name, names ? names : "");
}

static int check_kept(const char *const *kept, const json_t *record, const char *where, struct error *err)
{
	_cleanup_free_ char *names = NULL;

	while (kept && *kept && has(record, *kept))
		kept++;
	if (!kept || !*kept)
		return 0;
	names = column_names(record);
	return error_set(err, -ENOKEY,
	                 "%s: column '%s', of the columns that come with completions, is missing; the "
	                 "columns there are: %s",
	                 where, *kept, names ? names : "");
}

int source_detect(struct source *s, const json_t *record, enum dataset_task task, const char *where,
                  struct error *err)
{
	bool pretrain = task == DATASET_PRETRAIN;
	const char *messages =
	    s->columns.given ? s->columns.messages : first_of(record, "messages", "conversations");
	struct source found = *s;
	int r = 0;

	if (!json_is_object(record))
		return error_set(err, -EINVAL,
		                 "%s: a JSON object is needed, with a column for each part of an example",
		                 where);
	if (s->format == FORMAT_AUTO || (s->format == FORMAT_JSONL && !pretrain))
		r = detect_format(&found, record, messages, task, where, err);
	if (r < 0)
		return r;
	/* dataset_info.json's defaults stand as they are where the file has such columns. */
	if (!s->columns.given &&
	    !(s->columns.prompt && (has(record, s->columns.prompt) || has(record, s->columns.messages))))
		default_names(&found, record, messages, task);
	if (!s->tags.given)
		found.tags = found.format == FORMAT_OPENAI || found.format == FORMAT_TRL
		                 ? openai_tags
		                 : source_tags_sharegpt;
	if (found.format == FORMAT_SHAREGPT || found.format == FORMAT_OPENAI) {
		r = need_column(record, found.columns.messages, "messages", where, err);
	} else {
		/* TRL's lists of messages may have the prompt in them. */
		if (found.format != FORMAT_TRL ||
		    !(task == DATASET_PAIRS && found.columns.chosen &&
		      json_is_array(json_object_get(record, found.columns.chosen))))
			r = need_column(record, found.columns.prompt, "prompt", where, err);
		if (r >= 0 && !pretrain && task != DATASET_PAIRS && task != DATASET_PROMPTS)
			r = need_column(record, found.columns.response, "response", where, err);
	}
	if (r < 0 ||
	    (task == DATASET_PAIRS &&
	     ((r = need_column(record, found.columns.chosen, "chosen answer", where, err)) < 0 ||
	      (r = need_column(record, found.columns.rejected, "rejected answer", where, err)) < 0)) ||
	    (task == DATASET_LABELS &&
	     (r = need_column(record, found.columns.label, "label", where, err)) < 0))
		return r;
	if (task == DATASET_PROMPTS && (r = check_kept(s->kept, record, where, err)) < 0)
		return r;
	*s = found;
	return 0;
}
