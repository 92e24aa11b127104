//! From a configuration to a plan: whatever can be wrong before the machine is asked is found here.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::config::{self, Config, clamp_connections};
use crate::schema::Schema;
use crate::shard::admit::Admission;

/// A configuration that can be carried out, with everything that was read on its account. There is no invalid one.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(super) config: Arc<Config>,
    pub(super) schema: Arc<Schema>,
    pub(super) admission: Arc<Admission>,
    /// One for each core.
    pub(super) processors: Vec<u16>,
    warnings: Vec<String>,
}

impl Plan {
    /// What is allowed but not what was asked for; one line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The configuration with its limits as they will hold.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The processors that cores run on, one each.
    pub fn processors(&self) -> &[u16] {
        &self.processors
    }

    /// The events.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }
}

/// Why there is no plan: what is wrong and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError(String);

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PlanError {}

/// Makes a plan for this machine.
///
/// # Errors
/// The schema cannot be read, a value does not go with another or with this machine.
pub fn plan(mut config: Config) -> Result<Plan, PlanError> {
    let mut warnings = config::check(&config).map_err(|e| PlanError(e.to_string()))?;
    let schema = read_schema(&config.schema.file)?;
    let schema =
        schema.with_unverified(config.inbound.keys().cloned()).map_err(|e| PlanError(e.to_string()))?;
    if let Some(event) = config.rpc.keys().find(|event| schema.by_name(event).is_none()) {
        let what =
            format!("rpc.{event}: the schema has no event of this name; add it there or remove the handler");
        return Err(PlanError(what));
    }
    if config.server.listen.is_empty() {
        return Err(PlanError("server.listen is empty; name at least one address".into()));
    }
    let allowed = allowed_processors()?;
    let processors = config.server.cores.resolve(&allowed).map_err(PlanError)?;
    warnings.extend(crowded(processors.len(), allowed.len()));
    let most_files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    warnings.extend(clamp_connections(&mut config, most_files));
    let admission = Admission::new(&config.auth, config.limits.rate);
    Ok(Plan {
        config: Arc::new(config),
        schema: Arc::new(schema),
        admission: Arc::new(admission),
        processors,
        warnings,
    })
}

/// Reads a schema file; "" is the built-in schema.
///
/// # Errors
/// It cannot be read, or it is no schema.
pub fn read_schema(file: &str) -> Result<Schema, PlanError> {
    if file.is_empty() {
        return Ok(Schema::builtin());
    }
    let text = std::fs::read_to_string(Path::new(file)).map_err(|e| {
        PlanError(format!("cannot read the schema {file}: {e}; name a readable file of JSON Schema"))
    })?;
    Schema::from_json(&text, file).map_err(|e| PlanError(e.to_string()))
}

/// Cores that share a processor hold each other up.
fn crowded(cores: usize, processors: usize) -> Option<String> {
    (cores > processors).then(|| {
        format!(
            "server.cores: {cores} cores share {processors} of the machine's processors, and wait for each other; \
             \"auto\" makes one for each that the process may use"
        )
    })
}

/// The processors that this process may use.
fn allowed_processors() -> Result<Vec<u16>, PlanError> {
    let set = sched_getaffinity(None)
        .map_err(|e| PlanError(format!("cannot read the affinity mask: {e}; allow sched_getaffinity")))?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .filter_map(|cpu| u16::try_from(cpu).ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Cores, InboundRule, RpcRule};

    #[test]
    fn the_default_can_be_carried_out() {
        let plan = plan(Config::default()).unwrap();
        assert_eq!(plan.processors, allowed_processors().unwrap());
        assert_eq!(plan.schema().len(), 6);
    }

    #[test]
    fn more_cores_than_processors_are_allowed_and_warned_of() {
        let processors = allowed_processors().unwrap().len();
        let warned = |cores: Cores| {
            let mut config = Config::default();
            config.server.cores = cores;
            plan(config).unwrap().warnings().iter().any(|w| w.contains("server.cores"))
        };
        assert!(!warned(Cores::Auto));
        assert!(!warned(Cores::Count(u16::try_from(processors).unwrap())));
        assert!(warned(Cores::Count(u16::try_from(processors + 1).unwrap())));
    }

    #[test]
    fn events_that_may_come_in_need_no_model_and_events_that_are_answered_do() {
        let mut config = Config::default();
        config.inbound.insert("chat".into(), InboundRule::Broadcast);
        assert!(plan(config.clone()).unwrap().schema().by_name("chat").is_some());
        config.rpc.insert("chat".into(), RpcRule::Echo);
        assert!(plan(config.clone()).is_ok());
        config.rpc.insert("nope".into(), RpcRule::Echo);
        assert!(plan(config).unwrap_err().to_string().contains("rpc.nope"));
    }

    #[test]
    fn a_made_configuration_can_hold_no_more_than_a_loaded_one() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            plan(config).unwrap_err().to_string()
        };
        let everywhere =
            |c: &mut Config| c.admin.listen = Some(config::Listen::Tcp(([0, 0, 0, 0], 0).into()));
        assert!(with(everywhere).contains("token"));
        assert!(with(|c| c.auth.allowed_origins.push("example.com".into())).contains("no origin"));
    }

    #[test]
    fn what_cannot_be() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            plan(config).unwrap_err().to_string()
        };
        assert!(with(|c| c.schema.file = "/no/such/file".into()).contains("/no/such/file"));
        assert!(with(|c| c.server.listen.clear()).contains("server.listen"));
        assert!(with(|c| c.server.cores = Cores::List(vec![9999])).contains("9999"));
        let control = |c: &mut Config| drop(c.inbound.insert("ping".into(), InboundRule::None));
        assert!(with(control).contains("ping"));
    }
}
