//! Why memory ran out, for a person.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use device::{Moment, StreamId, Stuck};

use crate::order::Asker;
use crate::{BlockState, MemoryStats, Snapshot};

/// Says by reason where the memory is.
pub(crate) fn report(
    stats: &MemoryStats,
    snapshot: &Snapshot,
    needed_bytes: usize,
    refusal: &str,
    asker: &impl Asker,
) -> Box<str> {
    let reached = |moment| asker.reached(moment);
    let mut text = format!(
        "  {refusal}\n  reserved {}: live {} in {} buffers, pending {}, cached {}\n  \
         a block of {} is needed; the largest free one is {}, fragmentation {:.2}\n",
        size(stats.reserved_bytes),
        size(stats.allocated_bytes),
        stats.live_blocks,
        size(stats.pending_bytes),
        size(stats.cached_bytes),
        size(needed_bytes),
        size(stats.largest_free_bytes),
        stats.fragmentation()
    );
    let (mut pinned, mut whole) = (0, 0);
    let mut unfinished: BTreeMap<StreamId, (usize, Option<Stuck>)> = BTreeMap::new();
    for segment in &snapshot.segments {
        let free = segment.blocks.iter().filter(|block| block.state != BlockState::Live);
        let bytes: usize = free.clone().map(|block| block.bytes).sum();
        if bytes == segment.bytes {
            whole += bytes
        } else {
            pinned += bytes
        }
        for block in free {
            for used in block.uses.iter().filter(|&&used| !reached(used)) {
                let (bytes, stuck) = unfinished.entry(used.stream).or_default();
                *bytes += block.bytes;
                *stuck = stuck.take().or_else(|| asker.stuck(*used));
            }
        }
    }
    let private: usize = snapshot.segments.iter().filter(|s| s.pool.is_some()).map(|s| s.bytes).sum();
    // Writing to a string cannot fail.
    if private > 0 {
        let _ = writeln!(text, "  private pools have {}", size(private));
    }
    let _ = write!(text, "  free beside live buffers {}, in whole segments {}", size(pinned), size(whole));
    for (stream, (bytes, stuck)) in unfinished {
        let _ = write!(text, "\n  stream {stream} has not finished with {}", size(bytes));
        if largest_after(snapshot, stream, &reached) >= needed_bytes {
            let _ = write!(text, "; the request would fit after it has");
        }
        if let Some(stuck) = stuck {
            let _ = write!(text, "; the host does not wait for it: {stuck}");
        }
    }
    text.into()
}

/// The largest range that could be had, a whole segment given back included, once `stream` has finished.
fn largest_after(snapshot: &Snapshot, stream: StreamId, reached: &impl Fn(Moment) -> bool) -> usize {
    let free_bytes = |segment: &crate::SegmentSnapshot| {
        let finished = segment.blocks.iter().all(|block| {
            block.state != BlockState::Live
                && block.uses.iter().all(|&used| used.stream == stream || reached(used))
        });
        if finished { segment.bytes } else { 0 }
    };
    snapshot.segments.iter().map(free_bytes).sum()
}

/// A size for a person.
pub(crate) fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}
