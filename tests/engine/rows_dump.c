/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the rows of each step of a run, one line of JSON for each step:
 * {"step":0,"rows":[{"ids":[…],"targets":[…],"starts":[…]},…]}, for comparisons with other implementations on
 * the same batches. rows_dump TOKENIZER CACHE_DIR FORMAT TEMPLATE MAX_LENGTH ROWS_PER_STEP SEED STEPS
 * FILE
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/str.h"
#include "engine/dataset/dataset.h"
#include "engine/dataset/sampler.h"
#include "print_row.h"

static int dump(char **argv, struct error *err)
{
	_cleanup_(tokenizer_freep) struct tokenizer *tok = NULL;
	_cleanup_(dataset_closep) struct dataset *train = NULL, *eval = NULL;
	const char *paths[] = {argv[9], NULL};
	struct dataset_options options = {
	    .task = str_eq(argv[3], "text") ? DATASET_PRETRAIN : DATASET_SFT,
	    .paths = paths,
	    .cache_dir = argv[2],
	    .format = argv[3],
	    .template_name = argv[4],
	    .max_length = atoi(argv[5]),
	    .seed = strtoull(argv[7], NULL, 10),
	};
	struct sampler sampler = {.world_size = 1,
	                          .micro_batch = atoi(argv[6]),
	                          .accumulation = 1,
	                          .seed = options.seed,
	                          .shuffle = true};
	_cleanup_free_ int64_t *rows = calloc(sampler.micro_batch, sizeof(*rows));
	int r;

	options.packing = options.task == DATASET_PRETRAIN;
	r = tokenizer_load(argv[1], &tok, err);
	if (r == 0)
		r = dataset_open(&options, tok, &train, &eval, err);
	if (r < 0 || !rows)
		return r < 0 ? r : -ENOMEM;
	sampler.rows = dataset_rows(train);
	for (int64_t step = 0; step < atoll(argv[8]); step++) {
		const char *comma = "";

		sampler_step(&sampler, step, rows);
		printf("{\"step\":%lld,\"rows\":[", (long long)step);
		for (int i = 0; i < sampler.micro_batch; i++) {
			struct dataset_row row;

			if (rows[i] < 0)
				continue;
			dataset_row(train, rows[i], &row);
			printf("%s", comma);
			print_row(&row);
			comma = ",";
		}
		printf("]}\n");
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct error err = ERROR_INIT;

	if (argc != 10 || atoi(argv[6]) < 1) {
		fprintf(stderr, "usage: rows_dump TOKENIZER CACHE_DIR FORMAT TEMPLATE MAX_LENGTH "
		                "ROWS_PER_STEP SEED STEPS FILE\n");
		return 2;
	}
	if (dump(argv, &err) < 0) {
		fprintf(stderr, "error: %s\n", err.message);
		return 1;
	}
	return 0;
}
