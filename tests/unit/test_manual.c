/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the manual pages with the tables of the programs: each key, option, route and field of a hosts
 * file is described, and nothing that does not exist.
 */
#include "dtrain_fixture.h"

#include <ctype.h>
#include <regex.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "config/daemon.h"
#include "config/hosts.h"
#include "config/keys.h"
#include "config/run.h"
#include "dtrain/complete.h"
#include "engine/chat/template.h"

/* ---- a page as plain text: a line "@TP" before each tag, "# NAME" for a section ---- */

/* The arguments of a macro, blanks between them or not. */
static void add_arguments(struct strbuf *out, const char *p, bool apart)
{
	for (bool first = true; *p; first = false) {
		bool quoted = *p == '"';
		size_t n;

		p += quoted;
		n = quoted ? strcspn(p, "\"") : strcspn(p, " ");
		if (!first && apart)
			strbuf_addc(out, ' ');
		strbuf_add(out, p, n);
		p += n + (quoted && p[n] == '"');
		p += strspn(p, " ");
	}
}

static void add_line(struct strbuf *out, const char *line)
{
	static const char *const joined[] = {".BR ", ".RB ", ".IR ", ".RI ", ".BI ", ".IB "};

	if (str_starts(line, ".TP") || str_starts(line, ".TQ"))
		strbuf_adds(out, "@TP");
	else if (str_starts(line, ".SH ") || str_starts(line, ".SS "))
		strbuf_adds(out, line[2] == 'H' ? "# " : "## "), add_arguments(out, line + 4, true);
	else if (str_starts(line, ".B ") || str_starts(line, ".I "))
		add_arguments(out, line + 3, true);
	else if (line[0] != '.')
		strbuf_adds(out, line);
	for (size_t i = 0; i < ARRAY_SIZE(joined); i++)
		if (str_starts(line, joined[i]))
			add_arguments(out, line + 4, false);
	strbuf_addc(out, '\n');
}

static char *unescape(const char *p)
{
	struct strbuf out = {0};

	for (; *p; p++) {
		if (*p != '\\') {
			strbuf_addc(&out, *p);
			continue;
		}
		p++;
		if (*p == 'f')
			p += p[1] == '(' ? 3 : 1;
		else if (str_starts(p, "[u2026]"))
			strbuf_adds(&out, "…"), p += strlen("[u2026]") - 1;
		else if (*p == '(')
			p += 2; /* a sign by its name */
		else if (*p == '-' || *p == ' ')
			strbuf_addc(&out, *p);
		else
			ck_assert_msg(*p == ':' || *p == '&' || *p == 'e' || *p == '[',
			              "an escape of its own: \\%.8s", p);
	}
	return strbuf_steal(&out);
}

static char *read_page(const char *name)
{
	_cleanup_free_ char *path = str_printf(SRCDIR "/man/%s", name), *text = NULL;
	_cleanup_strbuf_ struct strbuf out = {0};
	struct error err = ERROR_INIT;
	char *line, *next;

	ck_ok(file_read(path, 0, &text, NULL, &err), &err);
	for (next = text; (line = strsep(&next, "\n"));)
		if (!str_starts(line, ".\\\""))
			add_line(&out, line);
	return unescape(out.data);
}

/* The text of a section, owned by the caller. */
static char *section(const char *page, const char *name)
{
	_cleanup_free_ char *head = str_printf("\n# %s\n", name);
	const char *begin = strstr(page, head), *end;

	ck_assert_msg(begin, "no section %s", name);
	begin += strlen(head);
	end = strstr(begin, "\n# ");
	return end ? strndup(begin, (size_t)(end - begin) + 1) : strdup(begin);
}

/* ---- keys ---- */

/* "(one of a, b; default: c)", as in the pages. */
static char *describe_key(const struct key *k)
{
	static const char *const types[] = {
	    [KEY_STRING] = "string",
	    [KEY_INT] = "integer",
	    [KEY_COUNT] = "integer or \"all\"",
	    [KEY_RANGE] = "integer, or a range such as \"2..4\"",
	    [KEY_DURATION] = "seconds, or a time such as \"90m\" or \"1h30m\"",
	    [KEY_NUMBER] = "number",
	    [KEY_BOOL] = "true or false",
	    [KEY_LIST] = "string or list of strings",
	    [KEY_TEXTS] = "string or list of strings",
	    [KEY_GROUP] = "group of strings",
	};
	struct strbuf b = {0};

	if (k->type == KEY_CHOICE) {
		strbuf_adds(&b, "(one of ");
		for (const char *p = k->choices; *p; p++)
			strbuf_adds(&b, *p == '|' ? ", " : (char[]){*p, '\0'});
	} else {
		strbuf_addf(&b, "(%s", types[k->type]);
	}
	if (strstr(k->help, "default:")) /* it is in the text */
		return strbuf_addc(&b, ')'), strbuf_steal(&b);
	if (k->fallback && *k->fallback != '/')
		strbuf_addf(&b, "; default: %s", k->fallback);
	strbuf_adds(&b, k->fallback && *k->fallback == '/' ? "; default: /" : ")");
	return strbuf_steal(&b);
}

static void check_keys(const char *page_name, const struct keys *keys, const struct key *more)
{
	_cleanup_free_ char *page = read_page(page_name), *text = section(page, "KEYS");
	size_t documented = 0, count = keys->count + (more ? 1 : 0);

	for (size_t i = 0; i < count; i++) {
		const struct key *k = i < keys->count ? &keys->list[i] : more;
		_cleanup_free_ char *type = describe_key(k);
		_cleanup_free_ char *entry =
		    str_printf("@TP\n%s%s%s\n", k->section ?: "", k->section ? "." : "", k->name);
		_cleanup_free_ char *whole = str_printf("%s%s", entry, type);

		ck_assert_msg(strstr(text, entry), "man/%s lacks the key %s", page_name, entry + 4);
		ck_assert_msg(strstr(text, whole), "man/%s: %s is not described as %s", page_name, entry + 4,
		              type);
	}
	for (const char *p = text; (p = strstr(p, "@TP\n")); p += 4)
		documented++;
	ck_assert_msg(documented == count, "man/%s: %zu keys are described, there are %zu", page_name,
	              documented, count);
}

START_TEST(each_key_is_described)
{
	check_keys("dtrain-run.5", &run_keys, &run_task_key);
	check_keys("dtraind.conf.5", &daemon_keys, NULL);
}
END_TEST

/* The names that other programs have for them are in a table of the page, each in a row, and what they are
 * here is a key, maybe with a value. */
START_TEST(each_other_name_of_a_key_is_described)
{
	_cleanup_free_ char *page = read_page("dtrain-run.5"),
	                    *text = section(page, "NAMES OF OTHER PROGRAMS"), *keys = section(page, "KEYS");
	size_t rows = 0, names = 0;

	for (const struct key_name *n = run_keys.other_names; n->name; n++) {
		_cleanup_free_ char *row =
		    n->here ? str_printf("\n%s\t%s\n", n->name, n->here) : str_printf("\n%s", n->name);
		_cleanup_free_ char *key =
		    n->here ? str_printf("@TP\n%.*s\n", (int)strcspn(n->here, " ,"), n->here) : NULL;

		ck_assert_msg(strstr(text, row), "man/dtrain-run.5 lacks the name %s", n->name);
		ck_assert_msg(!key || strstr(keys, key), "%s: there is no key %s", n->name, n->here);
		names += n->here != NULL;
	}
	for (const char *p = text; *p; p++)
		rows += *p == '\t';
	ck_assert_uint_eq(rows, names + 1); /* and the head */
}
END_TEST

/* The fields are those that the error for an unknown one lists. */
START_TEST(each_field_of_hosts_is_described)
{
	_cleanup_free_ char *page = read_page("dtrain-hosts.5"), *text = section(page, "DESCRIPTION");
	struct error err = ERROR_INIT;
	struct hosts *hosts;
	size_t fields = 0, documented = 0;
	char *rest, *word;

	ck_assert_int_lt(hosts_parse("n1 x=1", 6, "hosts", &hosts, &err), 0);
	rest = strstr(err.message, "a line is: ");
	ck_assert_ptr_nonnull(rest);
	rest += strlen("a line is: ");
	while ((word = strsep(&rest, " "))) {
		_cleanup_free_ char *entry = NULL;

		word += *word == '[';
		word[strcspn(word, "]\xe2")] = '\0'; /* the first byte of … */
		entry = str_printf("@TP\n%s\n", word);
		ck_assert_msg(strstr(text, entry), "man/dtrain-hosts.5 lacks %s", word);
		fields++;
	}
	for (const char *p = text; (p = strstr(p, "@TP\n")); p += 4)
		documented++;
	ck_assert_uint_eq(documented, fields);
}
END_TEST

/* ---- commands and options ---- */

/* The page's entries of a command: each tag that begins with its words, and what follows up to the next
 * command. */
static char *command_entry(const char *page, const char *name)
{
	_cleanup_free_ char *tag = str_printf("@TP\n%s", name);
	const char *p = page, *begin = NULL, *end;

	while (!begin && (p = strstr(p, tag))) {
		if (p[strlen(tag)] == ' ' || p[strlen(tag)] == '\n')
			begin = p;
		p++;
	}
	ck_assert_msg(begin, "man/dtrain.1 lacks the command %s", name);
	for (end = strstr(begin + 1, "@TP\n"); end; end = strstr(end + 1, "@TP\n")) {
		/* A tag with an option belongs to this command, as does one more form of it. */
		if (end[4] != '-' && !str_starts(end + 4, name))
			break;
	}
	return end ? strndup(begin, (size_t)(end - begin)) : strdup(begin);
}

static bool has_word(const char *text, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = text; (p = strstr(p, word)); p++)
		if ((p == text || !(isalnum((unsigned char)p[-1]) || p[-1] == '-')) &&
		    !(isalnum((unsigned char)p[n]) || p[n] == '-'))
			return true;
	return false;
}

static void check_command(const char *commands_text, const char *name)
{
	_cleanup_free_ char *entry = command_entry(commands_text, name),
	                    *line = str_printf("complete %s -", name);
	_cleanup_(call_release) struct call call = fixture_call(cmd_complete, line);
	_cleanup_free_ char *known = strdup(call.output);
	char *rest = known, *option;
	regex_t regex;
	regmatch_t m[3];

	while ((option = strsep(&rest, "\n"))) {
		option[strcspn(option, "\t")] = '\0';
		if (*option && !str_eq(option, "--socket") && !str_eq(option, "--help"))
			ck_assert_msg(has_word(entry, option), "man/dtrain.1: %s lacks %s", name, option);
	}
	ck_assert_int_eq(regcomp(&regex, "(^|[^[:alnum:]-])(--[a-z][a-z-]+)", REG_EXTENDED), 0);
	for (const char *p = entry; regexec(&regex, p, 3, m, 0) == 0; p += m[2].rm_eo) {
		_cleanup_free_ char *word = strndup(p + m[2].rm_so, (size_t)(m[2].rm_eo - m[2].rm_so));
		_cleanup_free_ char *found = str_printf("%s\t", word);

		ck_assert_msg(strstr(call.output, found), "man/dtrain.1: %s has no option %s", name, word);
	}
	regfree(&regex);
}

START_TEST(each_command_and_option_is_described)
{
	_cleanup_free_ char *page = read_page("dtrain.1"), *text = section(page, "COMMANDS");

	for (size_t i = 0; i < command_count; i++) {
		_cleanup_free_ char *dash = str_printf("complete %s -", commands[i].name);
		_cleanup_(call_release) struct call call = fixture_call(cmd_complete, dash);

		if (*call.output) {
			check_command(text, commands[i].name);
		} else { /* its parts have the options */
			_cleanup_free_ char *parts_line = str_printf("complete %s ", commands[i].name);
			_cleanup_(call_release) struct call parts = fixture_call(cmd_complete, parts_line);
			_cleanup_free_ char *list = strdup(parts.output);
			char *rest = list, *part;

			while ((part = strsep(&rest, "\n")))
				if (*part) {
					_cleanup_free_ char *name = str_printf(
					    "%s %.*s", commands[i].name, (int)strcspn(part, "\t"), part);

					check_command(text, name);
				}
		}
	}
	/* There is no entry for a command that does not exist. */
	for (const char *p = text; (p = strstr(p, "@TP\n")); p += 4) {
		_cleanup_free_ char *word = strndup(p + 4, strcspn(p + 4, " \n"));

		ck_assert_msg(word[0] == '-' || command_find(word), "man/dtrain.1: there is no command %s",
		              word);
	}
}
END_TEST

START_TEST(each_template_is_named)
{
	_cleanup_free_ char *page = read_page("dtrain-run.5"), *text = section(page, "KEYS");
	const char *list = strstr(text, "@TP\ndata.template\n");
	const struct template *template;

	ck_assert_ptr_nonnull(list);
	for (size_t i = 0; (template = template_at(i)); i++) {
		_cleanup_free_ char *entry = strndup(list, (size_t)(strstr(list + 4, "@TP\n") - list));

		ck_assert_msg(has_word(entry, template->name), "man/dtrain-run.5 lacks the template %s",
		              template->name);
	}
}
END_TEST

/* ---- routes ---- */

/* "/v1/runs/{}/rendezvous/{...}" as a regular expression; behind it the path is at its end. */
static char *route_pattern(const char *method, const char *path)
{
	struct strbuf b = {0};

	strbuf_addf(&b, "%s ", method);
	for (; *path; path++)
		if (*path == '{') {
			strbuf_adds(&b, "[A-Z]+");
			path = strchr(path, '}');
		} else {
			strbuf_addc(&b, *path);
		}
	strbuf_adds(&b, "($|[^A-Za-z/])");
	return strbuf_steal(&b);
}

static bool matches(const char *pattern, const char *text)
{
	regex_t regex;
	bool found;

	ck_assert_int_eq(regcomp(&regex, pattern, REG_EXTENDED | REG_NEWLINE | REG_NOSUB), 0);
	found = regexec(&regex, text, 0, NULL, 0) == 0;
	regfree(&regex);
	return found;
}

/* The table is read as text, since its handlers would need all of dtraind. */
START_TEST(each_route_is_described)
{
	_cleanup_free_ char *page = read_page("dtrain-api.7"), *source = NULL;
	_cleanup_strbuf_ struct strbuf any = {0};
	struct error err = ERROR_INIT;
	regmatch_t m[3];
	regex_t regex;
	size_t count = 0;

	ck_ok(file_read(SRCDIR "/src/dtraind/routes/table.c", 0, &source, NULL, &err), &err);
	ck_assert_int_eq(regcomp(&regex, "[{]\"([A-Z]+)\",[ \n\t]*\"(/[^\"]*)\",", REG_EXTENDED), 0);
	for (const char *p = source; regexec(&regex, p, 3, m, 0) == 0; p += m[0].rm_eo) {
		_cleanup_free_ char *method = strndup(p + m[1].rm_so, (size_t)(m[1].rm_eo - m[1].rm_so));
		_cleanup_free_ char *path = strndup(p + m[2].rm_so, (size_t)(m[2].rm_eo - m[2].rm_so));
		_cleanup_free_ char *pattern = route_pattern(method, path);

		ck_assert_msg(matches(pattern, page), "man/dtrain-api.7 lacks %s %s", method, path);
		strbuf_addf(&any, "%s^%s", count ? "|" : "", pattern);
		count++;
	}
	regfree(&regex);
	ck_assert_uint_gt(count, 20);
	ck_assert_int_eq(regcomp(&regex, "(GET|POST|PUT|DELETE) /[A-Za-z0-9/_-]*", REG_EXTENDED), 0);
	for (const char *p = page; regexec(&regex, p, 1, m, 0) == 0; p += m[0].rm_eo) {
		_cleanup_free_ char *route = strndup(p + m[0].rm_so, (size_t)(m[0].rm_eo - m[0].rm_so));

		ck_assert_msg(matches(any.data, route), "man/dtrain-api.7: there is no route %s", route);
	}
	regfree(&regex);
}
END_TEST

/* ---- all pages ---- */

START_TEST(each_page_refers_to_the_others)
{
	static const char *const pages[] = {"dtrain.1",       "dtrain-hosts.5", "dtrain-run.5",
	                                    "dtraind.conf.5", "dtrain-api.7",   "dtraind.8"};

	for (size_t i = 0; i < ARRAY_SIZE(pages); i++) {
		_cleanup_free_ char *page = read_page(pages[i]), *text = section(page, "SEE ALSO");

		for (size_t k = 0; k < ARRAY_SIZE(pages); k++) {
			const char *dot = strrchr(pages[k], '.');
			_cleanup_free_ char *name =
			    str_printf("%.*s(%s)", (int)(dot - pages[k]), pages[k], dot + 1);

			ck_assert_msg(i == k || strstr(text, name), "man/%s: SEE ALSO lacks %s", pages[i],
			              name);
			ck_assert_msg(i != k || !strstr(text, name), "man/%s refers to itself", pages[i]);
		}
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("manual");
	TCase *tc = tcase_create("manual");

	tcase_add_checked_fixture(tc, fixture_setup, fixture_teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, each_key_is_described);
	tcase_add_test(tc, each_other_name_of_a_key_is_described);
	tcase_add_test(tc, each_field_of_hosts_is_described);
	tcase_add_test(tc, each_command_and_option_is_described);
	tcase_add_test(tc, each_template_is_named);
	tcase_add_test(tc, each_route_is_described);
	tcase_add_test(tc, each_page_refers_to_the_others);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
