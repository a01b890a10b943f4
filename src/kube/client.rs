//! Calls: one connection each, since a role makes one or two a minute at most and a plugin one in its life.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::access::Access;
use super::connection;
use super::error::{ApiError, Failure};
use super::object::{Node, Partial};
use super::resource::Resource;
use crate::egress::resolve::Resolver;

/// A whole call: connecting, asking, and the answer to its end.
pub const CALL_TIME: Duration = Duration::from_secs(10);

/// Largest answer. etcd takes objects of 1.5 MiB, in a form that is about half as long as JSON.
pub const ANSWER_BYTES: usize = 8 << 20;

/// Largest head of an answer; API servers send a few hundred bytes, what stands in front of them adds cookies.
const HEAD_BYTES: usize = 32 * 1024;

/// Whole objects.
const WHOLE: &str = "application/json";

/// Metadata alone, from a server that can (all since 1.15), else the whole: a pod's own would be sent for nothing.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// How a patch is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    /// RFC 7396: what is named replaces, null removes; lists are replaced whole.
    Merge,
    /// RFC 6902: operations one by one, all or nothing, `test` among them.
    Json,
    /// Kubernetes' own: lists are merged by their keys, conditions by `type`.
    Strategic,
}

impl Patch {
    fn content_type(self) -> &'static str {
        match self {
            Self::Merge => "application/merge-patch+json",
            Self::Json => "application/json-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
        }
    }
}

/// Speaks to one API server.
#[derive(Clone, Debug)]
pub struct Client {
    access: Arc<Access>,
    resolver: Arc<Resolver>,
    call_time: Duration,
}

impl Client {
    /// Calls take [`CALL_TIME`] at most.
    #[must_use]
    pub fn new(access: Access) -> Self {
        Self { access: Arc::new(access), resolver: Arc::default(), call_time: CALL_TIME }
    }

    /// The same with another limit for each call.
    #[must_use]
    pub fn with_call_time(self, call_time: Duration) -> Self {
        Self { call_time, ..self }
    }

    /// Whom it speaks to, and as whom.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// A pod's metadata, by [`Resource::pod`].
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn metadata(&self, resource: &Resource) -> Result<Partial, ApiError> {
        self.call(Method::GET, resource, METADATA, None).await
    }

    /// A node, by [`Resource::node`].
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn node(&self, resource: &Resource) -> Result<Node, ApiError> {
        self.get(resource).await
    }

    /// Any object, whole.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn get<T: DeserializeOwned>(&self, resource: &Resource) -> Result<T, ApiError> {
        self.call(Method::GET, resource, WHOLE, None).await
    }

    /// Changes an object; the answer is the metadata that it has then.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn patch(&self, resource: &Resource, kind: Patch, patch: &Value) -> Result<Partial, ApiError> {
        self.call(Method::PATCH, resource, METADATA, Some((kind, patch))).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        resource: &Resource,
        accept: &'static str,
        patch: Option<(Patch, &Value)>,
    ) -> Result<T, ApiError> {
        let exchange = self.exchange(&method, resource, accept, patch);
        let answer = timeout(self.call_time, exchange).await.unwrap_or(Err(Failure::TimedOut(self.call_time)));
        let read = |bytes: Bytes| {
            serde_json::from_slice(&bytes).map_err(|error| {
                // Where, not what: an annotation may be anybody's secret.
                let (line, column) = (error.line(), error.column());
                Failure::Malformed(format!("not the object that was asked for (line {line}, column {column})"))
            })
        };
        answer
            .and_then(read)
            .map_err(|failure| ApiError { call: format!("{method} {}{resource}", self.access.server), failure })
    }

    async fn exchange(
        &self,
        method: &Method,
        resource: &Resource,
        accept: &'static str,
        patch: Option<(Patch, &Value)>,
    ) -> Result<Bytes, Failure> {
        let presented = self.access.present()?;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{resource}", self.access.server.prefix))
            .header(HOST, self.access.server.authority())
            .header(USER_AGENT, concat!("openshell-supervisor/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, accept)
            .header(CONNECTION, "close");
        if let Some(token) = presented.token {
            request = request.header(AUTHORIZATION, token);
        }
        let mut body = Bytes::new();
        if let Some((kind, patch)) = patch {
            request = request.header(CONTENT_TYPE, kind.content_type());
            body = Bytes::from(patch.to_string());
        }
        let request = request.body(Full::new(body)).map_err(|error| Failure::Malformed(error.to_string()))?;

        let stream = connection::open(&self.access, &self.resolver, presented.tls).await?;
        let mut http = hyper::client::conn::http1::Builder::new();
        http.max_buf_size(HEAD_BYTES);
        let (mut sender, connection) =
            http.handshake(TokioIo::new(stream)).await.map_err(|error| connection::http_failure(&error))?;
        let mut connection = pin!(connection);
        let mut answer = pin!(async move {
            let answer = sender.send_request(request).await.map_err(|error| connection::http_failure(&error))?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, ANSWER_BYTES).collect().await.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    return Failure::TooLarge(ANSWER_BYTES);
                }
                match error.downcast::<hyper::Error>() {
                    Ok(error) => connection::http_failure(&error),
                    Err(error) => Failure::Broken(error.to_string()),
                }
            })?;
            let body = body.to_bytes();
            if head.status.is_success() { Ok(body) } else { Err(Failure::of(head.status, &head.headers, &body)) }
        });
        // The connection is what moves the answer; it may be over before the answer has been taken out of it.
        tokio::select! {
            answer = &mut answer => answer,
            _ = &mut connection => answer.await,
        }
    }
}
