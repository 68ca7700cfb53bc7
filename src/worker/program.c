/* SPDX-License-Identifier: Apache-2.0 */
/* The one file of each worker program; what differs between them is what they are linked with. */
#include <string.h>

#include "worker/attention_check.h"
#include "worker/tasks.h"

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "--check-attention") == 0)
		return attention_check_main(argc - 2, argv + 2);
	return argc == 2 && strcmp(argv[1], "--measure") == 0 ? measure_main() : worker_main();
}
