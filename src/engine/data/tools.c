/* SPDX-License-Identifier: Apache-2.0 */
/* How tools are described to a model and how it writes its calls. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/data/convert.h"

static void dump_string(const char *s, size_t len, struct strbuf *out)
{
	static const char short_escapes[] = "\bb\tt\nn\ff\rr\"\"\\\\";

	strbuf_addc(out, '"');
	for (size_t i = 0; i < len; i++) {
		unsigned char c = s[i];
		size_t k = 0;

		while (k < sizeof(short_escapes) - 1 && short_escapes[k] != (char)c)
			k += 2;
		if (k < sizeof(short_escapes) - 1)
			strbuf_addf(out, "\\%c", short_escapes[k + 1]);
		else if (c < 0x20)
			strbuf_addf(out, "\\u%04x", c);
		else
			strbuf_addc(out, c);
	}
	strbuf_addc(out, '"');
}

/* Python's repr: the shortest digits that read back the same; an exponent below 1e-4 and from 1e16 on. */
static void dump_real(double v, struct strbuf *out)
{
	char digits[40], *e;
	int precision = 0, exponent;

	do
		snprintf(digits, sizeof(digits), "%.*e", precision, v);
	while (strtod(digits, NULL) != v && ++precision < 17);
	e = strchr(digits, 'e');
	exponent = e ? atoi(e + 1) : 0;
	if (exponent >= -4 && exponent < 16) {
		strbuf_addf(out, "%.*f", MAX(precision - exponent, 1), v);
		return;
	}
	strbuf_add(out, digits, e - digits);
	strbuf_addf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
}

static void dump_break(int indent, int depth, struct strbuf *out)
{
	if (!indent)
		return;
	strbuf_addc(out, '\n');
	for (int i = 0; i < indent * depth; i++)
		strbuf_addc(out, ' ');
}

static void dump_value(const json_t *v, int indent, int depth, struct strbuf *out)
{
	const char *separator = indent ? "," : ", ", *key;
	size_t n = 0;
	json_t *item;

	switch (json_typeof(v)) {
	case JSON_OBJECT:
		strbuf_addc(out, '{');
		json_object_foreach((json_t *)v, key, item)
		{
			if (n++)
				strbuf_adds(out, separator);
			dump_break(indent, depth + 1, out);
			dump_string(key, strlen(key), out);
			strbuf_adds(out, ": ");
			dump_value(item, indent, depth + 1, out);
		}
		if (n)
			dump_break(indent, depth, out);
		strbuf_addc(out, '}');
		break;
	case JSON_ARRAY:
		strbuf_addc(out, '[');
		for (; n < json_array_size(v); n++) {
			if (n)
				strbuf_adds(out, separator);
			dump_break(indent, depth + 1, out);
			dump_value(json_array_get(v, n), indent, depth + 1, out);
		}
		if (n)
			dump_break(indent, depth, out);
		strbuf_addc(out, ']');
		break;
	case JSON_STRING:
		dump_string(json_string_value(v), json_string_length(v), out);
		break;
	case JSON_INTEGER:
		strbuf_addf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
		break;
	case JSON_REAL:
		dump_real(json_real_value(v), out);
		break;
	case JSON_TRUE:
	case JSON_FALSE:
		strbuf_adds(out, json_is_true(v) ? "true" : "false");
		break;
	case JSON_NULL:
		strbuf_adds(out, "null");
		break;
	}
}

void tools_dump(const json_t *value, int indent, struct strbuf *out)
{
	dump_value(value, indent, 0, out);
}

/* {"type":"function","function":tool} around a tool that does not have it yet. */
static json_t *tool_wrapped(json_t *tool)
{
	if (str_eq(json_get_string(tool, "type", NULL), "function"))
		return json_incref(tool);
	return json_pack("{s:s, s:O}", "type", "function", "function", tool);
}

static int dump_tools(enum tool_format format, const json_t *tools, struct strbuf *out)
{
	for (size_t i = 0; i < json_array_size(tools); i++) {
		_cleanup_json_ json_t *tool = tool_wrapped(json_array_get(tools, i));

		if (!tool)
			return -ENOMEM;
		switch (format) {
		case TOOLS_LLAMA3:
			tools_dump(tool, 4, out);
			strbuf_adds(out, "\n\n");
			break;
		case TOOLS_MISTRAL:
			strbuf_adds(out, i ? ", " : "");
			tools_dump(tool, 0, out);
			break;
		default:
			strbuf_adds(out, "\n");
			tools_dump(tool, 0, out);
			break;
		}
	}
	return out->failed ? -ENOMEM : 0;
}

/* What stands before and after the list of tools: the words of each family's own chat template. llama3's has
 * a date in it; the template's default is taken, so that the same data always give the same ids. */
static const struct {
	const char *before, *after;
} tool_words[] = {
    [TOOLS_DEFAULT] = {"\n\nThese tools can be called:",
                       "\nTo call one, answer with a line `Action: NAME` and a line `Action Input: "
                       "ARGUMENTS`, the arguments as a JSON object.\n"},
    [TOOLS_QWEN] = {"\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>",
                    "\n</tools>\n\nFor each function call, return a json object with function name and "
                    "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
                    "<function-name>, \"arguments\": <args-json-object>}\n</tool_call>"},
    [TOOLS_LLAMA3] = {"Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\nYou have access to "
                      "the following functions. To call a function, please respond with JSON for a function "
                      "call. Respond in the format {\"name\": function name, \"parameters\": dictionary of "
                      "argument name and its value}. Do not use variables.\n\n",
                      ""},
    [TOOLS_MISTRAL] = {"[AVAILABLE_TOOLS] [", "][/AVAILABLE_TOOLS]"},
};

int tools_describe(enum tool_format format, const struct text *text, struct strbuf *out, struct error *err)
{
	_cleanup_json_ json_t *tools =
	    json_loadb(text->data, text->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);

	if (format == TOOLS_NONE)
		return error_set(err, -EBADMSG, "this template has no form for tools");
	if (json_is_object(tools)) { /* one tool by itself */
		json_t *list = json_pack("[O]", tools);

		if (!list)
			return error_oom(err);
		json_decref(tools);
		tools = list;
	}
	if (!json_is_array(tools))
		return error_set(err, -EBADMSG, "the tools are no JSON list");
	if (json_array_size(tools) == 0)
		return 0;
	for (size_t i = 0; i < json_array_size(tools); i++)
		if (!json_is_object(json_array_get(tools, i)))
			return error_set(err, -EBADMSG, "tool %zu is no JSON object", i + 1);
	strbuf_adds(out, tool_words[format].before);
	if (dump_tools(format, tools, out) < 0)
		return error_oom(err);
	strbuf_adds(out, tool_words[format].after);
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
		tools_dump(arguments, 0, out);
	} else {
		strbuf_adds(out, format == TOOLS_QWEN ? "<tool_call>\n" : "");
		tools_dump(call, 0, out);
		strbuf_adds(out, format == TOOLS_QWEN ? "\n</tool_call>" : "");
	}
	return 0;
}

int tools_call(enum tool_format format, const struct text *content, struct strbuf *out, struct error *err)
{
	_cleanup_json_ json_t *root =
	    json_loadb(content->data, content->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
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
			json_t *inner =
			    json_loadb(json_string_value(arguments), json_string_length(arguments),
			               JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);

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
