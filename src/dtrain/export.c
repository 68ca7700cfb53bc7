/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain export: merges adapters into models, casts and reshards; works where it stands, without a
 * service. */
#include "engine/checkpoint/export.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/options.h"
#include "options/precision_names.h"

#define BAR 30
/* A number without a unit below this is hardly meant as bytes. */
#define BYTES_MIN 1048576

struct bar {
	bool shown;
	int percent;
};

static void show_progress(void *context, uint64_t done, uint64_t total)
{
	struct bar *bar = context;
	int percent = total ? (int)(done * 100.0 / (double)total) : 100, filled = percent * BAR / 100;
	char of[16], is[16];

	if (!isatty(STDERR_FILENO) || (bar->shown && percent == bar->percent))
		return;
	fprintf(stderr, "\r[");
	for (int i = 0; i < BAR; i++)
		fputc(i < filled ? '#' : '.', stderr);
	fprintf(stderr, "] %3d %%  %s of %s  ", percent, str_bytes(is, sizeof(is), done),
	        str_bytes(of, sizeof(of), total));
	fflush(stderr);
	bar->shown = true;
	bar->percent = percent;
}

/* "5GB", "500 MB", "2GiB" or a number of bytes, as transformers' max_shard_size. */
static bool parse_size(const char *text, uint64_t *out)
{
	static const struct {
		const char *unit;
		double bytes;
	} units[] = {{"", 1},      {"B", 1},        {"KB", 1e3},        {"MB", 1e6},          {"GB", 1e9},
	             {"TB", 1e12}, {"KIB", 1024.0}, {"MIB", 1048576.0}, {"GIB", 1073741824.0}};
	size_t digits = strspn(text, "0123456789.");
	_cleanup_free_ char *number = strndup(text, digits);
	const char *unit = text + digits + strspn(text + digits, " ");
	double value;

	if (!number || str_to_double(number, &value) < 0)
		return false;
	for (size_t i = 0; i < ARRAY_SIZE(units); i++)
		if (strcasecmp(unit, units[i].unit) == 0 &&
		    value * units[i].bytes >= (*unit ? 1 : BYTES_MIN) && value * units[i].bytes < 1e18) {
			*out = (uint64_t)(value * units[i].bytes);
			return true;
		}
	return false;
}

static void print_result(const struct export_options *o, const struct export_result *result)
{
	char bytes[16], tensors[48], modules[48];

	printf("%s: %s, %s", o->output,
	       str_count(tensors, sizeof(tensors), (int64_t)result->tensors, "tensor"),
	       str_bytes(bytes, sizeof(bytes), result->bytes));
	if (o->adapter)
		printf(", the adapter merged into %s",
		       str_count(modules, sizeof(modules), (int64_t)result->merged, "module"));
	putchar('\n');
	if (result->untied)
		puts("the output layer is not tied to the embedding any more, since the adapter changes one "
		     "of the two");
}

int cmd_export(struct client *client, int argc, char **argv)
{
	const char *precision = NULL, *size = NULL;
	struct bar bar = {0};
	struct export_options o = {.progress = show_progress, .context = &bar};
	const struct option_spec specs[] = {
	    {'a', "adapter", OPTION_STRING, &o.adapter, "DIR", "merge this PEFT adapter into the model"},
	    {0, "precision", OPTION_STRING, &precision, "fp32|bf16|fp16",
	     "number format of the weights; default: as they are"},
	    {0, "max-shard-size", OPTION_STRING, &size, "SIZE", "largest file, such as 500MB; default: 5GB"},
	    {0, "tokenizer", OPTION_STRING, &o.tokenizer, "DIR",
	     "tokenizer to copy; default: the adapter's or the model's"},
	    {0, "overwrite", OPTION_FLAG, &o.overwrite, NULL, "replace a model or an adapter at DIR"},
	};
	const struct usage usage = {
	    "export",
	    "MODEL DIR",
	    "Writes a model as a new Hugging Face directory, with an adapter merged into it",
	    "MODEL is a Hugging Face directory, a checkpoint of a run, or an adapter, which is cast alone.\n"
	    "DIR appears when it is complete.",
	    specs,
	    ARRAY_SIZE(specs),
	    2,
	    2,
	};
	struct export_result result;
	struct error err = ERROR_INIT;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL), r;

	if (status != OPTIONS_DONE)
		return status;
	o.model = argv[first];
	o.output = argv[first + 1];
	o.convert = precision != NULL;
	if (precision && !precision_parse(precision, &o.type))
		return client_fail(
		    STATUS_USAGE, "export: --precision: \"%s\": expected one of fp32, bf16, fp16", precision);
	if (size && !parse_size(size, &o.max_shard_bytes))
		return client_fail(STATUS_USAGE,
		                   "export: --max-shard-size: \"%s\": expected a size with its unit, such as "
		                   "500MB or 5GB",
		                   size);
	r = export_run(&o, &result, &err);
	if (bar.shown)
		fputs("\r\033[K", stderr);
	if (r < 0)
		return client_fail(EXIT_FAILURE, "%s", err.message);
	print_result(&o, &result);
	return EXIT_SUCCESS;
}
