/* SPDX-License-Identifier: Apache-2.0 */
/* How tools are described to a model and how it writes its calls. */
#include <errno.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/chat/exact_json.h"
#include "engine/chat/tool_calls.h"

#define TOOL_PROMPT_MAX (1 << 20)
#define TOOLS           "{{tools}}" /* where the list goes in a file of data.tool_prompt */

/* {"type":"function","function":tool} around a tool that does not have it yet. */
static json_t *tool_wrapped(json_t *tool)
{
	if (str_eq(json_get_string(tool, "type", NULL), "function"))
		return json_incref(tool);
	return json_pack("{s:s, s:O}", "type", "function", "function", tool);
}

/* What stands around the list of tools, and between two of them: the words of each family's own chat
 * template, and for all other templates words of our own, which dtrain-run(5) quotes. llama3's has a date in
 * it; the template's default is taken, so that the same data always give the same ids. */
static const struct {
	const char *before, *between, *after;
	int indent;
} tool_words[] = {
    [TOOLS_DEFAULT] = {"\n\nThese tools can be called:\n", "\n",
                       "\nTo call one, answer with a line `Action: NAME` and a line `Action Input: "
                       "ARGUMENTS`, the arguments as a JSON object.\n"},
    [TOOLS_QWEN] = {"\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n",
                    "\n",
                    "\n</tools>\n\nFor each function call, return a json object with function name and "
                    "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
                    "<function-name>, \"arguments\": <args-json-object>}\n</tool_call>"},
    [TOOLS_LLAMA3] = {"Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\nYou have access to "
                      "the following functions. To call a function, please respond with JSON for a function "
                      "call. Respond in the format {\"name\": function name, \"parameters\": dictionary of "
                      "argument name and its value}. Do not use variables.\n\n",
                      "\n\n", "\n\n", 4},
    [TOOLS_MISTRAL] = {"[AVAILABLE_TOOLS] [", ", ", "][/AVAILABLE_TOOLS]"},
    [TOOLS_NONE] = {"", "\n", ""},
};

static int dump_tools(enum tool_format format, const json_t *tools, struct strbuf *out)
{
	for (size_t i = 0; i < json_array_size(tools); i++) {
		_cleanup_json_ json_t *tool = tool_wrapped(json_array_get(tools, i));

		if (!tool)
			return -ENOMEM;
		strbuf_adds(out, i ? tool_words[format].between : "");
		exact_json_dump(tool, tool_words[format].indent, out);
	}
	return out->failed ? -ENOMEM : 0;
}

static bool no_tools(const json_t *tools)
{
	return json_is_array(tools)    ? json_array_size(tools) == 0
	       : json_is_object(tools) ? json_object_size(tools) == 0
	                               : false;
}

static int line_of(const char *text, const char *at)
{
	int line = 1;

	for (; text < at; text++)
		line += *text == '\n';
	return line;
}

int tools_read_words(const char *path, char **before, char **after, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	_cleanup_json_ json_t *utf8 = NULL;
	const char *at, *second;
	size_t len;
	int r;

	r = file_read(path, TOOL_PROMPT_MAX, &text, &len, err);
	if (r < 0)
		return r;
	utf8 = json_stringn(text, len);
	if (!utf8 || strlen(text) != len)
		return error_set(err, -EINVAL, "%s is no UTF-8 text", path);
	at = strstr(text, TOOLS);
	if (!at)
		return error_set(err, -EINVAL,
		                 "%s: " TOOLS " is missing; it has to stand where the list of tools goes",
		                 path);
	second = strstr(at + 1, TOOLS);
	if (second)
		return error_set(err, -EINVAL,
		                 "%s:%d: " TOOLS " stands here again; it may "
		                 "occur once",
		                 path, line_of(text, second));
	*before = strndup(text, at - text);
	*after = strdup(at + strlen(TOOLS));
	return *before && *after ? 0 : error_oom(err);
}

int tools_describe(const struct template *t, const struct text *text, struct strbuf *out, struct error *err)
{
	_cleanup_json_ json_t *tools = exact_json_load(text->data, text->len, NULL);
	bool own = t->tool_words[0] != NULL;

	if (no_tools(tools))
		return 0;
	if (t->tools == TOOLS_NONE && !own)
		return error_set(err, -EBADMSG,
		                 "template %s has no form for tools; data.tool_prompt can give one", t->name);
	if (json_is_object(tools)) { /* one tool by itself */
		json_t *list = json_pack("[O]", tools);

		if (!list)
			return error_oom(err);
		json_decref(tools);
		tools = list;
	}
	if (!json_is_array(tools))
		return error_set(err, -EBADMSG, "the tools are no JSON list");
	for (size_t i = 0; i < json_array_size(tools); i++)
		if (!json_is_object(json_array_get(tools, i)))
			return error_set(err, -EBADMSG, "tool %zu is no JSON object", i + 1);
	strbuf_adds(out, own ? t->tool_words[0] : tool_words[t->tools].before);
	if (dump_tools(t->tools, tools, out) < 0)
		return error_oom(err);
	strbuf_adds(out, own ? t->tool_words[1] : tool_words[t->tools].after);
	return out->failed ? error_oom(err) : 0;
}

static int dump_call(enum tool_format format, const char *name, json_t *arguments, struct strbuf *out)
{
	_cleanup_json_ json_t *call = json_pack(
	    "{s:s, s:O}", "name", name, format == TOOLS_LLAMA3 ? "parameters" : "arguments", arguments);

	if (!call)
		return -ENOMEM;
	if (format == TOOLS_DEFAULT) {
		strbuf_addf(out, "Action: %s\nAction Input: ", name);
		exact_json_dump(arguments, 0, out);
	} else {
		strbuf_adds(out, format == TOOLS_QWEN ? "<tool_call>\n" : "");
		exact_json_dump(call, 0, out);
		strbuf_adds(out, format == TOOLS_QWEN ? "\n</tool_call>" : "");
	}
	return 0;
}

int tools_call(enum tool_format format, const struct text *content, struct strbuf *out, struct error *err)
{
	_cleanup_json_ json_t *root = exact_json_load(content->data, content->len, NULL);
	size_t count = json_is_array(root) ? json_array_size(root) : 1;
	bool list = format == TOOLS_MISTRAL || (format == TOOLS_LLAMA3 && count > 1);

	if (format == TOOLS_NONE)
		return error_set(err, -EBADMSG, "this template has no form for function calls");
	strbuf_adds(out, list ? "[" : "");
	for (size_t i = 0; i < count; i++) {
		json_t *call = json_is_array(root) ? json_array_get(root, i) : root;
		const char *name = json_get_string(call, "name", NULL);
		_cleanup_json_ json_t *arguments = json_incref(json_object_get(call, "arguments"));

		if (!name || !arguments)
			return error_set(err, -EBADMSG,
			                 "a function call is no JSON object with name and arguments");
		/* OpenAI's API has the arguments as text of JSON. */
		if (json_is_string(arguments)) {
			json_t *inner = exact_json_load(json_string_value(arguments),
			                                json_string_length(arguments), NULL);

			if (json_is_object(inner)) {
				json_decref(arguments);
				arguments = inner;
			} else {
				json_decref(inner);
			}
		}
		if (i)
			strbuf_adds(out, list ? ", " : "\n");
		if (dump_call(format, name, arguments, out) < 0)
			return error_oom(err);
	}
	strbuf_adds(out, list ? "]" : "");
	return out->failed ? error_oom(err) : 0;
}
