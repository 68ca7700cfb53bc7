/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "config/daemon.h"
#include "config/hosts.h"
#include "config/run.h"

static const char alpaca[] =
    "name = \"alpaca\";\n"
    "task = \"sft\";\n"
    "model = { path = \"/models/x\"; };\n"
    "data = { path = [\"a.json\", \"b.json\"]; format = \"alpaca\"; max_length = 512;\n"
    "         columns = { prompt = \"q\"; response = \"a\"; }; };\n"
    "train = { epochs = 2; learning_rate = 1e-4; };\n"
    "environment = { NCCL_DEBUG = \"INFO\"; };\n"
    "output = { dir = \"saves\"; };\n";

START_TEST(run_file_with_defaults)
{
	_cleanup_(run_config_freep) struct run_config *c = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_parse(alpaca, "x.conf", NULL, &c, &err), &err);
	ck_assert_int_eq(c->task, RUN_SFT);
	ck_assert_str_eq(c->data.path[1], "b.json");
	ck_assert_ptr_null(c->data.path[2]);
	ck_assert_double_eq(c->train.epochs, 2);
	ck_assert_str_eq(c->train.schedule, "cosine");
	ck_assert_str_eq(c->environment[0], "NCCL_DEBUG=INFO");
	ck_assert_str_eq(c->data.columns, "{\"prompt\":\"q\",\"response\":\"a\"}");
	ck_assert(!c->data.packing);
	ck_assert_int_eq(c->resources.nodes, 1);
}
END_TEST

START_TEST(packing_default_follows_the_task)
{
	const char *pretrain[] = {"task=pretrain", NULL},
	           *off[] = {"task=pretrain", "data.packing=false", NULL};
	_cleanup_(run_config_freep) struct run_config *a = NULL, *b = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_parse(alpaca, "x.conf", pretrain, &a, &err), &err);
	ck_assert(a->data.packing);
	ck_ok(run_config_parse(alpaca, "x.conf", off, &b, &err), &err);
	ck_assert(!b->data.packing);
}
END_TEST

START_TEST(json_round_trip)
{
	_cleanup_(run_config_freep) struct run_config *a = NULL, *b = NULL;
	_cleanup_json_ json_t *ja = NULL, *jb = NULL;
	struct error err = ERROR_INIT;

	ck_ok(run_config_parse(alpaca, "x.conf", NULL, &a, &err), &err);
	ck_ok(run_config_to_json(a, &ja, &err), &err);
	ck_assert_str_eq(json_get_string(ja, "task", ""), "sft");
	ck_ok(run_config_from_json(ja, &b, &err), &err);
	ck_ok(run_config_to_json(b, &jb, &err), &err);
	ck_assert(json_equal(ja, jb));
}
END_TEST

static const struct {
	const char *text, *override, *words;
} wrong[] = {
    {"task = \"sft\";\nmodel = { pth = \"x\"; };", NULL,
     "x.conf:2: model.pth: unknown key; did you mean model.path?"},
    {"task = \"sft\";\n\ntrain = { epochs = \"two\"; };", NULL,
     "x.conf:3: train.epochs: a string; a number is needed"},
    {"task = \"dance\";", NULL, "x.conf:1: task: \"dance\" is not known; it has to be one of pretrain|sft"},
    {"task = \"sft|generate\";", NULL, "task: \"sft|generate\" is not known"},
    {"task = \"sft\"", "train.beta1=2",
     "--set: train.beta1: 2 is out of range; it has to be within 0 and 0.999999"},
    {"task = \"sft\";", "train.lr=1", "--set: train.lr: unknown key"},
    {"task = \"sft\";", "learning_rate=1", "did you mean train.learning_rate?"},
    {"task = \"sft\";", "nonsense", "not of the form section.key=value"},
    {"task = \"sft\";\n model {", NULL, "x.conf:2: syntax error"},
    {"task = \"sft\";", NULL, "exactly one of model.path"},
    {"name = \"x\";", NULL, "task: missing"},
    {"task = \"sft\"; model = { path = \"x\"; };", NULL, "exactly one of data.path"},
    {"task = \"sft\"; model = { path = \"x\"; }; data = { path = \"y\"; };", NULL, "output.dir: missing"},
    {"task = \"sft\"; model = \"x\";", NULL, "model: a group is needed"},
    {"task = \"sft\"; data = { path = [1, 2]; };", NULL, "data.path: not all strings"},
    {"task = \"command\";", NULL, "command: missing"},
    {"command = [\"true\"]; environment = [\"NOPE\"];", NULL, "not of the form NAME=VALUE"},
    {"task = \"generate\"; model = { path = \"x\"; };", NULL, "generate.prompt: missing"},
};

START_TEST(wrong_run_files_say_where)
{
	const char *overrides[] = {wrong[_i].override, NULL};
	struct run_config *c = NULL;
	struct error err = ERROR_INIT;

	ck_fails(run_config_parse(wrong[_i].text, "x.conf", overrides, &c, &err), &err, wrong[_i].words);
	ck_assert_ptr_null(c);
	ck_assert_ptr_null(strchr(err.message, '\n'));
}
END_TEST

START_TEST(services_believe_no_client)
{
	struct error err = ERROR_INIT;
	struct run_config *c = NULL;
	json_t *j =
	    json_pack("{s:s,s:[s],s:{s:i}}", "task", "command", "command", "true", "resources", "nodes", -3);

	ck_fails(run_config_from_json(j, &c, &err), &err, "config: resources.nodes: -3 is out of range");
	json_decref(j);
	j = json_pack("[i]", 1);
	ck_fails(run_config_from_json(j, &c, &err), &err, "a JSON object is needed");
	json_decref(j);
}
END_TEST

START_TEST(daemon_defaults_and_errors)
{
	_cleanup_(daemon_config_freep) struct daemon_config *c = NULL;
	struct daemon_config *none = NULL;
	struct error err = ERROR_INIT;

	ck_ok(daemon_config_parse("port = 30000; node = \"n1\";", "d.conf", &c, &err), &err);
	ck_assert_int_eq(c->port, 30000);
	ck_assert_double_eq(c->heartbeat, 1);
	ck_fails(daemon_config_parse("port = 70000;", "d.conf", &none, &err), &err,
	         "d.conf:1: port: 70000 is out of range");
	ck_fails(daemon_config_parse("\nprot = 1;", "d.conf", &none, &err), &err,
	         "d.conf:2: prot: unknown key; did you mean port?");
	ck_fails(daemon_config_parse("heartbeat = 10.0;", "d.conf", &none, &err), &err, "node_timeout");
	ck_fails(daemon_config_read("/nonexistent.conf", &none, &err), &err, "/nonexistent.conf");
}
END_TEST

static int parse_hosts(const char *text, struct hosts **out, struct error *err)
{
	return hosts_parse(text, strlen(text), "hosts", out, err);
}

START_TEST(hosts_file)
{
	_cleanup_(hosts_freep) struct hosts *h = NULL;
	const struct host *self;
	struct error err = ERROR_INIT;

	ck_ok(parse_hosts("# cluster\n\nn1 slots=8\nn2\tslots=4 addr=10.0.0.2 port=1234 big nvlink # note\n",
	                  &h, &err),
	      &err);
	ck_assert_uint_eq(h->count, 2);
	ck_assert_str_eq(h->list[0].address, "n1");
	ck_assert_int_eq(h->list[1].port, 1234);
	ck_assert_str_eq(h->list[1].labels[1], "nvlink");
	ck_assert_ptr_eq(hosts_find(h, "N2"), &h->list[1]);
	ck_ok(hosts_find_self(h, "n2", &self, &err), &err);
	ck_assert_ptr_eq(self, &h->list[1]);
	ck_fails(hosts_find_self(h, "n9", &self, &err), &err,
	         "\"n9\" of dtraind.conf is not among the hosts");
}
END_TEST

static const struct {
	const char *text, *words;
} wrong_hosts[] = {
    {"", "no host in it"},
    {"# nothing\n", "no host in it"},
    {"n1 slots=4junk\n", "hosts:1: slots=4junk: not a whole number"},
    {"n1\nn2\nn1\n", "hosts:3: host n1 is already on line 1"},
    {"n1 port=0\n", "hosts:1: port=0"},
    {"n1 color=red\n", "'color=red' is not known"},
    {"bad/name\n", "'bad/name' is not a host name"},
    {"n1 addr=a/b\n", "not a host name or an address"},
};

START_TEST(wrong_hosts_files_say_where)
{
	struct hosts *h = NULL;
	struct error err = ERROR_INIT;

	ck_fails(parse_hosts(wrong_hosts[_i].text, &h, &err), &err, wrong_hosts[_i].words);
}
END_TEST

START_TEST(self_by_host_name_or_address)
{
	_cleanup_(hosts_freep) struct hosts *by_name = NULL, *by_address = NULL, *none = NULL, *two = NULL;
	_cleanup_free_ char *text = NULL;
	char name[256] = "";
	const struct host *self;
	struct error err = ERROR_INIT;

	gethostname(name, sizeof(name) - 1);
	text = str_printf("other addr=192.0.2.1\n%s.example.org addr=192.0.2.2\n", name);
	ck_ok(parse_hosts(text, &by_name, &err), &err);
	ck_ok(hosts_find_self(by_name, NULL, &self, &err), &err);
	ck_assert_ptr_eq(self, &by_name->list[1]);
	ck_ok(parse_hosts("a addr=192.0.2.1\nb addr=127.0.0.1\n", &by_address, &err), &err);
	ck_ok(hosts_find_self(by_address, NULL, &self, &err), &err);
	ck_assert_str_eq(self->name, "b");
	ck_ok(parse_hosts("a addr=192.0.2.1\n", &none, &err), &err);
	ck_fails(hosts_find_self(none, NULL, &self, &err), &err, "not among the hosts");
	ck_ok(parse_hosts("a addr=127.0.0.1\nb addr=127.0.0.1\n", &two, &err), &err);
	ck_fails(hosts_find_self(two, NULL, &self, &err), &err, "hosts a and b both have an address");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("config");
	TCase *t = tcase_create("config");

	tcase_add_test(t, run_file_with_defaults);
	tcase_add_test(t, packing_default_follows_the_task);
	tcase_add_test(t, json_round_trip);
	tcase_add_loop_test(t, wrong_run_files_say_where, 0, ARRAY_SIZE(wrong));
	tcase_add_test(t, services_believe_no_client);
	tcase_add_test(t, daemon_defaults_and_errors);
	tcase_add_test(t, hosts_file);
	tcase_add_loop_test(t, wrong_hosts_files_say_where, 0, ARRAY_SIZE(wrong_hosts));
	tcase_add_test(t, self_by_host_name_or_address);
	suite_add_tcase(s, t);
	return unit_run(s);
}
