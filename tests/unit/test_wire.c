/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the messages between programs: decoding gives what was encoded, and an error names the field that is
 * wrong. */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "wire/error_answer.h"
#include "wire/error_file.h"
#include "wire/heartbeat_state.h"
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
#include "wire/submission_key.h"
#include "wire/worker_event.h"

#include "failing_memory.h"

/* Decodes and encodes again. */
#define DEFINE_PASS(NAME)                                                                                    \
	static int pass_##NAME(const json_t *json, json_t **again, struct error *err)                        \
	{                                                                                                    \
		struct NAME value;                                                                           \
		int r = NAME##_decode(json, &value, err);                                                    \
                                                                                                             \
		if (r < 0)                                                                                   \
			return r;                                                                            \
		*again = NAME##_encode(&value);                                                              \
		NAME##_release(&value);                                                                      \
		NAME##_release(&value); /* the second time there is nothing left to free */                  \
		return *again ? 0 : error_oom(err);                                                          \
	}

/* All messages. */
/* clang-format off */
#define MESSAGES(X) \
	X(start_request) X(node_position) X(stop_request) X(drain_request) X(report) X(launch_report) \
	X(launch_command) X(launch_description) X(start_record) X(heartbeat) X(heartbeat_answer) X(short_heartbeat) \
	X(device_info) X(node_list) X(device_list) X(node_drained) X(device_drained) X(run_view) \
	X(run_list) X(run_accepted) X(run_event) X(submit_request) X(worker_event) X(service_version) \
	X(runs_ended) X(foreign_stopped) X(prune_request) X(prune_answer) X(active_runs) X(node_fenced) X(local_runs) \
	X(preflight_request) X(preflight_line) X(run_record) X(run_entry) X(run_pieces) X(run_origin) X(membership) \
	X(drain_list) X(known_clusters) X(metrics_report) X(metrics_mark) X(metrics_step)
/* clang-format on */

MESSAGES(DEFINE_PASS)

typedef int (*pass_fn)(const json_t *json, json_t **again, struct error *err);

#define ROW(NAME) {pass_##NAME, &NAME##_message},

static const struct {
	pass_fn pass;
	const struct message *message;
} messages[] = {MESSAGES(ROW)};

static const char START[] =
    "{\"controller\":\"n1\",\"cluster\":\"a1\",\"epoch\":3,\"run\":17,\"attempt\":2,\"user\":\"ada\","
    "\"uid\":1000,\"gid\":100,\"config\":{\"task\":\"command\",\"command\":[\"env\",\"-0\"],"
    "\"directory\":\"/home/ada\",\"environment\":[\"A=b=c\"],\"umask\":\"027\",\"resources\":{\"nodes\":2,"
    "\"devices_per_node\":\"all\",\"grace\":7}},\"world_size\":4,\"nodes\":2,\"node_rank\":1,"
    "\"local_world_size\":2,\"master_addr\":\"10.0.0.1\",\"master_port\":29500,"
    "\"until\":1732147200.5,\"checkpoint\":40,\"checkpoint_node\":\"n2\","
    "\"ranks\":[{\"rank\":2,\"local_rank\":0,\"slot\":1},"
    "{\"rank\":3,\"local_rank\":1,\"slot\":0,\"slots\":[0,2]}]}";

#define REPORT                                                                                               \
	"{\"run\":17,\"attempt\":2,\"node\":\"n1\",\"state\":\"stopping\",\"ranks\":["                       \
	"{\"rank\":0,\"slot\":1,\"state\":\"running\",\"pid\":123,\"signal\":null},"                         \
	"{\"rank\":3,\"slot\":2,\"state\":\"exited\",\"pid\":124,\"exit_status\":137,\"signal\":"            \
	"\"SIGKILL\","                                                                                       \
	"\"ended\":1732147200.5,\"stopped\":true,\"oom\":true,\"core_dumped\":true,\"lost_peer\":true,"      \
	"\"error\":\"out of "                                                                                \
	"mem\"}],"                                                                                           \
	"\"cluster\":\"a1\",\"epoch\":3,\"user\":\"ada\",\"name\":\"alpaca\",\"reason\":\"it was killed\","  \
	"\"launcher_lost\":true,\"shutdown\":\"node n1 was shut down\",\"device_errors\":[\"GPU 3 of n1: "   \
	"Xid "                                                                                               \
	"79\"],\"lost\":true,"                                                                               \
	"\"clock_offset\":-0.25,\"clock_error\":0.5}"
#define CPU                                                                                                  \
	"{\"node\":\"n1\",\"index\":0,\"kind\":\"cpu\",\"name\":\"EPYC\",\"memory\":1024,\"threads\":4,"     \
	"\"state\":\"free\",\"uuid\":null,\"reserved_for\":17,\"run\":null,\"reason\":null}"
#define GPU                                                                                                  \
	"{\"node\":\"n1\",\"index\":1,\"kind\":\"gpu\",\"name\":\"H200\",\"memory\":150000000000,"           \
	"\"threads\":8,"                                                                                     \
	"\"state\":\"draining\",\"uuid\":\"GPU-1\",\"run\":17,\"reason\":\"Xid 79\",\"gpu\":3,"              \
	"\"pci\":\"0000:1b:00.0\",\"numa\":1,\"mig\":{\"gpu_instance\":1,\"compute_instance\":0},"           \
	"\"links\":[null,\"X\"],\"driver\":\"570.1\",\"cuda\":\"12.8\","                                     \
	"\"xid\":{\"code\":79,\"message\":\"fell off the "                                                   \
	"bus\",\"time\":1732147200.5},\"read\":1732147201.5,"                                                \
	"\"memory_used\":7,\"utilization\":99,\"temperature\":40,\"power\":312.5,\"power_limit\":700.0,"     \
	"\"ecc_errors\":0}"
#define NODE                                                                                                 \
	"{\"name\":\"n1\",\"address\":\"10.0.0.1\",\"port\":29600,\"state\":\"drained\",\"controller\":"     \
	"true,"                                                                                              \
	"\"slots\":2,\"spare_of\":[7],\"free\":0,\"version\":\"0.1.0\",\"launch\":\"systemd\",\"labels\":["  \
	"\"fast\"],"                                                                                         \
	"\"error\":\"why\",\"unreachable\":\"no route\",\"failing\":\"no room\","                            \
	"\"drained\":[{\"index\":1,\"reason\":\"Xid 79\"}],\"hosts_differ\":true,\"foreign\":[{\"run\":5,"   \
	"\"attempt\":1,\"cluster\":\"b2\",\"epoch\":1,\"user\":\"bob\",\"name\":\"x\",\"state\":"            \
	"\"running\","                                                                                       \
	"\"slots\":[0,1]}],\"reason\":\"a fan\",\"last_seen\":1732147200.5}"

#define RUN                                                                                                  \
	"{\"id\":17,\"name\":\"alpaca\",\"user\":\"ada\",\"uid\":1000,\"gid\":100,\"task\":\"sft\","         \
	"\"state\":\"failed\",\"attempt\":2,\"version\":9,\"submitted\":1.5,\"started\":2.5,\"ended\":3.5,"  \
	"\"nodes\":[\"n1\",\"n2\"],\"spares\":[\"n3\"],\"max_restarts\":3,\"max_node_failures\":5,"          \
	"\"restarts\":1,"                                                                                    \
	"\"node_failures\":2,\"checkpoint\":40,\"last_failure\":\"attempt 1: "                               \
	"why\",\"last_detail\":\"it broke\",\"time_limit\":60.5,\"time_used\":7.5,"                          \
	"\"world_size\":2,\"ranks\":[{\"rank\":0,\"node\":\"n1\",\"slot\":1,"                                \
	"\"state\":\"exited\",\"pid\":12,\"exit_status\":137,\"signal\":\"SIGKILL\",\"ended\":3.25,"         \
	"\"stopped\":true,\"oom\":true,\"core_dumped\":true},{\"rank\":1,\"node\":\"n2\",\"slot\":0,"        \
	"\"slots\":[0,1],\"state\":\"not-started\",\"stopped\":false}],\"reason\":\"why\",\"detail\":"       \
	"\"lines\","                                                                                         \
	"\"exit_status\":137,\"progress\":{\"step\":3,\"own\":[1]},\"directory\":\"/home/"                   \
	"ada\",\"output\":\"/x\","                                                                           \
	"\"config\":{\"task\":\"sft\"}}"

#define METRICS                                                                                              \
	"{\"step\":3,\"steps\":9,\"epoch\":0.5,\"loss\":0.0,\"learning_rate\":0.0001,\"grad_norm\":1.5,"     \
	"\"tokens\":100,\"tokens_per_second\":10.5,\"eta_seconds\":0.0,\"time\":1732147200.5,"               \
	"\"step_seconds\":0.5,\"compute_seconds\":0.25,\"communication_seconds\":0.0,\"data_seconds\":0.25," \
	"\"memory_bytes\":7,\"device_memory_bytes\":8,\"slowest_rank\":0,\"slowest_node\":\"n1\","           \
	"\"slowest_seconds\":0.5,\"eval_loss\":2.5,\"eval_perplexity\":12.2,\"loss_scale\":1024.0,"          \
	"\"skipped_steps\":1}"
#define DRAINS                                                                                               \
	"{\"boot\":\"0123\",\"devices\":[{\"device\":\"GPU-1\",\"reason\":\"Xid 79\",\"time\":1732147200.5," \
	"\"by_hand\":true,\"until_boot\":true,\"pending_accepted\":true,\"failed_accepted\":true},"          \
	"{\"device\":\"cpu-0\",\"time\":1.5,\"by_hand\":false}]}"
#define RUN_RECORD                                                                                           \
	"{\"parts\":[{\"node\":\"n2\",\"ended\":true,\"trouble\":\"node n2 is "                              \
	"down\",\"trouble_at\":1732147200.5,"                                                                \
	"\"clock_error\":0.25,\"boot\":\"0123\",\"lease\":20.5}],\"rank_errors\":[{\"rank\":3,\"worker\":"   \
	"\"it broke\",\"lost_peer\":true,"                                                                   \
	"\"log\":\"lines\"},{\"rank\":0,\"log\":\"more\"}],\"device_error\":\"GPU 3 of n2: Xid "             \
	"79\",\"device_node\":\"n2\",\"final_failure\":true,\"timed_out\":true,"                             \
	"\"evicted\":\"a spare "                                                                             \
	"node\",\"lost\":[{\"node\":\"n4\",\"attempt\":1,\"boot\":\"0123\",\"lease\":20.5}],\"retries\":{"   \
	"\"restarts\":1,\"node_failures\":2,\"busy_starts\":1,\"stalled\":1,\"delays\":2,\"delay\":4.5,"     \
	"\"checkpoint\":40,"                                                                                 \
	"\"checkpoint_node\":\"n2\",\"checkpoint_before\":20,\"last_failure\":\"attempt 1: "                 \
	"why\",\"last_detail\":\"it broke\",\"avoid\":[\"n2\"],\"used\":7.5},"                               \
	"\"spares\":[{\"node\":\"n3\",\"slots\":[0,2],\"worked\":true}]}"
#define ENTRY                                                                                                \
	"{\"id\":17,\"attempt\":2,\"uid\":1000,\"gid\":100,\"state\":\"queued\",\"submitted\":1.5,"          \
	"\"started\":2.5,"                                                                                   \
	"\"ended\":3.5,\"reason\":\"why\",\"detail\":\"lines\",\"exit_status\":137,\"cancelled\":true,"      \
	"\"failed\":true,"                                                                                   \
	"\"requeue\":true,\"nodes\":2,\"per_node\":4,\"ranks\":\"[]\",\"under_way\":\"{}\"}"
#define ORIGIN                                                                                               \
	"{\"name\":\"alpaca\",\"user\":\"ada\",\"task\":\"sft\",\"directory\":\"/home/ada\",\"output\":\"/"  \
	"x\","                                                                                               \
	"\"key\":\"0123\",\"config\":\"{}\"}"
#define RECORD                                                                                               \
	"{\"uid\":1000,\"slots\":[0,3],\"cgroup\":\"/sys/fs/cgroup/x/"                                       \
	"1.1\",\"service\":\"dtrain-1-1.service\"}"
#define LAUNCH                                                                                               \
	"{\"switch_user\":true,\"user\":\"ada\",\"tmp_dir\":\"/tmp/"                                         \
	"x\",\"core_files\":true,\"umask\":23,\"uid\":1000,\"gid\":100,\"groups\":[100,27],"                 \
	"\"directory\":\"/home/"                                                                             \
	"ada\",\"argv\":[\"env\",\"-0\"],\"save_signal\":10,\"save\":20.5,\"grace\":7.5,\"record\":\"/var/"  \
	"lib/r\","                                                                                           \
	"\"started\":" RECORD ",\"cgroup\":\"/sys/fs/cgroup/x/"                                              \
	"1.1\",\"service\":\"dtrain-1-1.service\",\"oom_file\":\"/sys/fs/cgroup/memory/x\",\"lease\":\"/"    \
	"run/dtrain/"                                                                                        \
	"lease\",\"outlives_lease\":true,\"ranks\":[{\"rank\":2,\"slot\":0,"                                 \
	"\"environment\":[\"A=b=c\"],\"log\":\"/l/2\",\"error_file\":\"/l/"                                  \
	"2.json\",\"cpus\":\"0-7\",\"numa\":1},"                                                             \
	"{\"rank\":3,\"slot\":3,\"environment\":[\"A=\"]}]}"
#define PREFLIGHT                                                                                            \
	"{\"user\":\"ada\",\"uid\":1000,\"directory\":\"/home/"                                              \
	"ada\",\"program\":\"python3\",\"engine\":\"cpu\","                                                  \
	"\"path\":\"/"                                                                                       \
	"bin\",\"model\":\"m\",\"teacher\":\"t\",\"reward_model\":\"r\",\"reference\":\"f\",\"output_dir\":" \
	"\"out\",\"offload_dir\":\"/"                                                                        \
	"nvme\",\"log_dir\":\"/"                                                                             \
	"var/log/dtrain\",\"socket\":\"/run/s\",\"own_mounts\":true}"
#define USER                                                                                                 \
	"{\"name\":\"ada\",\"home\":\"/home/ada\",\"shell\":\"/bin/sh\",\"uid\":1000,\"gid\":100,"           \
	"\"groups\":[100,27],\"change\":true}"

/* A message with all of its fields, and by name: one that must be there, and one that is of another type. A
 * dot leads into an object, a number into a list. */
static const struct sample {
	const char *name;
	int (*pass)(const json_t *json, json_t **again, struct error *err);
	const char *text;
	const char *missing; /* NULL: all fields are optional */
	const char *typed;
	const char *unknown; /* where an unknown field is put, with the dot; NULL: it is left out */
} samples[] = {
    {"start request", pass_start_request, START, "user", "world_size", ""},
    {"start request", pass_start_request, START, "ranks.1.rank", "ranks.0.local_rank", "ranks.1."},
    {"start request", pass_start_request, START, "config", "master_addr", ""},
    {"stop request", pass_stop_request,
     "{\"controller\":\"n1\",\"cluster\":\"a1\",\"epoch\":3,\"run\":17,\"attempt\":2,\"save\":20.5,\"grace\":"
     "2.5,"
     "\"foreign\":true}",
     "attempt", "foreign", ""},
    {"request body", pass_drain_request, "{\"reason\":\"a fan is broken\",\"keep_runs\":true}", NULL,
     "reason", ""},
    {"report", pass_report, REPORT, "node", "state", ""},
    {"report", pass_report, REPORT, "ranks.1.rank", "ranks.1.signal", "ranks.0."},
    {"report", pass_report, REPORT, "ranks.0.state", "device_errors", ""},
    {"dtrain-launch", pass_launch_report,
     "{\"state\":\"ended\",\"launcher\":77,\"reason\":\"why\",\"terminated\":true,\"lease_ended\":true,"
     "\"ranks\":[{\"rank\":0,\"slot\":0,"
     "\"state\":\"exited\",\"pid\":5,\"exit_status\":0,\"ended\":1.5,\"stopped\":false,\"signal\":null}]}",
     "ranks", "launcher", "ranks.0."},
    {"heartbeat", pass_heartbeat,
     "{\"node\":\"n1\",\"hosts\":\"abc\",\"instance\":\"0123\",\"sequence\":7,\"version\":\"" DTRAIN_VERSION
     "\",\"devices\":[" CPU "," GPU "],\"attempts\":[" REPORT "],\"ports\":[4001,4002],"
     "\"launch\":\"systemd\",\"boot\":\"0123\",\"leases\":true,\"sent\":1.5,"
     "\"port_range\":[4000,4999],\"shutting_down\":true,\"known\":{\"highest_run\":17,"
     "\"clusters\":[{\"id\":\"a1\",\"epoch\":3}]}}",
     "attempts.0.ranks.1.rank", "known.clusters.0.epoch", "attempts.0."},
    {"answer to a heartbeat", pass_heartbeat_answer,
     "{\"forget\":[{\"run\":5,\"attempt\":1}],\"time\":1732147200.5,\"cluster\":null,\"epoch\":3,"
     "\"highest_run\":17,\"lease\":20.5,\"whole\":6,\"interval\":2.5}",
     "forget.0.attempt", "time", ""},
    {"short heartbeat", pass_short_heartbeat,
     "{\"node\":\"n1\",\"instance\":\"0123\",\"sequence\":7,\"whole\":6,\"ports\":[4001,4002],\"sent\":1.5,"
     "\"highest_run\":17}",
     "whole", "ports", ""},
    {"device", pass_device_info, CPU, "kind", "memory", NULL},
    {"device", pass_device_info, GPU, "xid.code", "links", NULL},
    {"device", pass_device_info, GPU, "mig.gpu_instance", "power", NULL},
    {"list of devices", pass_device_list, "{\"devices\":[" CPU "," GPU "]}", "devices.1.state",
     "devices.1.temperature", NULL},
    {"list of nodes", pass_node_list, "{\"nodes\":[" NODE "]}", "nodes.0.state", "nodes.0.foreign", NULL},
    {"list of nodes", pass_node_list, "{\"nodes\":[" NODE "]}", "nodes.0.drained.0.index",
     "nodes.0.foreign.0.run", NULL},
    {"node", pass_node_drained, "{\"name\":\"n1\",\"state\":\"up\",\"reason\":null}", "name", "reason", NULL},
    {"device", pass_device_drained, "{\"node\":\"n1\",\"index\":3,\"state\":\"free\",\"reason\":null}",
     "index", "state", NULL},
    {"run", pass_run_view, RUN, "state", "reason", NULL},
    {"run", pass_run_view, RUN, "ranks.1.node", "ranks.0.signal", NULL},
    {"run", pass_run_view, RUN, "id", "progress", NULL},
    {"list of runs", pass_run_list, "{\"runs\":[" RUN "]}", "runs.0.ranks.0.state", "runs.0.nodes", NULL},
    {"run", pass_run_accepted, "{\"id\":17,\"state\":\"queued\"}", "id", "state", NULL},
    {"event", pass_run_event,
     "{\"time\":1.5,\"run\":17,\"name\":\"x\",\"state\":\"queued\",\"attempt\":1,\"reason\":null,"
     "\"nodes\":[\"n1\"]}",
     "run", "nodes", NULL},
    {"request body", pass_submit_request, "{\"config\":{\"task\":\"sft\"}}", "config", "config", ""},
    {"event", pass_worker_event, "{\"rank\":3,\"kind\":\"error\",\"message\":\"it broke\"}", "kind", "rank",
     ""},
    {"version", pass_service_version, "{\"version\":\"1\",\"node\":\"n1\",\"controller\":\"n2\"}", "node",
     "controller", NULL},
    {"ended runs", pass_runs_ended, "{\"ended\":3}", "ended", "ended", NULL},
    {"foreign work", pass_foreign_stopped, "{\"name\":\"n1\",\"stopping\":2}", "name", "stopping", NULL},
    {"metrics", pass_metrics_report, METRICS, "tokens", "loss", NULL},
    {"metrics", pass_metrics_report, METRICS, "step", "slowest_node", NULL},
    {"mark", pass_metrics_mark,
     "{\"event\":\"resume\",\"step\":3,\"time\":1.5,\"attempt\":2,\"ranks\":4,\"precision\":\"bf16\","
     "\"from\":\"c\","
     "\"path\":\"p\",\"signal\":\"SIGTERM\"}",
     "event", "ranks", NULL},
    {"line of metrics", pass_metrics_step, "{\"step\":3}", "step", "step", NULL},
    {"record of the cluster", pass_membership, "{\"controller\":\"n1\",\"hosts\":3}", "controller", "hosts",
     ""},
    {"list of drained devices", pass_drain_list, DRAINS, "devices.0.device", "devices.1.time", "devices.1."},
    {"list of drained devices", pass_drain_list, DRAINS, "devices", "devices.0.by_hand", ""},
    {"known clusters", pass_known_clusters, "{\"highest_run\":17,\"clusters\":[{\"id\":\"a1\",\"epoch\":3}]}",
     "clusters.0.id", "highest_run", ""},
    {"record of a run", pass_run_record, RUN_RECORD, "parts.0.node", "device_error", ""},
    {"record of a run", pass_run_record, RUN_RECORD, "rank_errors.1.rank", "rank_errors.0.lost_peer",
     "rank_errors.0."},
    {"record of a run", pass_run_record, RUN_RECORD, NULL, "parts.0.trouble_at", "parts.0."},
    {"record of a run", pass_run_record, RUN_RECORD, "spares.0.slots", "spares.0.worked", "spares.0."},
    {"run in a shared store", pass_run_entry, ENTRY, "per_node", "state", ""},
    {"run in a shared store", pass_run_entry, ENTRY, "uid", "requeue", ""},
    {"pieces of a run", pass_run_pieces, "{\"series\":7,\"pieces\":2,\"bytes\":150000}", "bytes", "pieces",
     ""},
    {"origin of a run", pass_run_origin, ORIGIN, "config", "key", ""},
    {"command to dtrain-launch", pass_launch_command,
     "{\"stop\":2.5,\"acknowledge\":true,\"confirmed\":true,\"save\":20.5}", NULL, "stop", ""},
    {"command to dtrain-launch", pass_launch_command, "{\"acknowledge\":true}", NULL, "acknowledge", ""},
    {"launch.json", pass_launch_description, LAUNCH, "gid", "argv", ""},
    {"launch.json", pass_launch_description, LAUNCH, "ranks.1.environment", "ranks.0.cpus", "ranks.1."},
    {"launch.json", pass_launch_description, LAUNCH, "started.uid", "started.slots", "started."},
    {"launch.json", pass_launch_description, LAUNCH, "argv", "grace", ""},
    {"record of a start", pass_start_record, RECORD, "uid", "cgroup", ""},
    {"prune request", pass_prune_request, "{\"days\":2.5,\"runs\":7,\"dry_run\":true}", NULL, "days", ""},
    {"answer to a prune request", pass_prune_answer,
     "{\"runs\":[{\"run\":3,\"bytes\":9,\"changed\":1.5}],\"kept\":7,\"error\":\"why\"}", "runs.0.run",
     "runs.0.bytes", NULL},
    {"active runs", pass_active_runs, "{\"runs\":[3,17]}", "runs", "runs", ""},
    {"node", pass_node_fenced, "{\"name\":\"n1\",\"parts\":2}", "name", "parts", NULL},
    {"list of runs", pass_local_runs,
     "{\"runs\":[{\"run\":5,\"attempt\":1,\"cluster\":\"b2\",\"epoch\":1,\"user\":\"bob\",\"name\":\"x\","
     "\"state\":"
     "\"running\",\"slots\":[0,1]}]}",
     "runs.0.run", "runs.0.slots", NULL},
    {"preflight request", pass_preflight_request, PREFLIGHT, "program", "model", ""},
    {"preflight request", pass_preflight_request, PREFLIGHT, "uid", "own_mounts", ""},
    {"preflight", pass_preflight_line, "{\"step\":\"directory /nfs/x\"}", NULL, "step", ""},
    {"preflight", pass_preflight_line, "{\"user\":" USER "}", "user.shell", "user.groups", "user."},
    {"preflight", pass_preflight_line, "{\"user\":" USER "}", "user.gid", "user.change", ""},
    {"preflight", pass_preflight_line, "{\"error\":-13,\"message\":\"it is not readable\"}", NULL, "error",
     ""},
    {"position of a node", pass_node_position, "{\"instance\":\"0123abcd\",\"sequence\":5}", NULL, "sequence",
     NULL},
};

static json_t *parse(const char *text)
{
	struct error err = ERROR_INIT;
	json_t *json;

	ck_ok(json_parse(text, strlen(text), "sample", &json, &err), &err);
	return json;
}

/* Makes a sample as a service of this version sends it. */
static json_t *make(const struct sample *s)
{
	json_t *json = parse(s->text);

	if (!json_object_get(json, "version") && s->pass != pass_drain_request &&
	    s->pass != pass_submit_request && s->pass != pass_prune_request)
		json_object_set_new(json, "version", json_string(DTRAIN_VERSION));
	return json;
}

/* The object that holds the field of a dotted name; *last is the name without what leads to it. */
static json_t *holder(json_t *json, const char *dotted, const char **last)
{
	const char *dot;

	for (; (dot = strchr(dotted, '.')); dotted = dot + 1) {
		_cleanup_free_ char *name = strndup(dotted, (size_t)(dot - dotted));

		json = json_is_array(json) ? json_array_get(json, (size_t)atoi(name))
		                           : json_object_get(json, name);
	}
	*last = dotted;
	return json;
}

/* "ranks.1.rank" as errors name it: "ranks[1].rank" */
static char *error_name(const char *dotted)
{
	struct strbuf b = {0};

	for (const char *p = dotted; *p; p++)
		if (*p == '.' && p[1] >= '0' && p[1] <= '9') {
			strbuf_addf(&b, "[%c]", p[1]);
			p++;
		} else {
			strbuf_addc(&b, *p);
		}
	return strbuf_steal(&b);
}

static void must_fail(const struct sample *s, const json_t *json, const char *field, const char *words)
{
	_cleanup_free_ char *name = error_name(field),
	                    *start = str_printf("%s: %s: %s", s->name, name, words);
	struct error err = ERROR_INIT;
	json_t *again = NULL;

	ck_assert_msg(s->pass(json, &again, &err) < 0, "%s: %s: should have failed: %s", s->name, field,
	              words);
	ck_assert_msg(str_starts(err.message, start), "\"%s\" does not begin with \"%s\"", err.message,
	              start);
}

/* Whether `all` has everything that `part` has, with the same values. */
static bool contains(const json_t *all, const json_t *part)
{
	const char *key;
	json_t *value;
	size_t i;

	if (json_is_object(part)) {
		json_object_foreach((json_t *)part, key,
		                    value) if (!contains(json_object_get(all, key), value)) return false;
		return true;
	}
	if (json_is_array(part)) {
		json_array_foreach(part, i, value) if (!contains(json_array_get(all, i), value)) return false;
		return json_array_size(all) == json_array_size(part);
	}
	return json_equal(all, part);
}

START_TEST(what_is_decoded_is_encoded_again)
{
	const struct sample *s = &samples[_i];
	_cleanup_json_ json_t *json = make(s), *again = NULL, *third = NULL;
	struct error err = ERROR_INIT;

	/* An answer to users has no version of its own. */
	if (!s->unknown && s->pass != pass_run_view && s->pass != pass_service_version)
		json_object_del(json, "version");
	ck_ok(s->pass(json, &again, &err), &err);
	ck_assert_msg(contains(again, json), "%s: %s", s->name, json_to_string(again));
	ck_ok(s->pass(again, &third, &err), &err);
	ck_assert(json_equal(again, third));
}
END_TEST

START_TEST(a_missing_field_is_named)
{
	const struct sample *s = &samples[_i];
	_cleanup_json_ json_t *json = make(s);
	const char *last;
	json_t *object;

	if (!s->missing)
		return;
	object = holder(json, s->missing, &last);
	json_object_set_new(object, last, json_null());
	must_fail(s, json, s->missing, "missing");
	json_object_del(object, last);
	must_fail(s, json, s->missing, "missing");
}
END_TEST

START_TEST(a_field_of_another_type_is_named)
{
	const struct sample *s = &samples[_i];
	_cleanup_json_ json_t *json = make(s), *array = json_pack("[[]]"), *object = json_pack("{s:{}}", "x");
	const char *last;
	json_t *parent = holder(json, s->typed, &last);

	json_object_set(parent, last, json_is_array(json_object_get(parent, last)) ? object : array);
	must_fail(s, json, s->typed, "");
	ck_assert(json_object_get(parent, last));
}
END_TEST

START_TEST(an_unknown_field_is_named)
{
	const struct sample *s = &samples[_i];
	_cleanup_json_ json_t *json = make(s), *again = NULL;
	_cleanup_free_ char *dotted = str_printf("%ssurprise", s->unknown ? s->unknown : "");
	struct error err = ERROR_INIT;
	const char *last;

	json_object_set_new(holder(json, dotted, &last), "surprise", json_integer(1));
	if (s->unknown) {
		must_fail(s, json, dotted, "unknown field");
		if (!json_object_get(json, "version"))
			return;
		/* A service of another version may know more. */
		json_object_set_new(json, "version", json_string("9.9.9"));
	}
	ck_ok(s->pass(json, &again, &err), &err);
	ck_assert_ptr_null(json_object_get(again, "surprise"));
	json_decref(steal_pointer(again));
	/* As may one of a version that did not name itself; heartbeats always did. */
	if (s->pass == pass_heartbeat || s->pass == pass_service_version)
		return;
	json_object_del(json, "version");
	ck_ok(s->pass(json, &again, &err), &err);
}
END_TEST

START_TEST(what_is_no_object_is_refused)
{
	const struct sample *s = &samples[_i];
	_cleanup_json_ json_t *json = json_pack("[i]", 1);
	struct error err = ERROR_INIT;
	json_t *again;

	ck_fails(s->pass(json, &again, &err), &err, s->name);
	ck_fails(s->pass(NULL, &again, &err), &err, ": an object is needed");
}
END_TEST

#define HEX16 "0123456789abcdef"
#define HEX64 HEX16 HEX16 HEX16 HEX16

/* Start requests with one wrong value each, made by replacing a text. */
START_TEST(wrong_start_requests_are_refused)
{
	static const struct {
		const char *from, *to, *words;
	} cases[] = {
	    {"\"run\":17", "\"run\":0", "start request: run: 0 is out of range; it has to be within 1 and"},
	    {"\"uid\":1000", "\"uid\":-1", "start request: uid: -1 is out of range"},
	    {"\"uid\":1000", "\"uid\":4294967295", "start request: uid: 4294967295 is out of range"},
	    {"\"rank\":3", "\"rank\":4", "start request: ranks[1].rank: 4 is out of range; world_size is 4"},
	    {"\"rank\":3", "\"rank\":2", "start request: ranks: rank 2 twice"},
	    {"[0,2]", "[0,1]", "start request: ranks: slot 1 twice"},
	    {"[0,2]", "[0,0]", "start request: ranks: slot 0 twice"},
	    {"[0,2]", "[]", "start request: ranks[1].slots: a list of numbers is needed"},
	    {"[0,2]", "[0,\"2\"]", "start request: ranks[1].slots: a list of integers is needed"},
	    {"[0,2]", "[0,-2]", "start request: ranks[1].slots: -2 is out of range"},
	    {"\"slot\":1", "\"slots\":null", "start request: ranks[0].slot: missing"},
	    {"\"a1\"", "\"../a1\"", "start request: cluster: at most 64 hexadecimal digits are possible"},
	    {"29500", "65536", "start request: master_port: 65536 is out of range"},
	    {"\"10.0.0.1\"", "\"\"", "start request: master_addr: it is empty"},
	    {"\"a1\"", "\"" HEX64 "0\"",
	     "start request: cluster: at most 64 hexadecimal digits are possible"},
	    {"[\"env\",\"-0\"]", "[]", "start request: config: command: missing"},
	    {"[\"env\",\"-0\"]", "[\"\"]", "start request: config: command: missing"},
	    {"[\"env\",\"-0\"]", "[1]", "start request: config: command: not all strings"},
	    {"\"grace\"", "\"grave\"", "start request: config: resources.grave: unknown key; did you mean"},
	    {"\"nodes\":2,\"node_rank\"", "\"nodes\":[],\"node_rank\"",
	     "start request: nodes: 0 is out of range"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const char *at = strstr(START, cases[i].from);
		_cleanup_free_ char *text = NULL;
		_cleanup_json_ json_t *json = NULL;
		struct start_request q;
		struct error err = ERROR_INIT;

		ck_assert_ptr_nonnull(at);
		text =
		    str_printf("%.*s%s%s", (int)(at - START), START, cases[i].to, at + strlen(cases[i].from));
		json = parse(text);
		json_object_set_new(json, "version", json_string(DTRAIN_VERSION));
		ck_fails(start_request_decode(json, &q, &err), &err, cases[i].words);
		ck_assert_ptr_null(q.user);
	}
}
END_TEST

START_TEST(ranks_and_slots_are_there_once)
{
	static const struct {
		const char *ranks, *words; /* NULL: they are right */
	} cases[] = {
	    {"[]", "start request: ranks: at least one is needed"},
	    {"[{\"rank\":0,\"local_rank\":0,\"slot\":0},{\"rank\":0,\"local_rank\":1,\"slot\":1}]",
	     "start request: ranks: rank 0 twice"},
	    {"[{\"rank\":0,\"local_rank\":0,\"slot\":0},{\"rank\":1,\"local_rank\":1,\"slot\":0}]",
	     "start request: ranks: slot 0 twice"},
	    {"[{\"rank\":2,\"local_rank\":0,\"slots\":[5,3]},{\"rank\":1,\"local_rank\":1,\"slot\":3}]",
	     "start request: ranks: slot 3 twice"},
	    {"[{\"rank\":0,\"local_rank\":0,\"slot\":1},{\"rank\":1,\"local_rank\":1,\"slot\":0}]", NULL},
	    {"[{\"rank\":3,\"local_rank\":0,\"slots\":[0,3]},{\"rank\":0,\"local_rank\":1,\"slot\":2}]",
	     NULL},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_json_ json_t *json = parse(START);
		struct start_request q;
		struct error err = ERROR_INIT;
		int r;

		json_object_set_new(json, "ranks", parse(cases[i].ranks));
		r = start_request_decode(json, &q, &err);
		if (cases[i].words) {
			ck_assert_int_eq(r, -EINVAL);
			ck_assert_str_eq(err.message, cases[i].words);
			continue;
		}
		ck_ok(r, &err);
		start_request_release(&q);
	}
}
END_TEST

/* Fields that older services leave out have their defaults, and unknown keys of a run are ignored. */
START_TEST(start_requests_of_other_versions)
{
	_cleanup_json_ json_t *json = parse(START);
	struct error err = ERROR_INIT;
	struct start_request q;

	ck_ok(start_request_decode(json, &q, &err), &err);
	ck_assert_str_eq(q.cluster, "a1");
	ck_assert_int_eq(q.ranks[0].slot_count, 0);
	ck_assert_int_eq(q.ranks[1].slot_count, 2);
	ck_assert_int_eq(q.ranks[1].slots[1], 2);
	ck_assert_int_eq(q.config->resources.grace, 7);
	ck_assert_int_eq(q.config->resources.devices_per_node, 0);
	ck_assert_str_eq(q.unknown_key, "");
	start_request_release(&q);

	for (const char *const *name =
	         (const char *const[]){"controller", "cluster", "epoch", "gid", "node_rank",
	                               "local_world_size", "master_addr", "master_port", NULL};
	     *name; name++)
		json_object_del(json, *name);
	json_object_set_new(json, "nodes", json_pack("[s,s,s]", "n1", "n2", "n3"));
	json_object_set_new(json_object_get(json, "config"), "comet", json_true());
	json_object_set_new(json_object_get(json_object_get(json, "config"), "resources"), "tails",
	                    json_integer(1));
	ck_ok(start_request_decode(json, &q, &err), &err);
	ck_assert_ptr_null(q.cluster);
	ck_assert_int_eq(q.epoch, 0);
	ck_assert_int_eq(q.gid, -1);
	ck_assert_int_eq(q.nodes, 3);
	ck_assert_int_eq(q.local_world_size, 2);
	ck_assert_int_eq(q.master_port, 0);
	ck_assert(str_eq(q.unknown_key, "comet") || str_eq(q.unknown_key, "resources.tails"));
	ck_assert_str_eq(q.config->command[1], "-0");
	start_request_release(&q);
}
END_TEST

/* Between services a message names its version; an answer to users does not. */
START_TEST(messages_between_services_name_their_version)
{
	_cleanup_json_ json_t *stop = stop_request_encode(&(struct stop_request){.run = 1, .attempt = 1});
	_cleanup_json_ json_t *answer = run_accepted_encode(&(struct run_accepted){17, RUN_QUEUED});
	_cleanup_json_ json_t *drain = drain_request_encode(&(struct drain_request){NULL});

	ck_assert_str_eq(json_get_string(stop, "version", ""), DTRAIN_VERSION);
	ck_assert_uint_eq(json_object_size(answer), 2);
	ck_assert_uint_eq(json_object_size(drain), 0);
}
END_TEST

/* Values at the limits of a start request, and the values that are computed from them. */
START_TEST(start_requests_at_their_limits)
{
	_cleanup_json_ json_t *json = parse(START);
	json_t *rank = json_array_get(json_object_get(json, "ranks"), 1);
	struct error err = ERROR_INIT;
	struct start_request q;

	json_object_set_new(json, "cluster", json_string(HEX64));
	json_object_set_new(json, "master_port", json_integer(65535));
	json_object_set_new(json, "uid", json_integer(4294967294));
	json_object_set_new(rank, "slots", json_pack("[i,i]", 2, 0));
	ck_ok(start_request_decode(json, &q, &err), &err);
	ck_assert_str_eq(q.cluster, HEX64);
	ck_assert_int_eq(q.master_port, 65535);
	ck_assert_int_eq(q.uid, 4294967294);
	ck_assert_int_eq(q.ranks[1].slot, 2);
	start_request_release(&q);
	json_object_del(rank, "slot");
	ck_ok(start_request_decode(json, &q, &err), &err);
	ck_assert_int_eq(q.ranks[1].slot, 2);
	start_request_release(&q);
	json_object_set_new(json, "ranks", json_array());
	ck_fails(start_request_decode(json, &q, &err), &err, "start request: ranks: at least one is needed");
}
END_TEST

START_TEST(strings_are_checked)
{
	_cleanup_json_ json_t *json = parse(REPORT);
	json_t *rank = json_array_get(json_object_get(json, "ranks"), 1);
	struct error err = ERROR_INIT;
	struct report report;

	json_object_set_new(rank, "signal", json_string(HEX16 HEX16));
	ck_ok(report_decode(json, &report, &err), &err);
	report_release(&report);
	json_object_set_new(rank, "signal", json_string(HEX16 HEX16 "0"));
	ck_fails(report_decode(json, &report, &err), &err,
	         "report: ranks[1].signal: 33 bytes; at most 32 are possible");
	json_object_set_new(rank, "signal", json_stringn("SIG\0KILL", 8));
	ck_fails(report_decode(json, &report, &err), &err, "report: ranks[1].signal: a NUL byte in a string");
	json_object_del(rank, "signal");
	json_object_set_new(json, "device_errors", json_pack("[o]", json_stringn("a\0b", 3)));
	ck_fails(report_decode(json, &report, &err), &err,
	         "report: device_errors: a list of strings is needed");
	json_object_set_new(json, "device_errors", json_pack("[s,i]", "GPU 3", 4));
	ck_fails(report_decode(json, &report, &err), &err,
	         "report: device_errors: a list of strings is needed");
}
END_TEST

/* JSON has no such numbers. */
START_TEST(numbers_that_are_not_finite_are_absent)
{
	struct gpu_info gpu = {.power = NAN, .power_limit = INFINITY, .numa = -1};
	const struct device_info device = {.node = (char *)"n1", .name = (char *)"G", .gpu_info = &gpu};
	_cleanup_json_ json_t *json = device_info_encode(&device);

	ck_assert(json_is_null(json_object_get(json, "power")));
	ck_assert(json_is_null(json_object_get(json, "power_limit")));
	ck_assert(json_is_integer(json_object_get(json, "ecc_errors")));
}
END_TEST

/* Encoding a string that is not UTF-8 fails, instead of giving an incomplete message. */
START_TEST(what_is_not_utf8_is_not_sent)
{
	ck_assert_ptr_null(drain_request_encode(&(struct drain_request){.reason = (char *)"a \xff fan"}));
}
END_TEST

START_TEST(lists_of_messages)
{
	_cleanup_json_ json_t *json = json_array(), *again = NULL;
	struct error err = ERROR_INIT;
	size_t count;
	void *list;

	json_array_append_new(json, parse(REPORT));
	json_array_append_new(json, parse(REPORT));
	ck_ok(message_decode_list(&report_message, json, &list, &count, &err), &err);
	ck_assert_uint_eq(count, 2);
	ck_assert_str_eq(((struct report *)list)[1].user, "ada");
	again = message_encode_list(&report_message, list, count);
	ck_assert(contains(again, json));
	message_free_list(&report_message, list, count);
	json_object_del(json_array_get(json, 1), "node");
	ck_fails(message_decode_list(&report_message, json, &list, &count, &err), &err,
	         "report: node: missing");
	ck_assert(!list && count == 0);
	ck_fails(message_decode_list(&report_message, json_array_get(json, 0), &list, &count, &err), &err,
	         "report: a list of objects is needed");
}
END_TEST

/* The shortest answers of a service. */
START_TEST(what_a_run_does_not_have_yet_is_absent)
{
	_cleanup_json_ json_t *json = parse("{\"id\":17,\"state\":\"queued\"}");
	struct error err = ERROR_INIT;
	struct run_view run;

	ck_ok(run_view_decode(json, &run, &err), &err);
	ck_assert_int_eq(run.state, RUN_QUEUED);
	ck_assert_int_eq(run.exit_status, -1);
	ck_assert_int_eq(run.uid, -1);
	ck_assert_int_eq(run.world_size, 0);
	ck_assert(!run.reason && !run.progress && !run.nodes && run.rank_count == 0);
	run_view_release(&run);
	json_object_set_new(json, "ranks",
	                    parse("[{\"rank\":0,\"node\":\"n1\",\"slot\":0,\"state\":\"starting\"}]"));
	ck_ok(run_view_decode(json, &run, &err), &err);
	ck_assert_int_eq(run.ranks[0].exit_status, -1);
	ck_assert_int_eq(run.ranks[0].pid, 0);
	run_view_release(&run);
}
END_TEST

/* Names of states are decoded; another word is refused. */
START_TEST(states_are_words_of_a_list)
{
	_cleanup_json_ json_t *json = parse(REPORT);
	struct error err = ERROR_INIT;
	struct report report;

	ck_ok(report_decode(json, &report, &err), &err);
	ck_assert_int_eq(report.state, ATTEMPT_STOPPING);
	ck_assert_int_eq(report.ranks[1].state, RANK_EXITED);
	report_release(&report);
	json_object_set_new(json, "state", json_string("asleep"));
	ck_fails(
	    report_decode(json, &report, &err), &err,
	    "report: state: \"asleep\" is not known; expected one of starting, running, stopping, ended");
	ck_assert_ptr_null(report.node);
	/* Only the controller knows that a rank is lost; a node does not report that. */
	json_object_set_new(json, "state", json_string("running"));
	json_object_set_new(json_array_get(json_object_get(json, "ranks"), 0), "state", json_string("lost"));
	ck_fails(report_decode(json, &report, &err), &err, "report: ranks[0].state: \"lost\" is not known");
}
END_TEST

/* A newer service has more words for some things. In an answer they are unknown, and the rest of it is not
 * lost; between services, who does not know what is meant cannot go on. */
START_TEST(words_of_newer_services_are_unknown)
{
	_cleanup_json_ json_t
	    *runs = parse("{\"runs\":[{\"id\":1,\"state\":\"parked\"},{\"id\":2,\"state\":"
	                  "\"evicted\",\"ended\":5,\"ranks\":[{\"rank\":0,\"node\":\"n1\","
	                  "\"slot\":0,\"state\":\"hung\"}]},{\"id\":3,\"state\":\"failed\"}]}"),
	    *nodes = parse("{\"nodes\":[{\"name\":\"n1\",\"state\":\"asleep\",\"foreign\":[{\"run\":5,"
	                   "\"attempt\":1,\"state\":\"parked\"}]},{\"name\":\"n2\",\"state\":\"up\"}]}"),
	    *device = parse(GPU), *devices = json_object(), *again = NULL;
	_cleanup_(run_list_release) struct run_list run_list = {0};
	_cleanup_(node_list_release) struct node_list node_list = {0};
	_cleanup_(device_list_release) struct device_list device_list = {0};
	struct error err = ERROR_INIT;

	ck_ok(run_list_decode(runs, &run_list, &err), &err);
	ck_assert_int_eq(run_list.runs[0].state, RUN_OTHER);
	ck_assert(!run_view_final(&run_list.runs[0]));
	ck_assert_int_eq(run_list.runs[1].state, RUN_OTHER);
	ck_assert_int_eq(run_list.runs[1].ranks[0].state, RANK_OTHER);
	ck_assert(run_view_final(&run_list.runs[1]));
	ck_assert_int_eq(run_list.runs[2].state, RUN_FAILED);
	ck_assert(run_view_final(&run_list.runs[2]));
	ck_ok(node_list_decode(nodes, &node_list, &err), &err);
	ck_assert_int_eq(node_list.nodes[0].state, NODE_UNKNOWN);
	ck_assert_int_eq(node_list.nodes[0].foreign[0].state, ATTEMPT_OTHER);
	ck_assert_int_eq(node_list.nodes[1].state, NODE_UP);
	json_object_set_new(device, "kind", json_string("npu"));
	json_object_set_new(device, "state", json_string("hot"));
	json_object_set_new(devices, "devices", json_pack("[O]", device));
	ck_ok(device_list_decode(devices, &device_list, &err), &err);
	ck_assert_int_eq(device_list.devices[0].kind, DEVICE_KIND_OTHER);
	ck_assert_int_eq(device_list.devices[0].state, SLOT_OTHER);
	/* They have a word of their own, which no known state may have. */
	again = run_list_encode(&run_list);
	ck_assert_str_eq(json_get_string(json_array_get(json_object_get(again, "runs"), 0), "state", ""),
	                 "unknown");
}
END_TEST

START_TEST(words_of_newer_services_are_refused_between_services)
{
	_cleanup_json_ json_t *heartbeat =
	                          parse("{\"node\":\"n1\",\"instance\":\"0123\",\"sequence\":7,\"version\":"
	                                "\"99.0.0\",\"devices\":[],\"attempts\":[]}"),
	                      *report = parse(REPORT), *device = parse(GPU);
	static const char *const words[] = {"hot", "unknown"};
	struct heartbeat decoded;
	struct report decoded_report;
	struct error err = ERROR_INIT;

	ck_ok(heartbeat_decode(heartbeat, &decoded, &err), &err);
	heartbeat_release(&decoded);
	json_array_append(json_object_get(heartbeat, "devices"), device);
	json_object_set_new(report, "version", json_string("99.0.0"));
	for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
		json_object_set_new(device, "state", json_string(words[i]));
		ck_fails(heartbeat_decode(heartbeat, &decoded, &err), &err,
		         "is not known; expected one of free, ");
		json_object_set_new(report, "state", json_string(words[i]));
		ck_fails(report_decode(report, &decoded_report, &err), &err,
		         "is not known; expected one of starting, ");
	}
}
END_TEST

/* A measurement that is absent is not taken for 0. */
START_TEST(what_a_device_does_not_tell_is_absent)
{
	_cleanup_json_ json_t *json = parse(GPU), *again = NULL;
	static const char *const names[] = {
	    "pci",         "numa",        "mig",         "driver", "cuda",        "xid",       "read",
	    "memory_used", "utilization", "temperature", "power",  "power_limit", "ecc_errors"};
	struct error err = ERROR_INIT;
	struct device_info device;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		json_object_set_new(json, names[i], json_null());
	ck_ok(device_info_decode(json, &device, &err), &err);
	ck_assert_int_eq(device.gpu_info->gpu, 3);
	ck_assert_int_eq(device.gpu_info->ecc_errors, -1);
	ck_assert_double_eq(device.gpu_info->power, -1);
	ck_assert_str_eq(device.gpu_info->links[0], "");
	ck_assert_str_eq(device.gpu_info->links[1], "X");
	again = device_info_encode(&device);
	ck_assert(json_equal(json, again));
	device_info_release(&device);
	json_object_del(json, "gpu");
	ck_ok(device_info_decode(json, &device, &err), &err);
	ck_assert_ptr_null(device.gpu_info);
	device_info_release(&device);
}
END_TEST

/* Reports as version 0.1.0 wrote them: without its version, and without the fields that it did not have. */
START_TEST(older_reports_are_read)
{
	_cleanup_json_ json_t *json = parse("{\"run\":1,\"attempt\":1,\"node\":\"n1\",\"state\":\"starting\","
	                                    "\"ranks\":[{\"rank\":0,\"slot\":0,"
	                                    "\"state\":\"starting\",\"signal\":null}]}");
	struct error err = ERROR_INIT;
	struct report report;

	ck_ok(report_decode(json, &report, &err), &err);
	ck_assert_ptr_null(report.cluster);
	ck_assert_ptr_null(report.user);
	ck_assert_int_eq(report.ranks[0].exit_status, -1);
	ck_assert_int_eq(report.ranks[0].pid, 0);
	ck_assert(!report.ranks[0].stopped && !report.lost);
	report_release(&report);
}
END_TEST

/* A run may be any program: its reports are read as far as they are understood. */
START_TEST(reports_of_any_program_are_read)
{
	_cleanup_json_ json_t *json =
	    parse("{\"step\":12,\"steps\":\"many\",\"loss\":null,\"eval_loss\":2,"
	          "\"tokens_per_second\":1.5,\"learning_rate\":0.25,\"message\":\"hello\",\"own\":[],"
	          "\"reward\":-1.5,\"eval_reward\":\"much\"}");
	struct progress p;

	progress_read(json, &p);
	ck_assert(p.has_step && !p.has_loss && p.has_eval_loss);
	ck_assert_int_eq(p.step, 12);
	ck_assert_int_eq(p.steps, 0);
	ck_assert_double_eq(p.eval_loss, 2);
	ck_assert(p.has_reward && !p.has_eval_reward);
	ck_assert_double_eq(p.reward, -1.5);
	ck_assert_double_eq(p.tokens_per_second, 1.5);
	ck_assert(p.has_learning_rate && p.has_tokens_per_second && !p.has_eta_seconds);
	ck_assert_double_eq(p.learning_rate, 0.25);
	ck_assert_str_eq(p.message, "hello");
	progress_read(NULL, &p);
	ck_assert(!p.has_step && !p.message);
}
END_TEST

/* What is out of range in the messages of one machine, by message and text. */
START_TEST(numbers_out_of_range_are_named)
{
	static const struct {
		int (*pass)(const json_t *json, json_t **again, struct error *err);
		const char *text, *words;
	} cases[] = {
	    {pass_metrics_step, "{\"step\":-1}", "line of metrics: step: -1 is out of range"},
	    {pass_metrics_mark, "{\"event\":\"\",\"step\":1,\"time\":1.0}", "mark: event: it is empty"},
	    {pass_membership, "{\"controller\":\"n1\",\"hosts\":-1}",
	     "record of the cluster: hosts: -1 is out of range"},
	    {pass_drain_list, "{\"devices\":[{\"device\":\"\"}]}",
	     "list of drained devices: devices[0].device: it is empty"},
	    {pass_run_record, "{\"rank_errors\":[{\"rank\":-1}]}",
	     "record of a run: rank_errors[0].rank: -1 is out of range"},
	    {pass_run_record, "{\"spares\":[{\"node\":\"n1\",\"slots\":[-1]}]}",
	     "record of a run: spares[0].slots: -1 is out of range"},
	    {pass_start_record, "{\"uid\":4294967295,\"slots\":[]}",
	     "record of a start: uid: 4294967295 is out of range"},
	    {pass_start_record, "{\"uid\":1,\"slots\":[-1]}", "record of a start: slots: -1 is out of range"},
	    {pass_launch_description,
	     "{\"umask\":512,\"uid\":1,\"gid\":1,\"groups\":[],\"argv\":[\"a\"],\"ranks\":[]}",
	     "launch.json: umask: 512 is out of range"},
	    {pass_launch_description, "{\"uid\":1,\"gid\":1,\"groups\":[-1],\"argv\":[\"a\"],\"ranks\":[]}",
	     "launch.json: groups: -1 is out of range"},
	    {pass_launch_description, "{\"uid\":1,\"gid\":1,\"groups\":[],\"argv\":[],\"ranks\":[]}",
	     "launch.json: argv: it is empty"},
	    {pass_launch_description, "{\"uid\":1,\"gid\":1,\"groups\":[],\"argv\":[\"a\"],\"ranks\":[]}",
	     "launch.json: ranks: at least one is needed"},
	    {pass_launch_report, "{\"state\":\"running\",\"launcher\":-1,\"ranks\":[]}",
	     "dtrain-launch: launcher: -1 is out of range"},
	    {pass_preflight_request, "{\"user\":\"ada\",\"uid\":-1,\"program\":\"true\"}",
	     "preflight request: uid: -1 is out of range"},
	    {pass_preflight_request, "{\"user\":\"\",\"uid\":1,\"program\":\"true\"}",
	     "preflight request: user: it is empty"},
	    {pass_preflight_line, "{\"error\":1}", "preflight: error: 1 is out of range"},
	    {pass_preflight_line, "{\"error\":-4096}", "preflight: error: -4096 is out of range"},
	    {pass_preflight_line,
	     "{\"user\":{\"name\":\"ada\",\"home\":\"/\",\"shell\":\"sh\",\"uid\":1,\"gid\":1,"
	     "\"groups\":[4294967295]}}",
	     "preflight: user.groups: 4294967295 is out of range"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_json_ json_t *json = parse(cases[i].text), *again = NULL;
		struct error err = ERROR_INIT;

		ck_fails(cases[i].pass(json, &again, &err), &err, cases[i].words);
	}
}
END_TEST

/* A description as older services wrote it: fields that they left out have their defaults. */
START_TEST(older_descriptions_of_an_attempt_are_read)
{
	_cleanup_json_ json_t *json = parse("{\"uid\":1000,\"gid\":100,\"groups\":[],\"argv\":[\"a\",\"\"],"
	                                    "\"ranks\":[{\"rank\":0,\"slot\":1,\"environment\":[],"
	                                    "\"cpus\":null,\"own\":1}]}"),
	                      *again = NULL;
	struct error err = ERROR_INIT;
	struct launch_description d;

	ck_ok(launch_description_decode(json, &d, &err), &err);
	ck_assert(!d.switch_user && !d.directory && !d.record && !d.started && !d.cgroup);
	ck_assert_int_eq(d.umask, 022);
	ck_assert_double_eq(d.grace, 30);
	ck_assert_str_eq(d.argv[1], "");
	ck_assert_ptr_null(d.argv[2]);
	ck_assert_ptr_null(d.ranks[0].cpus);
	ck_assert_ptr_null(d.ranks[0].environment[0]);
	/* A grace of 0 is kept, and not replaced by the default. */
	d.grace = 0;
	again = launch_description_encode(&d);
	ck_assert_double_eq(json_get_number(again, "grace", -1), 0);
	launch_description_release(&d);
}
END_TEST

/* A measurement of 0 is one; only what was not measured is left out, or null. */
START_TEST(only_what_was_not_measured_is_absent)
{
	struct metrics_report report = {.loss = 0, .grad_norm = NAN, .slowest_rank = -1, .eval_loss = NAN};
	_cleanup_json_ json_t *json = metrics_report_encode(&report);
	struct error err = ERROR_INIT;

	ck_assert_double_eq(json_get_number(json, "loss", -1), 0);
	ck_assert(json_is_null(json_object_get(json, "grad_norm")));
	ck_assert_double_eq(json_get_number(json, "step_seconds", -1), 0);
	ck_assert_ptr_null(json_object_get(json, "eval_loss"));
	ck_assert_ptr_null(json_object_get(json, "slowest_rank"));
	ck_ok(metrics_report_decode(json, &report, &err), &err);
	ck_assert(report.loss == 0 && isnan(report.grad_norm) && isnan(report.eval_loss));
	ck_assert_int_eq(report.slowest_rank, -1);
	metrics_report_release(&report);
}
END_TEST

/* A record as version 0.1.0 wrote it: an object with a member for each rank. */
START_TEST(older_records_of_a_run_are_read)
{
	_cleanup_json_ json_t *json =
	    parse("{\"parts\":[{\"node\":\"n1\",\"ended\":false,\"trouble\":null,\"trouble_at\":0.0,"
	          "\"clock_error\":0.0}],\"words\":{\"12\":{\"worker\":\"it broke\",\"lost_peer\":true},"
	          "\"0\":{\"log\":\"lines\"},\"x\":{}}}");
	struct error err = ERROR_INIT;
	struct run_record record;

	ck_ok(run_record_decode(json, &record, &err), &err);
	ck_assert_uint_eq(record.part_count, 1);
	ck_assert_ptr_null(record.parts[0].trouble);
	ck_assert_ptr_null(record.words);
	ck_assert_uint_eq(record.rank_error_count, 2);
	ck_assert_int_eq(record.rank_errors[0].rank, 12);
	ck_assert_str_eq(record.rank_errors[0].worker, "it broke");
	ck_assert(record.rank_errors[0].lost_peer && !record.rank_errors[1].lost_peer);
	ck_assert_int_eq(record.rank_errors[1].rank, 0);
	ck_assert_str_eq(record.rank_errors[1].log, "lines");
	run_record_release(&record);
}
END_TEST

/* Commands to the launcher; a stop need not have a grace. */
START_TEST(some_refusals_of_a_start_need_not_come_again)
{
	static const int later[] = {-ETIMEDOUT, -EIO, -ENOMEM, -ENOTCONN, -ESHUTDOWN, -EAGAIN, -ENOSPC},
	                 never[] = {0, -ENOENT, -EACCES, -EINVAL, -EPERM, -ENOTDIR, -ESTALE, -ECANCELED, EIO};

	for (size_t i = 0; i < ARRAY_SIZE(later); i++)
		ck_assert_msg(start_may_succeed_later(later[i]), "%d", later[i]);
	for (size_t i = 0; i < ARRAY_SIZE(never); i++)
		ck_assert_msg(!start_may_succeed_later(never[i]), "%d", never[i]);
}
END_TEST

START_TEST(commands_to_the_launcher)
{
	_cleanup_json_ json_t *stop = launch_command_encode(&(struct launch_command){0}),
	                      *other = launch_command_encode(
	                          &(struct launch_command){.stop = -1, .acknowledge = true});
	struct error err = ERROR_INIT;
	struct launch_command command;

	ck_ok(launch_command_decode(stop, &command, &err), &err);
	ck_assert(command.stop == 0 && !command.acknowledge);
	ck_ok(launch_command_decode(other, &command, &err), &err);
	ck_assert(command.stop == -1 && command.acknowledge);
	/* What says nothing of a stop is none. */
	json_object_del(other, "stop");
	ck_ok(launch_command_decode(other, &command, &err), &err);
	ck_assert(command.stop == -1 && command.acknowledge);
}
END_TEST

/* The last line of a preflight has a code, 0 included; the others have none. */
START_TEST(a_preflight_ends_with_a_code)
{
	_cleanup_json_ json_t *step = preflight_line_encode(&(struct preflight_line){
	                          .step = (char *)"x", .error = PREFLIGHT_UNDER_WAY}),
	                      *last = preflight_line_encode(&(struct preflight_line){0});
	struct error err = ERROR_INIT;
	struct preflight_line line;

	ck_assert_ptr_null(json_object_get(step, "error"));
	ck_ok(preflight_line_decode(step, &line, &err), &err);
	ck_assert_int_eq(line.error, PREFLIGHT_UNDER_WAY);
	preflight_line_release(&line);
	ck_ok(preflight_line_decode(last, &line, &err), &err);
	ck_assert_int_eq(line.error, 0);
	preflight_line_release(&line);
}
END_TEST

/* The list that is put together as text is one that its readers decode. */
START_TEST(a_list_of_runs_as_text)
{
	for (int count = 0; count < 3; count++) {
		_cleanup_free_ char *text =
		    str_printf(RUN_LIST_BEGIN "%s%s%s" RUN_LIST_END, count > 0 ? RUN : "",
		               count > 1 ? "," : "", count > 1 ? RUN : "");
		_cleanup_json_ json_t *json = parse(text);
		struct error err = ERROR_INIT;
		struct run_list list;

		ck_ok(run_list_decode(json, &list, &err), &err);
		ck_assert_uint_eq(list.count, count);
		run_list_release(&list);
	}
}
END_TEST

START_TEST(error_files_of_any_program_are_read)
{
	static const struct {
		const char *text, *message;
	} cases[] = {
	    {"{\"message\":{\"message\":\"it broke\",\"extraInfo\":{\"timestamp\":\"1\"}}}", "it broke"},
	    {"{\"message\":\"it broke\"}", "it broke"},
	    {"{\"message\":{\"text\":\"it broke\"}}", NULL},
	    {"{\"message\":[\"it broke\"]}", NULL},
	    {"\"message\"", NULL},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_json_ json_t *json = parse(cases[i].text);

		ck_assert_pstr_eq(json_string_value(error_file_message(json)), cases[i].message);
		ck_assert(!error_file_lost_peer(json));
	}
	ck_assert_ptr_null(error_file_message(NULL));
	for (int lost = 0; lost < 2; lost++) {
		_cleanup_json_ json_t *made = error_file_make("it broke", lost);

		ck_assert_str_eq(json_string_value(error_file_message(made)), "it broke");
		ck_assert_int_eq(error_file_lost_peer(made), lost);
	}
}
END_TEST

START_TEST(errors_are_read_from_any_answer)
{
	_cleanup_json_ json_t *json =
	    error_answer_encode(&(struct error_answer){.code = "busy", .message = "no slot is free"});
	_cleanup_json_ json_t *other = parse("{\"error\":[\"busy\"]}");
	struct error_answer answer;

	error_answer_read(json, &answer);
	ck_assert_str_eq(answer.code, "busy");
	ck_assert_str_eq(answer.message, "no slot is free");
	error_answer_read(other, &answer);
	ck_assert_str_eq(answer.code, "");
	ck_assert_ptr_null(answer.message);
	error_answer_read(NULL, &answer);
	ck_assert_ptr_null(answer.message);
}
END_TEST

struct passing {
	const struct sample *sample;
	json_t *json;
};

static int pass_sample(void *context, struct error *err)
{
	const struct passing *p = context;
	_cleanup_json_ json_t *again = NULL;

	return p->sample->pass(p->json, &again, err);
}

START_TEST(memory_may_run_out_at_any_place)
{
	struct passing p = {&samples[_i], make(&samples[_i])};

	/* A start request may lack the copy in which unknown keys are looked for. */
	if (samples[_i].pass != pass_start_request)
		json_set_alloc_funcs(__wrap_malloc, free);
	memory_runs_out(pass_sample, &p);
	json_decref(p.json);
}
END_TEST

static int decode_words(void *context, struct error *err)
{
	struct run_record record = {0};
	int r = run_record_decode(context, &record, err);

	if (r < 0)
		return r;
	ck_assert_uint_eq(record.rank_error_count, 2);
	ck_assert_str_eq(record.rank_errors[0].worker, "w");
	ck_assert_str_eq(record.rank_errors[1].log, "l");
	run_record_release(&record);
	return 0;
}

/* As an older service has written what ranks said. */
START_TEST(words_of_ranks_are_there_or_memory_is_missing)
{
	_cleanup_json_ json_t *json = json_pack("{s:{s:{s:s, s:b}, s:{s:s}}}", "words", "3", "worker", "w",
	                                        "lost_peer", 1, "4", "log", "l");

	memory_runs_out(decode_words, json);
}
END_TEST

#include "wire_fields.h"

/* The first sample of the message that has the field. */
static const struct sample *sample_with(int (*pass)(const json_t *json, json_t **again, struct error *err),
                                        const char *path)
{
	for (const struct sample *s = samples; s < samples + ARRAY_SIZE(samples); s++) {
		_cleanup_json_ json_t *json = s->pass == pass ? make(s) : NULL;
		const char *last;
		json_t *parent;

		if (!json)
			continue;
		parent = holder(json, path, &last);
		if (json_is_array(parent) ? json_array_get(parent, (size_t)atoi(last)) != NULL
		                          : json_object_get(parent, last) != NULL)
			return s;
	}
	ck_abort_msg("no sample has %s", path);
}

/* Takes value, NULL: without the field. */
static int pass_with(const struct sample *s, const char *path, json_t *value, json_t **again)
{
	_cleanup_json_ json_t *json = make(s);
	struct error err = ERROR_INIT;
	const char *last;
	json_t *parent = holder(json, path, &last);

	if (json_is_array(parent))
		json_array_set_new(parent, (size_t)atoi(last), value);
	else if (value)
		json_object_set_new(parent, last, value);
	else
		json_object_del(parent, last);
	return s->pass(json, again, &err);
}

static bool accepts(const struct sample *s, const char *path, json_t *value)
{
	_cleanup_json_ json_t *again = NULL;

	return pass_with(s, path, value, &again) == 0;
}

/* A text of that length, which begins as the one in the sample. */
static json_t *text_of(const struct sample *s, const char *path, int64_t len)
{
	_cleanup_json_ json_t *json = make(s);
	_cleanup_free_ char *text = calloc(1, (size_t)len + 1);
	const char *last;
	json_t *parent = holder(json, path, &last), *old;

	old = json_is_array(parent) ? json_array_get(parent, (size_t)atoi(last))
	                            : json_object_get(parent, last);
	memset(text, *json_string_value(old) ?: 'a', (size_t)len);
	return json_string(text);
}

/* The field of this name, which is one of *message then: FIELD_MEMBERS are in another one. NULL: none. */
static const struct field *find_field(const struct message **message, const char *name, size_t len)
{
	const struct message *outer = *message;

	for (size_t i = 0; i < outer->count; i++) {
		const struct field *f = &outer->fields[i];

		*message = f->type == FIELD_MEMBERS ? f->message : outer;
		if (f->type == FIELD_MEMBERS)
			f = find_field(message, name, len);
		if (f && strlen(f->name) == len && strncmp(f->name, name, len) == 0)
			return f;
	}
	*message = outer;
	return NULL;
}

/* The same for a path as "ranks.0.slot". */
static const struct field *resolve(const struct message *message, const char *path)
{
	const struct field *f = NULL;

	for (;;) {
		size_t n = strcspn(path, ".");

		f = find_field(&message, path, n);
		ck_assert_msg(f != NULL, "%s: there is no field %s", message->name, path);
		path += n;
		path += strspn(path, ".0123456789"); /* the index in a list */
		if (!*path || !f->message)
			return f;
		message = f->message;
	}
}

static bool is_listed(const struct field *f)
{
	for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
		for (size_t k = 0; k < ARRAY_SIZE(messages); k++)
			if (messages[k].pass == fields[i].pass &&
			    resolve(messages[k].message, fields[i].path) == f)
				return true;
	return false;
}

static void check_listed(const struct message *message)
{
	for (size_t i = 0; i < message->count; i++) {
		const struct field *f = &message->fields[i];

		/* What version 0.1.0 wrote becomes another field: older_records_of_a_run_are_read. */
		if (message == &run_record_message && str_eq(f->name, "words"))
			continue;
		ck_assert_msg(f->type == FIELD_MEMBERS || is_listed(f), "%s: %s is not listed", message->name,
		              f->name);
		if (f->message)
			check_listed(f->message);
	}
}

/* Those of wire_fields.h are all that there are. */
START_TEST(every_field_is_listed)
{
	for (size_t i = 0; i < ARRAY_SIZE(messages); i++)
		check_listed(messages[i].message);
}
END_TEST

START_TEST(fields_have_their_limits)
{
	enum { LONG = 1 << 17 };

	for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
		const char *path = fields[i].path;
		const struct sample *s = sample_with(fields[i].pass, path);
		int64_t least = fields[i].least, greatest = fields[i].greatest;
		bool ok = true;

		if (fields[i].kind == INTEGER)
			ok = accepts(s, path, json_integer(least)) &&
			     accepts(s, path, json_integer(greatest)) &&
			     (least == INT64_MIN || !accepts(s, path, json_integer(least - 1))) &&
			     (greatest == INT64_MAX || !accepts(s, path, json_integer(greatest + 1)));
		else if (fields[i].kind == TEXT)
			ok = accepts(s, path, text_of(s, path, least)) &&
			     (least == 0 || !accepts(s, path, text_of(s, path, least - 1))) &&
			     accepts(s, path, text_of(s, path, greatest ? greatest : LONG)) &&
			     (greatest == 0 || !accepts(s, path, text_of(s, path, greatest + 1)));
		ck_assert_msg(ok, "%s: %s is not from %lld to %lld", s->name, path, (long long)least,
		              (long long)greatest);
	}
}
END_TEST

/* null says the same as a field that is missing. */
START_TEST(fields_may_be_missing_or_not)
{
	for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
		const char *path = fields[i].path, *last;
		const struct sample *s = sample_with(fields[i].pass, path);

		if (fields[i].absent && str_eq(fields[i].absent, ELEMENT))
			continue;
		for (int null = 0; null < 2; null++) {
			_cleanup_json_ json_t *again = NULL, *want = NULL;
			int r = pass_with(s, path, null ? json_null() : NULL, &again);
			json_t *parent;

			ck_assert_msg((r == 0) == (fields[i].absent != NULL), "%s: %s: %d", s->name, path, r);
			if (r < 0)
				continue;
			parent = holder(again, path, &last);
			want = json_loads(fields[i].absent, JSON_DECODE_ANY, NULL);
			ck_assert_msg(want ? json_equal(json_object_get(parent, last), want)
			                   : !json_object_get(parent, last),
			              "%s: %s: not %s", s->name, path, fields[i].absent);
		}
	}
}
END_TEST

/* With another value of one field, which it takes. */
static uint64_t digest_of(const struct sample *s, const char *dotted, json_t *value)
{
	_cleanup_(heartbeat_release) struct heartbeat heartbeat = {0};
	_cleanup_json_ json_t *json = make(s);
	struct error err = ERROR_INIT;
	const char *last;

	if (dotted) {
		json_t *in = holder(json, dotted, &last);

		if (json_is_array(in))
			json_array_set_new(in, (size_t)atoi(last), value);
		else
			json_object_set_new(in, last, value);
	}
	ck_ok(heartbeat_decode(json, &heartbeat, &err), &err);
	return message_digest(&heartbeat_message, &heartbeat);
}

/* What changes with each heartbeat, and what sensors read, is no change; anything else is. */
START_TEST(a_digest_is_of_what_does_not_vary)
{
	static const char *const same[] = {"sequence",
	                                   "sent",
	                                   "ports.0",
	                                   "known.highest_run",
	                                   "devices.1.temperature",
	                                   "devices.1.power",
	                                   "devices.1.read",
	                                   "devices.1.memory_used",
	                                   "devices.1.utilization",
	                                   "attempts.0.clock_offset",
	                                   "attempts.0.clock_error"};
	static const char *const other[] = {"devices.0.index",
	                                    "devices.1.ecc_errors",
	                                    "devices.1.xid.code",
	                                    "devices.1.memory",
	                                    "attempts.0.attempt",
	                                    "attempts.0.epoch",
	                                    "attempts.0.ranks.1.exit_status",
	                                    "known.clusters.0.epoch",
	                                    "port_range.0"};
	static const char *const texts[] = {"node",
	                                    "hosts",
	                                    "instance",
	                                    "version",
	                                    "launch",
	                                    "boot",
	                                    "devices.1.uuid",
	                                    "attempts.0.reason",
	                                    "known.clusters.0.id"};
	const size_t counts[] = {ARRAY_SIZE(same), ARRAY_SIZE(other), ARRAY_SIZE(texts)};
	const char *const *lists[] = {same, other, texts};
	const struct sample *s = samples;
	uint64_t before;

	while (s->pass != pass_heartbeat)
		s++;
	before = digest_of(s, NULL, NULL);
	ck_assert_uint_eq(digest_of(s, NULL, NULL), before);
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
		for (size_t k = 0; k < counts[i]; k++) {
			json_t *value = i == 2 ? json_string("other") : json_integer(37);
			bool equal = digest_of(s, lists[i][k], value) == before;

			ck_assert_msg(equal == (i == 0), "%s", lists[i][k]);
		}
	ck_assert(digest_of(s, "shutting_down", json_false()) != before);
	ck_assert(digest_of(s, "attempts", json_array()) != before);
	ck_assert(digest_of(s, "known", json_null()) != before);
}
END_TEST

static void answered(struct heartbeat_state *state, int64_t whole)
{
	heartbeat_state_answered(state, &(struct heartbeat_answer){.whole = whole});
}

START_TEST(a_heartbeat_is_short_where_the_controller_keeps_the_whole_one)
{
	struct known_clusters known = {.highest_run = 5};
	struct heartbeat beat = {.node = (char *)"n1",
	                         .instance = (char *)"i",
	                         .version = (char *)"1",
	                         .sequence = 1,
	                         .sent = 2.5,
	                         .ports = (int64_t[]){4001},
	                         .port_count = 1,
	                         .known = &known};
	struct heartbeat_state s = {0};
	struct short_heartbeat brief;

	ck_assert(!heartbeat_can_be_short(&s, &beat, 100));
	beat.sequence = 2;
	ck_assert(!heartbeat_can_be_short(&s, &beat, 101)); /* not answered yet */
	answered(&s, 1);
	beat.sequence = 3;
	ck_assert(!heartbeat_can_be_short(&s, &beat, 102)); /* it keeps an earlier one */
	answered(&s, 0);
	beat.sequence = 4;
	ck_assert(!heartbeat_can_be_short(&s, &beat, 103)); /* it is of an older version */
	answered(&s, 4);
	beat.sequence = 5;
	ck_assert(heartbeat_can_be_short(&s, &beat, 104));
	brief = heartbeat_shorten(&s, &beat);
	ck_assert_str_eq(brief.node, "n1");
	ck_assert_str_eq(brief.instance, "i");
	ck_assert_int_eq(brief.sequence, 5);
	ck_assert_int_eq(brief.whole, 4);
	ck_assert_int_eq(brief.ports[0], 4001);
	ck_assert_uint_eq(brief.port_count, 1);
	ck_assert_double_eq(brief.sent, 2.5);
	ck_assert_int_eq(brief.highest_run, 5);
	answered(&s, 4);
	beat.sequence = 6;
	ck_assert(heartbeat_can_be_short(&s, &beat, 105));
	heartbeat_state_answered(&s, NULL);
	beat.sequence = 7;
	ck_assert(!heartbeat_can_be_short(&s, &beat, 106));
	answered(&s, 7);
	ck_assert(heartbeat_can_be_short(&s, &beat, 106 + 14.5));
	ck_assert(!heartbeat_can_be_short(&s, &beat, 106 + 15)); /* the sensors */
	answered(&s, 7);
	beat.shutting_down = true;
	ck_assert(!heartbeat_can_be_short(&s, &beat, 122));
}
END_TEST

START_TEST(a_key_of_a_submission_is_short_and_plain)
{
	char key[SUBMISSION_KEY_MAX + 2];

	memset(key, 'k', sizeof(key));
	key[SUBMISSION_KEY_MAX + 1] = '\0';
	ck_assert(!submission_key_is_valid(key));
	key[SUBMISSION_KEY_MAX] = '\0';
	ck_assert(submission_key_is_valid(key));
	ck_assert(submission_key_is_valid("azAZ09-_"));
	ck_assert(submission_key_is_valid("a"));
	ck_assert(!submission_key_is_valid(""));
	ck_assert(!submission_key_is_valid("a b"));
	ck_assert(!submission_key_is_valid("a\r"));
	ck_assert(!submission_key_is_valid("\xc3\xa9"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("wire");
	TCase *tc = tcase_create("messages");
	const int count = (int)ARRAY_SIZE(samples);

	tcase_add_loop_test(tc, what_is_decoded_is_encoded_again, 0, count);
	tcase_add_loop_test(tc, memory_may_run_out_at_any_place, 0, count);
	tcase_add_loop_test(tc, a_missing_field_is_named, 0, count);
	tcase_add_loop_test(tc, a_field_of_another_type_is_named, 0, count);
	tcase_add_loop_test(tc, an_unknown_field_is_named, 0, count);
	tcase_add_loop_test(tc, what_is_no_object_is_refused, 0, count);
	tcase_add_test(tc, every_field_is_listed);
	tcase_add_test(tc, words_of_ranks_are_there_or_memory_is_missing);
	tcase_add_test(tc, fields_have_their_limits);
	tcase_add_test(tc, fields_may_be_missing_or_not);
	tcase_add_test(tc, wrong_start_requests_are_refused);
	tcase_add_test(tc, ranks_and_slots_are_there_once);
	tcase_add_test(tc, start_requests_of_other_versions);
	tcase_add_test(tc, messages_between_services_name_their_version);
	tcase_add_test(tc, start_requests_at_their_limits);
	tcase_add_test(tc, strings_are_checked);
	tcase_add_test(tc, numbers_that_are_not_finite_are_absent);
	tcase_add_test(tc, what_is_not_utf8_is_not_sent);
	tcase_add_test(tc, lists_of_messages);
	tcase_add_test(tc, a_digest_is_of_what_does_not_vary);
	tcase_add_test(tc, a_heartbeat_is_short_where_the_controller_keeps_the_whole_one);
	tcase_add_test(tc, what_a_run_does_not_have_yet_is_absent);
	tcase_add_test(tc, states_are_words_of_a_list);
	tcase_add_test(tc, words_of_newer_services_are_unknown);
	tcase_add_test(tc, words_of_newer_services_are_refused_between_services);
	tcase_add_test(tc, what_a_device_does_not_tell_is_absent);
	tcase_add_test(tc, older_reports_are_read);
	tcase_add_test(tc, reports_of_any_program_are_read);
	tcase_add_test(tc, numbers_out_of_range_are_named);
	tcase_add_test(tc, older_descriptions_of_an_attempt_are_read);
	tcase_add_test(tc, only_what_was_not_measured_is_absent);
	tcase_add_test(tc, older_records_of_a_run_are_read);
	tcase_add_test(tc, commands_to_the_launcher);
	tcase_add_test(tc, some_refusals_of_a_start_need_not_come_again);
	tcase_add_test(tc, a_preflight_ends_with_a_code);
	tcase_add_test(tc, a_list_of_runs_as_text);
	tcase_add_test(tc, error_files_of_any_program_are_read);
	tcase_add_test(tc, errors_are_read_from_any_answer);
	tcase_add_test(tc, a_key_of_a_submission_is_short_and_plain);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}
