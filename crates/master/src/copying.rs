//! The bulk verbs of a change: settles the subtables in its scope, copies to joining replicas.

use fusee_core::repair::{RepairError, Settled, settle_subtable};
use fusee_core::verbs::{Batch, Fabric, MnId};
use fusee_core::view::{Place, View};

/// Bytes of one READ and one WRITE.
const CHUNK_BYTES: u64 = 1 << 20;
/// Stands for the lost primary of a subtable; no memory node has this name.
const LOST: MnId = MnId(u16::MAX);

/// Does what the change of a view that is *transforming* asks for.
pub async fn transform<F: Fabric>(fabric: &F, view: &View) -> Result<Settled, RepairError> {
    let mut total = Settled::default();
    let Some(change) = &view.change else { return Ok(total) };
    let mut before = view.clone();
    for subtable in change.subtables.iter().filter(|subtable| subtable.headless) {
        let places = &mut before.subtables[subtable.subtable as usize].places;
        places.insert(0, Place { node: LOST, offset: 0 });
    }
    for subtable in &change.subtables {
        let settled = settle_subtable(fabric, &before, subtable.subtable, &[LOST]).await?;
        total.slots_changed += settled.slots_changed;
        if let Some(joining) = subtable.joining {
            let from = view.subtables[subtable.subtable as usize].places[0];
            copy(fabric, from, joining, view.geometry.subtable_bytes()).await?;
        }
    }
    for region in &change.regions {
        let from = view.regions[region.region as usize].places[0];
        copy(fabric, from, region.joining, view.geometry.region_bytes).await?;
    }
    Ok(total)
}

async fn copy<F: Fabric>(
    fabric: &F,
    from: Place,
    to: Place,
    bytes: u64,
) -> Result<(), RepairError> {
    let mut batch = Batch::new();
    let mut at = 0;
    while at < bytes {
        let count = CHUNK_BYTES.min(bytes - at);
        batch.clear();
        let read = batch.read(from.node, from.offset + at, count as u32);
        batch = fabric.execute(batch).await;
        let span = batch.data_span(read)?;
        batch.next_phase();
        batch.write(to.node, to.offset + at, span);
        batch = fabric.execute(batch).await;
        batch.check()?;
        at += count;
    }
    Ok(())
}
