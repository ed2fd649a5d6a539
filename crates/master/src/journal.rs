//! The newest events of the cluster, for operators, kept in the store.
//!
//! Events are stored in a fixed number of pages, which are overwritten in turn. So the number of records is limited,
//! and an event costs the write of one record of a few kilobytes. Pages are written together with the other records of
//! a decision, and never cause a write of their own. So clients cannot make the master write by causing events, and a
//! full store does not stop a master that has nothing else to record. Events since the last write are lost with the
//! process.

// Promise API-19

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use fusee_control::events::{ClusterEvent, Level, MAX_TEXT_BYTES, MAX_TOLD, Topic};

use crate::record::{MasterRecord, RecordWrite};

/// The limit on the number of events in one page of the journal.
const PER_PAGE: u64 = 16;
/// The number of pages. The page that is being filled holds fewer events, so at least `(PAGES - 1) * PER_PAGE` are
/// kept.
const PAGES: u64 = 33;

/// The newest events of the cluster, in pages.
#[derive(Debug)]
pub struct EventJournal {
    /// The pages of events. In each page, the oldest event is the first.
    pages: Vec<Vec<ClusterEvent>>,
    /// The numbers of the pages that differ from the pages in the store.
    changed: BTreeSet<u64>,
    newest: u64,
}

impl Default for EventJournal {
    fn default() -> EventJournal {
        let pages = (0..PAGES).map(|_| Vec::new()).collect();
        EventJournal { pages, changed: BTreeSet::new(), newest: 0 }
    }
}

impl EventJournal {
    /// Removes the events from a store's records, and returns their journal.
    pub fn restore(records: &mut Vec<MasterRecord>) -> EventJournal {
        let mut journal = EventJournal::default();
        for record in records.extract_if(.., |record| matches!(record, MasterRecord::Events { .. }))
        {
            if let MasterRecord::Events { page, events } = record
                && let Some(kept) = journal.pages.get_mut(page as usize)
            {
                journal.newest =
                    events.iter().map(|event| event.serial).fold(journal.newest, u64::max);
                *kept = events;
            }
        }
        journal
    }

    /// Adds an event that has just happened.
    pub fn add(&mut self, level: Level, topic: Topic, text: &str) {
        self.newest += 1;
        let serial = self.newest;
        let number = serial / PER_PAGE % PAGES;
        let page = &mut self.pages[number as usize];
        // Events that the page got in the previous pass through all pages are dropped.
        page.retain(|event| event.serial / PER_PAGE == serial / PER_PAGE);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let text = text[..text.floor_char_boundary(MAX_TEXT_BYTES)].to_owned();
        page.push(ClusterEvent { serial, at_ms: now.as_millis() as u64, level, topic, text });
        self.changed.insert(number);
    }

    /// Returns the changed pages, to be written to the store.
    pub fn writes(&mut self) -> Vec<RecordWrite> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        let page =
            |page: u64| MasterRecord::Events { page, events: self.pages[page as usize].clone() };
        changed.map(|number| RecordWrite::Put(page(number))).collect()
    }

    /// Forgets the events of a destroyed cluster, which were removed from the store together with the cluster. Serial
    /// numbers continue.
    pub fn clear(&mut self) {
        *self = EventJournal { newest: self.newest, ..EventJournal::default() };
    }

    /// Returns the events after this serial number, up to the limit of one answer, and the newest serial number.
    pub fn after(&self, serial: u64) -> (Vec<ClusterEvent>, u64) {
        let later = self.pages.iter().flatten().filter(|event| event.serial > serial);
        let mut later: Vec<&ClusterEvent> = later.collect();
        later.sort_by_key(|event| event.serial);
        (later.into_iter().take(MAX_TOLD).cloned().collect(), self.newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(
        journal: &mut EventJournal,
        store: &mut std::collections::BTreeMap<String, MasterRecord>,
    ) {
        for write in journal.writes() {
            let key = write.key();
            let RecordWrite::Put(record) = write else { panic!("nothing is removed") };
            store.insert(key, record);
        }
    }

    #[test]
    fn a_store_has_the_newest_events_and_not_more() {
        let mut journal = EventJournal::default();
        let mut store = std::collections::BTreeMap::new();
        for n in 1..=2_000 {
            journal.add(Level::Info, Topic::View, &format!("view {n}"));
            if n % 7 == 0 {
                stored(&mut journal, &mut store);
            }
        }
        stored(&mut journal, &mut store);
        let mut records: Vec<MasterRecord> = store.into_values().collect();
        records.push(MasterRecord::Attempt(3));
        let restored = EventJournal::restore(&mut records);
        assert_eq!(records, [MasterRecord::Attempt(3)]);
        let (events, newest) = restored.after(0);
        assert_eq!((events, newest), journal.after(0));
        let mut known = 0;
        let mut all = Vec::new();
        loop {
            let (events, newest) = restored.after(known);
            assert_eq!(newest, 2_000);
            assert!(events.len() <= MAX_TOLD);
            let Some(last) = events.last() else { break };
            known = last.serial;
            all.extend(events);
        }
        let serials: Vec<u64> = all.iter().map(|event| event.serial).collect();
        let first = serials[0];
        assert!(2_000 - first >= (PAGES - 1) * PER_PAGE - 1, "{first}");
        assert_eq!(serials, (first..=2_000).collect::<Vec<u64>>());
        assert!(all.iter().all(|event| event.text == format!("view {}", event.serial)));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let mut journal = EventJournal::default();
        journal.add(Level::Warn, Topic::Damage, &"é".repeat(400));
        let (events, _) = journal.after(0);
        assert_eq!(events[0].text.len(), MAX_TEXT_BYTES);
    }

    #[test]
    fn the_events_of_a_cluster_go_with_it_and_serials_go_on() {
        let mut journal = EventJournal::default();
        journal.add(Level::Info, Topic::Cluster, "formed");
        journal.clear();
        assert_eq!(journal.after(0), (vec![], 1));
        journal.add(Level::Warn, Topic::Cluster, "destroyed");
        assert_eq!(journal.after(0).0[0].serial, 2);
    }
}
