/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of tools for the model, and its calls of them, as text. */
#pragma once

#include "base/str.h"
#include "engine/chat/conversation.h"

/* The description of the tools (JSON text) as text of the system prompt, appended to out; an empty list adds
 * nothing. */
int tools_describe(const struct template *t, const struct text *tools, struct strbuf *out, struct error *err);
/* A file's text before and after its {{tools}}, for a template's tool_words; owned by the caller, also on
 * failure. */
int tools_read_words(const char *path, char **before, char **after, struct error *err);
/* The text of function calls: content is JSON, {"name", "arguments"} or a list of such. */
int tools_call(enum tool_format format, const struct text *content, struct strbuf *out, struct error *err);
