//! Promises 29.9 and on: `verify-fence --network-policy` sees a NetworkPolicy hold, in either family, and says when none does.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, TcpListener};
use std::process::Stdio;
use std::time::Duration;

use crate::trust::operators_ca;
use crate::two_pods::{AGENT_V6, PROXY_V6, Pods, SERVICE, finished};
use crate::world::{Daemon, MACHINE_V4, MACHINE_V6, ORIGIN_V4, ORIGIN_V6, World, supervisor};

/// An agent's pod; what is beyond the proxy's is routed through that, as by a node, and rules there are the cluster's. The
/// API server is the origin's.
struct Stage<'w> {
    world: &'w World,
    pods: Pods<'w>,
    _serving: [TcpListener; 2],
}

impl<'w> Stage<'w> {
    fn new(world: &'w World) -> Self {
        let pods = Pods::new(world, operators_ca(world).0);
        world
            .in_machine(|| {
                fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
                fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")
            })
            .expect("forwarding");
        world.route_from_origin("10.98.0.0/24", MACHINE_V4.into());
        world.route_from_origin("fd98::/64", MACHINE_V6.into());
        let proxy = world.in_machine(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, 3128)).expect("bind"));
        let api_server = world.listen(Ipv6Addr::UNSPECIFIED, 6443);
        Self { world, pods, _serving: [proxy, api_server] }
    }

    fn nft(&self, rules: &[&str]) {
        for rule in rules {
            let done = self.world.machine_program("nft").arg(rule).status().expect("nft (package nftables)");
            assert!(done.success(), "{rule}");
        }
    }

    fn verify(&self, api_server: impl Into<IpAddr>, flags: &[&str], timeout: &str) -> Daemon {
        let mut command = self.pods.container(supervisor());
        let api_server = api_server.into().to_string();
        command.env("KUBERNETES_SERVICE_HOST", api_server).env("KUBERNETES_SERVICE_PORT", "6443");
        command.args(["verify-fence", "--network-policy", "--timeout", timeout]).args(flags);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Daemon::spawn(command)
    }

    /// Sees what one says that gives up soon.
    #[track_caller]
    fn told(&self, api_server: impl Into<IpAddr>, flags: &[&str], code: i32, words: &str) {
        let outcome = finished(self.verify(api_server, flags, "0.2"));
        assert!(outcome.code == Some(code) && outcome.stderr.contains(words), "{words}: {outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    }
}

#[test]
fn a_network_policy_is_proven_and_its_absence_is_told() {
    let world = World::new();
    let stage = Stage::new(&world);
    let proxy = format!("{SERVICE}:3128");
    let control = ["--control", proxy.as_str()];
    // No policy, and nothing to compare with.
    stage.told(ORIGIN_V4, &control, 1, "10.99.0.2:6443 accepted a connection: no NetworkPolicy keeps this pod from it");
    stage.told(ORIGIN_V4, &[], 1, "name what the policy allows");
    stage.told(ORIGIN_V4, &["--api-server-allowed", control[0], control[1]], 1, "nothing that the policy must cut off");
    // It waits for a policy that comes late; one that drops, and one that rejects, as kube-router's.
    let waiting = stage.verify(ORIGIN_V4, &control, "30");
    std::thread::sleep(Duration::from_millis(300));
    stage.nft(&[
        "add table ip cluster",
        "add chain ip cluster forward { type filter hook forward priority 0; }",
        "add rule ip cluster forward ip saddr 10.98.0.2 drop",
    ]);
    let outcome = finished(waiting).expect(0);
    assert!(outcome.stderr.contains("stays silent") && outcome.stderr.contains("can be reached"), "{outcome:?}");
    for reject in ["icmp type port-unreachable", "icmp type admin-prohibited"] {
        stage.nft(&[
            "flush chain ip cluster forward",
            &format!("add rule ip cluster forward ip saddr 10.98.0.2 reject with {reject}"),
        ]);
        stage.told(ORIGIN_V4, &control, 0, "is prohibited by 10.98.0.1");
    }
    // A reset may be anybody's; a canary that nobody serves, or that has no address, is none.
    stage.nft(&[
        "flush chain ip cluster forward",
        "add rule ip cluster forward ip saddr 10.98.0.2 meta l4proto tcp reject with tcp reset",
    ]);
    stage.told(ORIGIN_V4, &control, 1, "answered by a reset");
    stage.nft(&["flush chain ip cluster forward", "add rule ip cluster forward ip saddr 10.98.0.2 drop"]);
    stage.told(
        ORIGIN_V4,
        &[control[0], control[1], "--canary", "canary.example:6443"],
        0,
        "canary.example:6443 (10.99.0.2:6443 stays silent)",
    );
    stage.told(ORIGIN_V4, &[control[0], control[1], "--canary", "10.98.0.1:1"], 1, "10.98.0.1:1 answered by a reset");
    // Where nothing at all can be reached nothing is proven.
    stage.nft(&[
        "add chain ip cluster input { type filter hook input priority 0; }",
        "add rule ip cluster input ip saddr 10.98.0.2 drop",
    ]);
    stage.told(ORIGIN_V4, &control, 1, "as long as it cannot be reached nothing is proven");
}

#[test]
fn a_network_policy_is_proven_in_ipv6_as_well_and_one_of_one_family_is_none() {
    let world = World::new();
    let stage = Stage::new(&world);
    let proxy = format!("[{PROXY_V6}]:3128");
    let control = ["--control", proxy.as_str()];
    let pod = AGENT_V6.to_string();
    let rule = |verdict: &str| format!("add rule inet cluster forward ip6 saddr {pod} {verdict}");
    stage.told(ORIGIN_V6, &control, 1, "[fd99::2]:6443 accepted a connection: no NetworkPolicy keeps this pod from it");
    // One that drops, and the ways in which routers refuse (RFC 4443 §3.1).
    stage.nft(&[
        "add table inet cluster",
        "add chain inet cluster forward { type filter hook forward priority 0; }",
        &rule("drop"),
    ]);
    stage.told(ORIGIN_V6, &control, 0, "stays silent");
    for reject in ["port-unreachable", "admin-prohibited", "policy-fail", "reject-route"] {
        stage.nft(&["flush chain inet cluster forward", &rule(&format!("reject with icmpv6 type {reject}"))]);
        stage.told(ORIGIN_V6, &control, 0, "is prohibited by fd98::1");
    }
    // What may be anybody's, or the network's own.
    stage.nft(&["flush chain inet cluster forward", &rule("meta l4proto tcp reject with tcp reset")]);
    stage.told(ORIGIN_V6, &control, 1, "answered by a reset");
    // A name with an address of either family, which such a policy leaves open in the other.
    stage.nft(&["flush chain inet cluster forward", "add rule inet cluster forward ip saddr 10.98.0.2 drop"]);
    let both = ["--control", proxy.as_str(), "--canary", "both.example:6443"];
    stage.told(ORIGIN_V4, &both, 1, "[fd99::2]:6443 accepted a connection");
    stage.nft(&[&rule("drop")]);
    stage.told(ORIGIN_V4, &both, 0, "([fd99::2]:6443 stays silent)");
    // In a pod without IPv6 the other address is what counts; an address alone that no way leads to proves nothing.
    stage.pods.without_ipv6();
    stage.told(ORIGIN_V4, &both, 0, "[fd99::2]:6443 cannot be tried");
    stage.told(ORIGIN_V6, &control, 1, "the pod's own network has no way there");
    stage.nft(&["flush chain inet cluster forward"]);
    stage.told(ORIGIN_V4, &both, 1, "10.99.0.2:6443 accepted a connection");
}
