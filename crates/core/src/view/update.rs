//! Transfer of views: whole, or as the difference to another view.
//!
//! A change of the view takes four views, and every client process gets each of them. Two consecutive views differ
//! little, whatever the size of the index. So the master sends the *difference* from the view that the process has, if
//! the master still keeps that view.
//!
//! | part | form in a difference |
//! |---|---|
//! | regions, subtables | those that are new or changed, by number, ascending; none is ever removed |
//! | directory | its depth: a doubling writes each entry twice; then runs of entries that lead elsewhere |
//! | members | all of them, if any has changed |
//! | change | whole |
//!
//! A difference comes from another process. [`ViewDifference::apply`] never panics, and takes no more memory than the
//! resulting view, whose directory is bounded like that of any view. It checks only that the difference *fits* the
//! older view; [`View::check`] then decides whether the result is a valid view, as it does for a whole view from
//! elsewhere.

use alloc::boxed::Box;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::change::ViewChange;
use super::{MAX_DEPTH, Member, Subtable, View, ViewError};
use crate::data::Region;
use crate::verbs::ClusterId;

/// A newer view, as it is sent to a process that has an older one, or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ViewUpdate {
    /// The whole view.
    Whole(Box<View>),
    /// The difference from the older view.
    Difference(ViewDifference),
}

/// The difference between two views.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewDifference {
    /// The cluster of both views.
    pub cluster: ClusterId,
    /// The number of the older view.
    pub from: u64,
    /// The number of the newer view.
    pub to: u64,
    /// All members of the newer view, if any member has changed.
    pub members: Option<Vec<Member>>,
    /// The regions that are new or changed in the newer view, by number.
    pub regions: Vec<(u32, Region)>,
    /// The subtables that are new or changed in the newer view, by number.
    pub subtables: Vec<(u32, Subtable)>,
    /// The number of directory bits in the newer view.
    pub depth: u8,
    /// The changed directory entries, in the order of the directory.
    pub runs: Vec<DirectoryRun>,
    /// The change under way in the newer view.
    pub change: Option<ViewChange>,
}

/// Adjacent directory entries that lead to one subtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryRun {
    /// The index of the first entry.
    pub first: u32,
    /// The number of adjacent entries.
    pub count: u32,
    /// The subtable that the entries lead to in the newer view.
    pub subtable: u32,
}

impl ViewUpdate {
    /// Returns the update to `view` for a process that has the view `from`. The update is the whole view if `from` is
    /// unknown, or if no difference leads from `from` to `view`.
    pub fn to(view: &View, from: Option<&View>) -> ViewUpdate {
        let difference = from.and_then(|from| ViewDifference::between(from, view));
        difference.map_or_else(|| view.clone().into(), ViewUpdate::Difference)
    }

    /// The number of the newer view.
    pub fn number(&self) -> u64 {
        match self {
            ViewUpdate::Whole(view) => view.number,
            ViewUpdate::Difference(difference) => difference.to,
        }
    }

    /// Returns the newer view, for a process that has the older one. The caller has to check the result.
    pub fn apply(self, from: &View) -> Result<View, ViewError> {
        match self {
            ViewUpdate::Whole(view) => Ok(*view),
            ViewUpdate::Difference(difference) => difference.apply(from),
        }
    }
}

impl From<View> for ViewUpdate {
    fn from(view: View) -> ViewUpdate {
        ViewUpdate::Whole(Box::new(view))
    }
}

impl ViewDifference {
    /// Returns the difference between two views; `None` if no difference can express it. In valid views of one cluster,
    /// regions and subtables are never removed, and the directory never shrinks.
    pub fn between(from: &View, to: &View) -> Option<ViewDifference> {
        let grows = to.number > from.number
            && to.regions.len() >= from.regions.len()
            && to.subtables.len() >= from.subtables.len()
            && to.directory.len() >= from.directory.len()
            && to.directory.len().is_power_of_two()
            && from.directory.len().is_power_of_two();
        let is_one =
            (from.cluster, from.hash_key, from.geometry) == (to.cluster, to.hash_key, to.geometry);
        if !grows || !is_one {
            return None;
        }
        Some(ViewDifference {
            cluster: to.cluster,
            from: from.number,
            to: to.number,
            members: (from.members != to.members).then(|| to.members.clone()),
            regions: changed(&from.regions, &to.regions),
            subtables: changed(&from.subtables, &to.subtables),
            depth: u8::try_from(to.depth()).ok()?,
            runs: runs(from, to),
            change: to.change.clone(),
        })
    }

    /// Returns the newer view, or an error if the difference does not start from this view or does not fit it.
    pub fn apply(self, from: &View) -> Result<View, ViewError> {
        let fail = |what| Err(ViewError { what });
        if self.cluster != from.cluster || self.from != from.number || self.to <= self.from {
            return fail("it is a difference to another view");
        }
        let mut directory = doubled(&from.directory, self.depth.into())?;
        let mut end = 0;
        for DirectoryRun { first, count, subtable } in self.runs {
            let first = first as usize;
            let count = count as usize;
            let entries = directory.get_mut(first..).and_then(|rest| rest.get_mut(..count));
            let Some(entries) = entries.filter(|_| first >= end) else {
                return fail("a run is not in the directory, or behind the next one");
            };
            entries.fill(subtable);
            end = first + count;
        }
        Ok(View {
            number: self.to,
            cluster: from.cluster,
            hash_key: from.hash_key,
            geometry: from.geometry,
            members: self.members.unwrap_or_else(|| from.members.clone()),
            regions: with(&from.regions, self.regions)?,
            directory,
            subtables: with(&from.subtables, self.subtables)?,
            change: self.change,
        })
    }
}

/// Returns the items of the newer list that are new or changed, with their numbers.
fn changed<T: Clone + PartialEq>(from: &[T], to: &[T]) -> Vec<(u32, T)> {
    let all = (0u32..).zip(to);
    let other = all.filter(|(number, item)| from.get(*number as usize) != Some(*item));
    other.map(|(number, item)| (number, item.clone())).collect()
}

/// Returns the list in which these items are replaced or appended.
fn with<T: Clone>(from: &[T], changed: Vec<(u32, T)>) -> Result<Vec<T>, ViewError> {
    let mut list = from.to_vec();
    for (number, item) in changed {
        let number = number as usize;
        match list.len() {
            len if number < len => list[number] = item,
            len if number == len => list.push(item),
            _ => return Err(ViewError { what: "a region or a subtable is left out" }),
        }
    }
    Ok(list)
}

/// Returns the directory with `depth` bits, in which the entries of the smaller directory are repeated.
fn doubled(directory: &[u32], depth: u32) -> Result<Vec<u32>, ViewError> {
    let is_good = directory.len().is_power_of_two()
        && depth <= MAX_DEPTH
        && depth >= directory.len().trailing_zeros();
    if !is_good {
        return Err(ViewError { what: "the directory cannot have so many bits" });
    }
    let times = (1usize << depth) / directory.len();
    let mut doubled = Vec::with_capacity(1 << depth);
    directory.iter().for_each(|entry| doubled.extend(core::iter::repeat_n(*entry, times)));
    Ok(doubled)
}

/// Returns runs of the entries in which `to`'s directory differs from `from`'s, which is doubled to the same length.
fn runs(from: &View, to: &View) -> Vec<DirectoryRun> {
    let times = to.directory.len() / from.directory.len();
    let mut runs: Vec<DirectoryRun> = Vec::new();
    for (i, subtable) in (0u32..).zip(&to.directory) {
        if from.directory[i as usize / times] == *subtable {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.first + run.count == i && run.subtable == *subtable => run.count += 1,
            _ => runs.push(DirectoryRun { first: i, count: 1, subtable: *subtable }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::race::HashKey;
    use crate::verbs::MnId;
    use crate::view::change::NewReplica;
    use crate::view::{Geometry, PoolPlace};

    /// Returns the views of a cluster whose index is split again and again, and which loses a memory node and gets a
    /// new one.
    fn history() -> Vec<View> {
        let mut view = crate::view::tests::small();
        view.members.iter_mut().for_each(|member| member.pool_bytes = 64 << 20);
        let mut offset = 8 << 20;
        let mut place = |node| {
            offset += 1 << 16;
            PoolPlace { node: MnId(node), offset }
        };
        let mut views = Vec::from([view.clone()]);
        for round in 0..5u32 {
            let splits = [round, round + 1].map(|s| (s, Vec::from([place(0), place(1)])));
            let next = match round {
                2 => views.last().unwrap().without(&[MnId(1)]).unwrap(),
                3 => {
                    let mut grown = views
                        .last()
                        .unwrap()
                        .growing(&[NewReplica { of: 1, joining: place(5), leaving: None }], &[]);
                    let member = Member { node: MnId(5), ..grown.members[0].clone() };
                    grown.members.push(member);
                    grown
                }
                4 => views.last().unwrap().splitting(&[(5, Vec::from([place(0)]))]),
                _ => views.last().unwrap().splitting(&splits),
            };
            views.push(next);
            while views.last().unwrap().change.is_some() {
                views.push(views.last().unwrap().advanced());
            }
        }
        views.iter().for_each(|view| view.check().unwrap());
        views
    }

    #[test]
    fn differences_between_any_two_views_lead_from_the_one_to_the_other() {
        let views = history();
        assert!(views.len() > 16 && views.last().unwrap().depth() > views[0].depth() + 1);
        for (i, from) in views.iter().enumerate() {
            for to in &views[i + 1..] {
                let difference = ViewDifference::between(from, to).unwrap();
                assert_eq!(difference.apply(from).as_ref(), Ok(to));
                let update = ViewUpdate::to(to, Some(from));
                assert!(matches!(update, ViewUpdate::Difference(_)));
                assert_eq!((update.number(), update.apply(from).as_ref()), (to.number, Ok(to)));
            }
            assert_eq!(ViewDifference::between(from, &views[0]), None, "only forward");
        }
        let whole = ViewUpdate::to(&views[3], None);
        assert_eq!(whole.apply(&views[0]).as_ref(), Ok(&views[3]));
    }

    #[test]
    fn the_difference_of_a_split_does_not_grow_with_the_index() {
        let small = crate::view::tests::small();
        let subtables: Vec<Subtable> = (0..1024)
            .map(|i| [0, 1].map(|n| PoolPlace { node: MnId(n), offset: i << 16 }))
            .map(|replicas| Subtable::new(10, Vec::from(replicas)))
            .collect();
        let mut from = View { subtables, directory: (0..1024).collect(), ..small };
        from.regions.clear();
        from.members.iter_mut().for_each(|member| member.pool_bytes = 1 << 30);
        let sibling = Vec::from([PoolPlace { node: MnId(0), offset: 1 << 28 }]);
        from.check().unwrap();
        for depth in [11, 11] {
            let view = from.splitting(&[(depth * 7, sibling.clone())]);
            let switched = view.advanced().advanced();
            assert_eq!(switched.depth(), depth);
            let difference = ViewDifference::between(&view, &switched).unwrap();
            assert_eq!((difference.subtables.len(), difference.runs.len()), (2, 1));
            assert_eq!((difference.regions.len(), &difference.members), (0, &None));
            from.directory = doubled(&from.directory, 11).unwrap();
        }
    }

    /// A difference can come from a faulty master, so [`ViewDifference::apply`] refuses one that does not fit.
    #[test]
    fn differences_that_do_not_fit_are_refused() {
        let views = history();
        let from = &views[0];
        let to = &views[3];
        let refused = |what: &str, change: &dyn Fn(&mut ViewDifference)| {
            let mut difference = ViewDifference::between(from, to).unwrap();
            change(&mut difference);
            let error = difference.apply(from).unwrap_err();
            assert!(error.what.contains(what), "{what}: {error}");
        };
        refused("another view", &|d| d.cluster = ClusterId::from_word(9).unwrap());
        refused("another view", &|d| d.from += 1);
        refused("another view", &|d| d.to = d.from);
        refused("so many bits", &|d| d.depth = 0);
        refused("so many bits", &|d| d.depth = 25);
        refused("so many bits", &|d| d.depth = u8::MAX);
        refused("not in the directory", &|d| d.runs[0].count = u32::MAX);
        refused("not in the directory", &|d| d.runs[0].first = u32::MAX);
        refused("not in the directory", &|d| d.runs.push(d.runs[0]));
        refused("left out", &|d| d.subtables.last_mut().unwrap().0 = u32::MAX);
        refused("left out", &|d| {
            d.regions.push((2 + 1, Region::replicated(Vec::new(), 1)));
        });
        // A difference that fits the older view can still make an invalid view, which [`View::check`] refuses.
        let mut difference = ViewDifference::between(from, to).unwrap();
        difference.runs[0].subtable = u32::MAX;
        assert!(difference.apply(from).unwrap().check().is_err());
        // No difference leads from or to an invalid view, or between views of two clusters.
        let other = View { geometry: Geometry::default(), ..to.clone() };
        assert_eq!(ViewDifference::between(from, &other), None);
        let other = View { hash_key: HashKey::new([8; 16]), ..to.clone() };
        assert_eq!(ViewDifference::between(from, &other), None);
        let broken = View { directory: Vec::new(), ..from.clone() };
        assert_eq!(ViewDifference::between(&broken, to), None);
        assert!(ViewDifference::between(from, to).unwrap().apply(&broken).is_err());
    }
}
