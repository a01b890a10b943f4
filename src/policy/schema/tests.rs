//! Every rule of the schema, with the place that its error names.

use super::*;

fn parse(text: &str) -> Result<Policy, LoadError> {
    Policy::parse(text, "p.yaml")
}

/// The one error of `text`, without the file's name.
fn error(text: &str) -> String {
    let error = parse(text).unwrap_err();
    assert_eq!(error.problems.len(), 1, "{error}");
    error.to_string().strip_prefix("p.yaml:").unwrap().to_owned()
}

fn refuses(text: &str, expected: &str) {
    let error = error(text);
    assert!(error.contains(expected), "{text:?}\n  gave {error}\n  expected {expected}");
}

/// An endpoint with these fields, at line 5, column 9.
fn endpoint(fields: &str) -> String {
    format!("version: 1\nnetwork_policies:\n  k:\n    endpoints:\n      - {{{fields}}}\n")
}

#[test]
fn the_shipped_default_is_the_built_in_one() {
    let text = include_str!("../../../policies/default.yaml");
    assert_eq!(parse(text).unwrap(), Policy::restrictive_default());
}

#[test]
fn every_example_is_valid() {
    let mut examples = 0;
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/policies/examples")).unwrap() {
        Policy::load(&entry.unwrap().path()).unwrap_or_else(|error| panic!("{error}"));
        examples += 1;
    }
    assert!(examples >= 4);
}

#[test]
fn everything_that_the_schema_holds_is_read() {
    let policy = parse(
        "
version: 1
filesystem_policy:
  include_workdir: true
  read_only: [/srv//data/., /srv/data]
  read_write: [/home]
landlock: {compatibility: hard_requirement}
process: {run_as_user: sandbox, run_as_group: 1000}
network_policies:
  b:
    name: second
    endpoints:
      - {host: Example.COM., ports: [8443, 443, 443], tls: skip, enforcement: enforce}
      - {allowed_ips: [10.1.0.0/16, 192.168.1.1], port: 5432}
    binaries: [{path: /usr//bin/git}, {path: '**'}]
  a: {}
",
    )
    .unwrap();
    assert_eq!(policy.filesystem.read_only, [PathBuf::from("/srv/data")]);
    assert_eq!(policy.landlock, Compatibility::HardRequirement);
    assert_eq!(policy.process.user.as_deref(), Some("sandbox"));
    assert_eq!(policy.process.group.as_deref(), Some("1000"));
    let keys: Vec<&str> = policy.network.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, ["a", "b"]);
    let entry = &policy.network[1];
    assert_eq!(entry.endpoints[0].to_string(), "example.com:443,8443");
    assert!(entry.endpoints[0].tls_skip && !entry.endpoints[1].tls_skip);
    assert!(entry.endpoints[1].host.is_none() && entry.endpoints[1].lists("10.1.2.3".parse().unwrap()));
    let paths: Vec<&str> = entry.binaries.iter().map(|binary| &*binary.path).collect();
    assert_eq!(paths, ["/usr/bin/git", "**"]);
    assert!(entry.binaries.iter().all(|binary| binary.children));
}

#[test]
fn an_absent_file_system_section_includes_the_workdir_and_a_present_one_does_not() {
    assert!(parse("version: 1").unwrap().filesystem.include_workdir);
    assert!(!parse("{version: 1, filesystem_policy: {}}").unwrap().filesystem.include_workdir);
}

#[test]
fn no_network_section_or_an_empty_one_is_no_network() {
    for text in ["version: 1", "version: 1\nnetwork_policies: {}", "version: 1\nnetwork_policies:\n"] {
        assert!(parse(text).unwrap().network.is_empty());
    }
}

#[test]
fn files_that_are_no_policies_are_refused() {
    refuses("", "the file is empty");
    refuses("# nothing\n", "the file is empty");
    refuses("- a", "1:1: expected a mapping, found a list");
    refuses("7", "1:1: expected a mapping, found a single value");
    refuses("network_policies: {}", "1:1: version: missing; write 'version: 1' at the top");
    refuses("version: 2", "1:10: version: expected 1, found 2; write 1: this build knows no other");
    refuses("version: '1'", "1:10: version: expected 1, found the text \"1\"; write the digits, without quotes");
    refuses("version: 1\nversion: 1", "2:1: version: the key is given twice, first on line 1");
    refuses("version: 1\nproces: {}", "2:1: proces: unknown key; did you mean \"process\"?");
    refuses("version: 1\ninference: {}", "2:1: inference: unknown key; remove it; known here: version,");
    refuses("version: 1\nnetwork_middlewares: {}", "2:1: network_middlewares: not enforced by this build yet");
    let huge = format!("version: 1\n#{}", "x".repeat(1 << 20));
    refuses(&huge, "larger than 1048576 bytes");
}

#[test]
fn unreadable_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let load = |path: &Path| Policy::load(path).unwrap_err().to_string();
    assert!(load(&directory.path().join("absent")).contains("absent: cannot be read: No such file"));
    assert!(load(directory.path()).contains("not a regular file"));
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(load(&fifo).contains("not a regular file"));
    let latin = directory.path().join("latin");
    std::fs::write(&latin, b"version: 1\n# caf\xe9\n").unwrap();
    assert!(load(&latin).contains("latin:2:6: not UTF-8"), "{}", load(&latin));
    let large = directory.path().join("large");
    std::fs::File::create(&large).unwrap().set_len(1 << 40).unwrap();
    assert!(load(&large).contains("larger than 1048576 bytes"));
}

#[test]
fn file_system_rules() {
    let at = |text: &str| format!("version: 1\nfilesystem_policy:\n  {text}\n");
    refuses(&at("read_write: [/]"), "3:16: filesystem_policy.read_write[0]: the whole file system");
    refuses(&at("read_write: [//., /a]"), "3:16: filesystem_policy.read_write[0]: the whole file system");
    assert!(parse(&at("read_only: [/]")).is_ok());
    for proc in ["/proc", "//proc/.", "/proc/self", "/proc/sys/kernel"] {
        let place = "3:16: filesystem_policy.read_write[0]: programs could be rewritten through /proc/PID/mem;";
        refuses(&at(&format!("read_write: [{proc}]")), &format!("{place} list it under read_only"));
        assert!(parse(&at(&format!("read_only: [{proc}]"))).is_ok());
    }
    refuses(
        &at("read_write: [/a, /dev/]"),
        "3:20: filesystem_policy.read_write[1]: every device there is; list single",
    );
    refuses(&at("read_write: [/sys]"), "3:16: filesystem_policy.read_write[0]: every device and switch of the kernel;");
    assert!(parse(&at("read_write: [/dev/shm, /sys/class/gpio, /process, /device]")).is_ok());
    assert!(parse(&at("read_only: [/dev, /sys]")).is_ok());
    refuses(&at("read_only: [a]"), "3:15: filesystem_policy.read_only[0]: expected an absolute path");
    refuses(&at("read_only: [/a/../b]"), "3:15: filesystem_policy.read_only[0]: holds '..'");
    refuses(&at("read_only: [\"/a\\0b\"]"), "holds a control character");
    refuses(&at(&format!("read_only: [/{}]", "a".repeat(4096))), "longer than the 4095 bytes");
    refuses(&at("read_only: /a"), "3:14: filesystem_policy.read_only: expected a list, found a single value");
    refuses(&at("read_only: [{}]"), "3:15: filesystem_policy.read_only[0]: expected text, found a mapping");
    refuses(
        &at("include_workdir: yes"),
        "3:20: filesystem_policy.include_workdir: expected true or false, found \"yes\"",
    );
    refuses("version: 1\nfilesystem_policy:\n", "filesystem_policy: expected a mapping, found nothing");
    let many: Vec<String> = (0..257).map(|i| format!("/p{i}")).collect();
    refuses(&at(&format!("read_only: [{}]", many.join(", "))), "257 paths; expected at most 256");
}

#[test]
fn landlock_and_process_rules() {
    refuses("version: 1\nlandlock: {compatibility: maybe}", "2:27: landlock.compatibility: expected best_effort or");
    for bad in ["root", "0", "4294967295", "4294967296", "-1", "1x", "a b", "\"\"", "\"a\\n\""] {
        refuses(&format!("version: 1\nprocess: {{run_as_user: {bad}}}"), "2:24: process.run_as_user: expected");
        refuses(&format!("version: 1\nprocess: {{run_as_group: {bad}}}"), "2:25: process.run_as_group: expected");
    }
    for good in ["sandbox", "1", "4294967294", "'1000'", "_x-1"] {
        assert!(parse(&format!("version: 1\nprocess: {{run_as_user: {good}}}")).is_ok(), "{good}");
    }
}

#[test]
fn endpoint_rules() {
    for (fields, expected) in [
        ("port: 443", "5:9: network_policies.k.endpoints[0].host: missing"),
        ("host: a.example.com", "5:9: network_policies.k.endpoints[0].port: missing"),
        ("host: '*', port: 443", "5:16: network_policies.k.endpoints[0].host: the wildcard covers too much"),
        ("host: '**', port: 443", "the wildcard covers too much"),
        ("host: '*.com', port: 443", "the wildcard covers too much"),
        ("host: 'a.**.example.com', port: 443", "'**' must be the whole first label"),
        ("host: 'a.b*.example.com', port: 443", "must be the whole label '*'"),
        ("host: 'a.example.com:443', port: 443", "write the host alone, and the port under 'port'"),
        ("host: 'https://a.example.com/x', port: 443", "write the host alone, and the port under 'port'"),
        ("host: 'a b', port: 443", "the host contains ' '"),
        ("host: 1.2.3.4.5, port: 443", "ends in a number but is not an IPv4 address"),
        ("host: '[fe80::1%eth0]', port: 443", "zone id"),
        ("host: ~, port: 443", "expected text, found nothing"),
        ("host: a.example.com, port: 0", "expected a number from 1 to 65535, found 0; write a number of that range"),
        ("host: a.example.com, port: 65536", "expected a number from 1 to 65535"),
        ("host: a.example.com, port: '443'", "without quotes"),
        ("host: a.example.com, port: 443, ports: [443]", "both 'port' and 'ports' are given"),
        ("host: a.example.com, ports: []", "0 ports; expected 1 to 256"),
        ("host: a.example.com, ports: [443, x]", "network_policies.k.endpoints[0].ports[1]: expected a number"),
        ("host: a.example.com, port: 443, tls: terminate", "deprecated and means auto"),
        ("host: a.example.com, port: 443, tls: none", "expected auto or skip"),
        ("host: a.example.com, port: 443, enforcement: audit", "'audit' needs 'protocol'"),
        ("host: a.example.com, port: 443, enforcement: warn", "expected enforce or audit"),
        ("host: a.example.com, port: 443, hots: x", "unknown key; did you mean \"host\"?"),
        ("allowed_ips: [], port: 443", "0 ranges; expected 1 to 256"),
    ] {
        refuses(&endpoint(fields), expected);
    }
}

#[test]
fn what_is_not_enforced_is_refused_by_name() {
    for field in [
        "allow_uninspected_credentials: true",
        "credential_binding: {provider: x}",
        "credential_signing: sigv4",
        "request_body_credential_rewrite: true",
        "signing_region: x",
        "signing_service: x",
        "websocket_credential_rewrite: true",
    ] {
        let key = field.split(':').next().unwrap();
        let expected = format!("5:42: network_policies.k.endpoints[0].{key}: not enforced by this build yet");
        refuses(&endpoint(&format!("host: a.example.com, port: 443, {field}")), &expected);
    }
}

#[test]
fn address_ranges_that_are_never_dialled_are_refused() {
    for (range, expected) in [
        ("127.0.0.1", "holds loopback addresses"),
        ("0.0.0.0/0", "holds unspecified addresses"),
        ("128.0.0.0/1", "holds link-local and metadata addresses"),
        ("169.254.169.254", "holds link-local and metadata addresses"),
        ("224.0.0.0/8", "holds multicast addresses"),
        ("255.255.255.255", "holds reserved addresses"),
        ("'::/0'", "holds unspecified addresses"),
        ("'::1'", "holds loopback addresses"),
        ("'fe80::/16'", "holds link-local addresses"),
        ("'::ffff:10.0.0.0/104'", "holds IPv4-mapped addresses"),
        ("168.63.129.16", "is a cloud's metadata service"),
        ("'fd00:ec2::254'", "is a cloud's metadata service"),
        ("10.0.0.1/8", "has bits set after its prefix; write 10.0.0.0/8"),
        ("10.0.0.0/33", "expected an address or a range"),
        ("host.example.com", "expected an address or a range"),
    ] {
        refuses(&endpoint(&format!("allowed_ips: [{range}], port: 443")), expected);
    }
    for range in ["10.0.0.0/8", "192.168.1.1", "100.64.0.0/10", "'fd00::/8'", "8.8.8.8"] {
        assert!(parse(&endpoint(&format!("allowed_ips: [{range}], port: 443"))).is_ok(), "{range}");
    }
}

#[test]
fn program_rules() {
    let at = |binary: &str| format!("version: 1\nnetwork_policies:\n  k:\n    binaries: [{binary}]\n");
    refuses(&at("{path: curl}"), "4:23: network_policies.k.binaries[0].path: expected an absolute path");
    refuses(
        &at("/usr/bin/curl"),
        "4:16: network_policies.k.binaries[0]: expected a mapping, found \"/usr/bin/curl\"; write {path: /usr/bin/curl}",
    );
    refuses(&at("{}"), "4:16: network_policies.k.binaries[0].path: missing");
    refuses(&at("{path: /a/../b}"), "holds \"..\"");
    refuses(&at("{path: '/a/b**'}"), "'**' must be a whole segment");
    refuses(&at("{path: '/a/[bc]*'}"), "only '*' and '**' are wildcards");
    refuses(&at("{path: /a, children: no}"), "4:37: network_policies.k.binaries[0].children: expected true or false");
    refuses(
        &at("{path: /a, children: false}, {path: /a}"),
        "4:52: network_policies.k.binaries[1].path: listed before with 'children: false'",
    );
    let policy = parse(&at("{path: /a, children: false}, {path: /b, children: true}, {path: /a, children: false}"));
    let told: Vec<String> = policy.unwrap().network[0].binaries.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["/a alone", "/b"]);
    refuses(&at("{path: /a, harness: true}"), "4:27: network_policies.k.binaries[0].harness: deprecated");
}

#[test]
fn names_of_entries() {
    refuses(
        "version: 1\nnetwork_policies:\n  \"a\\nb\": {}\n",
        "3:3: network_policies.a\nb: expected 1 to 128 printable",
    );
    refuses("version: 1\nnetwork_policies: {'': {}}", "expected 1 to 128 printable ASCII");
    assert!(parse("version: 1\nnetwork_policies: {github ssh over https: {}}").is_ok());
}

#[test]
fn endpoints_that_answer_for_the_same_destination_must_agree() {
    let two = |one: &str, two: &str| {
        format!("version: 1\nnetwork_policies:\n  a:\n    endpoints: [{{{one}}}]\n  b:\n    endpoints: [{{{two}}}]\n")
    };
    let plain = "host: a.example.com, port: 443";
    for other in [
        "host: A.example.com, port: 443, tls: skip",
        "host: '*.example.com', port: 443, tls: skip",
        "host: '**.example.com', ports: [80, 443], tls: skip",
    ] {
        let expected = "6:17: network_policies.b.endpoints[0]: answers for the same host and port as \
                        network_policies.a.endpoints[0] on line 4 but differs in tls";
        refuses(&two(plain, other), expected);
        assert!(error(&two(other, plain)).contains("differs in tls"));
    }
    refuses(&two(plain, "host: a.example.com, port: 443, allowed_ips: [10.0.0.0/8]"), "differs in allowed_ips");
    for agreed in [
        plain,
        "host: a.example.com, port: 80, tls: skip",
        "host: b.example.com, port: 443, tls: skip",
        "host: '*.a.example.com', port: 443, tls: skip",
        "allowed_ips: [10.0.0.0/8], port: 443",
    ] {
        assert!(parse(&two(plain, agreed)).is_ok(), "{agreed}");
    }
}

#[test]
fn every_error_is_reported_at_once_in_the_order_of_the_file() {
    let error = parse(
        "version: 3\nproces: {}\nlandlock: {compatibility: x}\nnetwork_policies:\n  a:\n    endpoints:\n      - {host: '*', port: 0}\n",
    )
    .unwrap_err();
    let lines: Vec<u32> = error.problems.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [1, 2, 3, 7, 7]);
}

#[test]
fn a_file_full_of_errors_is_cut_short() {
    let text: String = (0..5000).map(|i| format!("k{i}: 1\n")).collect();
    assert_eq!(parse(&text).unwrap_err().problems.len(), crate::policy::problem::MAX_PROBLEMS);
}

#[test]
fn ten_thousand_endpoints_of_many_classes_are_checked_in_reasonable_time() {
    let mut text = String::from("version: 1\nnetwork_policies:\n  k:\n    endpoints:\n");
    for i in 0..10_000 {
        let tls = if i % 2 == 0 { ", tls: skip" } else { "" };
        let host = if i % 10 == 0 { format!("'*.h{i}.example.com'") } else { format!("h{i}.example.com") };
        text.push_str(&format!("      - {{host: {host}, port: 443{tls}}}\n"));
    }
    let started = std::time::Instant::now();
    assert!(parse(&text).is_ok());
    assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
}

proptest::proptest! {
    #[test]
    fn nothing_panics(text in "(version|network_policies|endpoints|host|port|a|\\*|:|-|\\[|\\]|\\{|\\}|,|\n| |'|1|/){0,40}") {
        let _ = parse(&text);
    }
}
