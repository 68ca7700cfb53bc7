/* SPDX-License-Identifier: Apache-2.0 */
/* Every message between programs: the first byte chooses which. What is decoded, encoded and decoded again is
 * the same. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "config/run.h"
#include "wire/error_answer.h"
#include "wire/error_file.h"
#include "wire/heartbeat.h"
#include "wire/launch.h"
#include "wire/metrics.h"
#include "wire/node_view.h"
#include "wire/preflight.h"
#include "wire/prune.h"
#include "wire/run_entry.h"
#include "wire/run_record.h"
#include "wire/run_view.h"
#include "wire/service_files.h"
#include "wire/start_request.h"
#include "wire/worker_event.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LONGEST_INPUT = 1 << 20 };

#define DEFINE_TRY(NAME)                                                                                     \
	static void try_##NAME(const json_t *json)                                                           \
	{                                                                                                    \
		struct error err = ERROR_INIT;                                                               \
		json_t *once, *twice;                                                                        \
		struct NAME value;                                                                           \
                                                                                                             \
		if (NAME##_decode(json, &value, &err) < 0) {                                                 \
			if (!err.message[0])                                                                 \
				abort();                                                                     \
			return;                                                                              \
		}                                                                                            \
		once = NAME##_encode(&value);                                                                \
		NAME##_release(&value);                                                                      \
		if (!once || NAME##_decode(once, &value, &err) < 0)                                          \
			abort();                                                                             \
		twice = NAME##_encode(&value);                                                               \
		NAME##_release(&value);                                                                      \
		if (!twice || !json_equal(once, twice))                                                      \
			abort();                                                                             \
		json_decref(once);                                                                           \
		json_decref(twice);                                                                          \
	}

DEFINE_TRY(start_request)
DEFINE_TRY(node_position)
DEFINE_TRY(stop_request)
DEFINE_TRY(drain_request)
DEFINE_TRY(report)
DEFINE_TRY(launch_report)
DEFINE_TRY(heartbeat)
DEFINE_TRY(heartbeat_answer)
DEFINE_TRY(short_heartbeat)
DEFINE_TRY(device_list)
DEFINE_TRY(node_list)
DEFINE_TRY(node_drained)
DEFINE_TRY(device_drained)
DEFINE_TRY(run_list)
DEFINE_TRY(run_accepted)
DEFINE_TRY(run_event)
DEFINE_TRY(submit_request)
DEFINE_TRY(worker_event)
DEFINE_TRY(service_version)
DEFINE_TRY(runs_ended)
DEFINE_TRY(foreign_stopped)
DEFINE_TRY(preflight_request)
DEFINE_TRY(prune_request)
DEFINE_TRY(prune_answer)
DEFINE_TRY(active_runs)
DEFINE_TRY(preflight_line)
DEFINE_TRY(launch_description)
DEFINE_TRY(launch_command)
DEFINE_TRY(start_record)
DEFINE_TRY(run_record)
DEFINE_TRY(run_entry)
DEFINE_TRY(run_pieces)
DEFINE_TRY(run_origin)
DEFINE_TRY(metrics_report)
DEFINE_TRY(metrics_mark)
DEFINE_TRY(metrics_step)
DEFINE_TRY(membership)
DEFINE_TRY(drain_list)
DEFINE_TRY(known_clusters)

/* What any program may have written is read without an error. A string that is there ends. */
static void try_lenient(const json_t *json)
{
	struct error_answer answer;
	struct progress progress;
	const json_t *message = error_file_message(json);

	error_answer_read(json, &answer);
	progress_read(json, &progress);
	error_file_lost_peer(json);
	if ((message && !json_string_value(message)) || strlen(answer.code) > LONGEST_INPUT ||
	    (answer.message && strlen(answer.message) > LONGEST_INPUT) ||
	    (progress.message && strlen(progress.message) > LONGEST_INPUT))
		abort();
}

static void (*const tries[])(const json_t *) = {
    try_start_request,   try_node_position,      try_stop_request,    try_drain_request,
    try_report,          try_launch_report,      try_heartbeat,       try_heartbeat_answer,
    try_short_heartbeat, try_device_list,        try_node_list,       try_node_drained,
    try_device_drained,  try_run_list,           try_run_accepted,    try_run_event,
    try_submit_request,  try_worker_event,       try_service_version, try_runs_ended,
    try_foreign_stopped, try_preflight_request,  try_prune_request,   try_prune_answer,
    try_preflight_line,  try_launch_description, try_launch_command,  try_start_record,
    try_run_record,      try_metrics_report,     try_metrics_mark,    try_metrics_step,
    try_membership,      try_drain_list,         try_known_clusters,  try_run_entry,
    try_run_pieces,      try_run_origin,         try_active_runs,     try_lenient,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_json_ json_t *json = NULL;

	if (size < 1 || json_parse((const char *)data + 1, size - 1, "fuzz", &json, NULL) < 0)
		return 0;
	tries[data[0] % ARRAY_SIZE(tries)](json);
	return 0;
}
