# May this program reach this destination? Stage one of every connection, asked once per destination and program.
#
# The shapes of input, data and result are in README.md. Everything here is a lookup: `data.index` is prepared when a
# policy is loaded, so that the cost of a question does not grow with the number of endpoints.
package openshell.egress

import rego.v1

# Whatever is not understood is refused.
default decision := {
	"action": "deny",
	"reason": "the question is malformed: expected input.network with host and port",
	"policy": null,
	"endpoints": [],
}

decision := {
	"action": "allow",
	"reason": concat("", ["entry ", first_policy(granted), " allows ", destination]),
	"policy": first_policy(granted),
	"endpoints": [{"policy": e.policy, "index": e.index} | some e in granted],
} if {
	count(granted) > 0
} else := {
	"action": "deny",
	"reason": concat("", [program, " may not reach ", destination, ": ", allowed_programs(first_policy(open))]),
	"policy": first_policy(open),
	"endpoints": [],
} if {
	count(open) > 0
} else := {
	"action": "deny",
	"reason": concat("", [
		"port ", port_text, " of ", input.network.host, " is not allowed: entry ", first_policy(named),
		" lists ", concat(", ", [format_int(p, 10) | some p in listed_ports]),
	]),
	"policy": first_policy(named),
	"endpoints": [],
} if {
	count(named) > 0
} else := {
	"action": "deny",
	"reason": concat("", ["no policy entry allows ", destination]),
	"policy": null,
	"endpoints": [],
} if {
	destination
}

port_text := format_int(input.network.port, 10)

destination := concat(":", [bracketed, port_text])

bracketed := concat("", ["[", input.network.host, "]"]) if contains(input.network.host, ":")

bracketed := input.network.host if not contains(input.network.host, ":")

# --- destinations -----------------------------------------------------------------------------------------------------

labels := split(input.network.host, ".")

# Endpoints that name the host, exactly or by a pattern.
named := array.concat(exact, patterned)

default exact := []

exact := data.index.hosts[input.network.host]

patterned := [e |
	count(data.index.suffixes) > 0

	# A pattern's suffix has two labels or more, and a wildcard stands for one at least.
	count(labels) > 2
	some i in numbers.range(1, count(labels) - 2)
	some e in data.index.suffixes[concat(".", array.slice(labels, i, count(labels)))]
	extra := count(labels) - e.size
	reaches(e.deep, extra)
	every j, pattern in e.labels {
		label_fits(pattern, labels[extra + j])
	}
]

reaches(true, extra) if extra > 0

reaches(false, extra) if extra == 0

label_fits(pattern, _) if pattern == "*"

label_fits(pattern, label) if {
	pattern != "*"
	pattern == label
}

label_fits(pattern, label) if {
	pattern != "*"
	contains(pattern, "*")
	glob.match(pattern, [], label)
}

# Of those, the ones on the port asked for; and the ones without a host, whose addresses are checked when dialling.
open := [e |
	some e in array.concat(named, data.index.hostless)
	input.network.port in e.ports
]

listed_ports := {p |
	some e in named
	e.policy == first_policy(named)
	some p in e.ports
}

first_policy(endpoints) := min({e.policy | some e in endpoints})

# --- programs ---------------------------------------------------------------------------------------------------------

granted := [e |
	some e in open
	permitted(e.policy)
]

# The program and what started it: an entry for /usr/bin/git covers the helpers that git runs, unless it says
# `children: false`.
paths := array.concat([input.process.path], input.process.ancestors)

permitted(_) if data.runtime.require_binary_identity == false

permitted(policy) if {
	# Said in so many words: not every engine leaves a call alone whose arguments are undefined.
	input.process.path
	fits(data.index.programs[policy], paths)
}

# What lends its right to nobody is the connecting program itself.
permitted(policy) if {
	input.process.path
	fits(data.index.programs[policy].alone, [input.process.path])
}

fits(tests, _) if tests.any

fits(tests, candidates) if {
	some path in candidates
	tests.exact[path]
}

fits(tests, candidates) if {
	some directory in tests.below
	some path in candidates
	startswith(path, directory)
}

fits(tests, candidates) if {
	some pattern in tests.regex
	some path in candidates
	regex.match(pattern, path)
}

default program := "an unidentified program"

program := input.process.path if count(input.process.ancestors) == 0

program := concat("", [input.process.path, " (started by ", concat(" < ", nearest), ")"]) if {
	count(input.process.ancestors) > 0
}

nearest := array.slice(input.process.ancestors, 0, shown)

# Programs named in a refusal: enough to see what was meant.
shown := 8

allowed_programs(policy) := concat("", ["entry ", policy, " names no program"]) if {
	count(data.network_policies[policy].binaries) == 0
} else := concat("", ["entry ", policy, " allows ", concat(", ", names), more]) if {
	binaries := data.network_policies[policy].binaries
	names := [named_program(binary) | some binary in array.slice(binaries, 0, shown)]
	more := and_more(count(binaries) - shown)
}

named_program(binary) := binary.path if binary.children

named_program(binary) := concat("", [binary.path, " alone"]) if not binary.children

and_more(rest) := concat("", [" and ", format_int(rest, 10), " more"]) if rest > 0

and_more(rest) := "" if rest <= 0
