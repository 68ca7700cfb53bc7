/* SPDX-License-Identifier: Apache-2.0 */
/* The tasks of run files, and their names. */
#include "base/str.h"
#include "config/run.h"

static const char *const task_names[] = {
    [RUN_PRETRAIN] = "pretrain", [RUN_SFT] = "sft",           [RUN_DPO] = "dpo",        [RUN_ORPO] = "orpo",
    [RUN_SIMPO] = "simpo",       [RUN_KTO] = "kto",           [RUN_REWARD] = "reward",  [RUN_GRPO] = "grpo",
    [RUN_PPO] = "ppo",           [RUN_GENERATE] = "generate", [RUN_COMMAND] = "command"};

const char *run_task_name(enum run_task task)
{
	return task_names[task];
}

bool run_task_prefers(enum run_task task)
{
	return task >= RUN_DPO && task <= RUN_REWARD;
}

bool run_task_trains(enum run_task task)
{
	return task == RUN_PRETRAIN || task == RUN_SFT || run_task_rewards(task) || run_task_prefers(task);
}

bool run_task_rewards(enum run_task task)
{
	return task == RUN_GRPO || task == RUN_PPO;
}

bool run_task_by_name(const char *name, enum run_task *out)
{
	for (size_t i = 0; i < ARRAY_SIZE(task_names); i++)
		if (str_eq(task_names[i], name)) {
			*out = (enum run_task)i;
			return true;
		}
	return false;
}
