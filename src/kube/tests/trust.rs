//! Whom the client believes, and who believes it.

use super::kubernetes::{ApiServer, rights};
use super::{Cluster, USER};
use crate::kube::{Access, ApiError, Client, Failure, Resource};

async fn get(access: Access) -> Result<String, ApiError> {
    Ok(Client::new(access).metadata(&Resource::pod("agents", "a-0").unwrap()).await?.metadata.uid)
}

#[tokio::test]
async fn a_server_of_another_ca_is_not_believed() {
    let (cluster, other) = (Cluster::start(), ApiServer::start());
    let config = cluster.api.kubeconfig(&cluster.token);
    assert_eq!(get(Access::from_kubeconfig(&cluster.file("config", &config)).unwrap()).await.unwrap(), "uid-1");
    let elsewhere = config.replace(&cluster.api.url(), &other.url());
    let error = get(Access::from_kubeconfig(&cluster.file("config", elsewhere)).unwrap()).await.unwrap_err();
    assert!(matches!(&error.failure, Failure::Tls(why) if why.contains("is not of the CA")), "{error}");
    assert!(!error.is_transient());
    // It has not been told the token.
    assert!(other.calls().is_empty());
}

#[tokio::test]
async fn names_and_addresses_are_verified() {
    let cluster = Cluster::start();
    let config = cluster.api.kubeconfig(&cluster.token);
    let named = |name: &str| {
        let text = config.replace("    server:", &format!("    tls-server-name: {name}\n    server:"));
        Access::from_kubeconfig(&cluster.file("config", text)).unwrap()
    };
    get(named("kubernetes")).await.unwrap();
    get(named("127.0.0.1")).await.unwrap();
    for other in ["kubernetes.example.com", "127.0.0.2"] {
        let error = get(named(other)).await.unwrap_err();
        assert!(matches!(&error.failure, Failure::Tls(why) if why.contains("tls-server-name")), "{error}");
    }
    // The loopback's other addresses lead to nobody, and its name is looked up.
    let port = cluster.api.address().port();
    let at = |host: &str| {
        let text = config.replace(&cluster.api.url(), &format!("https://{host}:{port}"));
        Access::from_kubeconfig(&cluster.file("config", text)).unwrap()
    };
    let error = get(at("localhost")).await.unwrap_err();
    assert!(matches!(&error.failure, Failure::Tls(why) if why.contains("for")), "{error}");
}

#[tokio::test]
async fn a_client_certificate_is_shown_where_it_is_asked_for() {
    let cluster = Cluster::start();
    cluster.api.grant("admin", &[rights::pods("agents")]);
    cluster.api.demand_certificates(true);
    let (certificate, key) = cluster.api.client_certificate("admin");
    cluster.file("cert.pem", certificate);
    cluster.file("key.pem", key);
    let config = cluster.api.kubeconfig_for("client-certificate: cert.pem\n    client-key: key.pem");
    assert_eq!(get(Access::from_kubeconfig(&cluster.file("config", &config)).unwrap()).await.unwrap(), "uid-1");
    assert_eq!(cluster.api.calls()[0].user.as_deref(), Some("admin"));

    // Without one, or with one of another CA, there is no way in.
    let error = get(cluster.access()).await.unwrap_err();
    assert!(matches!(&error.failure, Failure::Tls(why) if why.contains("client certificate")), "{error}");
    let (certificate, key) = ApiServer::start().client_certificate("admin");
    cluster.file("cert.pem", certificate);
    cluster.file("key.pem", key);
    let error = get(Access::from_kubeconfig(&cluster.file("config", &config)).unwrap()).await.unwrap_err();
    assert!(matches!(&error.failure, Failure::Tls(why) if why.contains("client certificate")), "{error}");
    assert_eq!(cluster.api.calls().len(), 1);

    cluster.api.demand_certificates(false);
    assert_eq!(get(cluster.access()).await.unwrap(), "uid-1");
    assert_eq!(cluster.api.calls()[1].user.as_deref(), Some(USER));
}
