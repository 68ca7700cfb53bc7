/* SPDX-License-Identifier: Apache-2.0 */
/* A list of token ids that grows. */
#include <errno.h>
#include <string.h>

#include "engine/tokenizer/internal.h"

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
