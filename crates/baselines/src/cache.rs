//! A session's knowledge of keys. Sessions share the entries that they learn from each other; entries that a session
//! finds itself are its own. Therefore many sessions that know all keys take little more memory than one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;

pub(crate) struct BaselineCache<K, V> {
    shared: RefCell<Rc<HashMap<K, V>>>,
    /// Entries that this session has found itself. They take precedence over the entries in `shared`.
    own: RefCell<HashMap<K, V>>,
}

impl<K, V> Default for BaselineCache<K, V> {
    fn default() -> BaselineCache<K, V> {
        BaselineCache { shared: RefCell::default(), own: RefCell::default() }
    }
}

impl<K: Copy + Eq + Hash, V: Copy> BaselineCache<K, V> {
    pub fn get(&self, key: K) -> Option<V> {
        let own = self.own.borrow().get(&key).copied();
        own.or_else(|| self.shared.borrow().get(&key).copied())
    }

    pub fn put(&self, key: K, value: V) {
        self.own.borrow_mut().insert(key, value);
    }

    /// Copies the other cache's entries for keys that this cache does not have.
    pub fn learn_from(&self, other: &BaselineCache<K, V>) {
        let theirs = other.share();
        let before = self.shared.replace(theirs.clone());
        if !Rc::ptr_eq(&before, &theirs) {
            let mut own = self.own.borrow_mut();
            for (key, value) in before.iter() {
                own.entry(*key).or_insert(*value);
            }
        }
    }

    /// Moves all entries to the shared map and returns that.
    fn share(&self) -> Rc<HashMap<K, V>> {
        let own = self.own.take();
        let mut shared = self.shared.borrow_mut();
        if !own.is_empty() {
            Rc::make_mut(&mut shared).extend(own);
        }
        shared.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learned_stays_behind_what_is_known() {
        let first = BaselineCache::default();
        let second = BaselineCache::default();
        (1..=3).for_each(|key| first.put(key, 10));
        second.put(1, 20);
        second.learn_from(&first);
        assert_eq!([1, 2, 3, 4].map(|key| second.get(key)), [Some(20), Some(10), Some(10), None]);
        // Neither cache sees the entries that the other one adds after `learn_from`.
        first.put(2, 11);
        second.put(3, 21);
        assert_eq!([first.get(2), first.get(3)], [Some(11), Some(10)]);
        assert_eq!([second.get(2), second.get(3)], [Some(10), Some(21)]);
    }

    #[test]
    fn nothing_is_forgotten_by_learning_more() {
        let caches: [BaselineCache<u32, u32>; 3] = Default::default();
        caches[0].put(1, 10);
        caches[1].put(2, 20);
        caches[2].learn_from(&caches[0]);
        caches[2].learn_from(&caches[1]);
        assert_eq!([caches[2].get(1), caches[2].get(2)], [Some(10), Some(20)]);
    }
}
