/* SPDX-License-Identifier: Apache-2.0 */
/* logits DIRECTORY ID…: fp32 logits after each of the ids, raw on stdout, for comparison with other
 * programs. */
#include <stdio.h>
#include <stdlib.h>

#include "base/str.h"
#include "engine/checkpoint/parameters.h"
#include "engine/model/generate.h"

DEFINE_CLEANUP(struct device *, device_destroy)

static int print_logits(const char *directory, char **ids, int n, struct error *err)
{
	_cleanup_(device_destroyp) struct device *dev = NULL;
	_cleanup_(model_layout_freep) struct model_layout *layout = NULL;
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	_cleanup_(generator_freep) struct generator *g = NULL;
	struct generator_options o = {.type = DTYPE_F32, .max_tokens = n, .logits = true};
	struct device_options d = {.threads = 1};
	struct model_config c;
	int r;

	if ((r = model_config_read(directory, &c, err)) < 0 || (r = device_create(&d, &dev, err)) < 0 ||
	    (r = model_layout_create(&c, &layout, err)) < 0 ||
	    (r = safetensors_open(directory, &st, err)) < 0 ||
	    (r = parameters_check(layout, st, directory, err)) < 0 ||
	    (r = generator_create(dev, &c, &o, parameters_fill, st, &g, err)) < 0)
		return r;
	for (int i = 0; i < n; i++) {
		int32_t id = atoi(ids[i]);

		if ((r = generator_feed(g, 0, &id, 1, err)) < 0)
			return r;
		fwrite(generator_logits(g, 0), sizeof(float), c.vocab, stdout);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct error err = ERROR_INIT;

	if (argc < 3) {
		fprintf(stderr, "usage: logits DIRECTORY ID...\n");
		return 2;
	}
	if (print_logits(argv[1], argv + 2, argc - 2, &err) < 0) {
		fprintf(stderr, "error: %s\n", err.message);
		return 1;
	}
	return 0;
}
