//! SIGHUP: read the configuration again and take what can be taken while running.

use std::sync::Arc;

use crate::config::Loaded;
use crate::control::{Logging, Reload};
use crate::shard::admit::Admission;

/// What the control thread calls on SIGHUP. A configuration that cannot be read changes nothing.
pub fn reload(mut loaded: Loaded, logging: Logging) -> Reload {
    Box::new(move || {
        let newer = match loaded.reload() {
            Ok(newer) => newer,
            Err(e) => {
                tracing::error!("reload: {e}; everything stays as it was");
                return None;
            }
        };
        let changes = loaded.changes(&newer);
        for key in &changes.restart {
            tracing::warn!("reload: {key} has changed; it needs a restart");
        }
        if changes.reloadable.is_empty() {
            tracing::info!("reload: nothing has changed that a running server takes");
            return None;
        }
        if let Err(what) = logging.change(&newer.config.log) {
            tracing::error!("reload: {what}; everything stays as it was");
            return None;
        }
        tracing::info!("reload: took {}", changes.reloadable.join(", "));
        let config = &mut loaded.config;
        config.auth = newer.config.auth;
        config.limits.rate = newer.config.limits.rate;
        config.log = newer.config.log;
        Some(Arc::new(Admission::new(&config.auth, config.limits.rate)))
    })
}
