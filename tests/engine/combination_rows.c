/* SPDX-License-Identifier: Apache-2.0 */
/* Made-up rows for combinations: of one document or several, of any length, with prompts that do not count,
 * and with rows of which nothing counts. */
#include "combinations.h"

#include <stdlib.h>

#include "fake_dataset.h"

enum { LONGEST = 20 };

static void make_row(struct dataset_row *row, uint64_t *random, int documents, int masked, bool pair)
{
	int32_t length = (int32_t)(documents * 3 + draw(random) % (uint64_t)(LONGEST - documents * 3 + 1));
	int32_t *ids = malloc((size_t)length * sizeof(*ids)),
	        *targets = malloc((size_t)length * sizeof(*targets)),
	        *starts = calloc((size_t)documents + 1, sizeof(*starts));
	/* Some rows have no target at all. */
	bool none = masked == 2 && !pair && draw(random) % 3 == 0;

	for (int d = 1; d <= documents; d++)
		starts[d] = length * d / documents;
	*row = (struct dataset_row){.ids = ids,
	                            .targets = targets,
	                            .starts = starts,
	                            .length = length,
	                            .documents = documents,
	                            .label = (int32_t)(draw(random) % 2),
	                            .margin = (float)(draw(random) % 3) / 4};
	for (int32_t t = 0; t < length; t++)
		ids[t] = (int32_t)(draw(random) % VOCABULARY_LEAST);
	for (int d = 0; d < documents; d++)
		for (int32_t t = starts[d]; t < starts[d + 1]; t++) {
			bool prompt =
			    (masked == 1 || pair) && t < starts[d] + (starts[d + 1] - starts[d]) / 3;

			if (masked == 3 && !pair)
				prompt = t + 2 < starts[d + 1];
			targets[t] = t + 1 == starts[d + 1] || none || prompt ? -100 : ids[t + 1];
			row->counted += targets[t] >= 0;
		}
}

struct dataset *make_rows(const struct setup *s, int64_t rows, uint64_t seed)
{
	struct dataset_row *row = calloc((size_t)rows, sizeof(*row));
	bool pair = s->axis[TASK] > 0;

	for (int64_t i = 0; i < rows; i++)
		make_row(&row[i], &seed, pair ? 2 : 1 + s->axis[DOCUMENTS], i == 0 ? 0 : s->axis[MASKED],
		         pair);
	return fake_dataset_of(row, rows);
}
