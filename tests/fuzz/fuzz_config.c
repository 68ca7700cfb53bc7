/* SPDX-License-Identifier: Apache-2.0 */
/* Run files, dtraind.conf and the JSON form of a run; the first byte of the input chooses among them. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "config/daemon.h"
#include "config/keys_source.h"
#include "config/run.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* libconfig 1.5 leaks its scanner's buffer after a syntax error inside a string. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libconfig.so";
}

static void fuzz_json(const char *text, size_t len)
{
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	_cleanup_json_ json_t *json = NULL, *again = NULL;
	struct error err;

	if (json_parse(text, len, "fuzz", &json, &err) < 0 || run_config_from_json(json, &c, &err) < 0)
		return;
	if (run_config_to_json(c, &again, &err) < 0)
		abort();
}

/* The function only adds the suffix L to integers, and adds nothing when it is called again. */
static void fuzz_integers(const char *text)
{
	_cleanup_free_ char *once = NULL, *twice = NULL;
	struct error err;

	if (keys_widen_integers(text, "fuzz", &once, &err) < 0)
		return;
	if (keys_widen_integers(once, "fuzz", &twice, &err) < 0 || strcmp(once, twice) != 0)
		abort();
	for (const char *p = once; *p; p++)
		if (*text == *p)
			text++;
		else if (*p != 'L')
			abort();
	if (*text)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_free_ char *text = NULL;
	struct error err;

	if (size < 1)
		return 0;
	text = strndup((const char *)data + 1, size - 1);
	/* Opening the files that @include names is not what is tested here. */
	if (strstr(text, "@include"))
		return 0;
	fuzz_integers(text);
	if (data[0] % 3 == 0) {
		_cleanup_(run_config_freep) struct run_config *c = NULL;

		run_config_parse(text, "fuzz", NULL, &c, &err);
	} else if (data[0] % 3 == 1) {
		_cleanup_(daemon_config_freep) struct daemon_config *c = NULL;

		daemon_config_parse(text, "fuzz", &c, &err);
	} else {
		fuzz_json((const char *)data + 1, size - 1);
	}
	return 0;
}
