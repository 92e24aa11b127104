//! Who may come in and what they may do: tokens, identities, origins, patterns, the rate limit.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;

use super::step::Instant;
use crate::config::{Auth, DuplicateId, Identity, Rate};
use crate::limits::BEARER_OFFERS;
use crate::wire::handshake::Request;

/// Authentication and rate settings, replaced as a whole by a reload.
#[derive(Debug)]
pub struct Admission {
    token: Option<Box<str>>,
    identities: Vec<Arc<Identity>>,
    origins: Vec<Box<str>>,
    token_in_query: bool,
    token_in_subprotocol: bool,
    duplicate_id: DuplicateId,
    rate: Option<Rate>,
}

/// What a connection may do.
#[derive(Debug, Clone)]
pub enum Access {
    /// No authentication is configured: everything.
    Open,
    /// The shared token: every topic, no group.
    Shared,
    /// An identity: its patterns.
    Identity(Arc<Identity>),
}

/// The upgrade is refused.
#[derive(Debug, PartialEq, Eq)]
pub enum Denied {
    /// 403
    Origin,
    /// 401
    Token,
}

impl Admission {
    /// From the configuration, which has been validated.
    pub fn new(auth: &Auth, rate: Rate) -> Admission {
        Admission {
            token: (!auth.token.is_empty()).then(|| auth.token.as_str().into()),
            identities: auth.identity.iter().cloned().map(Arc::new).collect(),
            origins: auth.allowed_origins.iter().map(|origin| origin.as_str().into()).collect(),
            token_in_query: auth.token_in_query,
            token_in_subprotocol: auth.token_in_subprotocol,
            duplicate_id: auth.duplicate_id,
            rate: (rate.messages_per_second > 0.0).then_some(rate),
        }
    }

    /// What happens with a live duplicate of a pinned id.
    pub fn duplicate_id(&self) -> DuplicateId {
        self.duplicate_id
    }

    /// The inbound rate limit; none = off.
    pub fn rate(&self) -> Option<&Rate> {
        self.rate.as_ref()
    }

    /// Judges an upgrade: origin first, then the token.
    pub fn judge(&self, request: &Request<'_>) -> Result<Access, Denied> {
        let origin = request.origin.unwrap_or(b"");
        if !self.origins.is_empty() && !self.origins.iter().any(|allowed| allowed.as_bytes() == origin) {
            return Err(Denied::Origin);
        }
        self.judge_token(request)
    }

    /// Judges the token alone, as `/clients` does.
    pub fn judge_token(&self, request: &Request<'_>) -> Result<Access, Denied> {
        if self.token.is_none() && self.identities.is_empty() {
            return Ok(Access::Open);
        }
        let bearer = request.authorization.and_then(|value| value.strip_prefix(b"Bearer "));
        if let Some(access) = bearer.and_then(|token| self.find(token)) {
            return Ok(access);
        }
        if self.token_in_subprotocol {
            let offered = request.subprotocols().filter_map(|offered| offered.strip_prefix("bearer."));
            for text in offered.take(BEARER_OFFERS) {
                let token = URL_SAFE_NO_PAD.decode(text).ok();
                if let Some(access) = token.and_then(|token| self.find(&token)) {
                    return Ok(access);
                }
            }
        }
        if self.token_in_query
            && let Some(access) = request.query_value("token").and_then(|token| self.find(token.as_bytes()))
        {
            return Ok(access);
        }
        Err(Denied::Token)
    }

    /// Compares with every token, each in constant time.
    fn find(&self, token: &[u8]) -> Option<Access> {
        let mut found = None;
        for identity in &self.identities {
            if bool::from(identity.token.as_bytes().ct_eq(token)) {
                found = Some(Access::Identity(identity.clone()));
            }
        }
        match &self.token {
            Some(shared) if found.is_none() && bool::from(shared.as_bytes().ct_eq(token)) => {
                Some(Access::Shared)
            }
            _ => found,
        }
    }

    /// The subprotocol to answer: the first offered that carries no token.
    pub fn subprotocol<'a>(&self, request: &'a Request<'_>) -> Option<&'a str> {
        request.subprotocols().find(|offered| !offered.starts_with("bearer."))
    }
}

impl Access {
    /// The identity, where there is one.
    pub fn identity(&self) -> Option<&Identity> {
        match self {
            Access::Identity(identity) => Some(identity),
            _ => None,
        }
    }

    /// May it subscribe to this topic?
    pub fn may_subscribe(&self, topic: &str) -> bool {
        match self {
            Access::Open | Access::Shared => true,
            Access::Identity(identity) => identity.topics.iter().any(|pattern| matches(pattern, topic)),
        }
    }

    /// May it join this group by itself?
    pub fn may_join(&self, group: &str) -> bool {
        match self {
            Access::Open => true,
            Access::Shared => false,
            Access::Identity(identity) => identity.join_groups.iter().any(|pattern| matches(pattern, group)),
        }
    }
}

/// `*` in the pattern stands for any run of characters, also none; everything else for itself. Linear in the product
/// of the lengths at worst, without recursion.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, t));
            p += 1;
        } else if p < pattern.len() && pattern[p] == text[t] {
            p += 1;
            t += 1;
        } else if let Some((after, from)) = star {
            star = Some((after, from + 1));
            p = after + 1;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// A token bucket: full at first, refilled by time, one token a message.
#[derive(Debug)]
pub struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub fn new(rate: &Rate, now: Instant) -> Bucket {
        Bucket { tokens: capacity(rate), at: now }
    }

    /// Takes a token if there is one. A clock that went back grants nothing.
    pub fn allow(&mut self, rate: &Rate, now: Instant) -> bool {
        let seconds = now.0.saturating_sub(self.at.0) as f64 / 1e9;
        self.at = self.at.max(now);
        self.tokens = (self.tokens + seconds * rate.messages_per_second).min(capacity(rate));
        let allowed = self.tokens >= 1.0;
        if allowed {
            self.tokens -= 1.0;
        }
        allowed
    }
}

fn capacity(rate: &Rate) -> f64 {
    if rate.burst > 0 { f64::from(rate.burst) } else { rate.messages_per_second.ceil().max(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, want) in [
            ("*", "", true),
            ("*", "anything", true),
            ("", "", true),
            ("", "x", false),
            ("open", "open", true),
            ("open", "OPEN", false),
            ("desk-*", "desk-7", true),
            ("desk-*", "xdesk-7", false),
            ("*-eu", "a-eu-b-eu", true),
            ("a*b*c", "aXXbYYc", true),
            ("a*b*c", "aXXcYYb", false),
            ("**a", "ba", true),
        ] {
            assert_eq!(matches(pattern, text), want, "{pattern} {text}");
        }
    }

    #[test]
    fn only_the_first_tokens_of_a_request_are_looked_at() {
        let auth = Auth { token: "right".into(), ..Auth::default() };
        let admission = Admission::new(&auth, Rate { messages_per_second: 0.0, burst: 0, close: false });
        let judged = |wrong: usize| {
            let offers =
                format!("{}bearer.{}", "bearer.d3Jvbmc, ".repeat(wrong), URL_SAFE_NO_PAD.encode("right"));
            let head =
                format!("GET /ws HTTP/1.1\r\nHost: h\r\nSec-WebSocket-Protocol: seqcast, {offers}\r\n\r\n");
            let request = crate::wire::handshake::parse(head.as_bytes()).unwrap().unwrap();
            admission.judge_token(&request).is_ok()
        };
        assert!(judged(0) && judged(BEARER_OFFERS - 1) && !judged(BEARER_OFFERS));
    }

    #[test]
    fn bucket_of_rate_10_and_burst_3() {
        let rate = Rate { messages_per_second: 10.0, burst: 3, close: false };
        let ms = |n: u64| Instant(1_000_000_000 + n * 1_000_000);
        let mut bucket = Bucket::new(&rate, ms(0));
        let mut ask = |n| bucket.allow(&rate, ms(n));
        assert_eq!([ask(0), ask(0), ask(0), ask(0)], [true, true, true, false]);
        assert!(!ask(50));
        assert_eq!([ask(250), ask(250), ask(250)], [true, true, false]);
        assert!(!ask(100));
    }
}
