//! The search for devices for all requests of all claims: first fit, with backtracking.
//!
//! The devices of one request are chosen in ascending order, so that no combination is tried twice; each request starts from
//! the first device. Some claims would take exponential time, so the search gives up after a number of steps.

use std::collections::HashMap;

use super::capacity::{self, Amounts};
use super::claim::{Alternative, Count, Plan, full_name};
use super::constraint::Progress;
use super::in_use::InUse;
use super::inventory::{Counters, Inventory};
use super::{MAX_RESULTS, Refusal, taint};

/// The number of devices that are considered before the search gives up.
const MAX_STEPS: usize = 200_000;

/// A device chosen for a request.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) candidate: usize,
    /// The index of the request in the plan, and of the alternative in the request.
    pub(super) request: usize,
    pub(super) alternative: usize,
    /// The capacity that the request consumes, if the device is shared.
    pub(super) share: Option<Amounts>,
}

/// The result of the search.
pub(super) enum Outcome {
    /// The devices of each claim.
    Found(Vec<Vec<Chosen>>),
    Nothing {
        gave_up: bool,
    },
}

/// Searches devices for all claims.
pub(super) fn search(plans: &[Plan<'_>], inventory: &Inventory, in_use: &InUse) -> Result<Outcome, Refusal> {
    let mut search = Search {
        plans,
        inventory,
        in_use,
        steps: 0,
        taken: HashMap::new(),
        shares: HashMap::new(),
        counters: HashMap::new(),
        chosen: vec![Vec::new(); plans.len()],
        progress: plans.iter().map(|plan| plan.constraints.iter().map(|_| Progress::default()).collect()).collect(),
    };
    match search.request(0, 0) {
        Ok(true) => Ok(Outcome::Found(search.chosen)),
        Ok(false) => Ok(Outcome::Nothing { gave_up: false }),
        Err(Stop::GaveUp) => Ok(Outcome::Nothing { gave_up: true }),
        Err(Stop::Refused(refusal)) => Err(refusal),
    }
}

enum Stop {
    GaveUp,
    Refused(Refusal),
}

struct Search<'a> {
    plans: &'a [Plan<'a>],
    inventory: &'a Inventory,
    in_use: &'a InUse,
    steps: usize,
    /// The claims that hold a whole candidate.
    taken: HashMap<usize, Vec<usize>>,
    /// The number of shares of a shared candidate, and the capacity they consume.
    shares: HashMap<usize, (usize, Amounts)>,
    /// The available counters of a pool.
    counters: HashMap<usize, Counters>,
    chosen: Vec<Vec<Chosen>>,
    progress: Vec<Vec<Progress>>,
}

/// The position of the search in the claims.
#[derive(Clone, Copy)]
struct Position {
    claim: usize,
    request: usize,
    alternative: usize,
    /// The number of devices that the alternative already has.
    device: usize,
}

impl<'a> Search<'a> {
    /// Chooses devices for a request and all that follow it.
    fn request(&mut self, claim: usize, request: usize) -> Result<bool, Stop> {
        let plans = self.plans;
        let Some(plan) = plans.get(claim) else { return Ok(true) };
        let Some(alternatives) = plan.requests.get(request).map(|request| &request.alternatives) else {
            return self.request(claim + 1, 0);
        };
        for (index, alternative) in alternatives.iter().enumerate() {
            let count = alternative.count.devices();
            let all_of_none = count == 0 && matches!(alternative.count, Count::All(_));
            if all_of_none || self.chosen[claim].len() + count > MAX_RESULTS {
                continue;
            }
            if self.device(Position { claim, request, alternative: index, device: 0 }, 0)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Chooses the next device of an alternative, from candidate `start` on, and all that follow it.
    fn device(&mut self, position: Position, start: usize) -> Result<bool, Stop> {
        let plans = self.plans;
        let alternative = &plans[position.claim].requests[position.request].alternatives[position.alternative];
        if position.device >= alternative.count.devices() {
            return self.request(position.claim, position.request + 1);
        }
        let next = Position { device: position.device + 1, ..position };
        match &alternative.count {
            // There is only one choice.
            Count::All(candidates) => {
                let candidate = candidates[position.device];
                let Some(undo) = self.choose(position, alternative, candidate)? else { return Ok(false) };
                let found = self.device(next, 0)?;
                if !found {
                    self.undo(position, undo);
                }
                Ok(found)
            }
            Count::Exactly(_) => {
                for candidate in start..self.inventory.candidates.len() {
                    if let Some(undo) = self.choose(position, alternative, candidate)? {
                        if self.device(next, candidate + 1)? {
                            return Ok(true);
                        }
                        self.undo(position, undo);
                    }
                }
                Ok(false)
            }
        }
    }

    /// Chooses a candidate for an alternative, if it is available and matches.
    fn choose(
        &mut self,
        position: Position,
        alternative: &Alternative<'_>,
        index: usize,
    ) -> Result<Option<Undo>, Stop> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(Stop::GaveUp);
        }
        let inventory = self.inventory;
        let candidate = &inventory.candidates[index];
        let taken = self.taken.get(&index).map(Vec::as_slice).unwrap_or_default();
        let unavailable = if alternative.admin_access {
            taken.contains(&position.claim)
        } else {
            !taken.is_empty() || self.in_use.has_whole(&candidate.id)
        };
        if unavailable || inventory.pools[candidate.pool].unusable.is_some() {
            return Ok(None);
        }
        let plan = &self.plans[position.claim];
        let matches = alternative.matches(inventory, index);
        let refused = |reason| Stop::Refused(Refusal(format!("claim {}, {reason}", full_name(plan.claim))));
        if !matches.map_err(refused)? {
            return Ok(None);
        }
        let consumed = |name: &str| {
            let chosen = self.shares.get(&index).and_then(|(_, amounts)| amounts.get(name).cloned());
            &self.in_use.consumed_of(&candidate.id, name) + &chosen.unwrap_or_default()
        };
        let Ok(amounts) = capacity::consumption(alternative.capacity, candidate, consumed) else { return Ok(None) };
        let taints = candidate.device.taints.as_deref().unwrap_or_default();
        if taint::untolerated(taints, alternative.tolerations).is_some() {
            return Ok(None);
        }
        // A shared device consumes its counters once.
        let counted = candidate.is_shared() && (self.in_use.has_any(&candidate.id) || self.shares.contains_key(&index));
        let counters = !counted && !candidate.counters.is_empty();
        if counters && !self.consume_counters(candidate.pool, &candidate.counters) {
            return Ok(None);
        }
        let Some(constraints) = self.push_constraints(position, alternative, index) else {
            if counters {
                self.release_counters(candidate.pool, &candidate.counters);
            }
            return Ok(None);
        };
        let share = candidate.is_shared().then_some(amounts);
        if let Some(amounts) = &share {
            let (count, consumed) = self.shares.entry(index).or_default();
            *count += 1;
            capacity::add(consumed, amounts);
        } else {
            self.taken.entry(index).or_default().push(position.claim);
        }
        let chosen = Chosen { candidate: index, request: position.request, alternative: position.alternative, share };
        self.chosen[position.claim].push(chosen);
        Ok(Some(Undo { index, counters, constraints }))
    }

    fn undo(&mut self, position: Position, undo: Undo) {
        let candidate = &self.inventory.candidates[undo.index];
        for constraint in undo.constraints {
            self.progress[position.claim][constraint].pop();
        }
        if undo.counters {
            self.release_counters(candidate.pool, &candidate.counters);
        }
        match self.chosen[position.claim].pop().and_then(|chosen| chosen.share) {
            Some(amounts) => {
                if let Some((count, consumed)) = self.shares.get_mut(&undo.index) {
                    *count -= 1;
                    capacity::subtract(consumed, &amounts);
                    if *count == 0 {
                        self.shares.remove(&undo.index);
                    }
                }
            }
            None => {
                if let Some(claims) = self.taken.get_mut(&undo.index) {
                    claims.pop();
                }
            }
        }
    }

    /// Adds the device to all constraints that apply, and returns them. If one refuses, none keeps the device.
    fn push_constraints(
        &mut self,
        position: Position,
        alternative: &Alternative<'_>,
        index: usize,
    ) -> Option<Vec<usize>> {
        let plan = &self.plans[position.claim];
        let request = plan.requests[position.request].name;
        let candidate = &self.inventory.candidates[index];
        let progress = &mut self.progress[position.claim];
        let mut pushed = Vec::new();
        for (number, constraint) in plan.constraints.iter().enumerate() {
            if !constraint.applies_to(request, &alternative.name) {
                continue;
            }
            if !constraint.push(&mut progress[number], candidate) {
                pushed.into_iter().for_each(|number: usize| progress[number].pop());
                return None;
            }
            pushed.push(number);
        }
        Some(pushed)
    }

    fn consume_counters(&mut self, pool: usize, amounts: &Counters) -> bool {
        let inventory = self.inventory;
        let in_use = self.in_use;
        let available = self.counters.entry(pool).or_insert_with(|| available_counters(inventory, in_use, pool));
        if amounts.iter().any(|(name, amount)| available.get(name).is_none_or(|available| available < amount)) {
            return false;
        }
        for (name, amount) in amounts {
            if let Some(available) = available.get_mut(name) {
                *available = &*available - amount;
            }
        }
        true
    }

    fn release_counters(&mut self, pool: usize, amounts: &Counters) {
        let Some(available) = self.counters.get_mut(&pool) else { return };
        for (name, amount) in amounts {
            if let Some(available) = available.get_mut(name) {
                *available = &*available + amount;
            }
        }
    }
}

/// What to undo when a choice is taken back.
struct Undo {
    index: usize,
    counters: bool,
    constraints: Vec<usize>,
}

/// Returns the counters of a pool, less what its allocated devices, on this and other nodes, consume.
pub(super) fn available_counters(inventory: &Inventory, in_use: &InUse, pool: usize) -> Counters {
    let pool = &inventory.pools[pool];
    let mut available = pool.counters.clone();
    let here =
        inventory.candidates[pool.candidates.clone()].iter().map(|candidate| (&candidate.id, &candidate.counters));
    for (id, consumed) in here.chain(pool.elsewhere.iter().map(|(id, counters)| (id, counters))) {
        if in_use.has_any(id) {
            for (name, amount) in consumed {
                if let Some(available) = available.get_mut(name) {
                    *available = &*available - amount;
                }
            }
        }
    }
    available
}
