/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands as data: what --help lists, completion offers, and the manual describes. */
#include "dtrain/commands.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

const struct command commands[] = {
    {"submit", "submit a run: a run file, or a command", cmd_submit},
    {"runs", "list runs", cmd_runs},
    {"show", "show one run in full", cmd_show},
    {"logs", "print what the ranks of a run wrote", cmd_logs},
    {"watch", "follow the progress of a run", cmd_watch},
    {"cancel", "end runs", cmd_cancel},
    {"kill", "end what of runs is on this node", cmd_kill},
    {"nodes", "list the nodes of the cluster", cmd_nodes},
    {"devices", "list the devices of the cluster", cmd_devices},
    {"drain", "let no new runs onto a node", cmd_drain},
    {"resume", "let runs onto a drained node again", cmd_resume},
    {"fence", "say that nothing runs on a node that cannot be reached", cmd_fence},
    {"generate", "generate text with a model", cmd_generate},
    {"export", "merge an adapter into a model, cast, reshard", cmd_export},
    {"tokenizer", "train or try a tokenizer", cmd_tokenizer},
    {"prune", "remove the logs of old runs on this node", cmd_prune},
    {"backup", "copy the store of the running service", cmd_backup},
    {"check", "check a run file without submitting it", cmd_check},
    {"estimate", "plan a run: memory, whether it fits, speed", cmd_estimate},
    {"keygen", "make the key of a cluster", cmd_keygen},
};
const size_t command_count = ARRAY_SIZE(commands);

const struct command *command_find(const char *name)
{
	for (size_t i = 0; i < command_count; i++)
		if (str_eq(commands[i].name, name))
			return &commands[i];
	return NULL;
}

/* What other programs call them: Slurm, Docker, Kubernetes, torchrun, and other words in common use. */
static const struct {
	const char *name, *here;
} other_names[] = {
    {"run", "submit"},        {"start", "submit"},   {"train", "submit"},    {"launch", "submit"},
    {"sbatch", "submit"},     {"srun", "submit"},    {"torchrun", "submit"}, {"ls", "runs"},
    {"list", "runs"},         {"ps", "runs"},        {"jobs", "runs"},       {"queue", "runs"},
    {"squeue", "runs"},       {"status", "runs"},    {"history", "runs"},    {"describe", "show"},
    {"inspect", "show"},      {"stop", "cancel"},    {"rm", "cancel"},       {"delete", "cancel"},
    {"scancel", "cancel"},    {"tail", "logs"},      {"attach", "watch"},    {"top", "watch"},
    {"progress", "watch"},    {"info", "nodes"},     {"sinfo", "nodes"},     {"hosts", "nodes"},
    {"gpus", "devices"},      {"cordon", "drain"},   {"undrain", "resume"},  {"uncordon", "resume"},
    {"chat", "generate"},     {"infer", "generate"}, {"merge", "export"},    {"convert", "export"},
    {"validate", "check"},    {"lint", "check"},     {"plan", "estimate"},   {"tokenize", "tokenizer"},
    {"version", "--version"},
};

const char *command_nearest(const char *name)
{
	size_t best = strlen(name) / 3 + 2;
	const char *found = NULL;

	for (size_t i = 0; i < ARRAY_SIZE(other_names); i++)
		if (str_eq(other_names[i].name, name))
			return other_names[i].here;
	for (size_t i = 0; i < command_count; i++) {
		size_t d = str_distance(commands[i].name, name);

		if (d < best) {
			best = d;
			found = commands[i].name;
		}
	}
	return found;
}
