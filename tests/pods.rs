//! Promises 20.x: pods for real, from images that are built here and the manifests of `images/pods`.

use std::time::Duration;

use serde_json::json;

use crate::podman::{GATEWAY_V4, Manifest, Podman, text};
use crate::world::{ORIGIN_V4, World};

/// A pod whose agent runs what an init container has laid into its volume.
const SIDELOADED: &str = r"
apiVersion: v1
kind: Pod
metadata: {name: sideloaded, annotations: {io.podman.annotations.init.container.type: always}}
spec:
  restartPolicy: Never
  volumes: [{name: bin, emptyDir: {}}]
  initContainers:
    - name: install
      image: localhost/openshell-supervisor
      command: [/openshell-sideload, /opt/openshell/bin/]
      securityContext: &unprivileged
        {runAsUser: 1000, runAsGroup: 1000, runAsNonRoot: true, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true,
         capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
      volumeMounts: [{name: bin, mountPath: /opt/openshell/bin}]
    - name: wait
      image: localhost/openshell-supervisor
      command: [/openshell-supervisor, wait-for-tcp, 'api.example.com:3128', --timeout, '20']
      securityContext: *unprivileged
  containers:
    - name: agent
      image: localhost/openshell-sandbox
      command: [/opt/openshell/bin/openshell-supervisor, --version]
      securityContext: *unprivileged
      volumeMounts: [{name: bin, mountPath: /opt/openshell/bin, readOnly: true}]
";

#[test]
fn the_supervisor_image_holds_one_executable_and_links_that_choose_roles() {
    let world = World::new();
    let podman = Podman::new(&world);
    let run = |arguments: &[&str]| {
        let mut all = vec!["run", "--rm", "--read-only", "--user=4242:4242", "--cap-drop=all"];
        all.extend(["--security-opt=no-new-privileges", "--network=none"]);
        all.extend(arguments);
        podman.output(all)
    };
    let listed = run(&["localhost/openshell-supervisor", "--list"]);
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    for role in ["sideload", "wait-for-tcp", "health", "network"] {
        assert!(text(&listed.stdout).contains(role), "{role}: {}", text(&listed.stdout));
        let entry = format!("--entrypoint=/openshell-{role}");
        let help = run(&[&entry, "localhost/openshell-supervisor", "--help"]);
        assert!(text(&help.stdout).contains(&format!("Usage: openshell-supervisor {role}")), "{}", text(&help.stdout));
    }
    // Control: nothing else is there to be run.
    for absent in ["/bin/sh", "/usr/bin/env"] {
        let entry = format!("--entrypoint={absent}");
        assert!(!run(&[&entry, "localhost/openshell-supervisor"]).status.success(), "{absent}");
        assert!(run(&[&entry, "localhost/openshell-sandbox"]).status.success(), "{absent}");
    }
    // The agents' image can do what agents do.
    let curl = run(&["localhost/openshell-sandbox", "curl", "--version"]);
    assert!(text(&curl.stdout).contains("https"), "{}", text(&curl.stderr));
}

#[test]
fn init_containers_sideload_and_wait_without_a_privilege() {
    let world = World::new();
    let _service = world.listen(ORIGIN_V4, 3128);
    let podman = Podman::new(&world);
    let mut manifest = Manifest::parse(SIDELOADED);
    let pod = podman.start(&manifest);
    assert_eq!(pod.end_of("agent", Duration::from_secs(20)).0, 0, "{}", pod.everything());
    assert!(pod.logs("agent").starts_with("openshell-supervisor "), "{}", pod.everything());
    assert!(pod.logs("install").contains(" to /opt/openshell/bin/openshell-supervisor"), "{}", pod.everything());
    assert!(pod.logs("wait").contains("api.example.com accepts at 10.99.0.2:3128"), "{}", pod.everything());
    drop(pod);
    // Control: a volume that cannot be written keeps the agent from starting, and the init container says why.
    manifest.container("install")["volumeMounts"][0]["readOnly"] = json!(true);
    let (pod, _) = podman.play(&manifest);
    assert!(pod.logs("install").contains("without readOnly"), "{}", pod.everything());
    assert_eq!(pod.logs("agent"), "");
    let _ = GATEWAY_V4;
}
