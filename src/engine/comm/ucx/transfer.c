/* SPDX-License-Identifier: Apache-2.0 */
/* How a message ends, whatever has carried it. */
#include "engine/comm/ucx/internal.h"

void transfer_end(struct transfer *t, ucs_status_t status, size_t len)
{
	struct comm *c = t->comm;

	t->done = true;
	c->progress++;
	if (status == UCS_OK && len != t->expected)
		status = UCS_ERR_MESSAGE_TRUNCATED;
	if (status != UCS_OK && !c->ucx_error) {
		c->ucx_error = status;
		c->ucx_error_peer = t->peer;
	}
}
