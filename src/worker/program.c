/* SPDX-License-Identifier: Apache-2.0 */
/* The one file of each worker program; what differs between them is what they are linked with. */
#include "worker/tasks.h"

int main(void)
{
	return worker_main();
}
