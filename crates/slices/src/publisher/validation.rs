//! Validating what a driver has published: all resources, or changes of single devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::desired::{DesiredPool, Rejected};
use super::super::pending::Publication;
use super::super::resources::Pool;
use super::super::validate::ValidationContext;
use super::ValidatedPools;

type Outcome = Result<DesiredPool, Box<Rejected>>;

/// Validates the pools that are published or changed. `before` are the valid versions that were published last, and `rejected`
/// the pools whose last version is not valid. Returns those that are rejected now.
pub(super) fn validate(
    publication: Publication,
    context: ValidationContext<'_>,
    before: &BTreeMap<String, Arc<DesiredPool>>,
    mut rejected: BTreeMap<String, Pool>,
) -> (ValidatedPools, BTreeMap<String, Pool>) {
    let Publication { resources, mut updates } = publication;
    let mut outcomes: Vec<(String, Outcome)> = Vec::new();
    if let Some(resources) = resources {
        rejected.clear();
        for (name, pool) in resources.pools {
            let update = updates.remove(&name);
            let known = before.get(&name).map(|known| &**known);
            let outcome = DesiredPool::new(&name, pool, update.as_ref(), context, known);
            outcomes.push((name, outcome));
        }
    }
    for (name, update) in updates {
        let known = before.get(&name).map(|known| &**known);
        let outcome = match (rejected.remove(&name), known) {
            (Some(pool), _) => DesiredPool::new(&name, pool, Some(&update), context, known),
            (None, Some(known)) => known.updated(&name, &update, context),
            // It was lost when its validation panicked, which was reported.
            (None, None) => continue,
        };
        outcomes.push((name, outcome));
    }
    let mut validated = ValidatedPools::with_capacity(outcomes.len());
    for (name, outcome) in outcomes {
        let outcome = match outcome {
            Ok(pool) => {
                tracing::debug!(pool = name, devices = pool.len(), slices = pool.slices.len(), work = ?pool.work, "pool validated");
                Ok(Arc::new(pool))
            }
            Err(invalid) => {
                rejected.insert(name.clone(), invalid.pool);
                Err(invalid.error)
            }
        };
        validated.push((name, outcome));
    }
    (validated, rejected)
}
