/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a run's config into the options of the saver. */
#include "worker/saver_options.h"

#include "base/str.h"

void options_saver(const struct run_config *c, const struct environment *env, const char *config,
                   const char *tokenizer, struct saver_options *out)
{
	*out = (struct saver_options){
	    .claim = {c->output.dir, env->run_id, env->attempt, env->cluster, env->epoch, env->lease},
	    .rank = env->rank,
	    .world_size = env->world_size,
	    .node = env->node,
	    .timeout_s = (double)c->parallel.timeout,
	    .background = c->output.background,
	    .gather = c->output.gather,
	    .resume = str_eq(c->output.resume, "never")  ? SAVER_RESUME_NEVER
	              : str_eq(c->output.resume, "must") ? SAVER_RESUME_MUST
	                                                 : SAVER_RESUME_AUTO,
	    .known_step = env->checkpoint,
	    .known_node = env->checkpoint_node,
	    .overwrite = c->output.overwrite,
	    .keep = c->output.keep,
	    .max_shard_bytes = (uint64_t)c->output.max_shard_mb * 1000000,
	    .config = config,
	    .source = c->model.path,
	    .tokenizer = tokenizer,
	    .epochs = c->train.epochs,
	    .micro_batch = c->train.micro_batch,
	    .log_steps = c->output.log_steps,
	    .eval_steps = c->train.eval_steps,
	    .save_steps = c->output.save_steps,
	    .seed = c->train.seed,
	};
}
