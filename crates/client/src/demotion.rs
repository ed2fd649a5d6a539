//! Demotion on request: many pairs become erasure-coded, the coldest first.
//!
//! [`Client::find_pairs`](crate::Client::find_pairs) lists pairs by the index, and
//! [`Client::demote`](crate::Client::demote) moves some of them. A pair that was written since is left
//! alone: it is not cold. What is moved is in reach of everybody at every moment, and whoever is
//! interrupted leaves nothing half done.

use fusee_core::data::{Redundancy, RedundancyError};
use fusee_core::error::Error;
use fusee_core::host::Host;
use fusee_core::store::{Reach, Store, Transition};
use fusee_core::verbs::Fabric;

use crate::survey::FoundPair;

/// What to do with pairs that were found.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct DemotionOrder {
    /// What they become; `None`: of EC-oriented ones the code that they are laid out for, and others stay as they are.
    pub to: Option<Redundancy>,
    /// Shorter values stay as they are.
    pub min_value_bytes: u64,
    /// Only say what would come of it.
    pub dry_run: bool,
}

impl DemotionOrder {
    /// Sets [`DemotionOrder::to`].
    pub fn to(self, to: Redundancy) -> DemotionOrder {
        DemotionOrder { to: Some(to), ..self }
    }

    /// Sets [`DemotionOrder::min_value_bytes`].
    pub fn with_min_value_bytes(self, min_value_bytes: u64) -> DemotionOrder {
        DemotionOrder { min_value_bytes, ..self }
    }

    /// Sets [`DemotionOrder::dry_run`].
    pub fn with_dry_run(self, dry_run: bool) -> DemotionOrder {
        DemotionOrder { dry_run, ..self }
    }

    /// What a pair of this redundancy becomes; `None` if it stays as it is: what is erasure-coded already, and what
    /// has no redundancy, which would take more memory.
    pub fn target(&self, has: Redundancy) -> Option<Redundancy> {
        let to = match has {
            Redundancy::Oriented(of) => self.to.or(Some(Redundancy::Coded(of.coding()))),
            Redundancy::Replicated => self.to,
            _ => None,
        };
        to.filter(|to| *to != has)
    }

    pub(crate) async fn carry_out<F: Fabric, H: Host>(
        &self,
        store: &Store<F, H>,
        pair: &FoundPair,
    ) -> Result<DemotionOutcome, Error> {
        let Some(to) = self.target(pair.redundancy) else { return Ok(DemotionOutcome::Gone) };
        let Some((key, value_bytes)) = store.pair_at(pair.address, pair.class).await? else {
            return Ok(DemotionOutcome::Gone);
        };
        if value_bytes < self.min_value_bytes {
            return Ok(DemotionOutcome::Short);
        }
        let key_len = key.len();
        let value_len = value_bytes as usize;
        if let Err(error) = to.check(key_len, value_len) {
            return Ok(DemotionOutcome::Impossible(error));
        }
        let view = store.view();
        let mut regions = view.regions.iter();
        let replicated = regions.find(|region| region.redundancy() == Redundancy::Replicated);
        let replicas = replicated.map_or(1, |region| region.places().len());
        let bytes = |of: Redundancy| of.memory_bytes(key_len, value_len, replicas).unwrap_or(0);
        let saved_bytes = bytes(pair.redundancy) as i64 - bytes(to) as i64;
        let moved = DemotionOutcome::Moved { value_bytes, saved_bytes };
        if self.dry_run {
            return Ok(moved);
        }
        match store.move_pair(&key[..], to, None, Reach::At(pair.address)).await {
            Ok((Transition::Moved, _)) => Ok(moved),
            Ok((Transition::Overtaken, _)) => Ok(DemotionOutcome::Overtaken),
            Ok((Transition::Unchanged, _)) | Err(Error::NotFound) => Ok(DemotionOutcome::Gone),
            Err(error) => Err(error),
        }
    }
}

/// What became of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DemotionOutcome {
    /// It is erasure-coded, or would be.
    Moved {
        /// The length of its value.
        value_bytes: u64,
        /// What it takes less than before.
        saved_bytes: i64,
    },
    /// Its value is shorter than was asked for.
    Short,
    /// It cannot have that redundancy.
    Impossible(RedundancyError),
    /// It was written, moved or removed since it was found.
    Gone,
    /// Somebody has written it meanwhile.
    Overtaken,
    /// Nobody knows, or nothing.
    Failed(Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_takes_more_memory_is_demoted() {
        let redundancy = |text: &str| text.parse::<Redundancy>().unwrap();
        let own = DemotionOrder::default();
        let named = DemotionOrder::default().to(redundancy("ec:4+2"));
        for (has, by_itself, by_name) in [
            ("replicated", None, Some("ec:4+2")),
            ("eor:2:3+1", Some("ec:3+1"), Some("ec:4+2")),
            ("ec:3+1", None, None),
            ("none", None, None),
        ] {
            assert_eq!(own.target(redundancy(has)), by_itself.map(redundancy), "{has}");
            assert_eq!(named.target(redundancy(has)), by_name.map(redundancy), "{has}");
        }
    }
}
