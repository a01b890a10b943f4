//! Kubeconfigs and service accounts, good and bad.

use super::kubernetes::rights;
use super::{Cluster, USER};
use crate::kube::access::Access;
use crate::kube::server::Server;
use crate::kube::{Client, Resource};

const SECRET: &str = "sEcReT-0123";

/// What is wrong with a kubeconfig; its secret must not be in it.
fn refusal(cluster: &Cluster, text: impl AsRef<[u8]>) -> String {
    let error = Access::from_kubeconfig(&cluster.file("config", text)).unwrap_err();
    for shown in [error.to_string(), format!("{error:?}")] {
        assert!(!shown.contains(SECRET), "{shown}");
    }
    let text = error.to_string();
    text[text.find("config: ").unwrap() + "config: ".len()..].to_owned()
}

async fn uid(access: Access) -> String {
    Client::new(access).metadata(&Resource::pod("agents", "a-0").unwrap()).await.unwrap().metadata.uid
}

#[tokio::test]
async fn every_way_of_writing_a_kubeconfig_leads_there() {
    let cluster = Cluster::start();
    let written = cluster.api.kubeconfig(&cluster.token);
    assert_eq!(uid(cluster.access()).await, "uid-1");

    // JSON is YAML.
    let tree: serde_json::Value = serde_saphyr::from_str(&written).unwrap();
    let json = cluster.file("json", tree.to_string());
    let access = Access::from_kubeconfig(&json).unwrap();
    assert_eq!((access.server(), access.namespace()), (cluster.api.url(), Some("openshell")));
    assert_eq!(uid(access).await, "uid-1");

    // Files, relative to the kubeconfig's directory, in both spellings.
    cluster.file("ca.pem", cluster.api.ca());
    cluster.file("the-token", format!("{}\n", cluster.token));
    for key in ["tokenFile", "token-file"] {
        let text = cluster.api.kubeconfig_for(&format!("{key}: the-token"));
        let lines = text.lines().map(|line| match line.split_once("certificate-authority-data") {
            Some((indent, _)) => format!("{indent}certificate-authority: ca.pem"),
            None => line.to_owned(),
        });
        let path = cluster.file("files", lines.collect::<Vec<_>>().join("\n"));
        assert_eq!(uid(Access::from_kubeconfig(&path).unwrap()).await, "uid-1", "{key}");
    }

    // The file's token wins, as kubectl has it.
    let text = cluster.api.kubeconfig_for(&format!("tokenFile: the-token\n    token: {SECRET}"));
    assert_eq!(uid(Access::from_kubeconfig(&cluster.file("both", text)).unwrap()).await, "uid-1");
}

#[tokio::test]
async fn a_service_account_leads_there_and_its_token_is_read_anew() {
    let cluster = Cluster::start();
    let ca = cluster.file("ca.crt", cluster.api.ca());
    let directory = ca.parent().unwrap();
    cluster.file("token", &cluster.token);
    cluster.file("namespace", "openshell\n");
    let port = cluster.api.address().port().to_string();
    let access = Access::in_cluster_at(directory, Some("127.0.0.1"), Some(&port)).unwrap();
    assert_eq!(access.namespace(), Some("openshell"));
    let client = Client::new(access);
    let pod = Resource::pod("agents", "a-0").unwrap();
    client.metadata(&pod).await.unwrap();

    cluster.api.expire(&cluster.token);
    let error = client.metadata(&pod).await.unwrap_err().to_string();
    assert!(error.contains("unauthorized (401)") && !error.contains(&cluster.token), "{error}");
    cluster.file("token", cluster.api.token(USER, &[rights::pods("agents")]));
    client.metadata(&pod).await.unwrap();

    let missing = |host, port| Access::in_cluster_at(directory, host, port).unwrap_err().to_string();
    assert!(missing(None, Some("443")).starts_with("KUBERNETES_SERVICE_HOST: it is not set; "));
    assert!(missing(Some("10.0.0.1"), Some("")).starts_with("KUBERNETES_SERVICE_PORT: it is not set; "));
    assert!(missing(Some("10.0.0.1"), Some("x")).starts_with("KUBERNETES_SERVICE_PORT: it is no port; "));
    std::fs::remove_file(directory.join("token")).unwrap();
    let error = missing(Some("127.0.0.1"), Some("443"));
    assert!(error.contains("/token: No such file"), "{error}");
    // Of IPv6 as well.
    cluster.file("token", SECRET);
    let access = Access::in_cluster_at(directory, Some("fd00::1"), Some("443")).unwrap();
    assert_eq!(access.server(), "https://[fd00::1]:443");
    assert!(!format!("{access:?}").contains(SECRET));
}

#[test]
fn what_is_no_kubeconfig_is_refused() {
    let cluster = Cluster::start();
    let absent = cluster.file("x", "").with_file_name("absent");
    let error = Access::from_kubeconfig(&absent).unwrap_err();
    assert!(error.problem.contains("No such file") && error.place.ends_with("/absent"), "{error}");
    assert!(Access::from_kubeconfig(absent.parent().unwrap()).unwrap_err().problem.contains("no regular file"));
    assert!(refusal(&cluster, "").starts_with("it is empty; expected a kubeconfig"));
    assert!(refusal(&cluster, " \n\n").starts_with("it is empty; "));
    assert!(refusal(&cluster, [0xff, 0xfe]).starts_with("it is not UTF-8; "));
    assert!(refusal(&cluster, vec![b'#'; 3 << 20]).starts_with("it is longer than 2097152 bytes; "));
    let text = refusal(&cluster, format!("users:\n- {SECRET}: [{SECRET}\n"));
    assert!(text.starts_with("neither YAML nor JSON, near line "), "{text}");
    assert!(refusal(&cluster, format!("token: {SECRET}\ntoken: {SECRET}\n")).starts_with("neither YAML nor JSON"));
    assert!(refusal(&cluster, SECRET).starts_with("it is no mapping; "));
    assert!(refusal(&cluster, "kind: Pod\n").starts_with("kind: it is not Config; "));
    assert!(refusal(&cluster, "kind: Config\n").starts_with("current-context: it is missing or empty; "));
    let bomb = (1..40).fold("a0: &a0 [x, x]\n".to_owned(), |text, i| {
        text + &format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 9].join(", "))
    });
    assert!(refusal(&cluster, bomb).starts_with("neither YAML nor JSON"));
}

#[test]
fn what_is_missing_wrong_or_unsafe_is_named_and_nothing_secret_is() {
    let cluster = Cluster::start();
    let good = cluster.api.kubeconfig(SECRET);
    Access::from_kubeconfig(&cluster.file("config", &good)).unwrap();
    let (server, ca) = (good.lines().find(|line| line.contains("server:")).unwrap(), "certificate-authority-data:");
    let ca = good.lines().find(|line| line.contains(ca)).unwrap();
    let token = format!("    token: {SECRET}");
    let cluster_is = |line: &str| format!("    {line}\n{server}");
    let user = |lines: &str| format!("    {}", lines.replace('\n', "\n    "));
    // What is replaced by what, and what is then said.
    let cases: Vec<(&str, String, &str)> = vec![
        (
            "current-context: default",
            "current-context: other".into(),
            "contexts: there is no context \"other\"; add it; there is default",
        ),
        ("cluster: stand-in", "cluster: other".into(), "clusters: there is no cluster \"other\"; "),
        ("user: someone", "user: other".into(), "users: there is no user \"other\"; "),
        ("user: someone", "x: y".into(), "contexts[default].context.user: it is missing or empty; "),
        ("clusters:", "clusters:\n- {name: stand-in}".into(), "clusters: there are two of \"stand-in\"; "),
        (server, String::new(), "clusters[stand-in].cluster.server: it is missing or empty; "),
        (
            server,
            "    server: http://127.0.0.1:8080".into(),
            "clusters[stand-in].cluster.server: it is http, and a token would",
        ),
        (
            server,
            format!("    server: https://u:{SECRET}@127.0.0.1"),
            "clusters[stand-in].cluster.server: it holds a user name",
        ),
        (
            server,
            "    server: https://127.0.0.1:99999".into(),
            "clusters[stand-in].cluster.server: its port is no number",
        ),
        (server, "    server: 127.0.0.1:6443".into(), "clusters[stand-in].cluster.server: "),
        (server, cluster_is("tls-server-name: 'no name'"), "clusters[stand-in].cluster.tls-server-name: it is no name"),
        (
            server,
            cluster_is("insecure-skip-tls-verify: true"),
            "clusters[stand-in].cluster.insecure-skip-tls-verify: an unverified",
        ),
        (
            server,
            cluster_is("insecure-skip-tls-verify: 'yes'"),
            "clusters[stand-in].cluster.insecure-skip-tls-verify: it is neither",
        ),
        (
            server,
            cluster_is("proxy-url: http://127.0.0.1"),
            "clusters[stand-in].cluster.proxy-url: proxies are not used; ",
        ),
        (ca, String::new(), "clusters[stand-in].cluster.certificate-authority: it is missing; "),
        (
            ca,
            "    certificate-authority-data: '%%%%'".into(),
            "clusters[stand-in].cluster.certificate-authority-data: it is not Base64; ",
        ),
        (
            ca,
            "    certificate-authority-data: QUJDRA".into(),
            "clusters[stand-in].cluster.certificate-authority-data: it is not Base64; ",
        ),
        (
            ca,
            "    certificate-authority-data: QUJDRA==".into(),
            "clusters[stand-in].cluster.certificate-authority-data: no certificate in it; ",
        ),
        (ca, "    certificate-authority: absent.pem".into(), "clusters[stand-in].cluster.certificate-authority: "),
        (&token, String::new(), "users[someone].user: it is no mapping; "),
        (&token, user("token: 12345"), "users[someone].user.token: it is no text; "),
        (&token, user(&format!("token: {SECRET} {SECRET}")), "users[someone].user.token: it holds what no token has"),
        (
            &token,
            user(&format!("token: '{}'", "x".repeat(20_000))),
            "users[someone].user.token: it is longer than 16384",
        ),
        (&token, user("tokenFile: absent"), "users[someone].user.tokenFile: "),
        (
            &token,
            user("tokenFile: a\ntoken-file: b"),
            "users[someone].user.token-file: it is not what tokenFile says; ",
        ),
        (&token, user("username: u\npassword: p"), "users[someone].user.username: passwords are not sent; "),
        (
            &token,
            user(&format!("token: {SECRET}\nexec: {{command: id}}")),
            "users[someone].user.exec: no program is run",
        ),
        (
            &token,
            user(&format!("token: {SECRET}\nauth-provider: {{name: gcp}}")),
            "users[someone].user.auth-provider: no provider",
        ),
        (
            &token,
            user(&format!("token: {SECRET}\nas: system:admin")),
            "users[someone].user.as: nobody else is impersonated; ",
        ),
        (&token, user("x: y"), "users[someone].user: it holds no credentials; "),
        (&token, user("client-certificate: a.pem"), "users[someone].user.client-key: it is missing; "),
        (&token, user("client-key: a.pem"), "users[someone].user.client-certificate: it is missing; "),
    ];
    for (old, new, said) in cases {
        assert!(good.contains(old), "{old}");
        let text = refusal(&cluster, good.replacen(old, &new, 1));
        assert!(text.starts_with(said), "{new:?}: {text}");
    }
    // Empty is what clients write for what they have not set.
    let unset = user(&format!("token: {SECRET}\nusername: ''\nexec: null\nas-groups: []\nclient-key: ''"));
    Access::from_kubeconfig(&cluster.file("config", good.replacen(&token, &unset, 1))).unwrap();
}

#[test]
fn a_client_certificate_and_its_key_belong_together() {
    let cluster = Cluster::start();
    let ((certificate, key), (_, other)) =
        (cluster.api.client_certificate("admin"), cluster.api.client_certificate("admin"));
    cluster.file("cert.pem", &certificate);
    cluster.file("key.pem", &key);
    let config = cluster.api.kubeconfig_for("client-certificate: cert.pem\n    client-key: key.pem");
    Access::from_kubeconfig(&cluster.file("config", &config)).unwrap();
    for (name, content, said) in [
        ("key.pem", other.as_str(), "the key of the client certificate"),
        ("key.pem", certificate.as_str(), "no private key: there is none"),
        ("cert.pem", key.as_str(), "no certificate in it"),
        ("cert.pem", "-----BEGIN CERTIFICATE-----\n%\n", "not PEM: its END line is missing"),
    ] {
        cluster.file("cert.pem", &certificate);
        cluster.file("key.pem", &key);
        cluster.file(name, content);
        let text = refusal(&cluster, &config);
        assert!(text.contains(said), "{name}: {text}");
        assert!(!text.contains("BEGIN PRIVATE KEY-----\n"), "{text}");
    }
}

#[test]
fn servers_are_read_as_urls() {
    let read = |text| Server::parse(text).map(|server| server.to_string());
    assert_eq!(read("https://k8s.Example.com").unwrap(), "https://k8s.example.com:443");
    assert_eq!(read("https://[fd00::1]:6443/").unwrap(), "https://[fd00::1]:6443");
    assert_eq!(read("https://r.example.com/k8s/clusters/c-1/").unwrap(), "https://r.example.com:443/k8s/clusters/c-1");
    for wrong in
        ["", "https://", "https://h:0", "https://h:", "ftp://h", "https://h/?x", "https://h/#x", "https://[::1"]
    {
        assert!(read(wrong).is_err(), "{wrong:?}");
    }
}
