package openshell.egress_test

import data.openshell.egress
import rego.v1

runtime := {"require_binary_identity": true}

relaxed := {"require_binary_identity": false}

policies := {
	"any": {"binaries": [lending("**")]},
	"everyone": {"binaries": [alone("**")]},
	"git": {"binaries": [lending("/usr/bin/git")]},
	"none": {"binaries": []},
	"psql": {"binaries": [alone("/usr/bin/psql"), alone("/opt/sql/**"), alone("/usr/bin/pg_*"), lending("/usr/bin/make")]},
	"tools": {"binaries": [lending("/opt/tools/**"), lending("/usr/bin/python3*")]},
}

lending(path) := {"path": path, "children": true}

alone(path) := {"path": path, "children": false}

nobody := {"any": false, "exact": {}, "below": [], "regex": []}

index := {
	"hosts": {
		"github.com": [{"policy": "git", "index": 0, "ports": [443]}],
		"mirror.example.com": [
			{"policy": "any", "index": 0, "ports": [80, 443]},
			{"policy": "git", "index": 1, "ports": [443]},
		],
		"db.example.com": [{"policy": "psql", "index": 0, "ports": [5433]}],
		"everyone.example.com": [{"policy": "everyone", "index": 0, "ports": [443]}],
		"silent.example.com": [{"policy": "none", "index": 0, "ports": [443]}],
		"2001:db8::1": [{"policy": "any", "index": 1, "ports": [443]}],
	},
	"suffixes": {
		"example.org": [
			{"policy": "tools", "index": 0, "ports": [443], "deep": false, "labels": ["*"], "size": 3},
			{"policy": "tools", "index": 1, "ports": [8443], "deep": true, "labels": [], "size": 2},
		],
		"example.net": [
			{"policy": "any", "index": 2, "ports": [443], "deep": false, "labels": ["*-api"], "size": 3},
			{"policy": "any", "index": 3, "ports": [443], "deep": false, "labels": ["eu", "*"], "size": 4},
		],
	},
	"hostless": [{"policy": "any", "index": 4, "ports": [5432]}],
	"programs": {
		"any": {"any": true, "exact": {}, "below": [], "regex": [], "alone": nobody},
		"everyone": {
			"any": false, "exact": {}, "below": [], "regex": [],
			"alone": {"any": true, "exact": {}, "below": [], "regex": []},
		},
		"git": {"any": false, "exact": {"/usr/bin/git": true}, "below": [], "regex": [], "alone": nobody},
		"none": {"any": false, "exact": {}, "below": [], "regex": [], "alone": nobody},
		"psql": {
			"any": false, "exact": {"/usr/bin/make": true}, "below": [], "regex": [],
			"alone": {
				"any": false,
				"exact": {"/usr/bin/psql": true},
				"below": ["/opt/sql/"],
				"regex": ["^/usr/bin/pg_[^/]*$"],
			},
		},
		"tools": {
			"any": false, "exact": {}, "below": ["/opt/tools/"], "regex": ["^/usr/bin/python3[^/]*$"],
			"alone": nobody,
		},
	},
}

ask(host, port, process) := answer if {
	answer := egress.decision with input as {"network": {"host": host, "port": port}, "process": process}
		with data.runtime as runtime
		with data.network_policies as policies
		with data.index as index
}

by(path) := {"path": path, "sha256": "00", "ancestors": []}

under(path, ancestors) := {"path": path, "sha256": "00", "ancestors": ancestors}

test_exact_host_is_allowed if {
	answer := ask("github.com", 443, by("/usr/bin/git"))
	answer.action == "allow"
	answer.policy == "git"
	answer.endpoints == [{"policy": "git", "index": 0}]
}

test_unlisted_host_is_denied_by_name if {
	answer := ask("example.edu", 443, by("/usr/bin/git"))
	answer.action == "deny"
	answer.reason == "no policy entry allows example.edu:443"
	answer.policy == null
}

test_unlisted_port_is_denied_with_the_listed_ones if {
	answer := ask("mirror.example.com", 22, by("/usr/bin/git"))
	answer.action == "deny"
	answer.reason == "port 22 of mirror.example.com is not allowed: entry any lists 80, 443"
}

test_other_program_is_denied_with_the_allowed_ones if {
	answer := ask("github.com", 443, by("/usr/bin/curl"))
	answer.action == "deny"
	answer.policy == "git"
	answer.reason == "/usr/bin/curl may not reach github.com:443: entry git allows /usr/bin/git"
}

test_denied_program_is_shown_with_what_started_it if {
	answer := ask("github.com", 443, under("/usr/bin/curl", ["/usr/bin/bash", "/usr/bin/node"]))
	startswith(answer.reason, "/usr/bin/curl (started by /usr/bin/bash < /usr/bin/node) may not reach github.com:443")
}

test_ancestor_grants if {
	ask("github.com", 443, under("/usr/lib/git-core/git-remote-https", ["/usr/bin/git"])).action == "allow"
}

test_program_that_lends_nothing_is_allowed_itself if {
	ask("db.example.com", 5433, by("/usr/bin/psql")).action == "allow"
	ask("db.example.com", 5433, by("/opt/sql/deep/x")).action == "allow"
	ask("db.example.com", 5433, by("/usr/bin/pg_dump")).action == "allow"
	ask("db.example.com", 5433, under("/usr/bin/psql", ["/usr/bin/bash"])).action == "allow"
	ask("everyone.example.com", 443, by("/x")).action == "allow"
}

test_program_that_lends_nothing_is_no_ancestor if {
	answer := ask("db.example.com", 5433, under("/usr/bin/bash", ["/usr/bin/psql"]))
	answer.action == "deny"
	endswith(answer.reason, concat("", [
		"entry psql allows /usr/bin/psql alone, /opt/sql/** alone, /usr/bin/pg_* alone, ",
		"/usr/bin/make",
	]))
	ask("db.example.com", 5433, under("/usr/bin/bash", ["/opt/sql/x"])).action == "deny"
	ask("db.example.com", 5433, under("/usr/bin/bash", ["/usr/bin/pg_dump"])).action == "deny"
}

test_other_programs_of_the_same_entry_lend_as_ever if {
	ask("db.example.com", 5433, under("/usr/bin/bash", ["/usr/bin/psql", "/usr/bin/make"])).action == "allow"
}

test_nobody_in_particular_is_not_every_program if {
	answer := egress.decision with input as {"network": {"host": "everyone.example.com", "port": 443}}
		with data.runtime as runtime
		with data.network_policies as policies
		with data.index as index
	answer.action == "deny"
}

test_entry_without_programs_grants_nothing if {
	answer := ask("silent.example.com", 443, by("/usr/bin/git"))
	answer.action == "deny"
	endswith(answer.reason, "entry none names no program")
}

test_all_matching_endpoints_are_returned_under_the_first_entry if {
	answer := ask("mirror.example.com", 443, by("/usr/bin/git"))
	answer.policy == "any"
	answer.endpoints == [{"policy": "any", "index": 0}, {"policy": "git", "index": 1}]
}

test_only_the_program_s_endpoints_are_returned if {
	answer := ask("mirror.example.com", 443, by("/usr/bin/curl"))
	answer.endpoints == [{"policy": "any", "index": 0}]
}

test_star_is_one_label if {
	ask("a.example.org", 443, by("/opt/tools/x")).action == "allow"
	ask("a.b.example.org", 443, by("/opt/tools/x")).action == "deny"
	ask("example.org", 443, by("/opt/tools/x")).reason == "no policy entry allows example.org:443"
}

test_two_stars_are_one_label_or_more if {
	ask("a.example.org", 8443, by("/opt/tools/x")).action == "allow"
	ask("c.b.a.example.org", 8443, by("/opt/tools/x")).action == "allow"
	ask("example.org", 8443, by("/opt/tools/x")).action == "deny"
}

test_partial_label if {
	ask("eu-api.example.net", 443, by("/x")).action == "allow"
	ask("eu-apis.example.net", 443, by("/x")).action == "deny"
	ask("x.eu-api.example.net", 443, by("/x")).action == "deny"
}

test_star_in_a_middle_label if {
	ask("eu.a.example.net", 443, by("/x")).action == "allow"
	ask("us.a.example.net", 443, by("/x")).action == "deny"
}

test_suffix_is_whole_labels if {
	ask("a.badexample.org", 443, by("/opt/tools/x")).action == "deny"
}

test_programs_below_a_directory if {
	ask("a.example.org", 443, by("/opt/tools/deep/er/x")).action == "allow"
	ask("a.example.org", 443, by("/opt/toolsx")).action == "deny"
}

test_programs_by_pattern if {
	ask("a.example.org", 443, by("/usr/bin/python3.11")).action == "allow"
	ask("a.example.org", 443, by("/usr/bin/python3/evil")).action == "deny"
}

test_endpoint_without_host_is_open_on_its_port_only if {
	ask("db.example.edu", 5432, by("/x")).action == "allow"
	ask("db.example.edu", 5433, by("/x")).reason == "no policy entry allows db.example.edu:5433"
}

test_ipv6_address if {
	ask("2001:db8::1", 443, by("/x")).action == "allow"
	ask("2001:db8::2", 443, by("/x")).reason == "no policy entry allows [2001:db8::2]:443"
}

test_single_label_host if {
	ask("localhost", 443, by("/x")).reason == "no policy entry allows localhost:443"
}

test_missing_process_is_denied_where_identity_is_required if {
	answer := egress.decision with input as {"network": {"host": "mirror.example.com", "port": 443}}
		with data.runtime as runtime
		with data.network_policies as policies
		with data.index as index
	answer.action == "deny"
	startswith(answer.reason, "an unidentified program may not reach mirror.example.com:443")
}

test_missing_process_is_no_matter_in_relaxed_mode if {
	answer := egress.decision with input as {"network": {"host": "github.com", "port": 443}}
		with data.runtime as relaxed
		with data.network_policies as policies
		with data.index as index
	answer.action == "allow"
}

test_missing_runtime_is_not_relaxed if {
	answer := egress.decision with input as {"network": {"host": "github.com", "port": 443}}
		with data.runtime as {}
		with data.network_policies as policies
		with data.index as index
	answer.action == "deny"
}

test_malformed_question_is_denied if {
	answer := egress.decision with input as {"network": {"host": 7}}
		with data.runtime as relaxed
		with data.network_policies as policies
		with data.index as index
	answer.action == "deny"
	startswith(answer.reason, "the question is malformed")
}
