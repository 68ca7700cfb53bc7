/* SPDX-License-Identifier: Apache-2.0 */
/* Growing lists: of elements of any size inside the tokenizer, and of token ids for its callers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/tokenizer.h"

int tokenizer_grow(void *v, size_t *cap, size_t n, size_t size)
{
	void **array = v;
	size_t want = *cap ? *cap : 16;
	void *p;

	if (n <= *cap)
		return 0;
	while (want < n)
		want += want / 2;
	p = realloc(*array, want * size);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = want;
	return 0;
}

int token_list_add(struct token_list *list, const int32_t *ids, size_t n)
{
	if (list->len + n > list->cap &&
	    tokenizer_grow(&list->ids, &list->cap, list->len + n, sizeof(*list->ids)) < 0)
		return -ENOMEM;
	if (n)
		memcpy(list->ids + list->len, ids, n * sizeof(*ids));
	list->len += n;
	return 0;
}

void token_list_free(struct token_list *list)
{
	free(list->ids);
	*list = (struct token_list){0};
}
