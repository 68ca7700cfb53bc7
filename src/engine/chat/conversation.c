/* SPDX-License-Identifier: Apache-2.0 */
/* Frees what a conversation holds. */
#include "engine/chat/conversation.h"

#include <stdlib.h>

void example_clear(struct example *e)
{
	for (size_t i = 0; i < e->owned_count; i++)
		free(e->owned[i]);
	free(e->owned);
	free(e->turns);
	json_decref(e->record);
	*e = (struct example){0};
}
