/* SPDX-License-Identifier: Apache-2.0 */
/* A directory whose model lies on another node: where nodes do not share the output directory of a run, rank
 * 0 writes the model on its node, and the other nodes have the parts of their ranks alone (checkpoint.h). */
#pragma once

#include "base/error.h"

/* err says that a file of the model in that directory is not there. Where the directory has parts of a
 * checkpoint, the message then names the node that has the model. */
void checkpoint_say_elsewhere(const char *directory, struct error *err);
