/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain generate: a short run like any other, whose rank 0 writes the text. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "dtrain/commands.h"
#include "dtrain/follow.h"
#include "dtrain/options.h"
#include "dtrain/run_request.h"

int cmd_generate(struct client *client, int argc, char **argv)
{
	struct option_list set = {0}, stop = {0};
	const char *max_new = NULL, *temperature = NULL, *top_k = NULL, *top_p = NULL, *seed = NULL;
	const char *tokenizer = NULL, *precision = NULL, *adapter = NULL, *prompts = NULL, *batch = NULL,
	           *min_p = NULL, *penalty = NULL;
	bool chat = false;
	const struct option_spec options[] = {
	    {0, "chat", OPTION_FLAG, &chat, NULL, "the prompt is a user's turn of a conversation"},
	    {'n', "max-new-tokens", OPTION_STRING, &max_new, "N", "at most; default: 128"},
	    {'t', "temperature", OPTION_STRING, &temperature, "T",
	     "0, the default: the likeliest token each time"},
	    {0, "top-k", OPTION_STRING, &top_k, "K", "choose among the K likeliest; default: all"},
	    {0, "top-p", OPTION_STRING, &top_p, "P", "choose among the likeliest that make up P; default: 1"},
	    {0, "min-p", OPTION_STRING, &min_p, "P",
	     "choose among those at least P times as likely as the likeliest"},
	    {0, "repetition-penalty", OPTION_STRING, &penalty, "X",
	     "above 1: tokens that are there already become less likely; default: 1"},
	    {0, "stop", OPTION_LIST, &stop, "TEXT", "ends the text where it comes up; again for more"},
	    {'a', "adapter", OPTION_STRING, &adapter, "DIR", "a PEFT adapter of the model"},
	    {0, "prompts", OPTION_STRING, &prompts, "FILE",
	     "instead of PROMPT: a file of them, one in each line, or .jsonl; the output is JSON lines"},
	    {'b', "batch", OPTION_STRING, &batch, "N",
	     "prompts of the file that are continued at once; default: 8"},
	    {0, "seed", OPTION_STRING, &seed, "N", "of the choices; default: 42"},
	    {0, "tokenizer", OPTION_STRING, &tokenizer, "DIRECTORY",
	     "default: the adapter's, or else the model's"},
	    {0, "precision", OPTION_STRING, &precision, "auto|fp32|bf16|fp16", "default: auto"},
	    {'s', "set", OPTION_LIST, &set, "KEY=VALUE", "any key of a run file; again for more"},
	};
	const struct usage usage = {"generate",
	                            "MODEL [PROMPT]",
	                            "Generates text with a model (a Hugging Face directory)",
	                            "PROMPT \"-\": read from the standard input.",
	                            options,
	                            ARRAY_SIZE(options),
	                            1,
	                            2};
	_cleanup_(run_view_release) struct run_view run = {0};
	_cleanup_json_ json_t *config = NULL;
	_cleanup_free_ char *input = NULL;
	struct error err = ERROR_INIT;
	const char *prompt = NULL;
	int64_t id;
	int first, status = options_parse(client, &usage, argc, argv, &first, NULL);

	if (status != OPTIONS_DONE)
		goto out;
	if ((argc - first == 2) == (prompts != NULL)) {
		status = client_fail(STATUS_USAGE, prompts ? "generate: leave out one of PROMPT and --prompts"
		                                           : "generate: PROMPT or --prompts is needed");
		goto out;
	}
	if (!prompts)
		prompt = argv[first + 1];
	if (prompt && str_eq(prompt, "-")) {
		if (file_read_stream("/dev/stdin", 1 << 20, &input, NULL, &err) < 0) {
			status = client_fail(EXIT_FAILURE, "%s", err.message);
			goto out;
		}
		prompt = input;
	}
	{
		const struct {
			const char *key, *value;
		} settings[] = {
		    {"model.path", argv[first]},
		    {"model.tokenizer", tokenizer},
		    {"generate.prompt", prompt},
		    {"generate.chat", chat ? "true" : NULL},
		    {"generate.max_new_tokens", max_new},
		    {"generate.temperature", temperature},
		    {"generate.top_k", top_k},
		    {"generate.top_p", top_p},
		    {"generate.min_p", min_p},
		    {"generate.repetition_penalty", penalty},
		    {"generate.adapter", adapter},
		    {"generate.prompts", prompts},
		    {"generate.batch", batch},
		    {"generate.seed", seed},
		    {"train.precision", precision},
		};
		char *owned[ARRAY_SIZE(settings)] = {NULL};
		int r;

		for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
			if (settings[i].value) {
				owned[i] = str_printf("%s=%s", settings[i].key, settings[i].value);
				option_list_add(&set, owned[i] ?: "");
			}
		r = run_request_task("generate", "stop", stop.items, set.items, &config, &err);
		for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
			free(owned[i]);
		if (r < 0) {
			status = client_fail(STATUS_USAGE, "%s", err.message);
			goto out;
		}
	}
	status = client_submit(client, config, &id, NULL);
	if (status != 0)
		goto out;
	status = client_on_interrupt(client, id, true);
	if (status == 0)
		status = follow_run(client, id, 0, &run, NULL);
	if (status == 0)
		status = client_run_status(&run, 0);
out:
	option_list_release(&set);
	option_list_release(&stop);
	return status;
}
