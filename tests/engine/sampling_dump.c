/* SPDX-License-Identifier: Apache-2.0 */
/* For each line "TEMPERATURE TOP_K TOP_P MIN_P PENALTY N ID… VOCAB LOGIT…" of its input, the tokens that
 * sampling chooses among, with their probabilities: "ID:PROBABILITY …". */
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "engine/model/sampling.h"

static void fail(void)
{
	fputs("sampling_dump: a line that is not of its form\n", stderr);
	exit(EXIT_FAILURE);
}

int main(void)
{
	struct sampling s = {0};
	double penalty;
	long long k, n, vocab;

	while (scanf("%lf %lld %lf %lf %lf %lld", &s.temperature, &k, &s.top_p, &s.min_p, &penalty, &n) ==
	       6) {
		_cleanup_free_ int32_t *ids = calloc((size_t)n + 1, sizeof(*ids));

		s.top_k = k;
		for (long long i = 0; i < n; i++)
			if (scanf("%d", &ids[i]) != 1)
				fail();
		if (scanf("%lld", &vocab) != 1)
			fail();
		{
			_cleanup_free_ float *logits = calloc((size_t)vocab, sizeof(*logits));
			_cleanup_free_ int32_t *kept = calloc((size_t)vocab, sizeof(*kept));
			_cleanup_free_ double *p = calloc((size_t)vocab, sizeof(*p));
			_cleanup_free_ void *work = malloc((size_t)vocab);
			int64_t count;

			for (long long i = 0; i < vocab; i++)
				if (scanf("%f", &logits[i]) != 1)
					fail();
			sampling_penalize(logits, vocab, ids, (size_t)n, penalty, work);
			count = sampling_candidates(&s, logits, vocab, kept, p);
			for (int64_t i = 0; i < count; i++)
				printf("%s%d:%.9g", i ? " " : "", kept[i], p[i]);
			putchar('\n');
		}
	}
	return 0;
}
