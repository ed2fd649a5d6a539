//! The protocols that write one word to all replicas of a slot: SNAPSHOT as printed (P Algorithms 1 and 2), and
//! FUSEE-CR.

use fusee_core::verbs::{Fabric, Ticket};

use super::client::PublishedClient;
use super::memory::PublishedPhase;
use super::object::{COMMIT_BYTES, PublishedObject, PublishedSlotWord, commit};
use super::parameters::SlotWriteProtocol;
use crate::BaselineError;

/// Largest number of replicas of a slot.
pub(super) const MOST_REPLICAS: usize = 8;

/// The result of a write to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublishedWriteOutcome {
    /// The writer was the last one of its round. `replaced` tells whether its CAS of the primary found the old word,
    /// which SNAPSHOT does not check.
    Won { replaced: bool },
    /// Another writer was the last one of the round.
    Lost,
    /// Another writer was first, so this one starts again (FUSEE-CR).
    Again,
}

/// The verdict of the rules for one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PublishedRuleVerdict {
    Rule1,
    Rule2,
    /// The writer wins by Rule 3, if the primary still shows the old word.
    Rule3,
    Lost {
        /// Whether the writer has lost only if the primary still shows the old word (Rule 3). Otherwise the loss is
        /// certain.
        by_rule_3: bool,
    },
}

/// Applies the rules (P Algorithm 2) to the words of the backups.
fn evaluate(list: &[u64], own: u64) -> PublishedRuleVerdict {
    let count = |word: u64| list.iter().filter(|w| **w == word).count();
    let most = list.iter().copied().max_by_key(|word| count(*word)).unwrap_or(own);
    if count(most) == list.len() {
        return if most == own {
            PublishedRuleVerdict::Rule1
        } else {
            PublishedRuleVerdict::Lost { by_rule_3: false }
        };
    }
    if 2 * count(most) > list.len() {
        return if most == own {
            PublishedRuleVerdict::Rule2
        } else {
            PublishedRuleVerdict::Lost { by_rule_3: false }
        };
    }
    match list.iter().min() {
        _ if count(own) == 0 => PublishedRuleVerdict::Lost { by_rule_3: false },
        Some(smallest) if *smallest == own => PublishedRuleVerdict::Rule3,
        _ => PublishedRuleVerdict::Lost { by_rule_3: true },
    }
}

impl<F: Fabric, R> PublishedClient<F, R> {
    /// Replaces the old word of a slot by the new one.
    pub(super) async fn write(
        &self,
        phase: &mut PublishedPhase,
        slot: u32,
        [old, new]: [PublishedSlotWord; 2],
        object: PublishedObject,
    ) -> Result<PublishedWriteOutcome, BaselineError> {
        match self.layout.parameters().writes {
            SlotWriteProtocol::Snapshot => self.snapshot(phase, slot, [old.0, new.0], object).await,
            SlotWriteProtocol::OneByOne => self.one_by_one(phase, slot, [old.0, new.0]).await,
        }
    }

    async fn snapshot(
        &self,
        phase: &mut PublishedPhase,
        slot: u32,
        [old, new]: [u64; 2],
        object: PublishedObject,
    ) -> Result<PublishedWriteOutcome, BaselineError> {
        let backups = self.layout.parameters().index_replicas - 1;
        if backups > 0 {
            let mut list = [old; MOST_REPLICAS];
            self.cas_backups(phase, slot, &mut list[..backups], new).await?;
            let list = &mut list[..backups];
            // A CAS that found the old word has replaced it by the new one.
            list.iter_mut().filter(|word| **word == old).for_each(|word| *word = new);
            let verdict = evaluate(list, new);
            if matches!(
                verdict,
                PublishedRuleVerdict::Rule3 | PublishedRuleVerdict::Lost { by_rule_3: true }
            ) && self.primary(phase, slot).await? != old
            {
                return Ok(self.lost());
            }
            match verdict {
                PublishedRuleVerdict::Rule1 => {}
                PublishedRuleVerdict::Rule2 | PublishedRuleVerdict::Rule3 => {
                    self.cas_backups(phase, slot, list, new).await?
                }
                PublishedRuleVerdict::Lost { .. } => return self.wait(phase, slot, old).await,
            }
            self.commit_log(phase, object, old).await?;
        }
        phase.batch.clear();
        let cas = self.post_cas(phase, slot, 0, [old, new]);
        self.go(phase).await?;
        // Without backups no rule was applied: the CAS of the primary decides.
        match phase.batch.found(cas)? == old {
            false if backups == 0 => Ok(self.lost()),
            replaced => Ok(PublishedWriteOutcome::Won { replaced }),
        }
    }

    fn lost(&self) -> PublishedWriteOutcome {
        self.count(|counts| counts.lost += 1);
        PublishedWriteOutcome::Lost
    }

    fn post_cas(
        &self,
        phase: &mut PublishedPhase,
        slot: u32,
        replica: usize,
        words: [u64; 2],
    ) -> Ticket {
        let place = self.layout.slot(slot, replica);
        phase.batch.cas(place.node, place.offset, words[0], words[1])
    }

    /// CASes each backup from its word in `list` to the new word, except backups that already hold the new word. Then
    /// puts the words that the CASes found into `list`.
    async fn cas_backups(
        &self,
        phase: &mut PublishedPhase,
        slot: u32,
        list: &mut [u64],
        new: u64,
    ) -> Result<(), BaselineError> {
        phase.batch.clear();
        let mut tickets = [None; MOST_REPLICAS];
        for (i, word) in list.iter().enumerate().filter(|(_, word)| **word != new) {
            tickets[i] = Some(self.post_cas(phase, slot, i + 1, [*word, new]));
        }
        self.go(phase).await?;
        for (word, ticket) in list.iter_mut().zip(tickets) {
            if let Some(ticket) = ticket {
                *word = phase.batch.found(ticket)?;
            }
        }
        Ok(())
    }

    /// WRITEs the old value into the last writer's log entry, which commits it (P §4.5).
    async fn commit_log(
        &self,
        phase: &mut PublishedPhase,
        object: PublishedObject,
        old: u64,
    ) -> Result<(), BaselineError> {
        phase.batch.clear();
        let bytes = phase.batch.stage(COMMIT_BYTES);
        phase.batch.bytes_mut(bytes).copy_from_slice(&commit(old));
        for replica in 0..self.layout.parameters().data_replicas {
            let place = self.layout.data(object.old_value(), replica);
            phase.batch.write(place.node, place.offset, bytes);
        }
        self.go(phase).await
    }

    /// READs the primary and returns its word.
    async fn primary(&self, phase: &mut PublishedPhase, slot: u32) -> Result<u64, BaselineError> {
        phase.batch.clear();
        let place = self.layout.slot(slot, 0);
        let read = phase.batch.read(place.node, place.offset, 8);
        self.go(phase).await?;
        Ok(u64::from_le_bytes(
            phase.batch.data(read)?.try_into().expect("eight bytes were asked for"),
        ))
    }

    /// Waits until the primary shows another word than `old`, as the loser of a round does.
    async fn wait(
        &self,
        phase: &mut PublishedPhase,
        slot: u32,
        old: u64,
    ) -> Result<PublishedWriteOutcome, BaselineError> {
        for _ in 0..self.layout.parameters().patience {
            if self.primary(phase, slot).await? != old {
                return Ok(self.lost());
            }
            self.count(|counts| counts.polls += 1);
        }
        Err(BaselineError::Stuck)
    }

    /// CASes one replica after the other. The CAS of the first backup decides the winner. The winner CASes each further
    /// replica as soon as this replica shows the old word.
    async fn one_by_one(
        &self,
        phase: &mut PublishedPhase,
        slot: u32,
        words: [u64; 2],
    ) -> Result<PublishedWriteOutcome, BaselineError> {
        let replicas = self.layout.parameters().index_replicas;
        let mut patience = self.layout.parameters().patience;
        for replica in (1..replicas).chain([0]) {
            loop {
                phase.batch.clear();
                let cas = self.post_cas(phase, slot, replica, words);
                self.go(phase).await?;
                if phase.batch.found(cas)? == words[0] {
                    break;
                }
                self.count(|counts| counts.polls += 1);
                if replica == 1 || replicas == 1 {
                    return Ok(PublishedWriteOutcome::Again);
                }
                patience = patience.checked_sub(1).ok_or(BaselineError::Stuck)?;
            }
        }
        Ok(PublishedWriteOutcome::Won { replaced: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_name_the_last_writer_as_the_paper_prints_them() {
        let lost = PublishedRuleVerdict::Lost { by_rule_3: false };
        for (list, own, verdict) in [
            (&[][..], 5, PublishedRuleVerdict::Rule1),
            (&[5], 5, PublishedRuleVerdict::Rule1),
            (&[4], 5, lost),
            (&[5, 5], 5, PublishedRuleVerdict::Rule1),
            (&[4, 5], 5, PublishedRuleVerdict::Lost { by_rule_3: true }),
            (&[4, 5], 4, PublishedRuleVerdict::Rule3),
            (&[4, 5], 6, lost),
            (&[4, 5, 5], 5, PublishedRuleVerdict::Rule2),
            (&[4, 5, 5], 4, lost),
            (&[4, 5, 6], 4, PublishedRuleVerdict::Rule3),
            // Two of four backups are not more than half.
            (&[4, 5, 5, 6], 5, PublishedRuleVerdict::Lost { by_rule_3: true }),
        ] {
            assert_eq!(evaluate(list, own), verdict, "{own} of {list:?}");
        }
    }
}
