//! Identities, patterns, rate limits.
/// Who may come in and what they may do.
#[derive(Debug)]
pub struct Admission;
