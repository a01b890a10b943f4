//! Configurations in the shape that networks of the field give theirs.

use super::*;

const CALICO: &str = r#"{
  "name": "k8s-pod-network",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "calico",
      "log_level": "info",
      "log_file_path": "/var/log/calico/cni/cni.log",
      "datastore_type": "kubernetes",
      "nodename": "worker-1",
      "mtu": 0,
      "ipam": {
          "type": "calico-ipam"
      },
      "policy": {
          "type": "k8s"
      },
      "kubernetes": {
          "kubeconfig": "/etc/cni/net.d/calico-kubeconfig"
      }
    },
    {
      "type": "portmap",
      "snat": true,
      "capabilities": {"portMappings": true}
    },
    {
      "type": "bandwidth",
      "capabilities": {"bandwidth": true}
    }
  ]
}"#;

const FLANNEL: &str = "{\n  \"name\": \"cbr0\",\n  \"cniVersion\": \"0.3.1\",\n  \"plugins\": [\n    {\n      \"type\": \"flannel\",\n      \"delegate\": {\n        \"hairpinMode\": true,\n        \"isDefaultGateway\": true\n      }\n    },\n    {\n      \"type\": \"portmap\",\n      \"capabilities\": {\n        \"portMappings\": true\n      }\n    }\n  ]\n}\n";

const CILIUM: &str = "\n{\n  \"cniVersion\": \"0.3.1\",\n  \"name\": \"cilium\",\n  \"plugins\": [\n    {\n       \"type\": \"cilium-cni\",\n       \"enable-debug\": false,\n       \"log-file\": \"/var/run/cilium/cilium-cni.log\"\n    }\n  ]\n}\n";

const KINDNET: &str = "\n{\n\t\"cniVersion\": \"0.3.1\",\n\t\"name\": \"kindnet\",\n\t\"plugins\": [\n\t{\n\t\t\"type\": \"ptp\",\n\t\t\"ipMasq\": false,\n\t\t\"ipam\": {\n\t\t\t\"type\": \"host-local\",\n\t\t\t\"dataDir\": \"/run/cni-ipam-state\",\n\t\t\t\"routes\": [\n\t\t\t\t{ \"dst\": \"0.0.0.0/0\" }\n\t\t\t],\n\t\t\t\"ranges\": [\n\t\t\t\t[ { \"subnet\": \"10.244.0.0/24\" } ]\n\t\t\t]\n\t\t}\n\t\t,\n\t\t\"mtu\": 1500\n\t},\n\t{\n\t\t\"type\": \"portmap\",\n\t\t\"capabilities\": {\n\t\t\t\"portMappings\": true\n\t\t}\n\t}\n\t]\n}\n";

const MULTUS_LIST: &str = r#"{"cniVersion":"0.3.1","name":"multus-cni-network","plugins":[{"type":"multus","kubeconfig":"/etc/cni/net.d/multus.d/multus.kubeconfig","delegates":[{"cniVersion":"0.3.1","name":"cbr0","plugins":[{"type":"flannel","name":"flannel.1"},{"type":"portmap","externalSetMarkChain":"KUBE-MARK-MASQ"}]}]}]}"#;

const PODMAN: &str = "{\n  \"cniVersion\": \"0.4.0\",\n  \"name\": \"podman\",\n  \"plugins\": [\n    {\n      \"type\": \"bridge\",\n      \"bridge\": \"cni-podman0\",\n      \"isGateway\": true,\n      \"ipMasq\": true,\n      \"hairpinMode\": true,\n      \"ipam\": {\n        \"type\": \"host-local\",\n        \"routes\": [{ \"dst\": \"0.0.0.0/0\" }],\n        \"ranges\": [[{ \"subnet\": \"10.88.0.0/16\", \"gateway\": \"10.88.0.1\" }]]\n      }\n    },\n    { \"type\": \"portmap\", \"capabilities\": { \"portMappings\": true } },\n    { \"type\": \"firewall\" },\n    { \"type\": \"tuning\" }\n  ]\n}\n";

#[test]
fn lists_of_the_field_are_chained_onto_and_given_back() {
    for (name, text, plugins) in [
        ("10-calico.conflist", CALICO, 3),
        ("10-flannel.conflist", FLANNEL, 2),
        ("05-cilium.conflist", CILIUM, 1),
        ("10-kindnet.conflist", KINDNET, 2),
        ("00-multus.conflist", MULTUS_LIST, 1),
        ("87-podman-bridge.conflist", PODMAN, 4),
    ] {
        let node = Node::with(name, text);
        node.write("calico-kubeconfig", "# Kubeconfig file for Calico CNI plugin.\napiVersion: v1\nkind: Config\n");
        assert_eq!(node.install().0, node.chained(name));
        let chained: Value = serde_json::from_str(&node.read(name)).unwrap();
        let list = chained["plugins"].as_array().unwrap();
        assert_eq!(list.len(), plugins + 1, "{name}");
        assert_eq!(list[plugins]["type"], PLUGIN_TYPE);
        let mut without = chained.clone();
        without["plugins"].as_array_mut().unwrap().pop();
        assert_eq!(without, serde_json::from_str::<Value>(text).unwrap());
        node.remove();
        assert_eq!(node.read(name), text);
    }
}

#[test]
fn single_plugins_of_the_field_are_stood_in_for() {
    // The bridge of a kubeadm by hand, and OVN as its node daemon writes it where no multus is.
    for (name, text) in [
        (
            "10-bridge.conf",
            r#"{"cniVersion":"0.3.1","name":"bridge","type":"bridge","bridge":"cnio0","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.200.1.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}"#,
        ),
        (
            "10-ovn-kubernetes.conf",
            r#"{"cniVersion":"0.4.0","name":"ovn-kubernetes","type":"ovn-k8s-cni-overlay","ipam":{},"dns":{},"logFile":"/var/log/ovn-kubernetes/ovn-k8s-cni-overlay.log","logLevel":"5","logfile-maxsize":100}"#,
        ),
    ] {
        let node = Node::with(name, text);
        assert!(node.install().0.is_chained());
        assert_eq!(node.names()[1], name);
        node.remove();
        assert_eq!((node.names(), node.read(name)), (vec![name.to_owned()], text.to_owned()));
    }
}

#[test]
fn multus_own_single_file_is_left_to_multus() {
    let text = r#"{"capabilities":{"portMappings":true},"cniVersion":"0.3.1","logLevel":"verbose","name":"multus-cni-network","clusterNetwork":"/host/run/multus/cni/net.d/10-ovn-kubernetes.conf","type":"multus-shim","auxiliaryCNIChainName":"vendor-cni-chain"}"#;
    let node = Node::with("00-multus.conf", text);
    let (verdict, changes) = node.install();
    assert!(why(&verdict).contains("multus"), "{verdict}");
    assert_eq!(changes, []);
    // Control: the same shape of any other plugin is stood in for.
    node.write("00-multus.conf", text.replace("multus-shim", "bridge"));
    assert!(node.install().0.is_chained());
}
