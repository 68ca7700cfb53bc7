/* SPDX-License-Identifier: Apache-2.0 */
/* The one file of each worker program; what differs between them is what they are linked with. */
#include <string.h>

#include "worker/tasks.h"

int main(int argc, char **argv)
{
	return argc == 2 && strcmp(argv[1], "--measure") == 0 ? measure_main() : worker_main();
}
