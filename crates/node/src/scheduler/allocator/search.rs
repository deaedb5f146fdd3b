//! The search: devices for all requests of all claims, the first that fit, going back where the rest finds none.
//!
//! The devices of one request are taken in their order, so that no combination is tried twice; each request is free to
//! look at all of them. Claims can be written that no search finishes, so this one gives up after a number of steps.

use std::collections::HashMap;

use super::capacity::{self, Amounts};
use super::claim::{Count, Plan, Want, title};
use super::constraint::Progress;
use super::in_use::InUse;
use super::inventory::{Counters, Inventory};
use super::{MAX_RESULTS, Refusal, taint};

/// How many devices are looked at before the search gives up.
const MAX_STEPS: usize = 200_000;

/// A device for a request.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) candidate: usize,
    /// The index of the request in the plan, and of the want in the request.
    pub(super) request: usize,
    pub(super) want: usize,
    /// What is taken of its capacity, if it is one that is shared.
    pub(super) share: Option<Amounts>,
}

/// What came of it.
pub(super) enum Outcome {
    /// The devices of each claim.
    Found(Vec<Vec<Chosen>>),
    Nothing {
        gave_up: bool,
    },
}

/// Looks for devices for all claims.
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
    /// The claims for which a candidate was taken whole.
    taken: HashMap<usize, Vec<usize>>,
    /// What is taken of shared candidates, and in how many shares.
    shares: HashMap<usize, (usize, Amounts)>,
    /// What is left of the counters of a pool.
    counters: HashMap<usize, Counters>,
    chosen: Vec<Vec<Chosen>>,
    progress: Vec<Vec<Progress>>,
}

/// Where in the claims the search is.
#[derive(Clone, Copy)]
struct Place {
    claim: usize,
    request: usize,
    want: usize,
    /// How many devices of the want were found already.
    device: usize,
}

impl<'a> Search<'a> {
    /// Finds devices for a request and all that come after it.
    fn request(&mut self, claim: usize, request: usize) -> Result<bool, Stop> {
        let plans = self.plans;
        let Some(plan) = plans.get(claim) else { return Ok(true) };
        let Some(wants) = plan.requests.get(request).map(|request| &request.wants) else {
            return self.request(claim + 1, 0);
        };
        for (want, wanted) in wants.iter().enumerate() {
            let count = wanted.count.devices();
            let all_of_none = count == 0 && matches!(wanted.count, Count::All(_));
            if all_of_none || self.chosen[claim].len() + count > MAX_RESULTS {
                continue;
            }
            if self.device(Place { claim, request, want, device: 0 }, 0)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Finds the next device of a want, from candidate `start` on, and all that come after it.
    fn device(&mut self, place: Place, start: usize) -> Result<bool, Stop> {
        let plans = self.plans;
        let want = &plans[place.claim].requests[place.request].wants[place.want];
        if place.device >= want.count.devices() {
            return self.request(place.claim, place.request + 1);
        }
        let next = Place { device: place.device + 1, ..place };
        match &want.count {
            // There is one choice only.
            Count::All(candidates) => {
                let candidate = candidates[place.device];
                let Some(undo) = self.take(place, want, candidate)? else { return Ok(false) };
                let found = self.device(next, 0)?;
                if !found {
                    self.give_back(place, undo);
                }
                Ok(found)
            }
            Count::Exactly(_) => {
                for candidate in start..self.inventory.candidates.len() {
                    if let Some(undo) = self.take(place, want, candidate)? {
                        if self.device(next, candidate + 1)? {
                            return Ok(true);
                        }
                        self.give_back(place, undo);
                    }
                }
                Ok(false)
            }
        }
    }

    /// Takes a candidate for a want, if it can be had.
    fn take(&mut self, place: Place, want: &Want<'_>, index: usize) -> Result<Option<Undo>, Stop> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(Stop::GaveUp);
        }
        let inventory = self.inventory;
        let candidate = &inventory.candidates[index];
        let taken = self.taken.get(&index).map(Vec::as_slice).unwrap_or_default();
        let busy = if want.admin_access {
            taken.contains(&place.claim)
        } else {
            !taken.is_empty() || self.in_use.has_whole(&candidate.id)
        };
        if busy || inventory.pools[candidate.pool].unusable.is_some() {
            return Ok(None);
        }
        let plan = &self.plans[place.claim];
        let matches = want.matches(inventory, index);
        if !matches.map_err(|why| Stop::Refused(Refusal(format!("claim {}, {why}", title(plan.claim)))))? {
            return Ok(None);
        }
        let consumed = |name: &str| {
            let taking = self.shares.get(&index).and_then(|(_, amounts)| amounts.get(name).cloned());
            &self.in_use.consumed_of(&candidate.id, name) + &taking.unwrap_or_default()
        };
        let Ok(amounts) = capacity::wanted(want.capacity, candidate, consumed) else { return Ok(None) };
        let taints = candidate.device.taints.as_deref().unwrap_or_default();
        if taint::preventing(taints, want.tolerations).is_some() {
            return Ok(None);
        }
        // A device that several claims share takes its counters once.
        let counted = candidate.is_shared() && (self.in_use.has_any(&candidate.id) || self.shares.contains_key(&index));
        let counters = !counted && !candidate.counters.is_empty();
        if counters && !self.take_counters(candidate.pool, &candidate.counters) {
            return Ok(None);
        }
        let Some(constraints) = self.push_constraints(place, want, index) else {
            if counters {
                self.give_counters_back(candidate.pool, &candidate.counters);
            }
            return Ok(None);
        };
        let share = candidate.is_shared().then_some(amounts);
        if let Some(amounts) = &share {
            let (count, taking) = self.shares.entry(index).or_default();
            *count += 1;
            capacity::add(taking, amounts);
        } else {
            self.taken.entry(index).or_default().push(place.claim);
        }
        let chosen = Chosen { candidate: index, request: place.request, want: place.want, share };
        self.chosen[place.claim].push(chosen);
        Ok(Some(Undo { index, counters, constraints }))
    }

    fn give_back(&mut self, place: Place, undo: Undo) {
        let candidate = &self.inventory.candidates[undo.index];
        for constraint in undo.constraints {
            self.progress[place.claim][constraint].pop();
        }
        if undo.counters {
            self.give_counters_back(candidate.pool, &candidate.counters);
        }
        match self.chosen[place.claim].pop().and_then(|chosen| chosen.share) {
            Some(amounts) => {
                if let Some((count, taking)) = self.shares.get_mut(&undo.index) {
                    *count -= 1;
                    capacity::subtract(taking, &amounts);
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

    /// The constraints that took the device; none of them keeps it if one does not take it.
    fn push_constraints(&mut self, place: Place, want: &Want<'_>, index: usize) -> Option<Vec<usize>> {
        let plan = &self.plans[place.claim];
        let (request, candidate) = (plan.requests[place.request].name, &self.inventory.candidates[index]);
        let progress = &mut self.progress[place.claim];
        let mut pushed = Vec::new();
        for (number, constraint) in plan.constraints.iter().enumerate() {
            if !constraint.is_about(request, &want.name) {
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

    fn take_counters(&mut self, pool: usize, wanted: &Counters) -> bool {
        let (inventory, in_use) = (self.inventory, self.in_use);
        let left = self.counters.entry(pool).or_insert_with(|| left_of_counters(inventory, in_use, pool));
        if wanted.iter().any(|(name, amount)| left.get(name).is_none_or(|left| left < amount)) {
            return false;
        }
        for (name, amount) in wanted {
            if let Some(left) = left.get_mut(name) {
                *left = &*left - amount;
            }
        }
        true
    }

    fn give_counters_back(&mut self, pool: usize, amounts: &Counters) {
        let Some(left) = self.counters.get_mut(&pool) else { return };
        for (name, amount) in amounts {
            if let Some(left) = left.get_mut(name) {
                *left = &*left + amount;
            }
        }
    }
}

/// What must be undone when a candidate is given back.
struct Undo {
    index: usize,
    counters: bool,
    constraints: Vec<usize>,
}

/// The counters of a pool without what allocated devices, here and on other nodes, take of them.
pub(super) fn left_of_counters(inventory: &Inventory, in_use: &InUse, pool: usize) -> Counters {
    let pool = &inventory.pools[pool];
    let mut left = pool.counters.clone();
    let here =
        inventory.candidates[pool.candidates.clone()].iter().map(|candidate| (&candidate.id, &candidate.counters));
    for (id, consumed) in here.chain(pool.elsewhere.iter().map(|(id, counters)| (id, counters))) {
        if in_use.has_any(id) {
            for (name, amount) in consumed {
                if let Some(left) = left.get_mut(name) {
                    *left = &*left - amount;
                }
            }
        }
    }
    left
}
