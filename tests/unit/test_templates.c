/* SPDX-License-Identifier: Apache-2.0 */
/* The table of templates, compared with templates.json: what LLaMA-Factory registers (commit ff6d4d12) under
 * the same names, with its defaults applied. It writes nothing for a special token that is neither bos_token
 * nor eos_token (phi_small's prefix). */
#include <jansson.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/chat/template.h"
#include "stub_tokenizer.h"
#include "unit.h"

static json_t *registered;

static void setup(void)
{
	struct error err = ERROR_INIT;

	ck_ok(json_read_file(SRCDIR "/tests/unit/templates.json", &registered, &err), &err);
}

static void teardown(void)
{
	json_decref(registered);
}

static const json_t *find(const char *name)
{
	size_t i;
	json_t *v;

	json_array_foreach(registered, i, v) if (str_eq(json_get_string(v, "name", ""), name)) return v;
	ck_abort_msg("templates.json has no %s", name);
}

static void check_slots(const char *name, const char *role, const struct template_slot *slots,
                        const json_t *want)
{
	size_t i;
	json_t *v;

	json_array_foreach((json_t *)want, i, v)
	{
		const char *token = json_get_string(v, "token", NULL),
		           *special = json_get_string(v, "special", NULL);
		enum slot_kind kind = token                          ? SLOT_TOKEN
		                      : !special                     ? SLOT_TEXT
		                      : str_eq(special, "bos_token") ? SLOT_BOS
		                                                     : SLOT_EOS;
		const char *text = token ? token : json_string_value(v);

		ck_assert_msg(slots->kind == kind, "%s: %s: slot %zu is of kind %d, not %d", name, role, i,
		              slots->kind, kind);
		ck_assert_msg(!text || str_eq(slots->text, text), "%s: %s: slot %zu is \"%s\", not \"%s\"",
		              name, role, i, slots->text, text);
		slots++;
	}
	ck_assert_msg(slots->kind == SLOT_END, "%s: %s: more than %zu slots", name, role, i);
}

static enum tool_format tool_format(const char *name)
{
	return str_eq(name, "default")   ? TOOLS_DEFAULT
	       : str_eq(name, "qwen")    ? TOOLS_QWEN
	       : str_eq(name, "llama3")  ? TOOLS_LLAMA3
	       : str_eq(name, "mistral") ? TOOLS_MISTRAL
	                                 : TOOLS_NONE;
}

START_TEST(each_template_is_as_llama_factory_has_it)
{
	static const struct {
		const char *name;
		enum template_role role;
	} roles[] = {
	    {"prefix", ROLE_PREFIX},       {"system", ROLE_SYSTEM},           {"user", ROLE_USER},
	    {"assistant", ROLE_ASSISTANT}, {"observation", ROLE_OBSERVATION}, {"function", ROLE_FUNCTION}};
	const struct template *t;
	size_t count = 0, more = 0;

	while ((t = template_at(count))) {
		/* Those of published models that LLaMA-Factory does not have. */
		if (str_eq(t->name, "olmo2") || str_eq(t->name, "tulu")) {
			count++;
			more++;
			continue;
		}
		const json_t *want = find(t->name), *words = json_object_get(want, "stop_words"),
		             *thought = json_object_get(want, "thought");
		const char *class = json_get_string(want, "class", "");

		for (size_t i = 0; i < ARRAY_SIZE(roles); i++)
			check_slots(t->name, roles[i].name, template_slots(t, roles[i].role),
			            json_object_get(want, roles[i].name));
		ck_assert_str_eq(t->default_system ? t->default_system : "",
		                 json_get_string(want, "default_system", ""));
		for (size_t i = 0; i < ARRAY_SIZE(t->stop_words); i++)
			ck_assert_msg(str_eq(t->stop_words[i], json_string_value(json_array_get(words, i))),
			              "%s: stop word %zu", t->name, i);
		ck_assert_msg(t->tools == tool_format(json_get_string(want, "tools", "")), "%s: tools",
		              t->name);
		ck_assert_msg(t->efficient_eos == json_get_bool(want, "efficient_eos", false),
		              "%s: efficient_eos", t->name);
		ck_assert_msg(t->replace_eos == json_get_bool(want, "replace_eos", false), "%s: replace_eos",
		              t->name);
		ck_assert_msg(t->reasoning == str_eq(class, "ReasoningTemplate"), "%s: reasoning", t->name);
		ck_assert_msg(t->system_in_user == str_eq(class, "Llama2Template"), "%s: system_in_user",
		              t->name);
		for (size_t i = 0; i < 2; i++)
			ck_assert_msg(str_eq(t->thought[i], json_string_value(json_array_get(thought, i))),
			              "%s: thought", t->name);
		count++;
	}
	ck_assert_uint_eq(count - more, json_array_size(registered));
	ck_assert_uint_eq(more, 2);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("templates");
	TCase *t = tcase_create("templates");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, each_template_is_as_llama_factory_has_it);
	suite_add_tcase(s, t);
	return unit_run(s);
}
