//! Promises 26.x: pods for real whose fence the node's plugin raises, chained into Podman's network.

use crate::kubernetes::objects;
use crate::node::{NAMESPACE, Node, SANDBOX};
use crate::podman::{Manifest, Podman};
use crate::world::World;

#[test]
fn a_pod_is_fenced_by_the_plugin_alone() {
    let world = World::new();
    let node = Node::in_machine(&world);
    let podman = Podman::with_plugin(&world, &node);
    node.api.put(&objects::pod(NAMESPACE, "sandbox", "u-1", &SANDBOX));
    let (pod, output) = podman.play(&Manifest::of("cni-sidecar.yaml"));
    println!("{output:?}");
    println!("{}", pod.everything());
    println!("{}", podman.expect(["ps", "-a"]));
    println!("{}", std::fs::read_to_string(podman.path("env")).unwrap_or_default());
    println!("{}", node.log());
    panic!();
}
