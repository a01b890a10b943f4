//! Attribution and decision, in one place for every adapter: nothing is resolved or dialled before both have said yes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::TcpStream;

use super::Proxy;
use super::denial::{Kind, Refusal};
use super::intent::Intent;
use super::tunnel::Permission;
use crate::attest::{Attested, Statement};
use crate::attribution::{AttributionError, Attributor, Claim, Program};
use crate::contract::PROXY_URL;
use crate::event::{Actor, Disposition, Events, HttpRequestFacts, NetworkActivity, Stage};
use crate::policy::decision::{Decision, Question};

/// Who owns a connection.
#[derive(Clone, Debug)]
pub(super) enum Owner {
    /// Nobody asked: relaxed mode.
    Anyone,
    /// The first owner found, which [`Client::confirm`] checks to be the only one.
    Claimed(Arc<Claim>),
    /// What the supervisor beside the workload found, in another pod.
    Attested(Arc<Attested>),
    /// Nobody that could be told, for this reason: what names no program may still be allowed to him.
    Unattributed(Arc<str>),
}

impl Owner {
    pub(super) fn program(&self) -> Option<&Program> {
        match self {
            Self::Anyone | Self::Unattributed(_) => None,
            Self::Claimed(claim) => Some(&claim.program),
            Self::Attested(attested) => Some(&attested.program),
        }
    }

    pub(super) fn binary(&self) -> Option<String> {
        self.program().map(|program| program.executable.path.to_string())
    }

    /// As it is stated to a proxy in another pod.
    pub(super) fn stated(&self) -> Statement {
        match self {
            Self::Claimed(claim) => {
                Statement::Program(Attested { program: claim.program.clone(), pid: claim.pid, uid: claim.uid })
            }
            Self::Attested(attested) => Statement::Program((**attested).clone()),
            Self::Unattributed(reason) => Statement::Unidentified(reason.to_string()),
            Self::Anyone => Statement::Unidentified("nobody looked for the program".to_owned()),
        }
    }

    pub(super) fn actor(&self) -> Actor {
        match self {
            Self::Anyone | Self::Unattributed(_) => Actor::default(),
            Self::Claimed(claim) => claim.actor(),
            Self::Attested(attested) => {
                Actor { binary: self.binary(), pid: Some(attested.pid), uid: Some(attested.uid) }
            }
        }
    }
}

/// An allowed intent, and the generation of the policy that allowed it.
#[derive(Clone, Debug)]
pub(super) struct Permit {
    pub decision: Arc<Decision>,
    pub generation: u64,
}

/// A client connection as authorisation sees it. Identity belongs to the connection, a decision to each request.
#[derive(Debug)]
pub(super) struct Client {
    stream: Arc<TcpStream>,
    peer: SocketAddr,
    listener: SocketAddr,
    owner: Mutex<Option<Owner>>,
    confirmed: AtomicBool,
}

impl Client {
    pub(super) fn new(stream: Arc<TcpStream>, peer: SocketAddr, listener: SocketAddr) -> Self {
        Self { stream, peer, listener, owner: Mutex::default(), confirmed: AtomicBool::new(false) }
    }

    /// One whose owner was told when it connected, by whoever is believed in it.
    pub(super) fn told(stream: Arc<TcpStream>, peer: SocketAddr, listener: SocketAddr, owner: Owner) -> Self {
        Self { owner: Mutex::new(Some(owner)), confirmed: AtomicBool::new(true), ..Self::new(stream, peer, listener) }
    }

    fn found(&self) -> MutexGuard<'_, Option<Owner>> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The owner, if it has been found already.
    pub(super) fn found_owner(&self) -> Option<Owner> {
        self.found().clone()
    }

    /// The same for events, where nobody in particular stands for one who was not looked for.
    pub(super) fn known_owner(&self) -> Owner {
        self.found_owner().unwrap_or(Owner::Anyone)
    }

    /// Finds an owner of the connection.
    ///
    /// # Errors
    /// The refusal to answer with.
    pub(super) async fn owner(&self, attributor: Option<&Arc<Attributor>>) -> Result<Owner, Refusal> {
        let found = self.found().clone();
        // One that could not be confirmed is looked for again: what stood in the way may have ended.
        if let Some(owner) = found
            && (attributor.is_none() || self.confirmed.load(Ordering::Acquire))
        {
            return Ok(owner);
        }
        let owner = match attributor {
            None => Owner::Anyone,
            Some(attributor) => {
                let claim = match attributor.try_first_owner(self.peer, self.listener) {
                    Some(outcome) => outcome,
                    // A program that was never seen is hashed, which takes too long for this thread.
                    None => {
                        let (attributor, peer, listener) = (attributor.clone(), self.peer, self.listener);
                        match tokio::task::spawn_blocking(move || attributor.first_owner(peer, listener)).await {
                            Ok(outcome) => outcome,
                            Err(_) => return Err(unfinished()),
                        }
                    }
                };
                Owner::Claimed(Arc::new(claim.map_err(|error| refuse(&error))?))
            }
        };
        *self.found() = Some(owner.clone());
        Ok(owner)
    }

    /// Checks that nobody else owns the connection: to be joined with resolving and dialling, which it overlaps.
    ///
    /// # Errors
    /// The refusal to answer with.
    pub(super) async fn confirm(&self, owner: &Owner, attributor: Option<&Arc<Attributor>>) -> Result<(), Refusal> {
        let (Owner::Claimed(claim), Some(attributor)) = (owner, attributor) else { return Ok(()) };
        if self.confirmed.load(Ordering::Acquire) {
            return Ok(());
        }
        let outcome = match attributor.try_confirm(claim, &self.stream) {
            Some(outcome) => outcome,
            // More than this thread has time for: the sandbox runs much, or means to be in the way.
            None => {
                let (claim, attributor, stream) = (claim.clone(), attributor.clone(), self.stream.clone());
                let confirmed = tokio::task::spawn_blocking(move || attributor.confirm(&claim, &stream)).await;
                confirmed.map_err(|_| unfinished())?
            }
        };
        outcome.map_err(|error| refuse(&error))?;
        self.confirmed.store(true, Ordering::Release);
        Ok(())
    }
}

/// A thread that looked at the owners panicked, or the runtime is going down.
fn unfinished() -> Refusal {
    Refusal::new(Kind::UnknownOwner, "the check of the connection's owners did not finish")
}

fn refuse(error: &AttributionError) -> Refusal {
    let (kind, detail) = match error {
        AttributionError::Ambiguous { .. } => {
            (Kind::AmbiguousOwner, "several programs hold this connection, and a policy can allow only one")
        }
        _ => {
            (Kind::UnknownOwner, "the program that opened this connection could not be told, so no policy can allow it")
        }
    };
    let mut refusal = Refusal::new(kind, detail).because(error.to_string());
    refusal.binary = error.binary().map(str::to_owned);
    refusal
}

impl Proxy {
    /// Asks the policy in force.
    ///
    /// # Errors
    /// The refusal to answer with.
    pub(super) fn decide(&self, owner: &Owner, intent: &Intent) -> Result<Permit, Refusal> {
        let snapshot = self.store.current();
        let question = Question { host: &intent.host, port: intent.port, program: owner.program() };
        let decision = snapshot.decide(question);
        if decision.allows() {
            return Ok(Permit { decision, generation: snapshot.generation });
        }
        let mut reason = decision.reason.clone();
        let mut next_steps = decision.next_steps.clone();
        if let (Owner::Unattributed(why), Some(_)) = (owner, &decision.policy) {
            reason = format!("{reason}; {why}");
            next_steps
                .insert(0, format!("connect through {PROXY_URL}, where the sandbox's supervisor names the program"));
        }
        let who = owner.binary();
        let detail = match &who {
            Some(binary) => format!("{binary} may not connect to {intent}"),
            None => format!("connecting to {intent} is not allowed"),
        };
        let mut refusal = Refusal::new(Kind::PolicyDenied, detail).about(intent).because(reason);
        refusal.binary = who;
        refusal.policy.clone_from(&decision.policy);
        refusal.rule = decision.endpoints.first().map(|(policy, index)| format!("{}.endpoints[{index}]", policy.key));
        refusal.next_steps = next_steps;
        Err(refusal)
    }

    /// Records something that was let through.
    pub(super) fn record_allowed(&self, stage: Stage, passed: &Passed<'_>) {
        let Passed { permission, audited, http } = passed;
        let disposition = if audited.is_some() { Disposition::Audited } else { Disposition::Allowed };
        self.events.emit_network(disposition, stage, || NetworkActivity {
            disposition,
            stage,
            host: permission.intent.host.to_string(),
            port: permission.intent.port,
            address: permission.address,
            via: permission.via.clone(),
            protocol: "tcp".to_owned(),
            actor: permission.owner.actor(),
            policy: permission.permit.decision.policy.clone(),
            reason: audited.map(str::to_owned),
            count: 1,
            http: http.as_ref().map(|http| http()),
        });
    }

    /// Records something that was refused.
    pub(super) fn record_refused(
        &self,
        stage: Stage,
        owner: &Owner,
        refusal: &Refusal,
        http: Option<HttpRequestFacts>,
    ) {
        record_refused(&self.events, stage, owner, refusal, http);
    }
}

/// Records something that was refused, by whoever answers clients.
pub(super) fn record_refused(
    events: &Events,
    stage: Stage,
    owner: &Owner,
    refusal: &Refusal,
    http: Option<HttpRequestFacts>,
) {
    let stage = match refusal.kind {
        Kind::PolicyDenied | Kind::AuthorityMismatch | Kind::UnsupportedProtocol | Kind::BodyTooLarge => stage,
        Kind::UpstreamTls => Stage::Tls,
        Kind::DestinationDenied => Stage::Destination,
        Kind::UnknownOwner | Kind::AmbiguousOwner => Stage::Attribution,
        Kind::Unresolvable
        | Kind::UpstreamUnreachable
        | Kind::UpstreamTimeout
        | Kind::UpstreamFailed
        | Kind::UpstreamProxyAuth
        | Kind::UpstreamProxyRefused
        | Kind::UpstreamProxyFailed
        | Kind::ProxyUnavailable => Stage::Dial,
        Kind::InvalidRequest
        | Kind::UnsupportedScheme
        | Kind::HeadTooLarge
        | Kind::RequestTimeout
        | Kind::TooManyConnections => Stage::Parse,
    };
    events.emit_network(Disposition::Denied, stage, || NetworkActivity {
        disposition: Disposition::Denied,
        stage,
        host: refusal.intent.as_ref().map(|intent| intent.host.to_string()).unwrap_or_default(),
        port: refusal.intent.as_ref().map_or(0, |intent| intent.port),
        address: None,
        via: refusal.via.clone(),
        protocol: "tcp".to_owned(),
        actor: owner.actor(),
        policy: refusal.policy.clone(),
        reason: Some(refusal.explained()),
        count: 1,
        http,
    });
}

/// What an event about something allowed tells.
pub(super) struct Passed<'a> {
    pub permission: &'a Permission,
    /// Why it would have been refused, had the endpoint not asked for an audit alone.
    pub audited: Option<&'a str>,
    pub http: Option<&'a dyn Fn() -> HttpRequestFacts>,
}
