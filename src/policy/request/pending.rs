//! Requests whose body decides.

use std::sync::Arc;

use super::rules::{Inspection, Protocol};
use super::selection::{Unclear, pass, quoted, settle};
use super::verdict::{Judgement, Refusal, RefusalKind, RulePart};
use super::{graphql_http, rpc};

/// A request whose body decides. Owns what it needs, so that it can wait for the body anywhere.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The endpoints that answer for it, of one protocol; never empty.
    pub(super) endpoints: Vec<Arc<Inspection>>,
    pub(super) lead: Arc<Inspection>,
    /// Method and path, as a refusal quotes them.
    pub(super) asked: String,
    /// The body is a GraphQL document and nothing else.
    pub(super) bare_document: bool,
}

impl Pending {
    /// Judges the whole body.
    #[must_use]
    pub fn judge(self, body: &[u8]) -> Judgement {
        if body.len() > self.limit() {
            return Judgement::Refuse(self.too_large());
        }
        let judged = match self.lead.protocol {
            Protocol::Graphql => graphql_http::judge_body(&self, body),
            _ => rpc::judge_body(&self, body),
        };
        match judged {
            Ok((by, part)) => Judgement::Pass(pass(&by, part)),
            Err(refusal) => settle(&self.lead, *refusal),
        }
    }

    /// Most bytes of body that are judged.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.lead.max_body_bytes
    }

    /// The refusal of a body that is larger.
    #[must_use]
    pub fn too_large(&self) -> Refusal {
        let limit = self.limit();
        let unclear = Unclear {
            kind: RefusalKind::TooLarge,
            reason: format!("the body is larger than the {limit} bytes that {} reads", self.lead.place()),
            remedy: format!("send less, or raise {}", self.field()),
        };
        unclear.refuse(&self.lead, &self.asked)
    }

    fn field(&self) -> String {
        let place = self.lead.place();
        match self.lead.protocol {
            Protocol::Graphql => format!("{place}.graphql_max_body_bytes"),
            Protocol::Mcp => format!("{place}.mcp.max_body_bytes"),
            _ => format!("{place}.json_rpc.max_body_bytes"),
        }
    }

    /// A refusal of the whole body, which could not be read.
    pub(super) fn unclear(&self, unclear: Unclear) -> Box<Refusal> {
        Box::new(unclear.refuse(&self.lead, &quoted(&self.asked)))
    }
}

/// What judging a body comes to.
pub(super) type Judged = Result<(Arc<Inspection>, RulePart), Box<Refusal>>;
