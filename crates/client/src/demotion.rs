//! Demotion on request: makes many pairs erasure-coded, the coldest first.
//!
//! [`Admin::find_pairs`](crate::Admin::find_pairs) lists pairs of the index, and
//! [`Admin::demote`](crate::Admin::demote) demotes given ones. A pair that was written after it was found is not cold,
//! so it stays as it is. Readers find a pair at every moment of its demotion, and an interrupted demotion leaves no
//! pair half-changed.

use fusee_core::data::{Redundancy, RedundancyError};
use fusee_core::error::Error;
use fusee_core::host::Host;
use fusee_core::store::{MoveScope, Store, Transition};
use fusee_core::verbs::Fabric;

use crate::survey::FoundPair;

/// The rules of one demotion.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct DemotionOrder {
    /// The redundancy that pairs get. `None` means that EC-oriented pairs get the erasure code that they are prepared
    /// for, and that other pairs stay as they are.
    pub to: Option<Redundancy>,
    /// Length of the shortest value that is demoted, in bytes.
    pub min_value_bytes: u64,
    /// Whether to only report the outcomes, without changing any pair.
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

    /// Returns the new redundancy for a pair with redundancy `has`; `None` if the pair stays as it is. Erasure-coded
    /// pairs stay as they are. So do pairs without redundancy, because an erasure code would take more memory.
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
        match store.move_pair(&key[..], to, None, MoveScope::At(pair.address)).await {
            Ok((Transition::Moved, _)) => Ok(moved),
            Ok((Transition::Overtaken, _)) => Ok(DemotionOutcome::Overtaken),
            Ok((Transition::Unchanged, _)) | Err(Error::NotFound) => Ok(DemotionOutcome::Gone),
            Err(error) => Err(error),
        }
    }
}

/// The outcome of a demotion for one pair.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DemotionOutcome {
    /// The pair is erasure-coded now, or with [`DemotionOrder::dry_run`] would be.
    Moved {
        /// Length of the pair's value, in bytes.
        value_bytes: u64,
        /// The memory that the new redundancy saves, in bytes; negative if it takes more.
        saved_bytes: i64,
    },
    /// The pair's value is shorter than the order's minimum.
    Short,
    /// The pair cannot have the redundancy that the order names.
    Impossible(RedundancyError),
    /// The pair was written, moved or removed after it was found, or [`DemotionOrder::target`] leaves its redundancy as
    /// it is.
    Gone,
    /// A concurrent write of the key has won, so the pair was not demoted.
    Overtaken,
    /// The demotion of the pair failed by an error. The pair has possibly been changed.
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
