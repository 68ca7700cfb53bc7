/* SPDX-License-Identifier: Apache-2.0 */
/* state.json and trainer_state.json of a checkpoint. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/checkpoint/checkpoint.h"

#define STATE_VERSION 1

/* Writes all fields of transformers.TrainerState; those that have no meaning here have their defaults. */
static int trainer_state_save(const char *directory, const struct checkpoint_state *s, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, "trainer_state.json");
	json_t *best_step = json_null(), *best_metric = json_null();
	_cleanup_json_ json_t *j = NULL;
	double best = INFINITY;
	const json_t *entry;
	size_t i;

	json_array_foreach(s->log_history, i, entry)
	{
		double loss = json_get_number(entry, "eval_loss", INFINITY);

		if (loss < best) {
			best = loss;
			best_step = json_object_get(entry, "step");
			best_metric = json_object_get(entry, "eval_loss");
		}
	}
	j = json_pack(
	    "{s:O, s:O, s:n, s:f, s:I, s:I, s:b, s:b, s:b, s:O, s:I, s:I, s:I, s:f, s:I, s:{}, s:i, s:I, "
	    "s:n, s:n}",
	    "best_global_step", best_step, "best_metric", best_metric, "best_model_checkpoint", "epoch",
	    s->epoch, "eval_steps", (json_int_t)s->eval_steps, "global_step", (json_int_t)s->step,
	    "is_hyper_param_search", 0, "is_local_process_zero", 1, "is_world_process_zero", 1, "log_history",
	    s->log_history, "logging_steps", (json_int_t)s->log_steps, "max_steps", (json_int_t)s->steps,
	    "num_input_tokens_seen", (json_int_t)s->tokens, "num_train_epochs", s->epochs, "save_steps",
	    (json_int_t)s->save_steps, "stateful_callbacks", "total_flos", 0, "train_batch_size",
	    (json_int_t)s->micro_batch, "trial_name", "trial_params");
	if (!j || !path)
		return error_oom(err);
	/* transformers writes whole epochs as integers here. */
	if (s->epochs == floor(s->epochs) && fabs(s->epochs) < 1e15)
		json_object_set_new(j, "num_train_epochs", json_integer((json_int_t)s->epochs));
	return json_write_file(path, j, 2, true, err);
}

int checkpoint_state_save(const char *directory, const struct checkpoint_state *s, bool resume,
                          struct error *err)
{
	int r = trainer_state_save(directory, s, err);

	return r < 0 || !resume ? r : checkpoint_resume_state_save(directory, s, err);
}

int checkpoint_resume_state_save(const char *directory, const struct checkpoint_state *s, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, "dtrain/state.json");
	_cleanup_json_ json_t *j = NULL;

	j = json_pack("{s:i, s:I, s:I, s:I, s:i, s:I, s:I, s:s, s:s, s:s}", "version", STATE_VERSION, "step",
	              (json_int_t)s->step, "examples", (json_int_t)s->examples, "steps", (json_int_t)s->steps,
	              "world_size", s->world_size, "tokens", (json_int_t)s->tokens, "seed",
	              (json_int_t)s->seed, "fingerprint", s->fingerprint ? s->fingerprint : "", "precision",
	              s->precision ? s->precision : "fp32", "optimizer",
	              s->optimizer ? s->optimizer : "adamw");
	if (!j || !path ||
	    (s->loss_scaler.scale > 0 &&
	     json_object_set_new(j, "loss_scaler", loss_scaler_to_json(&s->loss_scaler)) < 0) ||
	    (s->strategy && json_object_set_new(j, "strategy", json_string(s->strategy)) < 0))
		return error_oom(err);
	return json_write_file(path, j, 2, true, err);
}

int checkpoint_state_load(const char *directory, struct checkpoint_state *s, json_t **owner,
                          struct error *err)
{
	_cleanup_json_ json_t *j = NULL, *t = NULL;
	int r = checkpoint_state_read(directory, &j, &t, err);

	*s = (struct checkpoint_state){0};
	return r < 0 ? r : checkpoint_state_parse(directory, j, t, s, owner, err);
}

int checkpoint_state_read(const char *directory, json_t **state, json_t **trainer_state, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, "dtrain/state.json"),
	                    *trainer = str_path_join(directory, "trainer_state.json");
	int r;

	if (!path || !trainer)
		return error_oom(err);
	r = json_read_file(path, state, err);
	return r < 0 || !file_exists(trainer) ? r : json_read_file(trainer, trainer_state, err);
}

int checkpoint_state_parse(const char *directory, json_t *j, const json_t *t, struct checkpoint_state *s,
                           json_t **owner, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(directory, "dtrain/state.json");
	int64_t version, world_size;
	json_t *history;
	int r;

	*s = (struct checkpoint_state){0};
	if (!path)
		return error_oom(err);
	if ((r = json_need_int(j, "version", path, 0, INT64_MAX, &version, err)) < 0)
		return r;
	if (version != STATE_VERSION)
		return error_set(err, -EINVAL, "%s: version %lld; this dtrain reads %d", path,
		                 (long long)version, STATE_VERSION);
	if ((r = json_need_int(j, "step", path, 0, INT64_MAX, &s->step, err)) < 0 ||
	    (r = json_need_int(j, "world_size", path, 1, 1 << 24, &world_size, err)) < 0 ||
	    (r = json_need_string(j, "fingerprint", path, &s->fingerprint, err)) < 0)
		return r;
	if (json_object_get(j, "loss_scaler") &&
	    (r = loss_scaler_from_json(&s->loss_scaler, json_object_get(j, "loss_scaler"), path, err)) < 0)
		return r;
	/* Older releases did not save the precision. A checkpoint without it is taken for one of fp32. */
	s->precision = json_get_string(j, "precision", "fp32");
	/* Likewise: there was AdamW alone. */
	s->optimizer = json_get_string(j, "optimizer", "adamw");
	s->strategy = json_get_string(j, "strategy", NULL);
	s->world_size = world_size;
	s->steps = json_get_int(j, "steps", 0);
	s->tokens = json_get_int(j, "tokens", 0);
	s->examples = json_get_int(j, "examples", -1);
	s->seed = json_get_int(j, "seed", 0);
	s->epoch = json_get_number(t, "epoch", 0);
	history = json_object_get(t, "log_history");
	s->log_history = json_is_array(history) ? json_incref(history) : json_array();
	*owner = json_incref(j);
	return s->log_history ? 0 : error_oom(err);
}

int checkpoint_log_add(json_t *log_history, const struct checkpoint_log *log, struct error *err)
{
	const struct {
		const char *key;
		double value;
	} values[] = {
	    {"epoch", log->epoch},
	    {"loss", log->loss},
	    {"learning_rate", log->learning_rate},
	    {"grad_norm", log->grad_norm},
	    {"eval_loss", log->eval_loss},
	};
	json_t *entry = json_pack("{s:I}", "step", (json_int_t)log->step);

	for (size_t i = 0; i < ARRAY_SIZE(values); i++)
		if (isfinite(values[i].value))
			json_object_set_new(entry, values[i].key, json_real(values[i].value));
	return json_array_append_new(log_history, entry) < 0 ? error_oom(err) : 0;
}
