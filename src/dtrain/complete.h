/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion for shells. `dtrain complete WORD…` prints what the last word may become, given those before it:
 * a line each, the word, then (behind a tab) what it is; ":files" or ":directories" where a path is expected.
 * It is made from the tables that the command line itself is read by.
 */
#pragma once

#include "dtrain/options.h"

int cmd_complete(struct client *client, int argc, char **argv);
/* For options_parse, where client->completing: the words of a subcommand, its name first. EXIT_SUCCESS. */
int complete_options(struct client *client, const struct usage *usage, int argc, char **argv);
/* Prints `word` where it begins with what is there already. */
void complete_offer(const char *typed, const char *word, const char *what);
