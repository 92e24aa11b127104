//! What one core tells another.
/// Work for another core.
#[derive(Debug)]
pub enum Handoff {}
